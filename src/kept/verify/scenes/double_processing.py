"""Scene: the effect is applied, then progress is recorded; a crash in between repeats the effect."""

from __future__ import annotations

from collections.abc import Mapping

from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.verify.scenes.crashing import crash, messages, more_than_once, row, second_times
from kept.verify.scenes.performing import Script
from kept.verify.scenes.stage import Stage
from kept.verify.scenes.telling import LOST, Story

DECK = (
    "M1..M10 are received; M1..M5 are processed; the consumer crashes before the commit; it resumes, and what was "
    "processed is processed again. Exactly once: the offset is moved with the state changes."
)
WHY = "Effect and progress are in one transaction: the crash undid both, so nothing was left to repeat."


def play(stage: Stage, word: str, story: Story) -> Mapping[str, int]:
    crashed = crash(stage, word, messages(1, 10), dies_at="M6")
    story.tell("a consumer receives M1..M10", f"received {row(crashed.received)}")
    story.tell("it processes M1..M5, and is killed before it records its progress (kill -9)", f"killed at {crashed.at}")
    story.tell("rows in Postgres after the crash", "" if crashed.processed else "none", crashed.processed)
    received = crashed.again(last="M10")
    story.tell("the consumer starts again", f"it goes on with {received[0]}")
    processed = crashed.ledger.processed()
    twice = more_than_once(processed)
    lost = [record for record in messages(1, 10) if record not in processed]
    story.tell("rows in Postgres, in the end", "", processed, second_times(processed))
    story.tell("records processed twice", "" if twice else "none", twice, range(len(twice)))
    return {"processed twice": len(twice), LOST: len(lost)}


SCRIPT = Script("double-processing", DECK, WHY, AtLeastOnce.word, ExactlyOnce.word, "processed twice", play)
