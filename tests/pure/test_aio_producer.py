"""The producer for asyncio where no broker answers: whoever awaits a record is told in the end; the loop goes on."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest

import kept
from kept.errors import FixConfiguration, NotPersisted, OutcomeUnknown

NOBODY = "127.0.0.1:1"
AT_ONCE = 10.0
"""Seconds, on a machine that is busy: what blocks waits for a minute."""


def guarantees() -> list[kept.Guarantee]:
    return [kept.AtMostOnce(), kept.AtLeastOnce(), kept.ExactlyOnce(f"aio-{uuid.uuid4().hex[:8]}")]


@pytest.mark.parametrize("guarantee", guarantees())
def test_a_close_that_raises_leaves_nobody_waiting(guarantee: kept.Guarantee) -> None:
    async def main() -> None:
        producer = kept.aio.Producer(NOBODY, guarantee)
        delivery = await producer.send("topic", "x")
        waiting = [asyncio.ensure_future(_receipt(delivery)) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(OutcomeUnknown, match="1 records were still under way"):
            await producer.close(0.2)
        for each in waiting:
            with pytest.raises((OutcomeUnknown, NotPersisted)):
                await asyncio.wait_for(each, AT_ONCE)
        with pytest.raises((OutcomeUnknown, NotPersisted)):
            await asyncio.wait_for(_receipt(delivery), AT_ONCE)
        with pytest.raises(FixConfiguration, match="closed"):
            await producer.send("topic", "y")
        await producer.close()

    asyncio.run(main())


def test_a_block_that_raises_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept.Producer, "_let_go", lambda producer, _timeout: producer.flush(0.2))
    waiting: list[asyncio.Future[kept.Receipt]] = []

    async def block() -> None:
        async with kept.aio.Producer(NOBODY, kept.AtLeastOnce()) as producer:
            waiting.append(asyncio.ensure_future(_receipt(await producer.send("topic", "x"))))
            await asyncio.sleep(0.05)
            raise ZeroDivisionError

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await block()
        with pytest.raises(OutcomeUnknown, match="when its producer was closed"):
            await asyncio.wait_for(waiting[0], AT_ONCE)

    asyncio.run(main())


def test_one_who_is_cancelled_does_not_take_the_others_along() -> None:
    async def main() -> None:
        producer = kept.aio.Producer(NOBODY, kept.AtLeastOnce())
        delivery = await producer.send("topic", "x")
        first, second = (asyncio.ensure_future(_receipt(delivery)) for _ in range(2))
        await asyncio.sleep(0.05)
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        assert not second.done()
        with pytest.raises(OutcomeUnknown):
            await producer.close(0.2)
        with pytest.raises(OutcomeUnknown):
            await asyncio.wait_for(second, AT_ONCE)

    asyncio.run(main())


@pytest.mark.parametrize("guarantee", guarantees())
def test_a_full_buffer_holds_up_who_sends_and_nobody_else(
    guarantee: kept.Guarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kept.producer.joining.MOST_BYTES", 10_000)

    async def fill(producer: kept.aio.Producer) -> None:
        while True:
            await producer.send("topic", b"x" * 1000)

    async def main() -> None:
        producer = kept.aio.Producer(NOBODY, guarantee, **{"queue.buffering.max.messages": 10})
        filling = [asyncio.ensure_future(fill(producer)) for _ in range(3)]
        began = time.monotonic()
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert time.monotonic() - began < AT_ONCE, "the loop was held up"
        assert not any(each.done() for each in filling)
        for each in filling:
            each.cancel()
        await asyncio.wait(filling)
        monkeypatch.setattr(kept.Producer, "room_within", 0.3)
        with pytest.raises(NotPersisted, match="there was no room") as full:
            await fill(producer)
        assert full.value.retriable
        with pytest.raises(OutcomeUnknown):
            await producer.close(0.1)

    asyncio.run(main())


async def _receipt(delivery: kept.aio.Delivery) -> kept.Receipt:
    return await delivery
