"""The same words for asyncio: receipts that are awaited, bodies that await, and cancellation that loses nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timezone

import pytest

import kept
from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.consumer.membership import Membership
from kept.errors import FixConfiguration, NotPersisted, OutcomeUnknown, TransactionAborted, TryAgain
from kept.local import Cluster


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


def read(cluster: Cluster, topic: str) -> list[bytes | None]:
    with Reader(cluster.bootstrap, topic, start=Start.BEGINNING) as reader:
        return [record.value for record in reader.to_end()]


def numbers(values: list[bytes | None]) -> list[int]:
    return [int(value or b"-1") for value in values]


def fill(cluster: Cluster, topic: str, count: int) -> None:
    with kept.Producer(cluster.bootstrap, kept.AtLeastOnce()) as producer:
        for number in range(count):
            producer.send(topic, str(number), key="one")


async def until(condition: Callable[[], object], awaited: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"not within 30 s: {awaited}"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("guarantee", [kept.AtLeastOnce(), kept.ExactlyOnce(f"aio-{uuid.uuid4().hex[:8]}")])
def test_receipts_are_awaited(cluster: Cluster, topic: str, guarantee: kept.Guarantee) -> None:
    async def main() -> list[kept.Receipt]:
        async with kept.aio.Producer(cluster.bootstrap, guarantee) as producer:
            handles = [await producer.send(topic, str(number), key="one") for number in range(500)]
            assert not all(handle.done() for handle in handles)
            return [await handle for handle in handles]

    receipts = asyncio.run(main())
    assert [receipt.offset for receipt in receipts] == sorted(receipt.offset for receipt in receipts)
    assert numbers(read(cluster, topic)) == list(range(500))


def test_many_wait_at_once_and_a_refusal_is_raised_where_it_is_awaited(cluster: Cluster, topic: str) -> None:
    async def one(producer: kept.aio.Producer, number: int) -> int:
        return (await (await producer.send(topic, str(number)))).offset

    async def main() -> None:
        async with kept.aio.Producer(cluster.bootstrap, kept.AtLeastOnce()) as producer:
            assert len(await asyncio.gather(*(one(producer, number) for number in range(2000)))) == 2000
            refused = await producer.send(topic, "nowhere", partition=77)
            with pytest.raises(NotPersisted):
                await refused

    asyncio.run(main())
    assert sorted(numbers(read(cluster, topic))) == list(range(2000))


@pytest.mark.parametrize("guarantee", [kept.AtLeastOnce(), kept.ExactlyOnce(f"aio-{uuid.uuid4().hex[:8]}")])
def test_more_than_a_buffer_takes_wait_for_room(
    cluster: Cluster, topic: str, guarantee: kept.Guarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kept.producer.joining.MOST_BYTES", 5_000)

    async def main() -> None:
        async with kept.aio.Producer(cluster.bootstrap, guarantee, **{"queue.buffering.max.messages": 100}) as producer:
            for number in range(1000):
                await producer.send(topic, str(number), key="one")

    asyncio.run(main())
    assert numbers(read(cluster, topic)) == list(range(1000))


def test_a_transaction_is_whole_or_absent(cluster: Cluster, topic: str) -> None:
    async def main() -> None:
        async with kept.aio.Producer(cluster.bootstrap, kept.ExactlyOnce(topic)) as producer:
            async with producer.transaction():
                for number in range(10):
                    await producer.send(topic, str(number))
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send(topic, "never")
                    raise ZeroDivisionError
            with pytest.raises((NotPersisted, TransactionAborted)):
                async with producer.transaction():
                    await producer.send(topic, b"x" * 2_000_000)

    asyncio.run(main())
    assert sorted(numbers(read(cluster, topic))) == list(range(10))


def test_inside_a_transaction_nothing_is_awaited_and_no_room_runs_out(cluster: Cluster, topic: str) -> None:
    async def main() -> None:
        async with kept.aio.Producer(
            cluster.bootstrap, kept.ExactlyOnce(topic), **{"queue.buffering.max.messages": 100}
        ) as producer:
            async with producer.transaction():
                handles = [await producer.send(topic, str(number)) for number in range(300)]
                for waits in (handles[0], asyncio.gather(*handles)):
                    with pytest.raises(OutcomeUnknown, match="still open"):
                        await waits
            assert len(await asyncio.gather(*handles)) == 300
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    never = await producer.send(topic, "never")
                    await producer.flush()
                    raise ZeroDivisionError
            with pytest.raises(TransactionAborted):
                await never

    asyncio.run(main())
    assert sorted(numbers(read(cluster, topic))) == list(range(300))


def test_a_transaction_that_was_cancelled_while_it_opened_is_rolled_back(cluster: Cluster, topic: str) -> None:
    async def main() -> None:
        async with kept.aio.Producer(cluster.bootstrap, kept.ExactlyOnce(topic)) as producer:
            entering = asyncio.create_task(producer.transaction().__aenter__())
            await asyncio.sleep(0)  # it has begun, and is waiting for the brokers
            entering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await entering
            assert (await (await producer.send(topic, "0"))).topic == topic
            async with producer.transaction():
                await producer.send(topic, "1")

    asyncio.run(main())
    assert sorted(numbers(read(cluster, topic))) == [0, 1]


@pytest.mark.parametrize("guarantee", [kept.AtLeastOnce(), kept.AtMostOnce()])
def test_a_record_is_done_when_the_next_is_asked_for(
    cluster: Cluster, topic: str, group: str, guarantee: kept.Guarantee
) -> None:
    fill(cluster, topic, 50)
    seen: list[int] = []

    async def main(most: int) -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=guarantee) as consumer:
            async for record in consumer:
                await asyncio.sleep(0)
                seen.append(int(record.value or b""))
                if len(seen) == most:
                    consumer.stop()

    asyncio.run(main(20))
    asyncio.run(main(50))
    assert seen == list(range(50))


def test_a_body_that_raises_leaves_its_record_undone(cluster: Cluster, topic: str, group: str) -> None:
    fill(cluster, topic, 10)
    seen: list[int] = []

    async def main() -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=kept.AtLeastOnce()) as consumer:
            async for record in consumer:
                seen.append(int(record.value or b""))
                if seen.count(4) == 1 and seen[-1] == 4:
                    raise ZeroDivisionError
                if seen[-1] == 9:
                    consumer.stop()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    asyncio.run(main())
    assert seen == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9]


def test_cancelling_loses_nothing(cluster: Cluster, topic: str, group: str) -> None:
    fill(cluster, topic, 200)
    seen: list[int] = []

    async def consume() -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=kept.AtLeastOnce()) as consumer:
            async for record in consumer:
                await asyncio.sleep(0.002)
                seen.append(int(record.value or b""))
                if seen[-1] == 199:
                    consumer.stop()

    async def cancelled() -> None:
        task = asyncio.create_task(consume())
        before = len(seen)
        while len(seen) < before + 20 and not task.done():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for _ in range(3):
        asyncio.run(cancelled())
    asyncio.run(consume())
    assert set(seen) == set(range(200))
    assert max(Counter(seen).values()) <= 3, "only the records in hand when it was cancelled came again"


@pytest.mark.parametrize("guarantee", [kept.AtLeastOnce(), kept.AtMostOnce()])
def test_what_arrives_for_nobody_is_read_again(
    cluster: Cluster, topic: str, group: str, guarantee: kept.Guarantee
) -> None:
    """The task is cancelled while it waits; records come then, and only later the consumer is closed."""
    fill(cluster, topic, 10)
    seen: list[int] = []

    async def consume(consumer: kept.aio.Consumer, last: int) -> None:
        async for record in consumer:
            seen.append(int(record.value or b""))
            if seen[-1] == last:
                consumer.stop()

    async def cancelled() -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=guarantee) as consumer:
            task = asyncio.create_task(consume(consumer, -1))
            await until(lambda: len(seen) == 10 and consumer._asked is not None, "the loop asks for more")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(fill, cluster, topic, 20)
            await until(lambda: consumer._asked is not None and consumer._asked.done(), "records for nobody")

    async def again() -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=guarantee) as consumer:
            await consume(consumer, 19)

    asyncio.run(cancelled())
    asyncio.run(again())
    assert seen == [*range(10), *range(20)]


def test_exactly_once_into_kafka_ends_with_its_task(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 100)
    kept.Cluster  # noqa: B018 - the public door opens lazily
    from kept.admin.topics import Topics

    copy = f"{topic}-copy"
    Topics(cluster.bootstrap).create(copy, 3, kept.ExactlyOnce("tests"))

    async def main() -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, guarantee=kept.ExactlyOnce(topic)) as consumer:
            copying = asyncio.create_task(
                consumer.into_kafka(lambda record: kept.Output(copy, record.value, record.key), seconds=0.2)
            )
            async with asyncio.timeout(60) if hasattr(asyncio, "timeout") else _no_limit():
                while len(await asyncio.to_thread(read, cluster, copy)) < 100:
                    await asyncio.sleep(0.2)
            copying.cancel()
            with pytest.raises(asyncio.CancelledError):
                await copying

    asyncio.run(main())
    assert numbers(read(cluster, copy)) == list(range(100))


class _no_limit:  # noqa: N801 - stands where Python 3.10 has no asyncio.timeout
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


def test_batches_are_done_when_the_next_is_asked_for(cluster: Cluster, topic: str, group: str) -> None:
    fill(cluster, topic, 30)
    seen: list[list[int]] = []

    async def main() -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=kept.AtLeastOnce()) as consumer:
            async for batch in consumer.batches(10):
                seen.append([int(record.value or b"") for record in batch])
                if sum(map(len, seen)) == 20:
                    raise ZeroDivisionError
                if seen[-1][-1] == 29:
                    consumer.stop()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    undone = seen[-1]
    asyncio.run(main())
    twice = [number for batch in seen for number in batch]
    assert Counter(twice) == Counter([*range(30), *undone]), "the batch whose body raised, and nothing else"


def test_a_handler_is_awaited_tried_again_and_its_poison_buried(cluster: Cluster, topic: str, group: str) -> None:
    fill(cluster, topic, 10)
    graveyard = f"{topic}-dead"
    Topics(cluster.bootstrap).create(graveyard, 1, kept.AtLeastOnce())
    seen: list[int] = []

    async def main() -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=kept.AtLeastOnce()) as consumer:

            async def handle(record: kept.Record) -> None:
                await asyncio.sleep(0)
                seen.append(int(record.value or b""))
                if seen[-1] == 4:
                    raise ValueError("it cannot be digested")
                if seen[-1] == 9:
                    consumer.stop()

            await consumer.run(handle, retry=kept.Retry(times=1, first=0.01), dead_letters=graveyard)

    asyncio.run(main())
    assert seen == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9]
    assert numbers(read(cluster, graveyard)) == [4]


def test_pause_resume_and_replay_inside_the_loop(cluster: Cluster, topic: str, group: str) -> None:
    fill(cluster, topic, 10)
    seen: list[int] = []

    async def main() -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=kept.AtLeastOnce()) as consumer:

            def go_on() -> None:
                seen.append(-1)
                consumer.resume()

            async for record in consumer:
                seen.append(int(record.value or b""))
                if len(seen) == 3:
                    consumer.pause()
                    asyncio.get_running_loop().call_later(1.0, go_on)
                elif seen.count(5) == 1 and seen[-1] == 5:
                    await consumer.replay({(record.topic, record.partition): 4})
                elif seen.count(9) == 1 and seen[-1] == 9:
                    await consumer.replay(datetime.fromtimestamp(0, timezone.utc))
                elif seen.count(9) == 2:
                    consumer.stop()

    asyncio.run(main())
    assert seen == [0, 1, 2, -1, 3, 4, 5, *range(4, 10), *range(10)]


def number_of(record: kept.Record) -> int:
    return int(record.value or b"")


class Left:
    """Bodies of loops that note what they began with and what they ended, and leave when they meet a number."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.begun: list[int] = []
        self.done: list[int] = []

    async def records(self, consumer: kept.aio.Consumer, leave_at: int, how: str) -> None:
        async for record in consumer:
            if await self._leaves(consumer, [number_of(record)], leave_at, how):
                break

    async def batches(self, consumer: kept.aio.Consumer, leave_at: int, how: str, most: int = 10) -> None:
        async for batch in consumer.batches(most):
            assert len(batch) <= most
            if leave_at >= 0 and isinstance(consumer.guarantee, kept.AtLeastOnce):
                batch.acknowledge(*batch)  # counts only where the body ends
            if await self._leaves(consumer, [number_of(record) for record in batch], leave_at, how):
                break

    async def _leaves(self, consumer: kept.aio.Consumer, found: list[int], leave_at: int, how: str) -> bool:
        self.begun += found
        if leave_at in found:
            if how == "raises":
                raise ZeroDivisionError
            if how == "breaks":
                return True
            await asyncio.sleep(300)  # and is cancelled
        self.done += found
        if self.last in self.done:
            consumer.stop()
        return False


@pytest.mark.parametrize("how", ["raises", "breaks", "is cancelled"])
@pytest.mark.parametrize("by", ["records", "batches"])
@pytest.mark.parametrize("guarantee", [kept.AtLeastOnce(), kept.AtMostOnce()])
def test_a_loop_that_was_left_is_entered_again(
    cluster: Cluster, topic: str, group: str, guarantee: kept.Guarantee, by: str, how: str
) -> None:
    """What was in hand comes again at least once, and never at most once; what was not handed out comes under both."""
    fill(cluster, topic, 60)
    left = Left(59)

    async def leave(consumer: kept.aio.Consumer, leave_at: int) -> None:
        loop = left.records if by == "records" else left.batches
        leaving = asyncio.ensure_future(loop(consumer, leave_at, how))
        if how == "is cancelled":
            await until(lambda: leave_at in left.begun, f"{leave_at} is begun")
            leaving.cancel()
        with pytest.raises((ZeroDivisionError, asyncio.CancelledError)) if how != "breaks" else nullcontext():
            await leaving

    async def main() -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=guarantee) as consumer:
            await leave(consumer, 13)
            await leave(consumer, 37)
            await left.batches(consumer, -1, "stops", most=7)
            await left.records(consumer, -1, "was stopped")

    async def nothing_is_left() -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=guarantee) as consumer:
            loop = asyncio.ensure_future(left.records(consumer, -1, "waits"))
            await until(lambda: consumer.idle_for > 0.5, "nothing comes")
            consumer.stop()
            await loop

    asyncio.run(main())
    asyncio.run(nothing_is_left())
    if isinstance(guarantee, kept.AtMostOnce):
        assert left.begun == list(range(60))
        assert set(left.begun) - set(left.done) >= {13, 37}
    else:
        assert left.done == list(range(60))
        assert Counter(left.begun)[13] == Counter(left.begun)[37] == 2


@pytest.mark.parametrize("guarantee", [kept.AtLeastOnce(), kept.AtMostOnce()])
def test_a_loop_that_was_left_behind_by_another_is_given_nothing_more(
    cluster: Cluster, topic: str, group: str, guarantee: kept.Guarantee
) -> None:
    fill(cluster, topic, 10)
    seen: list[list[int]] = [[], []]
    go_on = asyncio.Event()

    async def first(consumer: kept.aio.Consumer) -> None:
        async for record in consumer:
            seen[0].append(number_of(record))
            if len(seen[0]) == 3:
                await go_on.wait()

    async def second(consumer: kept.aio.Consumer) -> None:
        async for record in consumer:
            seen[1].append(number_of(record))
            if seen[1][-1] == 5:
                go_on.set()
                await asyncio.sleep(0.1)
            elif seen[1][-1] == 9:
                consumer.stop()

    async def main() -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=guarantee) as consumer:
            slow = asyncio.ensure_future(first(consumer))
            await until(lambda: len(seen[0]) == 3, "three are handed out")
            await second(consumer)
            with pytest.raises(FixConfiguration, match="another loop was entered"):
                await slow

    asyncio.run(main())
    again = [2] if isinstance(guarantee, kept.AtLeastOnce) else []
    assert seen == [[0, 1, 2], [*again, *range(3, 10)]]


def test_a_loop_that_an_error_ended_goes_on_when_it_is_entered_again(
    cluster: Cluster, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, topic, 30)
    left = Left(29)
    take = Membership.take

    def fails_once(member: Membership, most: int, wait: float) -> list[kept.Record]:
        records = take(member, most, wait)
        if left.done:
            monkeypatch.setattr(Membership, "take", take)
            raise TryAgain("nobody answers", way_out="enter the loop again")
        return records

    async def main() -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=kept.AtLeastOnce()) as consumer:
            monkeypatch.setattr(Membership, "take", fails_once)
            with pytest.raises(TryAgain):
                await left.batches(consumer, -1, "fails", most=10)
            await left.batches(consumer, -1, "stops", most=10)

    asyncio.run(main())
    assert left.done == list(range(30))


@pytest.mark.parametrize("guarantee", [kept.AtLeastOnce(), kept.AtMostOnce()])
def test_what_arrives_for_nobody_is_given_to_whoever_comes_next(
    cluster: Cluster, topic: str, group: str, guarantee: kept.Guarantee
) -> None:
    """The loop of asyncio that waited is gone; another one handles what came, and then it is not given once more."""
    fill(cluster, topic, 10)
    left = Left(19)
    consumer = kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=guarantee)

    async def waits() -> None:
        task = asyncio.ensure_future(left.records(consumer, -1, "waits"))
        await until(lambda: len(left.done) == 10 and consumer._asked is not None, "the loop asks for more")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def handles() -> None:
        async def handle(record: kept.Record) -> None:
            left.done.append(number_of(record))
            if left.done[-1] == 19:
                consumer.stop()

        await until(lambda: consumer._asked is not None and consumer._asked.done(), "records for nobody")
        await consumer.run(handle)
        await consumer.close()

    async def nothing_is_left() -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=guarantee) as other:
            loop = asyncio.ensure_future(left.records(other, -1, "waits"))
            await until(lambda: other.idle_for > 0.5, "nothing comes")
            other.stop()
            await loop

    asyncio.run(waits())
    fill(cluster, topic, 20)
    asyncio.run(handles())
    asyncio.run(nothing_is_left())
    assert left.done == [*range(10), *range(20)]


def test_a_handler_that_was_cancelled_says_nothing_of_its_record(cluster: Cluster, topic: str, group: str) -> None:
    fill(cluster, topic, 5)
    graveyard = f"{topic}-dead"
    Topics(cluster.bootstrap).create(graveyard, 1, kept.AtLeastOnce())
    left = Left(4)

    async def main() -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=kept.AtLeastOnce()) as consumer:

            async def handle(record: kept.Record) -> None:
                left.begun.append(number_of(record))
                if left.begun == [0, 1, 2]:
                    raise asyncio.CancelledError
                left.done.append(number_of(record))
                if left.done[-1] == 4:
                    consumer.stop()

            await consumer.run(handle, retry=kept.Retry(times=0), dead_letters=graveyard)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    asyncio.run(main())
    assert left.done == list(range(5))
    assert read(cluster, graveyard) == []


def test_a_signal_ends_every_loop_after_the_record_in_hand(cluster: Cluster, topic: str, group: str) -> None:
    fill(cluster, topic, 10)
    left = Left(-1)
    was = signal.getsignal(signal.SIGTERM)

    async def consume(consumer: kept.aio.Consumer) -> None:
        with consumer.stopped_by_signals():
            async for record in consumer:
                left.begun.append(number_of(record))
                await until(lambda: signal.getsignal(signal.SIGTERM) is was, "a signal")
                left.done.append(number_of(record))

    async def handle(record: kept.Record) -> None:
        left.begun.append(number_of(record))
        await until(lambda: signal.getsignal(signal.SIGTERM) is was, "a signal")
        left.done.append(number_of(record))

    async def main() -> None:
        async with (
            kept.aio.Consumer(cluster.bootstrap, topic, group=group, guarantee=kept.AtLeastOnce()) as one,
            kept.aio.Consumer(cluster.bootstrap, topic, group=f"{group}-2", guarantee=kept.AtLeastOnce()) as other,
        ):
            running = [asyncio.ensure_future(consume(one)), asyncio.ensure_future(other.run(handle))]
            await until(lambda: left.begun == [0, 0], "both have a record in hand")
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(asyncio.gather(*running), 30)

    asyncio.run(main())
    assert left.done == [0, 0]


def test_whoever_is_stopped_before_it_has_begun_ends(cluster: Cluster, topic: str) -> None:
    async def main() -> None:
        async with kept.aio.Consumer(cluster.bootstrap, topic, guarantee=kept.ExactlyOnce(topic)) as consumer:
            consumer.stop()
            await asyncio.wait_for(consumer.into_kafka(lambda _record: None), 60)

    asyncio.run(main())
