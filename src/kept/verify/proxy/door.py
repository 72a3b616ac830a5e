"""One address that clients connect to, and the server it leads to; it can be cut, mended and paused."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator

from kept.errors import PortTaken
from kept.local.ports import HOST
from kept.verify.proxy.armed import Table
from kept.verify.proxy.evidence import Did, Evidence
from kept.verify.proxy.frames import Conversation
from kept.verify.proxy.link import Link, Place
from kept.verify.proxy.side import CHUNK, Side, reset

WAITING = 100  # connections not yet taken


class Door:
    """Listens for the clients of one server; everything here runs in the proxy's loop."""

    def __init__(
        self,
        broker: int,
        port: int,
        upstream: str | None,
        *,
        rules: Table,
        evidence: Evidence,
        conversation: Callable[[], Conversation],
        numbers: Iterator[int],
    ) -> None:
        self.broker = broker
        self.port = port
        self.upstream = upstream
        self._rules = rules
        self._evidence = evidence
        self._conversation = conversation
        self._numbers = numbers
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._listener: socket.socket | None = None
        self._links: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Take connections, always on the same port."""
        if self._listener is not None:
            return
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, self.port))
            listener.listen(WAITING)
        except OSError as error:
            listener.close()
            raise PortTaken(
                f"port {self.port}, the proxy's for server {self.broker}, is taken by another program",
                way_out="stop it, or start the proxy again: it gets another port",
            ) from error
        listener.setblocking(False)
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def cut(self) -> None:
        """Reset every connection and refuse new ones."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    def pause(self) -> None:
        """Let nothing through, in either direction; connections stay, new ones are taken."""
        self._flowing.clear()

    def resume(self) -> None:
        """Let through again, what waited first."""
        self._flowing.set()

    def _accept(self, listener: socket.socket) -> None:
        """Take one connection, together with the task that ends it: asyncio's own server may lose it in a cut."""
        try:
            arrived, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # it went away again
        task = asyncio.get_running_loop().create_task(self._arrived(arrived))
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        task.add_done_callback(lambda _: reset(arrived))  # also when it was cancelled before its first step

    async def _arrived(self, arrived: socket.socket) -> None:
        place = Place(self.broker, next(self._numbers), self._rules, self._evidence, self._flowing)
        client = Side(*await asyncio.open_connection(sock=arrived, limit=CHUNK))
        try:
            await self._serve(place, client)
        finally:
            client.reset()
            await client.close()
            self._evidence.connection(self.broker, place.connection, Did.CLOSED)

    async def _serve(self, place: Place, client: Side) -> None:
        server = await self._dial()
        if server is None:
            self._evidence.connection(self.broker, place.connection, Did.NOT_REACHED, self.upstream or "")
            return
        self._evidence.connection(self.broker, place.connection, Did.OPENED)
        await Link(place, self._conversation(), client, server).run()

    async def _dial(self) -> Side | None:
        """A connection to the server, for one client; None when nobody listens there."""
        if self.upstream is None:
            return None
        host, _, port = self.upstream.rpartition(":")
        try:
            return Side(*await asyncio.open_connection(host, int(port), limit=CHUNK))
        except OSError:
            return None
