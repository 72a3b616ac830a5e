"""The progress of pipelines in a Postgres, for a person: listed, looked at, and moved on purpose.

Nothing here belongs to an owner. A move locks the rows, compares them with what the person was shown, and raises the
generation: an owner that nobody saw is Fenced at its next chunk, and cannot write past the move.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

from kept.errors import Busy, FixConfiguration, ProgressMoved
from kept.progress import Progress, Recorded, Stop
from kept.stores import sinks
from kept.stores.births import Birth
from kept.stores.holders import Part
from kept.stores.rows import BEGIN_AND_LOCK, Row, columns, read_topic, row_of
from kept.stores.sessions import Session, everyone_of, open_session, transaction
from kept.stores.sinks import OWN_EFFECTS, Sink
from kept.stores.sql_errors import told_as

LIST = """
    SELECT p.pipeline, p.topic, p.partitions, coalesce(max(g.generation), 0), max(g.updated_at)
    FROM kept_pipelines p LEFT JOIN kept_progress g USING (pipeline, topic)
    GROUP BY p.pipeline, p.topic, p.partitions ORDER BY p.pipeline, p.topic
"""
BIRTHS = "SELECT topic, topic_id, partitions FROM kept_pipelines WHERE pipeline = %s ORDER BY topic"
# Sessions of other roles hide their names, unless one may see them: then the comparison of rows has to do.
AT_WORK = """
    SELECT 'process ' || pid || coalesce(' from ' || host(client_addr), '') || ', since ' || backend_start
    FROM pg_stat_activity WHERE left(application_name, length(%(name)s)) = %(name)s AND pid <> pg_backend_pid()
"""
STATEFUL = "SELECT stateful FROM kept_batches WHERE pipeline = %s"
LOCK_BIRTHS = "SELECT 1 FROM kept_pipelines WHERE pipeline = %s AND topic = ANY(%s) ORDER BY topic FOR UPDATE"
LOCK = BEGIN_AND_LOCK.partition(";")[2]
EVERY_PART = "SELECT topic, partition FROM kept_progress WHERE pipeline = %s"
PUT = """
    INSERT INTO kept_progress (pipeline, topic, partition, next_offset, cluster_id, topic_id, leader_epoch, generation,
                               owner)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (pipeline, topic, partition) DO UPDATE
    SET next_offset = excluded.next_offset, cluster_id = excluded.cluster_id, topic_id = excluded.topic_id,
        leader_epoch = excluded.leader_epoch, generation = excluded.generation, owner = excluded.owner,
        updated_at = now()
"""
ADOPT = "UPDATE kept_pipelines SET topic_id = %s, partitions = %s WHERE pipeline = %s AND topic = %s"
FORGET = "DELETE FROM kept_progress WHERE pipeline = %s AND topic = %s AND partition >= %s"


class Listed(NamedTuple):
    """A pipeline and one of its topics."""

    pipeline: str
    topic: str
    partitions: int
    generation: int
    moved_at: datetime | None


@contextmanager
def looking(dsn: str) -> Iterator[Session]:
    """A connection to a database that has progress of kept."""
    session = open_session(dsn, "kept:pipelines", 5.0, 60.0)
    try:
        with told_as("looking at pipelines"):
            if session.execute("SELECT to_regclass('kept_progress')").fetchall() == [(None,)]:
                raise FixConfiguration(
                    "this database has no progress of kept: the table kept_progress is not there",
                    way_out="name the database that the pipeline writes to, with the same search_path",
                )
            yield session
    finally:
        session.close()


def listed(session: Session) -> list[Listed]:
    return [Listed(*row) for row in session.execute(LIST).fetchall()]


class PostgresKeeping:
    """The progress of one pipeline; `sink` is where a person says that it writes."""

    knows_who_is_at_work = True

    def __init__(self, session: Session, pipeline: str, sink: Sink | None = None) -> None:
        self._session = session
        self._sink = sink
        self.pipeline = pipeline

    def another_sink(self) -> Stop | None:
        """Whether the sink is not the one that progress was recorded with, as far as a person has said which it is."""
        if self._session.execute("SELECT to_regclass('kept_sinks')").fetchall() == [(None,)]:
            return None
        then = sinks.noted(self._session, self.pipeline)
        if then is None:
            return None
        meant = self._meant(then)
        return None if meant is None else sinks.another(self.pipeline, then, sinks.look(self._session, meant))

    def _meant(self, then: sinks.Seen) -> Sink | None:
        """Of effects that are no table's nobody can tell from here whether they are the same."""
        return self._sink or (None if then.name == OWN_EFFECTS.name else Sink(then.name))

    def births(self) -> dict[str, Birth]:
        """The topics that it was born on."""
        found = self._session.execute(BIRTHS, (self.pipeline,)).fetchall()
        return {topic: Birth(topic_id, partitions) for topic, topic_id, partitions in found}

    def recorded(self, topic: str, partitions: Collection[int]) -> dict[int, Recorded]:
        """What is recorded; a partition without a row has lost it."""
        found = read_topic(self._session, self.pipeline, topic)
        return {each: found[each].recorded if each in found else None for each in sorted({*partitions, *found})}

    def copies(self, topic: str, partitions: Collection[int]) -> dict[int, Progress]:  # noqa: ARG002
        """None: what a backup holds goes back together with the effects."""
        return {}

    def has_state(self) -> bool:
        """Whether the last batch was of a plan that keeps state, in its checkpoint."""
        if self._session.execute("SELECT to_regclass('kept_batches')").fetchall() == [(None,)]:
            return False
        return self._session.execute(STATEFUL, (self.pipeline,)).fetchall() == [(True,)]

    def at_work(self) -> list[str]:
        """The connections of drivers and tasks, as far as they can be seen from here."""
        return [row[0] for row in self._session.execute(AT_WORK, {"name": everyone_of(self.pipeline)}).fetchall()]

    def move(self, changes: Sequence[tuple[Recorded, Progress]], births: Mapping[str, Birth]) -> None:
        """All of them, or none; `births` are of the topics that are taken for the source from now on."""
        parts = {(new.position.topic, new.position.partition): old for old, new in changes}
        mark = f"by hand {uuid.uuid4()}"
        with transaction(self._session, f"moving the progress of {self.pipeline!r}"):
            topics = sorted({topic for topic, _ in parts})
            self._session.execute(LOCK_BIRTHS, (self.pipeline, topics))
            self._refuse_at_work()
            self._refuse_moved(parts)
            self._choose_sink(parts)
            self._session.cursor().executemany(PUT, [_values(self.pipeline, new, mark) for _, new in changes])
            for topic, birth in births.items():
                self._session.execute(ADOPT, (birth.topic_id, birth.partitions, self.pipeline, topic))
                self._session.execute(FORGET, (self.pipeline, topic, birth.partitions))

    def _choose_sink(self, parts: Mapping[Part, Recorded]) -> None:
        """Another sink is taken for all partitions at once: for one that stays behind nobody has decided."""
        stop = self.another_sink()
        then = None if stop is None else sinks.noted(self._session, self.pipeline)
        meant = None if then is None else self._meant(then)
        if stop is None or meant is None:
            return
        left = {(topic, number) for topic, number in self._session.execute(EVERY_PART, (self.pipeline,))} - set(parts)
        if left:
            raise FixConfiguration(
                f"{stop.what}; {len(parts)} of its partitions were chosen, and {len(left)} were not",
                way_out="leave --topic and --partition out: all are moved together",
            )
        sinks.choose(self._session, self.pipeline, meant)

    def _refuse_at_work(self) -> None:
        found = self.at_work()
        if found:
            raise Busy(f"{self.pipeline!r} is at work: {'; '.join(found)}", way_out="stop it first, then say it again")

    def _refuse_moved(self, parts: Mapping[Part, Recorded]) -> None:
        cursor = self._session.execute(LOCK, (*columns(list(parts)), self.pipeline))
        found: dict[Part, Row] = {row.part: row for row in (row_of(self.pipeline, one) for one in cursor.fetchall())}
        for part, shown in parts.items():
            now = found[part].recorded if part in found else None
            if now != shown:
                raise ProgressMoved(
                    f"the progress in {part[0]}[{part[1]}] has moved since it was looked at: somebody is at work",
                    way_out="stop the pipeline first, then look again",
                )


def _values(pipeline: str, progress: Progress, mark: str) -> tuple[object, ...]:
    where, source = progress.position, progress.identity
    return (
        pipeline, where.topic, where.partition, where.next_offset, source.cluster_id, source.topic_id,
        source.leader_epoch, progress.owner.generation, mark,
    )  # fmt: skip
