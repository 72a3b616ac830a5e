"""The rows of kept_progress: the statements that lock, read and move them, and what they mean to the pure decisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kept.errors import Fenced, KeptError, ProgressLost, ProgressMoved
from kept.progress import Identity, Owner, Position, Progress, Unsigned
from kept.stores.holders import Part
from kept.stores.sessions import Session

# One statement locks all rows, always in the same order: two that want the same rows never wait for each other in a
# circle. It waits if it must, and then sees what the one before committed (READ COMMITTED). BEGIN travels with it.
BEGIN_AND_LOCK = """
    BEGIN ISOLATION LEVEL READ COMMITTED;
    SELECT p.topic, p.partition, p.next_offset, p.cluster_id, p.topic_id, p.leader_epoch, p.generation, p.owner,
           pg_current_xact_id()::text
    FROM kept_progress p JOIN unnest(%s::text[], %s::int[]) AS wanted(topic, partition) USING (topic, partition)
    WHERE p.pipeline = %s ORDER BY p.topic, p.partition FOR UPDATE OF p
"""
READ = """
    SELECT topic, partition, next_offset, cluster_id, topic_id, leader_epoch, generation, owner, ''
    FROM kept_progress WHERE pipeline = %s AND topic = %s ORDER BY partition
"""
# Moves every row or fails: its division by zero ends the transaction, so COMMIT may travel right behind it. It asks
# again for the offset, the owner and the generation that were read, in the very transaction that locked them. The
# owner's mark says which offset the owner wrote: one that somebody else put beside it is not that.
RECORD = """
    WITH moved AS (
        UPDATE kept_progress p
        SET next_offset = v.next_offset, leader_epoch = v.leader_epoch, updated_at = now(),
            owner = %(owner)s::text || '@' || v.next_offset
        FROM unnest(%(topics)s::text[], %(partitions)s::int[], %(expected)s::bigint[], %(next_offsets)s::bigint[],
                    %(leader_epochs)s::int[], %(generations)s::bigint[])
             AS v(topic, partition, expected, next_offset, leader_epoch, generation)
        WHERE p.pipeline = %(pipeline)s AND p.topic = v.topic AND p.partition = v.partition
          AND p.next_offset = v.expected AND p.generation = v.generation
          AND p.owner = %(owner)s::text || '@' || v.expected
          AND pg_current_xact_id()::text = %(transaction)s
        RETURNING 1)
    SELECT 1 / (count(*) = %(rows)s)::int FROM moved
"""
CLAIM = """
    UPDATE kept_progress p SET generation = v.generation, owner = %s::text || '@' || p.next_offset, updated_at = now()
    FROM unnest(%s::text[], %s::int[], %s::bigint[]) AS v(topic, partition, generation)
    WHERE p.pipeline = %s AND p.topic = v.topic AND p.partition = v.partition
"""
SEED = """
    INSERT INTO kept_progress (pipeline, topic, partition, next_offset, cluster_id, topic_id, leader_epoch, generation,
                               owner)
    VALUES (%s, %s, %s, %s, %s, %s, %s, 0, '') ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A progress row as it was read: what the pure decisions see, and who wrote it.

    `owner` is the mark that was written with the offset: UUID@OFFSET. Marks without an offset are those of a birth, of
    a person (`kept pipelines`), and of versions before this one.
    """

    progress: Progress
    owner: str
    transaction: str

    @property
    def signed_at(self) -> int | None:
        """The offset that the last owner wrote; None: its mark says none."""
        _, _, offset = self.owner.rpartition("@")
        return int(offset) if "@" in self.owner and offset.isdecimal() else None

    @property
    def recorded(self) -> Progress | Unsigned:
        """Rule 6: an offset that is not the one of the mark was put there by a stranger."""
        here = self.progress.position
        return self.progress if self.signed_at in (None, here.next_offset) else Unsigned(here)

    @property
    def part(self) -> Part:
        return self.progress.position.topic, self.progress.position.partition


def row_of(pipeline: str, found: Sequence[object]) -> Row:
    topic, partition, next_offset, cluster_id, topic_id, leader_epoch, generation, owner, transaction = found
    return Row(
        Progress(
            Position(str(topic), _int(partition), _int(next_offset)),
            Identity(str(cluster_id), str(topic_id), _int(leader_epoch)),
            Owner(pipeline, _int(generation)),
        ),
        str(owner),
        str(transaction),
    )


def columns(parts: Collection[Part]) -> tuple[list[str], list[int]]:
    """Parts as the two arrays that the statements take, in the order in which rows are locked."""
    ordered = sorted(parts)
    return [topic for topic, _ in ordered], [partition for _, partition in ordered]


def all_there(pipeline: str, parts: Collection[Part], rows: Mapping[Part, Row]) -> None:
    """Rule 2: a row that is missing was lost; it is never zero."""
    for topic, partition in sorted(parts):
        if (topic, partition) not in rows:
            raise lost(pipeline, topic, partition)


def lost(pipeline: str, topic: str, partition: int) -> ProgressLost:
    return ProgressLost(
        f"kept_progress has no row of {pipeline!r} for {topic}[{partition}]",
        way_out="restore the row from a backup, together with the effects; or choose where to go on: "
        f"`kept pipelines repair {pipeline}`",
    )


def not_ours(row: Row, owner: str, generation: int) -> KeptError | None:
    """Rules 5 and 7: may the owner that took over as this generation still write here?

    The pure decision looks at generations only. Here the owner's own mark is compared too: a database that went
    back to a backup hands out the same generation again. The mark holds the offset as well: whoever moves that alone
    is not the owner, and what lies in between would be dropped as done, or done twice.
    """
    recorded, position = row.progress.owner.generation, row.progress.position
    if row.owner == mark(owner, position.next_offset) and recorded == generation:
        return None
    if recorded == generation and row.owner.startswith(f"{owner}@"):
        return moved_by_a_stranger(row)
    if recorded < generation:
        return ProgressMoved(
            f"{position} is recorded for generation {recorded}, though this process took over as {generation}: "
            "the database went back, or somebody wrote the row",
            way_out="start again: effects and progress went back together, and go on from what is recorded",
        )
    return Fenced(
        f"generation {recorded} owns {position}; this process is generation {generation}",
        way_out="nothing to repair: the newer owner goes on; end this one",
    )


def mark(owner: str, next_offset: int) -> str:
    """What an owner writes beside an offset."""
    return f"{owner}@{next_offset}"


def moved_by_a_stranger(row: Row) -> ProgressMoved:
    position, pipeline = row.progress.position, row.progress.owner.fingerprint
    return ProgressMoved(
        f"{position} is recorded for {pipeline!r}, whose owner wrote {row.signed_at}: somebody else moved it",
        way_out=f"find who writes kept_progress; then choose where to go on: `kept pipelines repair {pipeline}`",
    )


def record_arguments(owner: str, moves: Sequence[tuple[Row, Progress]]) -> dict[str, object]:
    """What RECORD needs to move each row from what was read to what is done now."""
    rows, new = [row for row, _ in moves], [progress for _, progress in moves]
    return {
        "pipeline": rows[0].progress.owner.fingerprint,
        "owner": owner,
        "transaction": rows[0].transaction,
        "rows": len(moves),
        "topics": [row.progress.position.topic for row in rows],
        "partitions": [row.progress.position.partition for row in rows],
        "expected": [row.progress.position.next_offset for row in rows],
        "next_offsets": [progress.position.next_offset for progress in new],
        "leader_epochs": [progress.identity.leader_epoch for progress in new],
        "generations": [row.progress.owner.generation for row in rows],
    }


def read_topic(session: Session, pipeline: str, topic: str) -> dict[int, Row]:
    """Without a lock: what is recorded for a topic, partition by partition."""
    found = [row_of(pipeline, row) for row in session.execute(READ, (pipeline, topic)).fetchall()]
    return {row.progress.position.partition: row for row in found}


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no number")
    return value
