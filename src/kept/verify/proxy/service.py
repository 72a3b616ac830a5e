"""The proxy itself, whatever protocol it reads: doors in front of servers, rules, and the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import count
from types import TracebackType
from typing import Any, TypeVar

from kept.errors import FixConfiguration, PortTaken
from kept.local.ports import HOST, choose
from kept.verify.proxy.armed import Armed, Table
from kept.verify.proxy.door import Door
from kept.verify.proxy.evidence import Evidence, Sighting
from kept.verify.proxy.frames import Conversation, Direction, Kind
from kept.verify.proxy.loop_thread import LoopThread
from kept.verify.proxy.rules import Rule

Self = TypeVar("Self", bound="FrameProxy")
TRIES = 5  # a port that was free can be gone a moment later


class FrameProxy:
    """Listens in front of each server, from `with` to its end; a server is named by a number."""

    def __init__(self, upstreams: Mapping[int, str | None], conversation: Callable[[], Conversation]) -> None:
        for upstream in upstreams.values():
            _check_address(upstream)
        self._upstreams = dict(upstreams)
        self._conversation = conversation
        self._rules = Table()
        self._evidence = Evidence()
        self._doors: dict[int, Door] = {}
        self._thread: LoopThread | None = None

    @property
    def addresses(self) -> dict[int, str]:
        """Where clients find each server through the proxy; the same for the proxy's whole life."""
        self._running()
        return {broker: f"{HOST}:{door.port}" for broker, door in self._doors.items()}

    def lead(self, broker: int, upstream: str) -> None:
        """Take new connections for this server there; those that are open stay."""
        _check_address(upstream)
        self._door(broker).upstream = upstream

    def add(self, rule: Rule) -> Armed:
        """Let a rule act from now on."""
        for broker in rule.brokers:
            self._door(broker)
        return self._rules.add(rule)

    def remove(self, armed: Armed) -> None:
        """Let a rule act no more; what it holds stays held until it is released."""
        self._rules.remove(armed)

    def cut(self, *brokers: int) -> None:
        """Reset every connection to these servers (none named: to all) and refuse new ones, until `mend`."""
        for door in self._named(brokers):
            self._running().call(door.cut())

    def mend(self, *brokers: int) -> None:
        """Take connections again, at the same address."""
        for door in self._named(brokers):
            self._running().call(door.open())

    def pause(self, *brokers: int) -> None:
        """Let nothing through to or from these servers (none named: all); connections stay open."""
        for door in self._named(brokers):
            self._running().call(_in_loop(door.pause))

    def resume(self, *brokers: int) -> None:
        """Let through again, what waited first."""
        for door in self._named(brokers):
            self._running().call(_in_loop(door.resume))

    @property
    def log(self) -> tuple[Sighting, ...]:
        """What was seen and done, the oldest first; the latest some thousands."""
        return self._evidence.log()

    def counts(self, direction: Direction = Direction.REQUEST) -> dict[Kind, int]:
        """How many frames of each kind came, since the beginning."""
        return self._evidence.counts(direction)

    def open(self) -> None:
        """Begin to listen; `with` does it."""
        if self._thread is not None:
            raise FixConfiguration("this proxy is open already", way_out="open another one")
        self._thread = LoopThread("kept-proxy")
        try:
            self._thread.call(self._open_doors())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every connection and the thread; an error inside the proxy that nobody saw is raised here."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        try:
            for door in self._doors.values():
                thread.call(door.cut())
        finally:
            thread.stop()
        if thread.unnoticed:
            raise thread.unnoticed[0]

    def __enter__(self: Self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _open_doors(self) -> None:
        numbers = count(1)
        for broker, upstream in self._upstreams.items():
            for attempt in range(TRIES):
                door = Door(
                    broker,
                    _free_port({door.port for door in self._doors.values()}),
                    upstream,
                    rules=self._rules,
                    evidence=self._evidence,
                    conversation=self._conversation,
                    numbers=numbers,
                )
                try:
                    await door.open()
                except PortTaken:
                    if attempt == TRIES - 1:
                        raise
                else:
                    self._doors[broker] = door
                    break

    def _running(self) -> LoopThread:
        if self._thread is None:
            raise FixConfiguration("this proxy is not open", way_out="use it inside `with ... as proxy:`")
        return self._thread

    def _door(self, broker: int) -> Door:
        self._running()
        if broker not in self._doors:
            raise FixConfiguration(
                f"there is no server {broker} behind this proxy", way_out=f"there are {sorted(self._doors)}"
            )
        return self._doors[broker]

    def _named(self, brokers: Iterable[int]) -> list[Door]:
        return [self._door(broker) for broker in brokers] or list(self._doors.values())


def _free_port(avoid: set[int]) -> int:
    """One that Linux does not give to outgoing connections: it must still be free when the proxy is mended."""
    return choose({"proxy": 0}, avoid={0, *avoid})["proxy"]


def _check_address(upstream: str | None) -> None:
    if upstream is not None and not upstream.rpartition(":")[2].isdigit():
        raise FixConfiguration(f"{upstream!r} is no address", way_out="give host:port, as in 127.0.0.1:9092")


def _in_loop(act: Callable[[], None]) -> Coroutine[Any, Any, None]:
    async def acting() -> None:
        act()
        await asyncio.sleep(0)

    return acting()
