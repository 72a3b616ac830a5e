"""One connection through the proxy: two pumps that carry frames, and the carrying out of what the rules decide."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto

from kept.verify.proxy.actions import Answer, Delay, Drop, Duplicate, Hold, HoldAndReset, Reset
from kept.verify.proxy.armed import Armed, Held, Table
from kept.verify.proxy.evidence import Did, Evidence
from kept.verify.proxy.frames import Conversation, Direction, Frame, NotUnderstood
from kept.verify.proxy.side import Side


class End(Enum):
    """How one side stopped sending."""

    CLOSED = auto()
    RESET = auto()


@dataclass(frozen=True)
class Place:
    """Where a connection belongs, what decides about its frames, and where that is written down."""

    broker: int
    connection: int
    rules: Table
    evidence: Evidence
    flowing: asyncio.Event

    def note(self, frame: Frame, did: Did) -> None:
        self.evidence.frame(self.broker, self.connection, frame, did)


class Link:
    """A client's connection and its own connection to the server."""

    def __init__(self, place: Place, conversation: Conversation, client: Side, server: Side) -> None:
        self._place = place
        self._conversation = conversation
        self._client = client
        self._server = server
        self._client_ended: End | None = None
        self._held: set[Held] = set()  # requests kept aside: the server's side stays open for them
        self._late: dict[int | None, tuple[Armed, Held]] = {}  # requests released, not yet answered

    async def run(self) -> None:
        """Carry frames until both sides have ended; leaves no socket behind."""
        pumps = [asyncio.ensure_future(self._pump(direction)) for direction in Direction]
        try:
            await asyncio.gather(*pumps)
        except asyncio.CancelledError:
            self.reset()
            raise
        except Exception as error:  # noqa: BLE001 - a fault of the proxy's own must not pass for one it was asked for
            asyncio.get_running_loop().call_exception_handler({"message": "a connection failed", "exception": error})
            self.reset()
        finally:
            for pump in pumps:
                pump.cancel()
            try:
                await asyncio.gather(*pumps, return_exceptions=True)
                await asyncio.gather(self._client.close(), self._server.close())
            finally:  # a cut may come while we wait for the end
                self._client.abort()
                self._server.abort()

    def reset(self) -> None:
        """End both sides hard."""
        self._client.reset()
        self._server.reset()

    async def _pump(self, direction: Direction) -> None:
        source, target = self._ends(direction)
        end = End.CLOSED
        try:
            while data := await source.read():
                for frame in self._conversation.cut(direction, data):
                    await self._place.flowing.wait()
                    if source.open:
                        await self._treat(frame)
            if source.open:
                await target.send(self._conversation.rest(direction))
        except NotUnderstood as problem:
            self._place.evidence.connection(
                self._place.broker, self._place.connection, Did.NOT_UNDERSTOOD, str(problem)
            )
            self.reset()
        except OSError:  # reset, timed out, no route: all the same to whoever is on the other side
            end = End.RESET
        self._ended(direction, end if source.open else End.RESET)

    def _ends(self, direction: Direction) -> tuple[Side, Side]:
        """From where to where."""
        if direction is Direction.REQUEST:
            return self._client, self._server
        return self._server, self._client

    def _ended(self, direction: Direction, end: End) -> None:
        """Pass the end of one side on to the other; a request that is held keeps the server's side open."""
        if direction is Direction.REQUEST:
            self._client_ended = end
            self._settle()
        elif end is End.RESET:
            self.reset()
        else:
            self._client.half_close()

    def _settle(self) -> None:
        """Tell the server of the client's end, once nothing is held and nothing released awaits its answer."""
        if self._client_ended is None or self._held or self._late:
            return
        if self._client_ended is End.RESET:
            self.reset()
        else:
            self._server.half_close()

    async def _treat(self, frame: Frame) -> None:
        """Do with a frame what the first rule that takes it says; an answer that nobody is there for is thrown away."""
        if frame.direction is Direction.RESPONSE and not (frame.wanted and self._client.open):
            self._place.note(frame, Did.DISCARDED)
        else:
            await self._decide(frame)
        if frame.direction is Direction.RESPONSE and (late := self._late.pop(frame.number, None)):
            armed, held = late
            armed.answered(held, frame.data)
            self._settle()

    async def _decide(self, frame: Frame) -> None:
        armed = self._place.rules.taking(frame, self._place.broker)
        if armed is None:
            self._place.note(frame, Did.PASSED)
            await self._forward(frame)
            return
        armed.acted(await self._carry_out(armed, frame))

    async def _carry_out(self, armed: Armed, frame: Frame) -> Held | None:
        match armed.rule.action:
            case Drop():
                self._place.note(frame, Did.DROPPED)
            case Reset():
                self._place.note(frame, Did.DROPPED_AND_RESET)
                self.reset()
            case Delay(seconds):
                self._place.note(frame, Did.DELAYED)
                await asyncio.sleep(seconds)
                await self._forward(frame)
            case Duplicate():
                self._place.note(frame, Did.DUPLICATED)
                await self._forward(frame)
                await self._forward(frame, wanted=False)
            case Answer(made_of):
                self._place.note(frame, Did.ANSWERED)
                await self._client.send(made_of(frame.data))
            case Hold():
                self._place.note(frame, Did.HELD)
                return self._keep(armed, frame)
            case HoldAndReset():
                self._place.note(frame, Did.HELD_AND_RESET)
                held = self._keep(armed, frame)
                self._client.reset()
                return held
        return None

    async def _forward(self, frame: Frame, *, wanted: bool = True) -> bool:
        if frame.direction is Direction.REQUEST:
            self._conversation.forwarded(frame, wanted=wanted)
        return await self._ends(frame.direction)[1].send(frame.data)

    def _keep(self, armed: Armed, frame: Frame) -> Held:
        async def send(held: Held) -> bool:
            self._held.discard(held)
            if not self._ends(frame.direction)[1].open:
                return False
            self._place.note(frame, Did.RELEASED)
            if frame.direction is Direction.REQUEST:
                self._late[frame.number] = armed, held
            return await self._forward(frame)

        held = Held(frame, send)
        if frame.direction is Direction.REQUEST:
            self._held.add(held)
        return held
