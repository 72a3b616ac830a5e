"""The handle of a rule at work: wait until it caught something, and let go what it holds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from kept.errors import FixConfiguration, TryAgain
from kept.verify.proxy.actions import Hold, HoldAndReset
from kept.verify.proxy.frames import Frame
from kept.verify.proxy.rules import Count, Rule

WITHIN = 30.0


class Held:
    """One frame kept aside; its connection knows how to send it late."""

    def __init__(self, frame: Frame, send: Callable[[Held], Coroutine[Any, Any, bool]]) -> None:
        self.frame = frame
        self.answer: bytes | None = None
        self._send = send
        self._loop = asyncio.get_running_loop()

    def send(self, within: float) -> bool:
        """Send the very bytes now, from any thread; False when there is nobody left to send them to."""
        return asyncio.run_coroutine_threadsafe(self._send(self), self._loop).result(within)


class Armed:
    """A rule that was added to a proxy."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._count = Count(rule)
        self._caught = 0
        self._held: list[Held] = []
        self._released: list[Held] = []
        self._changed = threading.Condition()

    @property
    def caught(self) -> int:
        """How many frames it has taken."""
        with self._changed:
            return self._caught

    def wait_caught(self, within: float = WITHIN, *, times: int = 1) -> None:
        """Wait until it has taken so many frames."""
        self._wait(lambda: self._caught >= times, f"{self.rule}: {times} times", within)

    def release(self, within: float = WITHIN) -> None:
        """Send what is held, in the order it came, on the connections it came for."""
        if not isinstance(self.rule.action, Hold | HoldAndReset):
            raise FixConfiguration(f"{self.rule} holds nothing", way_out="only Hold and HoldAndReset can be released")
        with self._changed:
            held, self._held = self._held, []
        if not held:
            raise TryAgain(f"{self.rule}: nothing is held", way_out="wait_caught() first")
        for one in held:
            with self._changed:
                self._released.append(one)  # before it is sent: its answer may be quick
            if not one.send(within):
                with self._changed:
                    self._released.remove(one)
                raise TryAgain(
                    f"{self.rule}: the connection of the held frame is closed",
                    way_out="hold another one, for less time",
                )

    def wait_answered(self, within: float = WITHIN) -> list[bytes]:
        """The server's answers to the requests that were released, once all are there."""
        awaited = f"answers to what {self.rule} released"
        self._wait(
            lambda: bool(self._released) and all(one.answer is not None for one in self._released), awaited, within
        )
        return [one.answer for one in self._released if one.answer is not None]

    def takes(self, frame: Frame, broker: int) -> bool:
        """For the proxy: does this rule act on this frame?"""
        return self._count.takes(frame, broker)

    def acted(self, held: Held | None = None) -> None:
        """For the proxy: it did act."""
        with self._changed:
            self._caught += 1
            self._held += [held] if held else []
            self._changed.notify_all()

    def answered(self, held: Held, answer: bytes) -> None:
        """For the proxy: the server answered a request that was released."""
        with self._changed:
            held.answer = answer
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool], awaited: str, within: float) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, within):
                raise TryAgain(
                    f"not within {within:.0f} s: {awaited} (so far: {self._caught})",
                    way_out="wait longer, or look at the proxy's log: did such a frame pass here at all?",
                )


class Table:
    """The rules at work, asked in the order they were added; a frame that one takes, later ones do not see."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: list[Armed] = []

    def add(self, rule: Rule) -> Armed:
        armed = Armed(rule)
        with self._lock:
            self._armed.append(armed)
        return armed

    def remove(self, armed: Armed) -> None:
        """No longer act; what it holds stays held until it is released. Removing twice is no error."""
        with self._lock:
            self._armed = [one for one in self._armed if one is not armed]

    def taking(self, frame: Frame, broker: int) -> Armed | None:
        with self._lock:
            return next((armed for armed in self._armed if armed.takes(frame, broker)), None)
