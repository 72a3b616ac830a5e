"""A processor that kills itself where the seed says, life after life, until one may live to the end."""

from __future__ import annotations

from collections.abc import Mapping

from kept.errors import TryAgain
from kept.verify.trials.arena import Arena, effects_in
from kept.verify.trials.scenario import Volume
from kept.verify.trials.things import Setting, Thing
from kept.verify.trials.work import Work

SAME_MEMBER = {"group.instance.id": "processor"}
"""A member with a name takes over from its dead self at once, instead of waiting until its session is over."""
DIES_WITHIN = 300.0
"""With nothing done."""
KILLED = -9


def earliest_and_latest(volume: Volume) -> tuple[int, int]:
    """Before which effect of its life it dies: so that there is something left for every life."""
    most = volume.records // (volume.faults + 1)
    return most // 2, most


def die_again_and_again(arena: Arena, thing: Thing, work: Work, settings: Mapping[str, Setting] = SAME_MEMBER) -> None:
    """The last life has no death before it, and ends when all is done; only then are the ends of the source marked."""
    work.feed(arena.volume.records)
    options = work.sink.options()
    for _ in range(arena.volume.faults):
        at = arena.dice.randint(*earliest_and_latest(arena.volume))
        life = arena.start(thing, work.topic, settings=settings, options={**options, "dies_at": at})
        code = life.end(DIES_WITHIN, lambda: effects_in(work.sink))
        if code != KILLED:
            raise TryAgain(
                f"a life was to end at effect {at}, and ended with {code}: {life.last_words}", way_out="look"
            )
        arena.struck(f"killed before effect {at} of its life")
    work.feed_rest()
    life = arena.start(thing, work.topic, settings=settings, options=options)
    arena.finish_when_complete(work.sink, life)
