"""Row 14: while one processor works, others come and go, in good order or by SIGKILL in the middle of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kept.admin.groups import Groups
from kept.errors import TryAgain
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.dying import KILLED
from kept.verify.trials.feeding import TableSink, empty_source
from kept.verify.trials.lives import Life
from kept.verify.trials.roles.processor import TOGETHER
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Setting, Thing
from kept.verify.trials.work import OwnWork

NAME = "rebalance-storm"
PARTITIONS = 6
STAYS = 2.0
LEAVES_WITHIN = 60.0
SLOW = {"thinks": 0.005, "one_by_one": True}


def play(arena: Arena, thing: Thing) -> None:
    source = empty_source(arena, PARTITIONS)
    storm(arena, thing, OwnWork(arena, source, TableSink(arena, source)))


def storm(
    arena: Arena,
    thing: Thing,
    work: OwnWork,
    settings: Mapping[str, Setting] | None = None,
    midway: Callable[[], None] = lambda: None,
) -> None:
    """Records come when a guest has joined: so there is something to do in its partitions, whichever they are.

    `midway` is called before the records of the guest in the middle.
    """
    settings = settings or {}
    portion = portion_of(arena)
    work.feed(portion)
    resident = arena.start(thing, work.topic, options=work.sink.options(), settings=settings)
    resident.wait_done(1)
    for number in range(arena.volume.faults):
        dies_at = None if number % 2 else arena.dice.randint(TOGETHER // 2, 2 * TOGETHER)
        guest = _joined(arena, thing, work, dies_at, {**settings, "client.id": f"guest-{number}"})
        if number == arena.volume.faults // 2:
            midway()
        work.feed(work.fed + portion)
        guest.wait_done(1)  # before its first effect it may not yet hear that it is asked to leave
        if dies_at is None:
            arena.linger(lambda: False, STAYS * arena.dice.random())
            guest.ask_to_end()
            arena.finish(guest, LEAVES_WITHIN)
            arena.struck("a member joined, and left")
        else:
            _see_it_die(guest, dies_at)
            arena.struck(f"a member joined, and was killed before its effect {dies_at}")
        resident.refuse_ended("the storm was over")
    work.feed_rest()
    arena.finish_when_complete(work.sink, resident)
    work.sink.audit()


def portion_of(arena: Arena) -> int:
    """The records for each guest, and for the time before the first."""
    return arena.volume.records // (arena.volume.faults + 1)


def _joined(arena: Arena, thing: Thing, work: OwnWork, dies_at: int | None, settings: Mapping[str, Setting]) -> Life:
    """A guest that has been given partitions. It is known by its name: the dead are members for a while, too."""
    options = {**work.sink.options(), **({} if dies_at is None else {"dies_at": dies_at})}
    guest, name = arena.start(thing, work.topic, options=options, settings=settings), settings["client.id"]
    groups, group = Groups(arena.cluster.bootstrap), arena.groups[thing.guarantee == ExactlyOnce.word]
    guest.wait(
        lambda: any(member.client == name and member.places for member in groups.describe(group).members),
        "the guest has been given partitions",
    )
    return guest


def _see_it_die(guest: Life, at: int) -> None:
    if (code := guest.end(LEAVES_WITHIN)) != KILLED:
        raise TryAgain(
            f"a guest was to die before its effect {at}, and ended with {code}: {guest.last_words}",
            way_out="run it with more records: perhaps nothing was left for it to do",
        )


def processor(word: str) -> Thing:
    return Thing(f"kept.Consumer into Postgres, {word}", "processor", word, {}, SLOW)


WORDS = (AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word)
REPEATS = Control(processor(AtLeastOnce.word), frozenset({Anomaly.DUPLICATED}))
LOSES = Control(processor(AtMostOnce.word), frozenset({Anomaly.LOST}))
SCENARIO = Scenario(
    NAME,
    14,
    TITLES[NAME],
    things={word: processor(word) for word in WORDS},
    controls={AtMostOnce.word: REPEATS, AtLeastOnce.word: LOSES, ExactlyOnce.word: REPEATS},
    play=play,
    full=Volume(6_000, 5),
    smoke=Volume(5_000, 3),
    at_risk=2 * TOGETHER,
    patience=60.0,
    needs=frozenset({Need.POSTGRES}),
)
