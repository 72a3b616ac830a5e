"""Row 13: a program is killed while it sends, and started again from its source; the outbox replays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.lives import Life
from kept.verify.trials.scenario import Control, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "outbox-restarted"
RESENDER = "resender"
"""It goes on where its file says, and sends again what it sent since."""
PER_SECOND = 500
FEWEST = 50
"""Records that a life begins, at least, before it is killed."""


def play(arena: Arena, thing: Thing) -> None:
    """What a life had begun to send when it was killed has no known fate: its successor goes on behind it."""
    topic = arena.topic()
    files = files_of(arena)
    first = 0
    for moment in arena.moments():
        life = arena.start(thing, topic, options=files, first=first, per_second=PER_SECOND)
        life.wait_begun(max(FEWEST, moment - first))
        life.kill()
        first = goes_on_at(life, files)
        arena.struck(f"the program was killed after {moment} records")
    arena.finish(arena.start(thing, topic, options=files, first=first, per_second=PER_SECOND))
    audit_topic(arena, topic)


def files_of(arena: Arena) -> dict[str, str]:
    """What outlives a program that is killed."""
    return {"path": str(arena.folder / "outbox.db"), "position": str(arena.folder / "position")}


def goes_on_at(life: Life, files: Mapping[str, str]) -> int:
    """The number with which the successor of a life begins."""
    if life.task.role != RESENDER:
        return life.task.first + life.begun
    position = Path(files["position"])
    return int(position.read_text()) if position.exists() else 0


RESENDS = Control(
    Thing("an idempotent producer, and a file of positions", RESENDER, AtLeastOnce.word),
    frozenset({Anomaly.DUPLICATED}),
)
FORGETS = Control(
    Thing(
        "confluent-kafka's buffer, believed", "raw_producer", AtLeastOnce.word, {"linger.ms": 200}, {"believes": True}
    ),
    frozenset({Anomaly.LOST}),
)
SCENARIO = Scenario(
    NAME,
    13,
    TITLES[NAME],
    things={
        AtMostOnce.word: Thing("kept.Producer, at-most-once", "producer", AtMostOnce.word),
        AtLeastOnce.word: Thing(
            "kept.Outbox, relay at-least-once", "outbox", AtLeastOnce.word, {}, {"at_least_once": True}
        ),
        ExactlyOnce.word: Thing("kept.Outbox", "outbox", ExactlyOnce.word),
    },
    controls={AtMostOnce.word: RESENDS, AtLeastOnce.word: FORGETS, ExactlyOnce.word: RESENDS},
    play=play,
    full=Volume(10_000, 10),
    smoke=Volume(2_000, 3),
    at_risk=PER_SECOND // 2,
)
