"""The same words for asyncio: receipts that are awaited, bodies that await, and cancellation that loses nothing."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone

import pytest

import kept
from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.errors import NotPersisted, OutcomeUnknown, TransactionAborted
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


def test_more_than_may_be_under_way_wait_for_room(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kept.aio.producing.MOST_UNDER_WAY", 100)

    async def main() -> None:
        async with kept.aio.Producer(cluster.bootstrap, kept.AtLeastOnce()) as producer:
            for number in range(1000):
                await producer.send(topic, str(number))

    asyncio.run(main())
    assert sorted(numbers(read(cluster, topic))) == list(range(1000))


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


def test_inside_a_transaction_nothing_is_awaited_and_no_room_runs_out(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kept.aio.producing.MOST_UNDER_WAY", 100)

    async def main() -> None:
        async with kept.aio.Producer(cluster.bootstrap, kept.ExactlyOnce(topic)) as producer:
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

    async def until(condition: Callable[[], object], awaited: str) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, f"not within 30 s: {awaited}"
            await asyncio.sleep(0.01)

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
