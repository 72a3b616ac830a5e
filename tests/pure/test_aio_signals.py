"""One signal asks every loop of asyncio for its end; the next does what it did before."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from kept.aio.signals import stopped_by_signals

before: list[int] = []


@pytest.fixture(autouse=True)
def noted() -> Iterator[None]:
    """What a signal did before: it is noted."""

    def note(number: int, _frame: FrameType | None) -> None:
        before.append(number)

    before.clear()
    was = signal.signal(signal.SIGTERM, note)
    yield
    signal.signal(signal.SIGTERM, was)


def test_the_first_signal_is_for_all_whoever_came_and_went() -> None:
    stopped: list[str] = []

    async def consume(name: str, until: asyncio.Event) -> None:
        with stopped_by_signals(lambda: stopped.append(name)):
            await until.wait()

    async def main() -> None:
        gone, stay = asyncio.Event(), asyncio.Event()
        first = asyncio.ensure_future(consume("first", gone))
        await asyncio.sleep(0)
        others = [asyncio.ensure_future(consume(name, stay)) for name in ("second", "third")]
        await asyncio.sleep(0)
        gone.set()
        await first
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)
        assert (stopped, before) == (["second", "third"], [])
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)
        assert (stopped, before) == (["second", "third"], [signal.SIGTERM])
        stay.set()
        await asyncio.gather(*others)

    asyncio.run(main())
    os.kill(os.getpid(), signal.SIGTERM)
    assert before == [signal.SIGTERM, signal.SIGTERM]


def test_outside_the_main_thread_nothing_is_heard() -> None:
    async def main() -> None:
        with stopped_by_signals(lambda: pytest.fail("stopped")):
            await asyncio.sleep(0)

    async def elsewhere() -> None:
        await asyncio.to_thread(asyncio.run, main())

    asyncio.run(elsewhere())
