"""Where a reader stands in its source, and whether it may go on from there: pure decisions, no I/O.

Progress is the next source position, per source partition. Before anything is written, `check`
compares it with the input in hand and with the source as it is now, and answers `Accept` (drop the
rows below this offset, they are done) or `Stop` (which error, and the way out). Each question is one
small function, listed in `ABOUT_THE_OWNER` and `ABOUT_THE_SOURCE`; the first that answers wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from kept.errors import Fenced, Gap, KeptError, ProgressLost, ProgressMoved, SinkChanged, SourceChanged, UnsoundInput


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset to read in one source partition; everything below it is done."""

    topic: str
    partition: int
    next_offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.next_offset}"


@dataclass(frozen=True, slots=True)
class Identity:
    """Which source it was: names are reused, these are not."""

    cluster_id: str
    topic_id: str
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Owner:
    """Who records progress: the pipeline's fingerprint, the generation of its driver, and the sink that it writes to.

    The sink is named so that one of the same name is told from it; None: it is not known here.
    """

    fingerprint: str
    generation: int
    sink: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """A record of progress that bears our signature."""

    position: Position
    identity: Identity
    owner: Owner


@dataclass(frozen=True, slots=True)
class Unsigned:
    """A position where our progress should be, without our signature: a stranger wrote it."""

    position: Position


Recorded: TypeAlias = Progress | Unsigned | None
"""What a store may find: our record, a stranger's, or nothing."""


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets that were planned, end excluded; holes in it (control records) are normal.

    `leader_epoch` is asked for AFTER the end was planned and BEFORE the rows are read. Taken later, it
    may belong to a log that was cut and refilled meanwhile, and hides the cut; taken earlier, an ordinary
    election looks like a cut.
    """

    topic: str
    partition: int
    start: int
    end: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Source:
    """One source partition as it is now, asked of its leader: cached metadata may be older than progress.

    `epoch_end` is where the broker says that the leader epoch stored with progress ends: a lower
    value than progress means that the log was cut, even if it has been refilled since.
    """

    identity: Identity
    log_start: int
    log_end: int
    epoch_end: int


@dataclass(frozen=True, slots=True)
class Accept:
    """Go on; rows below `drop_below` are done already."""

    drop_below: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class Stop:
    """Do not go on: what happened, and the way out."""

    kind: type[KeptError]
    what: str
    way_out: str

    def error(self) -> KeptError:
        return self.kind(self.what, way_out=self.way_out)


def signed_by_us(progress: Progress, owner: Owner) -> Stop | None:
    """Rule 6: another pipeline's progress is as foreign as an unsigned one."""
    if progress.owner.fingerprint == owner.fingerprint:
        return None
    return Stop(
        ProgressMoved,
        f"progress at {progress.position} was signed by {progress.owner.fingerprint!r}, not by {owner.fingerprint!r}",
        f"give each pipeline a name of its own, then go back to the durable copy: {_repair(owner.fingerprint)}",
    )


def not_succeeded(progress: Progress, owner: Owner) -> Stop | None:
    """Rule 7: the lower generation stops for good."""
    return None if progress.owner.generation <= owner.generation else succeeded(progress, owner)


def succeeded(progress: Progress, owner: Owner) -> Stop:
    """Another driver has this partition."""
    return Stop(
        Fenced,
        f"generation {progress.owner.generation} of {owner.fingerprint!r} owns {progress.position}; "
        f"this is generation {owner.generation}",
        "nothing to repair: the newer owner goes on; end this one",
    )


def same_sink(progress: Progress, owner: Owner) -> Stop | None:
    """What lies below progress is in the sink that it was recorded for, and in no other one."""
    then, now = progress.owner.sink, owner.sink
    if then is None or now is None or then == now:
        return None
    return Stop(
        SinkChanged,
        f"progress of {owner.fingerprint!r} at {progress.position} was recorded for the sink {then}; "
        f"this one writes to {now}, where nothing below that is",
        f"write to the old sink, give this pipeline another name, or choose: {_repair(owner.fingerprint)}",
    )


def same_source(progress: Progress, source: Source) -> Stop | None:
    """Rule 3: a cluster or topic of the same name is not the same source."""
    then, now = progress.identity, source.identity
    if then.cluster_id == now.cluster_id and then.topic_id == now.topic_id:
        return None
    return Stop(
        SourceChanged,
        f"progress at {progress.position} belongs to topic id {then.topic_id} of cluster {then.cluster_id}; "
        f"the source is now topic id {now.topic_id} of cluster {now.cluster_id}",
        f"point this one at the old topic, start a new pipeline, or choose: {_repair(progress.owner.fingerprint)}",
    )


def not_cut_short(progress: Progress, source: Source) -> Stop | None:
    """Rule 3: records below progress that are not the ones we read would be dropped unseen."""
    upto = progress.position.next_offset
    end = min(source.log_end, source.epoch_end)
    if upto <= end and progress.identity.leader_epoch <= source.identity.leader_epoch:
        return None
    return Stop(
        SourceChanged,
        f"progress is at {progress.position}, but what was read there (leader epoch "
        f"{progress.identity.leader_epoch}) ends at {end}: the log was cut",
        f"compare the sink with the source from offset {end} on, then choose: {_repair(progress.owner.fingerprint)}",
    )


def nothing_deleted(progress: Progress, source: Source) -> Stop | None:
    """Retention or DeleteRecords overtook us: said with its count, never skipped."""
    gone = source.log_start - progress.position.next_offset
    if gone <= 0:
        return None
    return Stop(
        Gap,
        f"{gone} offsets from {progress.position} to {source.log_start} were deleted before they were read",
        f"restore them from elsewhere, or accept the loss: {_repair(progress.owner.fingerprint)}",
    )


def _repair(name: str) -> str:
    return f"`kept pipelines repair {name}`"


OwnerQuestion: TypeAlias = Callable[[Progress, Owner], Stop | None]
SourceQuestion: TypeAlias = Callable[[Progress, Source], Stop | None]

ABOUT_THE_OWNER: tuple[OwnerQuestion, ...] = (signed_by_us, not_succeeded, same_sink)
ABOUT_THE_SOURCE: tuple[SourceQuestion, ...] = (same_source, not_cut_short, nothing_deleted)


def trust(recorded: Recorded, source: Source, owner: Owner) -> Accept | Stop:
    """May this owner go on from what is recorded, in this source?"""
    if recorded is None:
        return Stop(
            ProgressLost,
            f"no progress of {owner.fingerprint!r} is recorded, though it was seeded at birth",
            f"choose where to go on, else records repeat or are skipped: {_repair(owner.fingerprint)}",
        )
    if isinstance(recorded, Unsigned):
        return Stop(
            ProgressMoved,
            f"progress at {recorded.position} lacks the signature of {owner.fingerprint!r}: a stranger moved it",
            f"find who commits under this name, then go back to the durable copy: {_repair(owner.fingerprint)}",
        )
    answers = chain(
        (ask(recorded, owner) for ask in ABOUT_THE_OWNER), (ask(recorded, source) for ask in ABOUT_THE_SOURCE)
    )
    for stop in answers:
        if stop is not None:
            return stop
    return Accept(recorded.position.next_offset, recorded)


def check(wanted: Range, recorded: Recorded, source: Source, owner: Owner) -> Accept | Stop:
    """May this range be written? If so, which of its rows are done already?"""
    answer = trust(recorded, source, owner)
    if isinstance(answer, Stop):
        return answer
    position = answer.progress.position
    if (position.topic, position.partition) != (wanted.topic, wanted.partition):
        raise ValueError(f"{wanted} was compared with the progress of {position}")
    if wanted.start > position.next_offset:
        return Stop(
            Gap,
            f"the input starts at {wanted.start}, progress is {position}: "
            f"{wanted.start - position.next_offset} offsets in between were never seen here",
            f"start the source at offset {position.next_offset} of {position.topic}[{position.partition}]; "
            "move a checkpoint of Spark away that is ahead",
        )
    return answer


def check_rows(wanted: Range, offsets: Sequence[int]) -> Stop | None:
    """Rule 12: a task sees one source partition, inside its range, in strictly rising offsets."""
    floor = wanted.start - 1
    for offset in offsets:
        if not floor < offset < wanted.end:
            return Stop(
                UnsoundInput,
                f"offset {offset} of {wanted.topic}[{wanted.partition}] came after {floor} "
                f"in the range {wanted.start} to {wanted.end}",
                "use batch mode: the plan repeats, reorders or splits source partitions",
            )
        floor = offset
    return None


def advance(progress: Progress, to: int, leader_epoch: int, owner: Owner) -> Progress:
    """The record after everything below `to` is done; forward only."""
    here, identity = progress.position, progress.identity
    if to < here.next_offset or owner.generation < progress.owner.generation:
        raise ValueError(f"progress only moves forward: {progress} cannot become {to} of {owner}")
    return Progress(
        Position(here.topic, here.partition, to),
        Identity(identity.cluster_id, identity.topic_id, max(identity.leader_epoch, leader_epoch)),
        owner,
    )


def seed(position: Position, identity: Identity, fingerprint: str, sink: str | None = None) -> Progress:
    """The record made for every partition at a pipeline's birth, so that missing always means lost."""
    return Progress(position, identity, Owner(fingerprint, 0, sink))
