"""Row 19: the disk of Postgres is full while it takes rows; there is room again after a while."""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.local.processes import State
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.disks import fill, make_room, refuse_lasting, small_disk
from kept.verify.trials.feeding import TableSink, feed, mark_ends
from kept.verify.trials.reviving import Revived
from kept.verify.trials.roles.processor import TOGETHER
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "postgres-disk-full"
SLOW = {"thinks": 0.004, "one_by_one": True}
FULL_FOR = 5.0
STOPS_WITHIN = 60.0
STANDS_STILL = 2.0


def play(arena: Arena, thing: Thing) -> None:
    """Who dies of it is started again when there is room; exactly-once waits for that by itself."""
    refuse_lasting(lasting=arena.lasting)
    postgres = arena.cluster.postgres
    arena.use(small_disk(postgres))
    source = feed(arena, ends=False)
    sink = TableSink(arena, source)
    processor = Revived(arena, sink, lambda: arena.start(thing, source.topic, options=sink.options()))
    for moment in arena.moments():
        processor.reach(moment)
        with arena.fault("the disk of Postgres was full"):
            fill(postgres)
            arena.wait(lambda: _stands_still(arena, sink), "nothing more is written", STOPS_WITHIN)
            arena.linger(lambda: False, FULL_FOR)
            make_room(postgres)
            if postgres.state() is not State.RUNNING:
                postgres.start()
        processor.go_on(unaided=thing.guarantee == ExactlyOnce.word)
    mark_ends(arena, source)
    arena.finish_when_complete(sink, processor.life)
    sink.audit()


def _stands_still(arena: Arena, sink: TableSink) -> bool:
    """Nothing new for a while."""
    before = sink.how_much()
    return not arena.linger(lambda: sink.how_much() > before, STANDS_STILL)


WORDS = (AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word)
SCENARIO = Scenario(
    NAME,
    19,
    TITLES[NAME],
    things={word: Thing(f"kept.Consumer into Postgres, {word}", "processor", word, {}, SLOW) for word in WORDS},
    controls={},
    play=play,
    full=Volume(6_000, 2),
    smoke=Volume(2_000, 1),
    at_risk=TOGETHER,
    patience=60.0,
    needs=frozenset({Need.POSTGRES}),
)
