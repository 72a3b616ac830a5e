"""One side of a connection: a socket that can be written to with back-pressure, half-closed and reset."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

CHUNK = 256 << 10
FLUSHED_WITHIN = 5.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, zero seconds: closing sends a reset


def reset(connection: socket.socket) -> None:
    """Close it hard: the other end sees `connection reset`. One that is closed stays so."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    connection.close()


class Side:
    """The client's or the server's end, as the proxy's loop sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def open(self) -> bool:
        return not self._writer.is_closing()

    async def read(self) -> bytes:
        """What has arrived, at most a chunk; nothing at the end. Who does not read makes the other side wait."""
        return await self._reader.read(CHUNK)

    async def send(self, data: bytes) -> bool:
        """Write, and wait until the other end has taken most of it. Who reads this side learns that it broke."""
        if not self.open:
            return False
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError:
            return False
        return True

    def half_close(self) -> None:
        """No more will be written; what the other end still says is read."""
        if self.open:
            with suppress(OSError):  # it broke just now
                self._writer.write_eof()

    def reset(self) -> None:
        """End it hard: the other end sees `connection reset`, and what was not yet sent is lost."""
        if self.open:
            with suppress(OSError):
                self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            self._writer.transport.abort()

    async def close(self) -> None:
        """End it, after what was written has left, if it leaves soon; leaves no socket behind."""
        self._writer.close()
        with suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), FLUSHED_WITHIN)
        self.abort()

    def abort(self) -> None:
        """End it now, whatever is left to write; one that has ended stays so."""
        self._writer.transport.abort()
