"""Drivers of a Kafka sink, without Spark: of which sink their progress is, and which of two goes on."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

import kept
from kept.admin.topics import Topics
from kept.consumer import Start
from kept.consumer.asking import ask_offsets
from kept.consumer.sources import Sources
from kept.errors import Fenced, SinkChanged, TryAgain
from kept.guarantees import BATCHES
from kept.local import Cluster
from kept.producer.carrier import make_carrier
from kept.producer.clients import fenced_client
from kept.progress import Batch, BatchRecord, Owner, Progress, Range
from kept.spark import KafkaSink, kafka_batches, kafka_progress
from kept.spark.kafka_batches import LONGEST, KafkaBatches, Means, batch_id_of
from kept.spark.kafka_keeping import KafkaKeeping
from kept.spark.kafka_moves import Moves
from kept.spark.kafka_progress import KafkaProgress, carrier_of
from kept.spark.kafka_records import Shape
from kept.spark.kafka_sink import KafkaDriver
from kept.spark.kafka_staging import read_staged
from kept.spark.kafka_tasks import identified
from kept.spark.kafka_topics import sink_now
from kept.spark.sinks import Assignment, Part
from kept.spark.staging import Staged
from tests.conftest import Eventually
from tests.spark.test_upkeep import Piped, said, told
from tests.spark.things import OutKafka, fill, read_all


@pytest.fixture
def into_a(cluster: Cluster, topic: str, into_kafka: OutKafka) -> Piped:
    """Thirty records, ten in each partition, six of each done."""
    fill(cluster, topic, 30)
    made = Piped(f"to-{topic}", cluster, topic, KafkaSink(cluster.bootstrap, into_kafka.topic))
    made.run_to(6)
    return made


def into(piped: Piped, topic: str | None) -> Piped:
    """The same pipeline by its name and source, with another sink."""
    return replace(piped, sink=KafkaSink(piped.cluster.bootstrap, topic))


def into_b(piped: Piped) -> Piped:
    name = f"another-{piped.topic}"
    Topics(piped.cluster.bootstrap).create(name, 1, kept.ExactlyOnce("tests"))
    return into(piped, name)


def sink_of(piped: Piped) -> str:
    """Which sink it is, as every broker says that was asked."""
    assert isinstance(piped.sink, KafkaSink)
    names = {sink_now(Sources(piped.sink.client), piped.sink.topic) for _ in range(8)}
    return names.pop() if len(names) == 1 else ""


def make_anew(piped: Piped, eventually: Eventually) -> None:
    """The topic that it writes to, deleted and made again."""
    assert isinstance(piped.sink, KafkaSink)
    before, name = sink_of(piped), str(piped.sink.topic)
    admin = AdminClient({"bootstrap.servers": piped.cluster.bootstrap})
    admin.delete_topics([name])[name].result(30)
    eventually(lambda: name not in piped.looking.topics(), "the sink is gone")
    Topics(piped.cluster.bootstrap).create(name, 2, kept.ExactlyOnce("tests"))

    def is_new() -> bool:
        try:
            return sink_of(piped) not in ("", before)
        except kept.KeptError:
            return False

    eventually(is_new, "every broker knows the new one")


def bound_to(piped: Piped) -> set[str | None]:
    """The sinks that its progress is recorded for."""
    assert isinstance(piped.sink, KafkaSink)
    keeping = KafkaKeeping(piped.sink, piped.name)
    try:
        found = keeping.recorded(piped.topic, range(3)).values()
        return {each.owner.sink if isinstance(each, Progress) else "?" for each in found}
    finally:
        keeping.close()


def test_another_sink_under_the_same_name_stops_and_the_first_is_not_disturbed(into_a: Piped) -> None:
    b = into_b(into_a)
    with into_a.driver() as (driver, recorded):
        for other in (b, into(into_a, None)):
            with pytest.raises(SinkChanged) as stopped, other.driver():
                pass
            assert sink_of(into_a) in stopped.value.what
            assert sink_of(other) in stopped.value.what
            assert f"kept pipelines repair {into_a.name}" in stopped.value.way_out
        into_a.reach(driver, recorded, 8)
    assert into_a.positions() == [8, 8, 8]


def test_a_sink_that_was_made_again_stops_a_driver_at_work_and_the_next_one(
    into_a: Piped, eventually: Eventually
) -> None:
    with into_a.driver() as (driver, _):
        make_anew(into_a, eventually)
        with pytest.raises(SinkChanged, match="was deleted and made again"):
            driver.for_tasks()
    with pytest.raises(SinkChanged, match=re.escape(sink_of(into_a))):
        into_a.run_to(7)
    assert "recorded for the sink" in str(into_a.shown(expected=3)[0]["trouble"])
    said("repair", into_a.name, *into_a.options, "--from", "beginning", "--yes")
    assert into_a.positions() == [0, 0, 0]
    into_a.run_to(7)


def test_progress_that_names_no_sink_adopts_the_first_and_no_second(into_a: Piped) -> None:
    assert isinstance(into_a.sink, KafkaSink)
    keeping = KafkaKeeping(into_a.sink, into_a.name)
    was = keeping.recorded(into_a.topic, range(3)).values()
    known = [each for each in was if isinstance(each, Progress)]
    keeping.move([(each, replace(each, owner=replace(each.owner, sink=None))) for each in known], {})
    keeping.close()
    assert bound_to(into_a) == {None}
    into_a.run_to(7)
    assert bound_to(into_a) == {sink_of(into_a)}
    with pytest.raises(SinkChanged):
        into_b(into_a).run_to(8)


def test_a_person_decides_for_another_sink(into_a: Piped) -> None:
    b = into_b(into_a)
    assert isinstance(b.sink, KafkaSink)
    repair = ("repair", into_a.name, *into_a.options)
    assert "nothing is wrong" in told(*repair)
    assert "--from +0 goes on where it stands" in told(*repair, "--into", str(b.sink.topic))
    said(*repair, "--into", str(b.sink.topic), "--from", "+0", "--partition", "0", "--yes")
    said(*repair, "--into", str(b.sink.topic), "--from", "beginning", "--yes")
    assert b.positions() == [6, 0, 0]
    assert bound_to(b) == {sink_of(b)}
    b.run_to(7)
    with pytest.raises(SinkChanged):
        into_a.run_to(8)
    with pytest.raises(kept.FixConfiguration, match="kept topics create nowhere"):
        said(*repair, "--into", "nowhere")


def test_of_two_drivers_whose_claims_cross_one_goes_on(into_a: Piped, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first comes first to partition 0, and the second to all the others."""
    first, second = opened(into_a), opened(into_a)
    parts = [(into_a.topic, number) for number in range(3)]
    done = {(driver, part): threading.Event() for driver in (0, 1) for part in parts}
    whose = {id(driver._progress): number for number, driver in enumerate((first, second))}
    carry_out = Moves.carry_out

    def in_this_order(self: Moves, *steps: Any) -> Progress:
        driver, part = whose[id(self._progress)], self._part
        if (part[1] == 0) == (driver == 1):
            assert done[1 - driver, part].wait(30)
        try:
            return carry_out(self, *steps)
        finally:
            done[driver, part].set()

    monkeypatch.setattr(Moves, "carry_out", in_this_order)
    with ThreadPoolExecutor(2) as pool:
        claims = [pool.submit(driver.take_over, parts) for driver in (first, second)]
        ended = [claim.exception(60) for claim in claims]
    for each in done.values():
        each.set()
    assert [type(error) for error in ended if error is not None] == [Fenced]
    winner, recorded = next(
        (driver, claim.result()) for driver, claim in zip((first, second), claims, strict=True) if not claim.exception()
    )
    assert len({each.owner.generation for each in recorded.values()}) == 1
    into_a.reach(winner, dict(recorded), 8)
    assert into_a.positions() == [8, 8, 8]
    first.close()
    second.close()


def opened(piped: Piped) -> KafkaDriver:
    """A driver that is about to take over."""
    assert isinstance(piped.sink, KafkaSink)
    driver = piped.sink.open(piped.name, kept.ExactlyOnce(piped.name))
    driver.seed({piped.topic: piped.looking.seeds(piped.topic, Start.BEGINNING)})
    return driver


def test_a_copy_behind_an_open_transaction_of_another_pipeline_is_waited_for(
    into_a: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 6: the other one has died in its commit; what is read below it is not where we stand."""
    bootstrap = into_a.cluster.bootstrap
    other = fenced_client({"bootstrap.servers": bootstrap, "transactional.id": f"dead-{into_a.topic}"}, 30)
    other.begin_transaction()
    for number in range(3):
        other.produce(carrier_of(into_a.topic), b"", b"another", number)
    assert other.flush(30) == 0
    into_a.run_to(8)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_consumer_groups([f"kept.{into_a.name}"])[f"kept.{into_a.name}"].result(30)
    with monkeypatch.context() as impatient:
        impatient.setattr(kafka_progress, "COPY_WITHIN", 1.0)
        with pytest.raises(TryAgain, match="a transaction of another pipeline is open there") as told:
            into_a.positions()
        assert "ends when it is started" in told.value.way_out
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(into_a.positions)
        other.abort_transaction(30)
        assert reading.result(60) == [8, 8, 8]


def test_what_a_dead_driver_left_open_is_ended_not_waited_for(into_a: Piped) -> None:
    """Its tasks died between the offsets of a transaction and its end; only the next fence ends that before long."""
    assert isinstance(into_a.sink, KafkaSink)
    settings = {**into_a.sink.progress_settings(into_a.name), "transaction.timeout.ms": 600_000}
    progress = KafkaProgress(into_a.sink.client, into_a.name)
    for number in range(3):
        dead = fenced_client(identified(settings, into_a.name, (into_a.topic, number)), 30)
        dead.begin_transaction()
        place = TopicPartition(carrier_of(into_a.topic), number, 9, "never to be seen")
        dead.send_offsets_to_transaction([place], progress.group_metadata, 30)
    progress.close()
    assert into_a.positions() == [6, 6, 6]
    into_a.run_to(8)
    assert into_a.positions() == [8, 8, 8]


def left_open(piped: Piped) -> None:
    """A driver of batch mode has sent a batch with its offsets, and died before it said that it is whole."""
    assert isinstance(piped.sink, KafkaSink)
    settings = {**piped.sink.progress_settings(piped.name), "transaction.timeout.ms": 600_000}
    admin = AdminClient({"bootstrap.servers": piped.cluster.bootstrap})
    make_carrier(admin, BATCHES)
    progress = KafkaProgress(piped.sink.client, piped.name)
    record = BatchRecord("query", 0, "00", stateful=True)
    dead = fenced_client({**settings, "transactional.id": batch_id_of(piped.name)}, 30)
    dead.begin_transaction()
    copy = progress.batch_copy(record)
    dead.produce(copy.topic, copy.value, copy.key, 0)
    assert dead.flush(30) == 0
    places = [TopicPartition(carrier_of(piped.topic), number, 9, "never to be seen") for number in range(3)]
    dead.send_offsets_to_transaction([*places, progress.batch_offset(record)], progress.group_metadata, 30)
    progress.close()


def test_a_batch_that_a_dead_driver_left_open_is_ended_not_waited_for(into_a: Piped) -> None:
    """Until the broker's time-out nobody else would: neither a start, nor a person who has it read again."""
    driver = opened(into_a)
    driver._shape = Shape(("value",), None)
    parts = [(into_a.topic, number) for number in range(3)]
    left_open(into_a)
    begun = time.monotonic()
    assert driver.last_batch() is None
    recorded = driver.take_over(parts)
    assert time.monotonic() - begun < 20
    assert {each.position.next_offset for each in recorded.values()} == {6}
    left_open(into_a)
    driver.close()
    begun = time.monotonic()
    said("replay", into_a.name, *into_a.options, "--from", "2", "--yes")
    assert time.monotonic() - begun < 20
    assert into_a.positions() == [2, 2, 2]


@pytest.mark.parametrize("succeeded", [False, True], ids=["nobody else", "a successor"])
def test_a_transaction_that_the_broker_ends_is_made_again_unless_there_is_a_successor(
    into_a: Piped, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, succeeded: bool
) -> None:
    """Batch mode: the driver pauses for longer than the broker waits."""
    sink = into_a.sink
    assert isinstance(sink, KafkaSink)
    sink = KafkaSink(sink.bootstrap, sink.topic, **{"transaction.timeout.ms": 3000})
    pauses = 0

    def paused(*given: Any) -> Iterator[pa.Table]:
        nonlocal pauses
        yield from read_staged(*given)
        if not pauses:
            pauses += 1
            if succeeded:
                into_a.run_to(7)
            eventually(lambda: ended_transactions(sink) > 0, "the broker has ended the transaction")

    monkeypatch.setattr(kafka_batches, "read_staged", paused)
    with into_a.driver() as (_, recorded):
        move = ready_to_move(into_a, sink, recorded)
        with pytest.raises(Fenced if succeeded else TryAgain) as told:
            move()
        assert pauses == 1
        if succeeded:
            assert "generation" in told.value.what
            assert into_a.positions() == [7, 7, 7]
            return
        assert "no other driver has taken over" in told.value.what
        move()
        move()  # what is recorded is not moved again
    assert into_a.positions() == [10, 10, 10]
    assert sorted(read_all(sink.bootstrap, str(sink.topic))) == [b"a", b"b"]


def test_a_batch_that_may_not_fit_into_a_transaction_is_refused_before_it_starts(
    into_a: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 10: a transaction that the broker ends in its midst is begun again and again, and never done."""
    sink = into_a.sink
    assert isinstance(sink, KafkaSink)
    with into_a.driver() as (_, recorded):
        move = ready_to_move(into_a, sink, recorded)
        with monkeypatch.context() as slower:
            slower.setattr(kafka_batches, "SLOWEST", 2 / (LONGEST + 1))
            with pytest.raises(kept.FixConfiguration, match=f"a batch of 2 rows .* after {LONGEST} s") as told:
                move()
        assert "max_per_batch" in told.value.way_out
        assert into_a.positions() == [6, 6, 6]
        assert read_all(sink.bootstrap, str(sink.topic)) == []
        monkeypatch.setattr(kafka_batches, "SLOWEST", 2 / LONGEST)
        move()  # given as long as brokers allow
    assert into_a.positions() == [10, 10, 10]
    assert sorted(read_all(sink.bootstrap, str(sink.topic))) == [b"a", b"b"]


def test_brokers_allow_a_transaction_as_long_as_that_and_no_longer(cluster: Cluster) -> None:
    """The control: without the refusal above the client would be told so, by every attempt."""
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"long-{uuid.uuid4().hex[:8]}"}
    fenced_client({**settings, "transaction.timeout.ms": LONGEST * 1000}, 30)
    with pytest.raises(kept.KeptError, match=r"(?i)transaction.*time"):
        fenced_client({**settings, "transaction.timeout.ms": LONGEST * 1000 + 1}, 30)


def ready_to_move(piped: Piped, sink: KafkaSink, recorded: dict[Part, Progress]) -> Callable[[], object]:
    """A batch up to offset 10 of every partition, of which two rows came and were put aside."""
    name, exactly = piped.name, kept.ExactlyOnce(piped.name)
    producer, progress = sink.producer_settings(exactly), KafkaProgress(sink.client, name)
    means = Means(
        name, exactly, Shape(("value",), sink.topic), None, sink.progress_settings(name), producer, sink.client
    )
    batches = KafkaBatches(means, progress, AdminClient({"bootstrap.servers": sink.bootstrap}))
    writer = batches.staging().open(0)
    staged = [Staged("rows", 2, writer.write("rows", 0, pa.table({"value": pa.array([b"a", b"b"], pa.binary())})))]
    given: Sequence[Assignment] = [
        Assignment(Range(*part, recorded[part].position.next_offset, 10, source.identity.leader_epoch), source)
        for part, source in piped.looking.now(recorded).items()
    ]
    batch = Batch("query", 0, tuple(each.range for each in given), stateful=False)
    owner: Owner = next(iter(recorded.values())).owner
    return lambda: batches.move(batch, given, staged, (), owner)


def ended_transactions(sink: KafkaSink) -> int:
    """Records in the sink that belong to no transaction that is open."""
    admin = AdminClient({"bootstrap.servers": sink.bootstrap})
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    question = {TopicPartition(str(sink.topic), number): latest for number in range(2)}
    stable, all_of_it = (
        sum(each.offset for each in ask_offsets(admin, question, level).values())
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    )
    return all_of_it if stable == all_of_it else 0
