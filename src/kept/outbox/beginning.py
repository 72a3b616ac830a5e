"""Where a relay begins: Kafka's position, compared with the backlog's own copy of it. Pure; a doubt stops the relay."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, overload

from kept.errors import FixConfiguration, KeptError, ProgressLost, ProgressMoved, SourceChanged
from kept.outbox.backlog import Standing
from kept.producer.marks import Mark, Reached

NO_TAG = -1
"""Where a relay begins that finds no position: it has not seen the record before."""


class Found(NamedTuple):
    """What is known of a backlog before its first record is relayed."""

    name: str
    identity: str
    standing: Standing
    end: int
    knows: Callable[[int, int], bool]


def where_to_begin(mark: Mark | None, found: Found) -> int:
    """The position after which to read; raises where records could be lost or sent twice."""
    standing = found.standing
    if mark is None:
        _refuse_doubt(
            found, standing.confirmed, "Kafka has no position for it (it expires after a week without a relay)"
        )
        return standing.confirmed
    reached = refuse_a_stranger(mark, found.name, found.identity)
    _refuse_restored(reached, found)
    if standing.generation > mark.generation:
        # Somebody who leaves no mark was here since: a relay at least once, or a person who purged.
        begin = max(standing.confirmed, reached.position)
        _refuse_doubt(found, begin, "a relay that was to send at least once did not come to its end")
        return begin
    if standing.confirmed > reached.position:
        raise ProgressMoved(
            f"Kafka's position for {found.name} is {reached.position}, but records up to {standing.confirmed} were "
            "confirmed: the cluster was set back to an earlier time, or it is another one",
            way_out="compare the topics with what was sent; the records in between are no longer in the journal",
        )
    return reached.position


@overload
def refuse_a_stranger(mark: Mark, name: str, identity: str) -> Reached: ...
@overload
def refuse_a_stranger(mark: Mark | None, name: str, identity: str) -> Reached | None: ...
def refuse_a_stranger(mark: Mark | None, name: str, identity: str) -> Reached | None:
    """Rule 13: the position of another journal; also true of a mark that is not the newest."""
    if mark is None:
        return None
    if mark.reached is None:
        raise FixConfiguration(
            f"the name under which {name} is relayed belongs to a producer", way_out="choose another"
        )
    if mark.reached.identity != identity:
        raise SourceChanged(
            f"Kafka's position is that of the journal {mark.reached.identity}; {name} is {identity}",
            way_out="give each journal a name of its own, or point the relay at the journal that it belongs to",
        )
    return mark.reached


def _refuse_restored(reached: Reached, found: Found) -> None:
    """Rule 13: a position past the end, or another record where the last one should be."""
    error: KeptError | None = None
    if reached.position > found.end:
        error = SourceChanged(
            f"records up to {reached.position} were relayed, but {found.name} ends at {found.end}: it was restored "
            "from an older copy",
            way_out="nothing in it was left unsent; move it away, and begin a new journal",
        )
    elif (
        reached.tag != NO_TAG
        and reached.position >= found.standing.confirmed
        and not found.knows(reached.position, reached.tag)
    ):
        error = SourceChanged(
            f"the record at {reached.position} of {found.name} is not the one that was relayed: it was restored from "
            "an older copy, and written to since",
            way_out="send what was written since the restoration again, into a new journal (`kept outbox inspect`)",
        )
    if error is not None:
        raise error


def _refuse_doubt(found: Found, begin: int, why: str) -> None:
    attempted = found.standing.attempted
    if attempted > begin:
        raise ProgressLost(
            f"whether the records of {found.name} from {begin + 1} to {attempted} are in Kafka is not known: {why}",
            way_out="look for them; `kept outbox relay --guarantee at-least-once` sends them again, whatever is there",
        )
