"""Each rule of docs/rules.md that the sinks of pipelines carry out: kept, no row is harmed; taken out, an audit sees.

The rule is taken out of the product in one place; drivers and tasks are driven without Spark, into real servers.

| rule | in the sinks of pipelines                                        | taken out here                           |
|------|------------------------------------------------------------------|------------------------------------------|
| 1    | Kafka: a fresh client for each transaction                       | one client for all: duplicated           |
| 2    | a range that starts above progress stops                         | it is accepted: lost                     |
| 3    | progress names the topic's id and leader epoch                   | they are not compared: lost              |
| 4    | the last batch is recorded with its offsets                      | with its number alone: lost              |
| 5    | Postgres: each transaction locks, reads and compares             | progress read once a task: duplicated    |
|      | a sleeping holder of the lock is ended                           | it is waited for: stalled                |
| 6    | Kafka: offsets are signed, and have a copy                       | any offset counts: lost; none: duplicated|
| 7    | Kafka: fenced before progress is read                            | read before: duplicated                  |
|      | both modes are fenced at a take-over                             | partition mode's ids alone: duplicated   |
|      | a generation beside progress                                     | none: a zombie writes on                 |
| 8    | a task moves progress past its last row only                     | to the end of its range: lost            |
| 9    | staging by uuid, and counted                                     | stalled, lost, duplicated                |
| 10   | rows are put aside before a transaction opens                    | streamed from a lazy result: test_lazy   |
| 11   | at most once moves progress behind the fence, under the lock     | as in 5 and 7: duplicated                |
| 12   | a task accepts rising offsets only (plans: test_plans)           | any order: lost                          |
| 14   | only a row that is refused alone is poison (test_dead_letters)   | all that are refused together: lost      |
| 13, 15 | are those of outboxes: no sink of a pipeline has one                                                     |

Rule 5's row that is made before it is locked is the store's: tests/brokers/test_postgres_store.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Producer as Client
from confluent_kafka.admin import AdminClient

import kept
from kept.admin.topics import Topics
from kept.consumer import outgoing
from kept.errors import Fenced, Gap, ProgressMoved, SourceChanged, TryAgain, UnsoundInput
from kept.guarantees import Guarantee
from kept.local import Cluster
from kept.producer.clients import fenced_client
from kept.progress import (
    Accept,
    Batch,
    BatchRecord,
    Move,
    Owner,
    Position,
    Progress,
    Range,
    Recorded,
    Seen,
    Source,
    Step,
    Stop,
    Unsigned,
    Verdict,
    advance,
    check,
    order,
    positions,
)
from kept.spark import (
    Limits,
    kafka_batches,
    kafka_progress,
    kafka_staging,
    kafka_tasks,
    patience,
    postgres_batches,
    postgres_sink,
)
from kept.spark import tasks as tasks_of_spark
from kept.spark.dead_letters import DeadLetterTable
from kept.spark.kafka_progress import KafkaProgress, carrier_of
from kept.spark.kafka_records import sent_inside
from kept.spark.kafka_sink import KafkaDriver
from kept.spark.kafka_staging import read_staged
from kept.spark.sinks import Rows
from kept.spark.staging import Staged, StageTask, StagingLost
from kept.spark.tasks import FencedAttempt, Task
from kept.stores import PostgresProgress, dead_letters, holders
from kept.stores import postgres as postgres_store
from kept.stores import rows as progress_rows
from kept.stores.chunks import OpenChunk
from kept.stores.poison import Poison
from kept.verify.proxy import Api, Direction, HoldAndReset, Nth, Rule, beside
from tests.conftest import Eventually
from tests.spark.scenes import (
    IDENTITY,
    SOURCE,
    InKafka,
    InPostgres,
    put_aside,
    rows,
    table,
    tried,
    values,
    write,
    written,
)

BOTH = pytest.mark.parametrize("kept_to", [True, False], ids=["with the rule", "without"])


@pytest.fixture
def scenes() -> Iterator[ExitStack]:
    """Whatever drivers are opened end with the test."""
    with ExitStack() as stack:
        yield stack
    kafka_tasks._progress_of.cache_clear()


@pytest.fixture
def in_kafka(cluster: Cluster, scenes: ExitStack) -> InKafka:
    name = f"rules-{uuid.uuid4().hex[:8]}"
    Topics(cluster.bootstrap).create(name, 1, kept.ExactlyOnce("tests"))
    return InKafka(name, scenes, cluster.bootstrap, name)


@pytest.fixture
def in_postgres(dsn: str, scenes: ExitStack, monkeypatch: pytest.MonkeyPatch) -> InPostgres:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE out (value text)")
    monkeypatch.setattr(postgres_sink, "LOCK_WITHIN", 0.5)
    return InPostgres("rules", scenes, dsn)


@pytest.fixture(params=["postgres", "kafka"])
def scene(request: pytest.FixtureRequest) -> InKafka | InPostgres:
    """Each of the sinks: the same must hold for both."""
    found: InKafka | InPostgres = request.getfixturevalue(f"in_{request.param}")
    return found


# -- rule 1: one transaction for each epoch of a producer


@BOTH
def test_1_a_late_end_of_one_chunk_does_not_touch_the_next(
    cluster: Cluster, in_kafka: InKafka, monkeypatch: pytest.MonkeyPatch, kept_to: bool
) -> None:
    """The end of the first is held, and sent again by the client; it arrives in the second, whose task then fails."""
    clients: dict[str, Client] = {}

    def the_same(settings: Mapping[str, object], within: float, expects: Sequence[str] = ()) -> Client:
        name = str(settings["transactional.id"])
        clients[name] = clients.get(name) or fenced_client(settings, within, expects)
        return clients[name]

    if not kept_to:
        monkeypatch.setattr(outgoing, "fenced_client", the_same)
    with beside(cluster) as proxy:
        scene = replace(in_kafka, bootstrap=proxy.bootstrap)
        part = scene.driver().for_tasks().open(scene.assigned(0, 10))
        late = proxy.add(Rule(Api.END_TXN, Direction.REQUEST, HoldAndReset(), Nth(1)))
        write(scene, part, 0, 5)
        late.wait_caught(30)
        proxy.remove(late)
        send = sent_inside

        def fails_when_it_has_sent(transaction: Any, *given: Any) -> None:
            send(transaction, *given)
            transaction.flush()
            late.release()
            late.wait_answered(30)
            clients.clear()  # whoever keeps a client makes another one after an error
            raise TryAgain("the machine is tired", way_out="none")

        with monkeypatch.context() as patched:
            patched.setattr(kafka_tasks, "sent_inside", fails_when_it_has_sent)
            assert tried(lambda: write(scene, part, 5, 10)) is not None
        write(scene, part, 5, 10)
        scene.stack.close()
    assert in_kafka.held() == (values(0, 10) if kept_to else sorted(values(0, 10) + values(5, 10)))


# -- rule 2: no gaps


@BOTH
def test_2_a_range_above_progress_is_not_taken_for_the_next_one(
    scene: InKafka | InPostgres, monkeypatch: pytest.MonkeyPatch, kept_to: bool
) -> None:
    def blind(wanted: Range, recorded: Recorded, source: Source, owner: Owner) -> Accept | Stop:
        assert isinstance(recorded, Progress)
        return check(replace(wanted, start=min(wanted.start, recorded.position.next_offset)), recorded, source, owner)

    driver = scene.driver()
    if not kept_to:
        monkeypatch.setattr(order, "check", blind)
        monkeypatch.setattr(postgres_store, "check", blind)
    if kept_to:
        with pytest.raises(Gap, match="5 offsets in between were never seen here"):
            written(scene, driver, 5, 10)
    else:
        written(scene, driver, 5, 10)
    written(scene, driver, 0, 5)
    assert scene.held() == (values(0, 5) if kept_to else values(5, 10)), "what is below progress counts as done"


# -- rule 3: know the source


@BOTH
@pytest.mark.parametrize(
    ("into", "source"),
    [
        ("kafka", replace(SOURCE, identity=replace(IDENTITY, topic_id="another"))),
        ("postgres", replace(SOURCE, epoch_end=3)),
    ],
    ids=["made anew", "cut and filled again"],
)
def test_3_records_of_another_log_are_not_taken_for_those_that_are_done(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, into: str, source: Source, kept_to: bool
) -> None:
    """Five are done; then the log has ten, of which none, or three, are the ones that were read."""
    scene: InKafka | InPostgres = request.getfixturevalue(f"in_{into}")
    driver = scene.driver()
    written(scene, driver, 0, 5)
    if not kept_to:
        monkeypatch.setattr(positions, "ABOUT_THE_SOURCE", ())
    part = driver.for_tasks().open(scene.assigned(0, 10, source))
    new = Rows(rows(0, 10).offsets, pa.table({"value": [f"new {number}" for number in range(10)]}))
    if kept_to:
        with pytest.raises(SourceChanged):
            part.write(new, scene.range(0, 10))
    else:
        part.write(new, scene.range(0, 10))
    part.close()
    new_ones = [value for value in scene.held() if value.startswith("new")]
    above = [f"new {number}" for number in range(5, 10)]
    assert new_ones == ([] if kept_to else above), "those below progress count as done, and nobody was told"


# -- rule 4: a batch id is not an identity


@BOTH
def test_4_a_batch_with_the_number_of_another_is_not_taken_for_it(
    scene: InKafka | InPostgres, monkeypatch: pytest.MonkeyPatch, kept_to: bool
) -> None:
    def by_its_number(batch: Batch, last: BatchRecord | None, _progress: object) -> Verdict:
        return Verdict.SKIP if last is not None and last.batch_id == batch.batch_id else Verdict.WRITE

    if not kept_to:
        monkeypatch.setattr(postgres_batches, "check_move", by_its_number)
        monkeypatch.setattr(kafka_batches, "check_move", by_its_number)
    driver = scene.driver()
    for start in (0, 5):
        staged = put_aside(driver, start, start + 5, str(uuid.uuid4()))
        driver.move(scene.batch(1, start, start + 5), [scene.assigned(start, start + 5)], [staged])
    assert scene.held() == (values(0, 10) if kept_to else values(0, 5))


# -- rules 5, 7 and 11: two attempts at the same rows


@contextmanager
def remembered_progress(
    self: PostgresProgress, ranges: Sequence[Range], sources: Mapping[Any, Source], *, may_repeat: bool = False
) -> Iterator[OpenChunk]:
    """Rule 5 taken out of the store: progress is read once a task, and recorded over whatever is there."""
    session, topic = self._session(), ranges[0].topic
    there = progress_rows.read_topic(session, self.pipeline, topic)
    seen = self.__dict__.setdefault("_remembered", {row.part: row for row in there.values()})
    accepted = self._accept(ranges, sources, seen, may_repeat)
    session.execute("BEGIN")
    chunk = OpenChunk(session, {part: drop_below for part, (drop_below, _) in accepted.items()})
    yield chunk
    for (topic, partition), (_, new) in accepted.items():
        upto = new.position.next_offset
        session.execute(
            "UPDATE kept_progress SET next_offset = %s, owner = %s WHERE topic = %s AND partition = %s",
            (upto, f"{self.owner}@{upto}", topic, partition),
        )
    session.execute("COMMIT")
    chunk.recorded = {part: new for part, (_, new) in accepted.items()}


def read_before_the_fence() -> Generator[Step, Seen | None, Seen]:
    """Rule 7 taken out: what was read may change until the fence is there."""
    seen = yield Step(Move.READ_PROGRESS)
    assert isinstance(seen, Seen)
    yield Step(Move.FENCE)
    return seen


def ids_of_their_own(settings: Mapping[str, object], _pipeline: str, _part: object) -> dict[str, object]:
    """No attempt fences another one."""
    return {**settings, "transactional.id": f"own-{uuid.uuid4()}"}


TAKEN_OUT: Mapping[str, tuple[str, object, str, object]] = {
    "progress read once a task": ("postgres", PostgresProgress, "chunk", remembered_progress),
    "progress read before the fence": ("kafka", order, "_fence_and_look", read_before_the_fence),
    "no fence": ("kafka", kafka_tasks, "identified", ids_of_their_own),
}


def two_attempts(scene: InKafka | InPostgres, driver: Any) -> BaseException | None:
    """One has looked at progress, and sleeps; its twin does everything; the sleeper wakes up. How did it end?"""
    tasks = driver.for_tasks()
    sleeper, twin = (tasks.open(scene.assigned(0, 5)) for _ in range(2))
    scene.after_its_look(sleeper, lambda: write(scene, twin, 0, 5))
    try:
        return tried(lambda: write(scene, sleeper, 0, 5))
    finally:
        sleeper.close()
        twin.close()


GUARANTEES = pytest.mark.parametrize("guarantee", [None, kept.AtMostOnce()], ids=["exactly-once", "at-most-once"])


@GUARANTEES
def test_5_7_11_of_two_attempts_at_the_same_rows_one_has_an_effect(
    scene: InKafka | InPostgres, guarantee: Guarantee | None, eventually: Eventually
) -> None:
    ended = two_attempts(scene, scene.driver(guarantee))
    assert isinstance(ended, FencedAttempt if isinstance(scene, InKafka) else (TryAgain, kept.OutcomeUnknown))
    eventually(lambda: len(scene.held()) >= 5, "what the leader has is seen by readers")
    assert scene.held() == values(0, 5)


@GUARANTEES
@pytest.mark.parametrize("left_out", TAKEN_OUT)
def test_5_7_11_without_the_rule_both_have(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
    guarantee: Guarantee | None,
    left_out: str,
) -> None:
    into, where, name, instead = TAKEN_OUT[left_out]
    scene: InKafka | InPostgres = request.getfixturevalue(f"in_{into}")
    driver = scene.driver(guarantee)
    monkeypatch.setattr(where, name, instead)
    assert two_attempts(scene, driver) is None, "and nobody was told"
    eventually(lambda: len(scene.held()) >= 10, "what the leader has is seen by readers")
    assert scene.held() == sorted(values(0, 5) * 2)


@BOTH
def test_5_a_holder_that_sleeps_does_not_hold_its_successor_up(
    in_postgres: InPostgres, monkeypatch: pytest.MonkeyPatch, kept_to: bool
) -> None:
    """A task sleeps with the lock in its hands; without the rule for as long as it likes."""
    monkeypatch.setattr(patience, "PATIENCE", 0.0)
    part = in_postgres.driver().for_tasks().open(in_postgres.assigned(0, 5))
    if not kept_to:
        monkeypatch.setattr(holders, "of_pipeline", lambda *_: False)
    succeeded: list[BaseException | None] = []

    def succeed() -> None:
        succeeded.append(tried(lambda: written(in_postgres, in_postgres.driver(), 0, 5)))

    in_postgres.after_its_look(part, succeed)
    ended = tried(lambda: write(in_postgres, part, 0, 5))
    part.close()
    assert in_postgres.held() == values(0, 5)
    assert (succeeded[0] is None) == kept_to
    assert (ended is not None) == kept_to


# -- rule 6: group offsets are perishable, and anyone can write them


def a_stranger_commits(scene: InKafka, offset: int) -> None:
    client = Consumer({"bootstrap.servers": scene.bootstrap, "group.id": f"kept.{scene.name}"})
    client.commit(offsets=[TopicPartition(carrier_of(scene.part[0]), 0, offset)], asynchronous=False)
    client.close()


@BOTH
def test_6_an_offset_without_our_signature_is_not_ours(
    in_kafka: InKafka, monkeypatch: pytest.MonkeyPatch, kept_to: bool
) -> None:
    read = kafka_progress.read_note

    def anybodys(position: Position, text: str) -> Progress | Unsigned:
        found = read(position, text)
        return found if isinstance(found, Progress) else Progress(position, IDENTITY, Owner(in_kafka.name, 0))

    written(in_kafka, in_kafka.driver(), 0, 5)
    a_stranger_commits(in_kafka, 8)
    if kept_to:
        with pytest.raises(ProgressMoved, match="lacks the signature"):
            in_kafka.driver()
        assert in_kafka.held() == values(0, 5)
        return
    monkeypatch.setattr(kafka_progress, "read_note", anybodys)
    written(in_kafka, in_kafka.driver(), 0, 10)
    assert in_kafka.held() == values(0, 5) + values(8, 10), "three are lost"


@BOTH
def test_6_offsets_that_are_gone_are_not_a_new_beginning(
    in_kafka: InKafka, monkeypatch: pytest.MonkeyPatch, kept_to: bool
) -> None:
    def from_the_beginning(_self: KafkaProgress, topic: str, partitions: Sequence[int]) -> dict[int, Recorded]:
        return {
            number: Progress(Position(topic, number, 0), IDENTITY, Owner(in_kafka.name, 0)) for number in partitions
        }

    written(in_kafka, in_kafka.driver(), 0, 5)
    group = f"kept.{in_kafka.name}"
    admin = AdminClient({"bootstrap.servers": in_kafka.bootstrap})
    admin.delete_consumer_groups([group])[group].result(30)
    if not kept_to:
        monkeypatch.setattr(KafkaProgress, "copies", from_the_beginning)
    written(in_kafka, in_kafka.driver(), 0, 10)
    assert in_kafka.held() == (values(0, 10) if kept_to else sorted(values(0, 5) + values(0, 10)))


# -- rule 7: one owner, one fence


@BOTH
def test_7_a_batch_of_an_older_driver_is_not_committed_behind_its_successor(
    in_kafka: InKafka, monkeypatch: pytest.MonkeyPatch, kept_to: bool
) -> None:
    """It has looked at progress and opened its transaction; its successor writes the same rows in partition mode."""
    if not kept_to:
        monkeypatch.setattr(KafkaDriver, "_fence_batches", lambda _self: None)
    older = in_kafka.driver()
    staged = put_aside(older, 0, 5, "rows")

    def interrupted(*given: Any) -> Iterator[pa.Table]:
        yield from read_staged(*given)
        written(in_kafka, in_kafka.driver(), 0, 5)

    monkeypatch.setattr(kafka_batches, "read_staged", interrupted)
    with pytest.raises(Fenced) if kept_to else nullcontext():
        older.move(in_kafka.batch(0, 0, 5), [in_kafka.assigned(0, 5)], [staged])
    assert in_kafka.held() == (values(0, 5) if kept_to else sorted(values(0, 5) * 2))


@BOTH
def test_7_an_older_driver_writes_nothing_after_its_successor(
    in_kafka: InKafka, monkeypatch: pytest.MonkeyPatch, kept_to: bool
) -> None:
    """A fence alone is answered by fencing back: only the generation tells who is to stop for good."""
    older, _ = in_kafka.driver(), in_kafka.driver()
    if not kept_to:  # all drivers are alike
        monkeypatch.setattr(KafkaDriver, "_owner", lambda self: Owner(self._pipeline, 9, self._bound_to()))
    with pytest.raises(Fenced) if kept_to else nullcontext():
        written(in_kafka, older, 0, 5)
    assert in_kafka.held() == ([] if kept_to else values(0, 5))


# -- rule 8: a task never sees a real end


@BOTH
def test_8_input_that_is_cut_short_is_not_taken_for_its_end(
    scene: InKafka | InPostgres, monkeypatch: pytest.MonkeyPatch, kept_to: bool
) -> None:
    def to_the_end(seen: Progress, _upto: int, epoch: int, owner: Owner) -> Progress:
        return advance(seen, 10, epoch, owner)

    task = Task({}, scene.driver().for_tasks(), Limits(patience=5))
    with monkeypatch.context() as patched:
        if not kept_to:
            patched.setattr(order, "advance", to_the_end)
            patched.setattr(postgres_store, "advance", to_the_end)
        task.run([placed(scene, 0, 5)], scene.assigned(0, 10))
    task.run([placed(scene, 0, 10)], scene.assigned(0, 10))
    assert scene.held() == (values(0, 10) if kept_to else values(0, 5))


def placed(scene: InKafka | InPostgres, start: int, end: int) -> pa.RecordBatch:
    """Rows as Spark hands them to a task."""
    topic, partition = scene.part
    columns = {
        **table(start, end).to_pydict(),
        "_kept_topic": [topic] * (end - start),
        "_kept_partition": pa.array([partition] * (end - start), pa.int32()),
        "_kept_offset": pa.array(range(start, end), pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


# -- rule 9: staging is named by uuid and counted


@pytest.mark.parametrize("own_names", [True, False], ids=["own names", "names used again"])
@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not counted"])
def test_9_staged_rows_that_another_attempt_left_are_not_moved(
    in_postgres: InPostgres, monkeypatch: pytest.MonkeyPatch, own_names: bool, counted: bool
) -> None:
    """A task has put its rows aside, and died; Spark runs it again, and hears of the second attempt."""
    _mutate_staging(monkeypatch, own_names=own_names, counted=counted)
    driver = in_postgres.driver()
    task = StageTask(driver.staging(), Limits(patience=0))
    for _ in range(2):
        (report,) = task.run([table(0, 5).to_batches()[0]], 0).to_pylist()
    staged: list[Staged] = pickle.loads(report["staged"])
    with pytest.raises(StagingLost) if counted and not own_names else nullcontext():
        driver.move(in_postgres.batch(0, 0, 5), [in_postgres.assigned(0, 5)], staged)
    moved = values(0, 5) if own_names else [] if counted else sorted(values(0, 5) * 2)
    assert in_postgres.held() == moved


@BOTH
def test_9_staged_rows_that_were_swept_away_are_missed(
    in_postgres: InPostgres, monkeypatch: pytest.MonkeyPatch, kept_to: bool
) -> None:
    _mutate_staging(monkeypatch, own_names=True, counted=kept_to)
    driver = in_postgres.driver()
    staged = put_aside(driver, 0, 5, str(uuid.uuid4()))
    with psycopg.connect(in_postgres.dsn) as stranger:
        ((name,),) = stranger.execute("SELECT relname FROM pg_class WHERE relname LIKE 'kept_staging_%'").fetchall()
        stranger.execute(f"DELETE FROM {name}".encode())
    with pytest.raises(StagingLost) if kept_to else nullcontext():
        driver.move(in_postgres.batch(0, 0, 5), [in_postgres.assigned(0, 5)], [staged])
    assert in_postgres.held() == []
    assert (driver.last_batch() is None) == kept_to, "without the rule the batch counts as done"


@pytest.mark.parametrize(
    ("own_names", "counted", "moved"),
    [(True, True, values(0, 10)), (False, True, []), (False, False, values(0, 8))],
    ids=["with the rule", "names used again", "and not counted"],
)
def test_9_in_kafka_a_set_is_not_taken_for_another_of_its_name(
    in_kafka: InKafka, monkeypatch: pytest.MonkeyPatch, own_names: bool, counted: bool, moved: list[str]
) -> None:
    """The first attempt of the second task was given fewer rows, and has died; both tasks write to one partition."""
    if not counted:
        monkeypatch.setattr(kafka_staging, "staging_is_whole", lambda *_: True)
    driver = in_kafka.driver()
    first = put_aside(driver, 0, 5, "first")
    put_aside(driver, 5, 8, "second")
    second = put_aside(driver, 5, 10, "second-again" if own_names else "second")
    with pytest.raises(StagingLost) if counted and not own_names else nullcontext():
        driver.move(in_kafka.batch(0, 0, 10), [in_kafka.assigned(0, 10)], [first, second])
    assert in_kafka.held() == moved


def _mutate_staging(monkeypatch: pytest.MonkeyPatch, *, own_names: bool, counted: bool) -> None:
    if not own_names:
        always = uuid.uuid4()
        monkeypatch.setattr("kept.spark.staging.uuid", SimpleNamespace(uuid4=lambda: always))
    if not counted:
        monkeypatch.setattr(postgres_batches, "staging_is_whole", lambda *_: True)


# -- rule 12: rows rise over the whole input


@BOTH
def test_12_rows_out_of_order_are_not_taken_for_done(
    scene: InKafka | InPostgres, monkeypatch: pytest.MonkeyPatch, kept_to: bool
) -> None:
    """The later half comes first: when it is written, the earlier one lies below progress."""

    def whatever_comes(batches: list[pa.RecordBatch], _wanted: Range) -> Rows:
        whole = pa.Table.from_batches(batches)
        return Rows(whole.column("_kept_offset").to_numpy(), whole.select(["value"]))

    task = Task({}, scene.driver().for_tasks(), Limits(rows=5, patience=5))
    later_first = [placed(scene, 5, 10), placed(scene, 0, 5)]
    if not kept_to:
        monkeypatch.setattr(tasks_of_spark, "checked", whatever_comes)
        monkeypatch.setattr(order, "check_rows", lambda *_: None)
    (report,) = task.run(later_first, scene.assigned(0, 10)).to_pylist()
    if kept_to:
        assert isinstance(pickle.loads(report["stopped"]), UnsoundInput)
    else:
        assert (report["stopped"], report["reached"]) == (None, 10), "it says that it is done"
        assert scene.held() == values(5, 10)


# -- rule 14: poison is proven, not guessed


def guessed(connection: Any, records: Sequence[int], apply: Any) -> list[Poison[int]]:
    """What is refused together is taken for poison altogether."""
    try:
        with connection.transaction():
            apply(connection, records)
    except psycopg.errors.CheckViolation as refused:
        return [Poison(record, str(refused)) for record in records]
    return []


@BOTH
def test_14_the_neighbours_of_a_row_that_is_refused_are_not_buried_with_it(
    in_postgres: InPostgres, monkeypatch: pytest.MonkeyPatch, kept_to: bool
) -> None:
    if not kept_to:
        monkeypatch.setattr(dead_letters, "isolated", guessed)
    with psycopg.connect(in_postgres.dsn) as connection:
        connection.execute("ALTER TABLE out ADD CHECK (value <> 'v02')")
    driver = in_postgres.driver(dead_letters=DeadLetterTable())
    driver._store.prepare(dead_letters.DeadLetters(in_postgres.name))
    record = {"key": None, "value": b"a record", "headers": None, "timestamp": 0}
    carrying = replace(rows(0, 5), origin=pa.table({"_kept_original": [record] * 5}))
    part = driver.for_tasks().open(in_postgres.assigned(0, 5))
    written = part.write(carrying, in_postgres.range(0, 5))
    part.close()
    assert written.buried == (1 if kept_to else 5)
    assert in_postgres.held() == (["v00", "v01", "v03", "v04"] if kept_to else [])
