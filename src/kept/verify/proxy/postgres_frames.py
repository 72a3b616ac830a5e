"""Postgres' messages as far as needed: the start, statements by their first word, and replies to them by their tag."""

from __future__ import annotations

import struct
from enum import Enum

from kept.verify.proxy.frames import LARGEST, Direction, Frame, NotUnderstood

LENGTH = struct.Struct(">i")
START = struct.Struct(">ii")  # length, code: the first message of a client has no type
ENCRYPTION_ASKED = {80877103, 80877104}  # SSLRequest, GSSENCRequest: answered by one bare byte
REFUSED = b"N"
ERROR_OF_OLD_SERVERS = b"E"


class Command(str, Enum):
    """Statements that a rule may name."""

    BEGIN = "BEGIN"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    SAVEPOINT = "SAVEPOINT"
    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    SELECT = "SELECT"
    COPY = "COPY"

    def __str__(self) -> str:
        return self.value


_NAMED: dict[str, Command] = {command.value: command for command in Command}


class PostgresConversation:
    """One connection of a Postgres client, from its start; stretches that no rule can name stay together."""

    def __init__(self) -> None:
        self._buffers = {direction: bytearray() for direction in Direction}
        self._started = False
        self._answers_bare = 0

    def cut(self, direction: Direction, data: bytes) -> list[Frame]:
        buffer = self._buffers[direction]
        buffer += data
        frames: list[Frame] = []
        start = end = 0
        while size := self._size(direction, buffer, end):
            kind = self._kind(direction, bytes(buffer[end : end + size]))
            if kind is not None and start < end:
                frames.append(Frame(direction, bytes(buffer[start:end])))
                start = end
            end += size
            if kind is not None:
                frames.append(Frame(direction, bytes(buffer[start:end]), kind))
                start = end
        if start < end:
            frames.append(Frame(direction, bytes(buffer[start:end])))
        del buffer[:end]
        return frames

    def rest(self, direction: Direction) -> bytes:
        return bytes(self._buffers[direction])

    def forwarded(self, request: Frame, *, wanted: bool = True) -> None:
        """Postgres' replies name themselves: nothing to remember."""

    def _size(self, direction: Direction, buffer: bytearray, at: int) -> int:
        """The length of the message that begins here; 0 while it is not whole."""
        there = len(buffer) - at
        if direction is Direction.RESPONSE and self._answers_bare and there:
            return self._bare(bytes(buffer[at : at + 1]))
        typed = int(direction is Direction.RESPONSE or self._started)
        if there < typed + LENGTH.size:
            return 0
        size: int = typed + LENGTH.unpack_from(buffer, at + typed)[0]
        if not typed + LENGTH.size <= size <= LARGEST:
            raise NotUnderstood(f"a Postgres message of {size} bytes: this is not Postgres, or it is encrypted")
        return size if there >= size else 0

    def _bare(self, answer: bytes) -> int:
        self._answers_bare -= 1
        if answer != REFUSED:
            raise NotUnderstood(
                f"the server answered {answer!r} to a wish for encryption; connect with sslmode=disable"
            )
        return 1

    def _kind(self, direction: Direction, message: bytes) -> str | None:
        if direction is Direction.RESPONSE:
            return _command(message[5:]) if message[:1] == b"C" else None
        if not self._started:
            (_, code) = START.unpack_from(message) if len(message) >= START.size else (0, 0)
            if code in ENCRYPTION_ASKED:
                self._answers_bare += 1
            else:
                self._started = True
            return None
        if message[:1] == b"Q":
            return _first_word(message[5:])
        if message[:1] == b"P":  # Parse: the statement's own name comes first
            return _first_word(message[5:].partition(b"\0")[2])
        return None


def _command(tag: bytes) -> str:
    """CommandComplete's tag without its counts: `INSERT 0 1` is INSERT."""
    text = tag.partition(b"\0")[0].decode(errors="replace").rstrip(" 0123456789")
    return _NAMED.get(text, text)


def _first_word(statement: bytes) -> str | None:
    words = statement[:64].partition(b"\0")[0].decode(errors="replace").replace(";", " ").split(maxsplit=1)
    return _NAMED.get(words[0].upper(), words[0].upper()) if words else None
