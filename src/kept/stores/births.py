"""A pipeline's birth: progress is seeded for every partition at once, so that a missing row always means lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kept.errors import FixConfiguration, SourceChanged
from kept.progress import Identity, Position, Progress
from kept.progress import seed as first_progress
from kept.stores.rows import SEED, Row, lost, read_topic
from kept.stores.sessions import Session, transaction
from kept.stores.sinks import Sink, at_birth

BIRTH = """
    INSERT INTO kept_pipelines (pipeline, topic, topic_id, partitions) VALUES (%s, %s, %s, 0)
    ON CONFLICT DO NOTHING
"""
FIND = "SELECT topic_id, partitions FROM kept_pipelines WHERE pipeline = %s AND topic = %s"
TOPICS = "SELECT topic FROM kept_pipelines WHERE pipeline = %s ORDER BY topic"
GROW = "UPDATE kept_pipelines SET partitions = %s WHERE pipeline = %s AND topic = %s"


@dataclass(frozen=True, slots=True)
class Seed:
    """Where one partition starts.

    `at_birth` is for a pipeline that is new. A partition that is added to the topic later starts at its
    `beginning`: what was written before anybody noticed it belongs to the pipeline too.
    """

    partition: int
    at_birth: int
    beginning: int
    identity: Identity


@dataclass(frozen=True, slots=True)
class Birth:
    """What is known of a pipeline's first look at a topic."""

    topic_id: str
    partitions: int


def birth_of(session: Session, pipeline: str, topic: str) -> Birth | None:
    row = session.execute(FIND, (pipeline, topic)).fetchone()
    return None if row is None else Birth(row[0], row[1])


def topics_of(session: Session, pipeline: str) -> list[str]:
    """Every topic that the pipeline was born on."""
    return [row[0] for row in session.execute(TOPICS, (pipeline,)).fetchall()]


def seed_topics(
    session: Session, pipeline: str, seeds: Mapping[str, Sequence[Seed]], sink: Sink | None = None
) -> dict[str, dict[int, Progress]]:
    """Give every partition its first progress, once; whoever comes second waits, and finds it done.

    A crash inside leaves nothing: the births and all rows are one transaction. A topic that was left out would be taken
    for one that came later. A lost answer is no harm: the same call again finds it done.
    """
    topic_ids = {topic: _whole_topic(topic, seeds[topic]) for topic in sorted(seeds)}
    with transaction(session, f"seeding the progress of {pipeline!r}"):
        return {topic: _seeded(session, pipeline, topic, each, seeds[topic], sink) for topic, each in topic_ids.items()}


def _seeded(
    session: Session, pipeline: str, topic: str, topic_id: str, seeds: Sequence[Seed], sink: Sink | None
) -> dict[int, Progress]:
    session.execute(BIRTH, (pipeline, topic, topic_id))
    session.execute(f"{FIND} FOR UPDATE", (pipeline, topic))
    birth = birth_of(session, pipeline, topic)
    known = 0 if birth is None else birth.partitions
    if birth is not None and birth.topic_id != topic_id:
        raise _another_topic(pipeline, topic, birth.topic_id, topic_id)
    if sink is not None:
        at_birth(session, pipeline, sink)
    new = [_first(pipeline, topic, seed, known) for seed in seeds if seed.partition >= known]
    if new:
        session.cursor().executemany(SEED, [_values(progress) for progress in new])
        session.execute(GROW, (len(seeds), pipeline, topic))
    rows = read_topic(session, pipeline, topic)
    _nothing_lost(pipeline, topic, max(known, len(seeds)), rows)
    return {partition: row.progress for partition, row in rows.items()}


def _first(pipeline: str, topic: str, seed: Seed, known: int) -> Progress:
    start = seed.beginning if known else seed.at_birth
    return first_progress(Position(topic, seed.partition, start), seed.identity, pipeline)


def _values(progress: Progress) -> tuple[object, ...]:
    where, source = progress.position, progress.identity
    return (
        progress.owner.fingerprint,
        where.topic,
        where.partition,
        where.next_offset,
        source.cluster_id,
        source.topic_id,
        source.leader_epoch,
    )


def _whole_topic(topic: str, seeds: Sequence[Seed]) -> str:
    ids = {seed.identity.topic_id for seed in seeds}
    if sorted(seed.partition for seed in seeds) != list(range(len(seeds))) or len(ids) != 1:
        raise FixConfiguration(
            f"not every partition of {topic} was given, once, with the same topic id",
            way_out="seed all partitions of a topic together",
        )
    return ids.pop()


def _nothing_lost(pipeline: str, topic: str, partitions: int, rows: dict[int, Row]) -> None:
    for partition in range(partitions):
        if partition not in rows:
            raise lost(pipeline, topic, partition)


def _another_topic(pipeline: str, topic: str, then: str, now: str) -> SourceChanged:
    return SourceChanged(
        f"{pipeline!r} was born on topic id {then} of {topic}; the topic is now {now}: it was made anew",
        way_out=f"point this one at the old topic, start a new pipeline, or choose: `kept pipelines repair {pipeline}`",
    )
