"""Drivers of Spark under faults, kept's own or others': what is done to them, to their tasks and to their sink."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import psycopg
from psycopg.rows import TupleRow
from psycopg.sql import SQL, Identifier

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.stores.sql_errors import told_as
from kept.verify.checkers import Anomaly
from kept.verify.trials.arena import Arena
from kept.verify.trials.dying import die_again_and_again
from kept.verify.trials.lives import STARTS_WITHIN, Life
from kept.verify.trials.plain_reading import everything_in
from kept.verify.trials.roles.perils import mark_of, refusal_of
from kept.verify.trials.scenario import Control
from kept.verify.trials.things import BATCHES, CHECKPOINT, PIPELINE, Thing
from kept.verify.trials.users import UserWork
from kept.verify.trials.work import Work, own_work
from kept.verify.trials.worker import DONE, FAILED, FENCED, STOPPED

WORDS = (AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word)
INTO_KAFKA = {"into_kafka": True}
GOES_WITHIN = 15.0
BACKUP = "backup"
DEEP = (0.5, 0.75)
"""Parts of what a task reads. Not to its very end: shares are not all the same, and the next task is not far then."""


def into_postgres(word: str) -> Thing:
    return Thing(f"kept.Pipeline into Postgres, {word}", PIPELINE, word)


def into_kafka(word: str) -> Thing:
    return Thing(f"kept.Pipeline into Kafka, {word}", PIPELINE, word, {}, INTO_KAFKA)


def sparks_own(breaks: Anomaly, **options: bool) -> Control:
    """Spark's Kafka sink, called as for a table."""
    thing = Thing("Spark's own Kafka sink", "raw_pipeline", AtLeastOnce.word, {}, {**INTO_KAFKA, **options})
    return Control(thing, frozenset({breaks}))


def naive(breaks: Anomaly, words: str = "foreachBatch with plain inserts", **options: bool) -> Control:
    return Control(Thing(words, "raw_pipeline", AtLeastOnce.word, {}, options), frozenset({breaks}))


def work_of(arena: Arena, thing: Thing) -> Work:
    return UserWork(arena, thing) if "file" in thing.options else own_work(arena, thing)


def driver_killed(arena: Arena, thing: Thing) -> None:
    work = work_of(arena, thing)
    die_again_and_again(arena, thing, work, settings={})
    work.sink.audit()


def task_killed(arena: Arena, thing: Thing) -> None:
    """At records that the seed names, each once; where a task dies, it has written something in most cases."""
    work = work_of(arena, thing)
    work.feed_rest()
    marks = arena.folder / "marks"
    marks.mkdir()
    deadly = _chosen(arena, work, arena.volume.faults)
    life = _started(arena, thing, work, dies_at_values=deadly, marks=str(marks))
    for value in deadly:
        life.wait(mark_of(str(marks), value).exists, f"a task died at {value}", STARTS_WITHIN)
        arena.struck(f"the worker of a task died at {value}")
    _finished(arena, work, life)


def checkpoint_deleted(arena: Arena, thing: Thing) -> None:
    work = work_of(arena, thing)
    work.feed(arena.volume.records)
    _part_done(arena, _started(arena, thing, work), 3)
    shutil.rmtree(arena.folder / CHECKPOINT)
    arena.struck("Spark's checkpoint was deleted")
    work.feed_rest()
    _finished(arena, work, _started(arena, thing, work))


def two_drivers(arena: Arena, thing: Thing) -> None:
    """The second half of the work comes when both are there. The elder may go then; if it does not, both do it.

    On one checkpoint they may stop each other. Then somebody starts the younger again, as whoever looks after it would.
    """
    work, half = work_of(arena, thing), arena.volume.records // 2
    work.feed(half)
    elder = _started(arena, thing, work)
    elder.wait_done(half // 2)
    younger = _started(arena, thing, work)
    younger.wait_done(0)
    arena.struck("a second driver was started")
    work.feed_rest()
    arena.linger(lambda: younger.done > 0 or younger.end(0) is not None, STARTS_WITHIN)
    arena.finish_when_complete(work.sink, younger, may_end=(DONE, FAILED))
    if elder.end(GOES_WITHIN) is None:
        elder.ask_to_end()
    arena.finish(elder, may_end=(DONE, FENCED, FAILED))
    if not work.sink.complete():
        arena.finish_when_complete(work.sink, _started(arena, thing, work))
    work.sink.audit()


def sink_restored(arena: Arena, thing: Thing) -> None:
    """A backup when a part is done; more is done; the backup comes back. Spark's checkpoint is ahead of it then.

    Who stops over that says what to do: to move the checkpoint away. That is done, and it is started again.
    """
    work = work_of(arena, thing)
    work.feed(arena.volume.records)
    dsn = str(work.sink.options()["dsn"])
    _part_done(arena, _started(arena, thing, work), 3)
    _back_up(dsn)
    _part_done(arena, _started(arena, thing, work), 3)
    with arena.fault("the database was restored from a backup, and the pipeline started on it"):
        _restore(dsn)
        work.feed_rest()
        arena.finish_when_complete(work.sink, _started(arena, thing, work), may_end=(DONE, STOPPED))
    if not work.sink.complete():
        (arena.folder / CHECKPOINT).rename(arena.folder / f"{CHECKPOINT}-moved-away")
        arena.finish_when_complete(work.sink, _started(arena, thing, work))
    work.sink.audit()


def checkpoint_restored(arena: Arena, thing: Thing) -> None:
    """The checkpoint is copied when a part is done; more is done; the copy comes back. The sink is ahead of it then.

    Who stops over that is given a new checkpoint, which its progress in the sink makes safe.
    """
    work, checkpoint = work_of(arena, thing), arena.folder / CHECKPOINT
    work.feed(arena.volume.records)
    _part_done(arena, _started(arena, thing, work), 3)
    copy = arena.folder / f"{CHECKPOINT}-{BACKUP}"
    shutil.copytree(checkpoint, copy)
    _part_done(arena, _started(arena, thing, work), 3)
    with arena.fault("Spark's checkpoint was restored from a backup, and the pipeline started on it"):
        checkpoint.rename(arena.folder / f"{CHECKPOINT}-moved-away")
        copy.rename(checkpoint)
        work.feed_rest()
        arena.finish_when_complete(work.sink, _started(arena, thing, work), may_end=(DONE, STOPPED))
    if not work.sink.complete():
        checkpoint.rename(arena.folder / f"{CHECKPOINT}-restored")
        arena.finish_when_complete(work.sink, _started(arena, thing, work))
    work.sink.audit()


def input_cut_short(arena: Arena, thing: Thing) -> None:
    """The record at which the plan fails is deep in its task; somebody mends the plan and starts it again.

    Before it, there have to be rows that are in the sink already: of a task that fails at its first row nothing is.
    Whatever ends a driver ends it with the same code: only its own words show that it came to that record.
    """
    work = work_of(arena, thing)
    work.feed_rest()
    unbearable = _deep_one(arena, work)
    life = _started(arena, thing, work, fails_at=unbearable)
    arena.finish_when_complete(work.sink, life, may_end=(FAILED,))  # it is given up by what comes, not by the clock
    if doubts := why_not_failed_at(unbearable, life.said):
        arena.doubts += doubts
    else:
        arena.struck(f"the plan failed at {unbearable}")
    _finished(arena, work, _started(arena, thing, work))


def why_not_failed_at(value: str, said: str) -> list[str]:
    """Unless a driver said itself that its plan failed at this very record, it may have ended of anything."""
    if refusal_of(value) in said:
        return []
    words = " / ".join(said.strip().splitlines()[-3:]) or "nothing"
    return [f"the plan was to fail at {value}, and nothing shows that it did; it said: {words}"]


def _started(arena: Arena, thing: Thing, work: Work, **perils: object) -> Life:
    return arena.start(thing, work.topic, options={**work.sink.options(), **perils})


def _part_done(arena: Arena, life: Life, tenths: int) -> None:
    """It does so much, and is asked to end."""
    life.wait_done(arena.volume.records * tenths // 10)
    life.ask_to_end()
    arena.finish(life)


def _finished(arena: Arena, work: Work, life: Life) -> None:
    arena.finish_when_complete(work.sink, life)
    work.sink.audit()


def _chosen(arena: Arena, work: Work, count: int) -> list[str]:
    """Records that the seed names."""
    return one_of_each(work.texts(), arena.moments(count))


def _deep_one(arena: Arena, work: Work) -> str:
    """A record that the seed names, or the next one behind it that is deep in its task; any, where none is."""
    (number,) = arena.moments(1)
    texts = work.texts()
    there = everything_in(arena.cluster.bootstrap, work.topic)
    places = [((one.value or b"").decode(errors="replace"), one.partition, one.offset) for one in there]
    deep = deep_in_their_tasks(places, arena.volume.records // BATCHES)
    return next((text for text in (*texts[number:], *texts[:number]) if text in deep), texts[number])


def deep_in_their_tasks(places: Sequence[tuple[str, int, int]], per_batch: int) -> set[str]:
    """The texts that stand only at places, of a partition and an offset, which come late in their tasks.

    Spark gives each partition a share of a batch by its size, rounded down, and a task reads such a share.
    """
    sizes = Counter(partition for _, partition, _ in places)
    deep: dict[str, bool] = {}
    for text, partition, offset in places:
        share = max(1, per_batch * sizes[partition] // len(places))
        deep[text] = deep.get(text, True) and DEEP[0] <= offset % share / share < DEEP[1]
    return {text for text, is_deep in deep.items() if is_deep}


def one_of_each(texts: Sequence[str], numbers: Iterable[int]) -> list[str]:
    """The record at each number, or the next one that is not like one before it, while there are any.

    A death leaves its mark by the text of a record: where two are alike, one death would be taken for two.
    """
    chosen: dict[str, None] = {}
    for number in numbers:
        other = next((text for text in chain(texts[number:], texts[:number]) if text not in chosen), None)
        if other is not None:
            chosen[other] = None
    return list(chosen)


@contextmanager
def _tables(dsn: str) -> Iterator[tuple[psycopg.Connection[TupleRow], list[str]]]:
    """All tables of a database, in one transaction. References between them are kept by whoever copies all of them."""
    with told_as("the database cannot be copied"), psycopg.connect(dsn) as connection:
        connection.execute("SET session_replication_role = replica")
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        yield connection, [str(name) for (name,) in found]


def _back_up(dsn: str) -> None:
    with _tables(dsn) as (connection, names):
        connection.execute(SQL("CREATE SCHEMA {}").format(Identifier(BACKUP)))
        for name in names:
            copy = SQL("CREATE TABLE {} AS TABLE {}")
            connection.execute(copy.format(Identifier(BACKUP, name), Identifier("public", name)))


def _restore(dsn: str) -> None:
    with _tables(dsn) as (connection, names):
        everything = SQL(", ").join(Identifier("public", name) for name in names)
        connection.execute(SQL("TRUNCATE {}").format(everything))
        for name in names:
            back = SQL("INSERT INTO {} OVERRIDING SYSTEM VALUE TABLE {}")
            connection.execute(back.format(Identifier("public", name), Identifier(BACKUP, name)))
