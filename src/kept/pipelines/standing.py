"""Where a pipeline stands: in its source, sink and checkpoint; what a restart does, and what keeps it from one.

Pure. A pipeline whose progress a person has to set is one that `kept.progress.trust` does not let go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from kept.admin.backlog import Bounds, Place, Position
from kept.admin.moves import Kind, Move, Spot, Target, plan, read_target
from kept.errors import FixConfiguration, Gap, KeptError, ProgressLost, ProgressMoved, SinkChanged, SourceChanged
from kept.pipelines.checkpoints import Part
from kept.progress import Identity, Owner, Progress, Recorded, Source, Stop, trust
from kept.progress import Position as PartPosition
from kept.progress.positions import same_sink

LAST_GENERATION = 2**63 - 1
COPY = "copy"


@dataclass(frozen=True)
class Standing:
    """One source partition of a pipeline. `source` is None when it was not asked, or when it is not there any more."""

    part: Part
    recorded: Recorded
    source: Source | None
    stable: int = 0
    """Up to where read_committed readers may read."""
    checkpoint: int | None = None
    """Where Spark's checkpoint would go on."""
    copy: Progress | None = None
    """The durable copy of progress, where there is one beside the record."""
    gone: bool = False
    """The source was asked, and has no such partition."""
    born_on: str | None = None
    """The id of the topic that the pipeline takes for its source."""
    sink: str | None = None
    """The sink as it is now, if that is known."""
    another_sink: Stop | None = None
    """Why the sink is not the one that progress was recorded for, where the store has found that out."""

    @property
    def place(self) -> Place:
        return Place(*self.part)

    @property
    def known(self) -> list[Progress]:
        """What bears a signature of ours: the record, and the copy of it."""
        return [found for found in (self.recorded, self.copy) if isinstance(found, Progress)]

    @property
    def next_offset(self) -> int | None:
        return None if self.recorded is None else self.recorded.position.next_offset

    @property
    def behind(self) -> int | None:
        """At most so many records are still to be read."""
        if self.source is None or self.next_offset is None:
            return None
        return max(0, self.source.log_end - max(self.next_offset, self.source.log_start))

    def trouble(self, name: str) -> Stop | None:
        """What would keep the pipeline of this name from going on here."""
        if self.gone:
            return Stop(SourceChanged, f"{self.place} is not in the source any more", way_out(name))
        if self.another_sink is not None:
            return self.another_sink
        anybody = Owner(name, LAST_GENERATION, self.sink)
        if self.source is None and isinstance(self.recorded, Progress):
            return same_sink(self.recorded, anybody)  # nobody asked for the source
        if self.source is not None and self.born_on not in (None, self.source.identity.topic_id):
            now = self.source.identity.topic_id
            what = f"{self.part[0]} was made anew: its id was {self.born_on} and is {now}"
            return Stop(SourceChanged, what, way_out(name))
        source = self.source or Source(Identity("", "", 0), 0, 0, 0)
        answer = trust(self.recorded, source, anybody)
        return answer if isinstance(answer, Stop) else None

    def stops(self, name: str) -> Stop | None:
        """What the next start would stop with: trouble, or a checkpoint that is ahead, for which no progress moves."""
        trouble = self.trouble(name)
        ahead = (self.checkpoint or 0) - (self.next_offset or 0)
        if trouble is not None or self.next_offset is None or ahead <= 0:
            return trouble
        return Stop(
            Gap,
            f"the checkpoint is at {self.checkpoint} of {self.place}, {ahead} ahead of the sink: it stops with a gap",
            "move the checkpoint away: it goes on where the sink stands; where it keeps state, restore checkpoint and "
            "sink of the same time",
        )

    def restart(self) -> str:
        """What the next start does with this partition, as far as positions tell."""
        here = self.next_offset
        if here is None or self.checkpoint is None or self.checkpoint == here:
            return "" if here is None else f"goes on at {here}"
        if self.checkpoint < here:
            again = here - self.checkpoint
            return f"the checkpoint is at {self.checkpoint}: {again} offsets are read again and dropped"
        return (
            f"the checkpoint is at {self.checkpoint}, {self.checkpoint - here} ahead of the sink: it stops with a gap; "
            "move the checkpoint away"
        )


@dataclass(frozen=True)
class Goal:
    """Where a person wants progress to be; None: where its durable copy says."""

    target: Target | None

    @staticmethod
    def typed(text: str, now: datetime) -> Goal:
        return Goal(None if text == COPY else read_target(text, now, "--from"))

    @property
    def moment(self) -> datetime | None:
        if self.target is None or self.target.kind is not Kind.MOMENT:
            return None
        return datetime.fromtimestamp(self.target.number / 1000, timezone.utc)

    @property
    def counts_from_here(self) -> bool:
        """Whether the same words lead elsewhere once they were carried out."""
        return self.target is not None and self.target.kind is Kind.SHIFT and self.target.number != 0


@dataclass(frozen=True)
class Change:
    """One partition's progress as it is and as it shall be."""

    expected: Recorded
    new: Progress
    move: Move

    @property
    def part(self) -> Part:
        return self.move.place.topic, self.move.place.partition


def way_out(name: str) -> str:
    return f"`kept pipelines repair {name}` shows what there is to choose"


def chosen(standings: Sequence[Standing], topic: str | None, partitions: Sequence[int]) -> list[Standing]:
    """Those that a person named, or all."""
    found = [
        each for each in standings if topic in (None, each.part[0]) and (not partitions or each.part[1] in partitions)
    ]
    if not found or (partitions and len({each.part[0] for each in standings}) > 1 and topic is None):
        there = ", ".join(str(each.place) for each in standings)
        raise FixConfiguration(
            "several topics have such partitions" if found else "the pipeline has no such partition",
            way_out=f"name --topic, and --partition if not all; there are {there}",
        )
    return found


def refuse_troubled(name: str, standings: Iterable[Standing]) -> None:
    """A replay begins from a pipeline that is well: else nobody could say what is read again."""
    for each in standings:
        stop = each.trouble(name)
        if stop is not None:
            raise stop.kind(stop.what, way_out=way_out(name))


def successor(name: str, standings: Iterable[Standing]) -> Owner:
    """Above every generation that is recorded anywhere: whoever is at work, and whoever sleeps, stops."""
    owners = [progress.owner for each in standings for progress in each.known]
    sinks = (owner.sink for owner in owners if owner.sink is not None)
    return Owner(name, 1 + max((owner.generation for owner in owners), default=0), next(sinks, None))


def moved(goal: Goal, standings: Sequence[Standing], moments: dict[Part, int | None], owner: Owner) -> list[Change]:
    """Where progress goes, under the identity that the source has now."""
    if goal.target is None:
        return [_to_copy(each, owner) for each in standings]
    lost = [each for each in standings if each.source is None]
    if lost:
        raise FixConfiguration(
            f"{', '.join(str(each.place) for each in lost)} cannot be moved: the source was not asked, or has no such "
            "partition",
            way_out="name the source with --bootstrap; of a topic that is gone, start a new pipeline on another",
        )
    moves = plan(goal.target, [_spot(each, moments) for each in standings])
    return [_change(each, move, owner) for each, move in zip(standings, moves, strict=True)]


def _spot(each: Standing, moments: dict[Part, int | None]) -> Spot:
    source = each.source
    if source is None:
        raise TypeError("the source was not asked")
    same = isinstance(each.recorded, Progress) and _same(each.recorded.identity, source.identity)
    position = Position(each.place, each.next_offset if same else None)
    return Spot(position, Bounds(source.log_start, each.stable, source.log_end), moments.get(each.part))


def _change(each: Standing, move: Move, owner: Owner) -> Change:
    source = each.source
    if source is None:
        raise TypeError("the source was not asked")
    # A position at which nothing was read yet belongs to the log as it is now, whatever was cut from it before.
    progress = Progress(_at(each, move.new), source.identity, _for_its_sink(owner, each))
    return Change(each.recorded, progress, move)


def _to_copy(each: Standing, owner: Owner) -> Change:
    if each.copy is None:
        raise FixConfiguration(
            f"there is no durable copy of the progress in {each.place}",
            way_out="choose where to go on: --from beginning, end, an offset or a time",
        )
    new = each.copy.position.next_offset
    source = each.source or Source(each.copy.identity, 0, new, new)
    bounds = Bounds(source.log_start, source.log_end, source.log_end)
    note = "back to what the pipeline itself recorded last"
    move = Move(each.place, each.next_offset, new, bounds, note)
    return Change(each.recorded, replace(each.copy, owner=_for_its_sink(owner, each)), move)


def _for_its_sink(owner: Owner, each: Standing) -> Owner:
    """What is moved on purpose counts for the sink as it is now; where nobody knows that one, for the recorded one."""
    sinks = [each.sink, *(progress.owner.sink for progress in each.known), owner.sink]
    return replace(owner, sink=next((sink for sink in sinks if sink is not None), None))


def _at(each: Standing, offset: int) -> PartPosition:
    return PartPosition(each.part[0], each.part[1], offset)


def _same(one: Identity, other: Identity) -> bool:
    return (one.cluster_id, one.topic_id) == (other.cluster_id, other.topic_id)


_CHOICES: Mapping[type[KeptError], str] = {
    Gap: "--from beginning accepts the loss, and goes on with the oldest record there is",
    ProgressLost: "--from an offset or a time, where the sink really stands",
    SinkChanged: "give the pipeline another name; or --from beginning writes all that is there to the new sink, "
    "--from +0 goes on where it stands: what lies before is never written there",
}


def choices(stop: Stop, standing: Standing) -> str:
    """What a person may choose, in words, for one kind of trouble."""
    if stop.kind in _CHOICES:
        return _CHOICES[stop.kind]
    if stop.kind is ProgressMoved:
        copy = f"--from copy goes back to {standing.copy.position.next_offset}, " if standing.copy else ""
        return f"find who writes under this name; then {copy}or --from an offset, where the sink really stands"
    if standing.gone:
        return "start a new pipeline under another name; this one's progress belongs to what is gone"
    source, recorded = standing.source, standing.recorded
    if isinstance(recorded, Progress) and source is not None and _same(recorded.identity, source.identity):
        return "compare the sink with the source from there on; then --from that offset, or --from end"
    return "--from beginning takes the new topic for the source, from its first record; --from end skips what is there"


def meaning(goal: Goal, changes: Sequence[Change], checkpoint: Mapping[Part, int] | None) -> list[str]:
    """What carrying it out would mean, in words, above all for duplicates."""
    again, skipped = sum(c.move.read_again or 0 for c in changes), sum(c.move.skipped or 0 for c in changes)
    words = []
    if again:
        words.append(
            f"at most {again} records are read again, and written again, whatever the guarantee: a topic, and a table "
            "without a key, hold them twice; with a key the second is left out, or replaces the first (upsert)"
        )
    if skipped:
        words.append(f"at most {skipped} records are never read")
    if goal.counts_from_here:
        words.append(
            "+N and -N count from where each partition stands: if this is cut short, look at `kept pipelines show` "
            "before it is said again, and name offsets; what was moved already would move once more"
        )
    ahead = [c for c in changes if checkpoint is None or checkpoint.get(c.part, 0) > c.new.position.next_offset]
    if ahead:
        words.append(
            "a checkpoint that is ahead stops the pipeline with a gap: start it without, or move the checkpoint away"
        )
    return words
