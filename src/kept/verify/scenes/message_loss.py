"""Scene: progress is recorded, then the effect is applied; a crash in between loses what was received."""

from __future__ import annotations

from collections.abc import Mapping

from kept.guarantees import AtLeastOnce, AtMostOnce
from kept.verify.scenes.crashing import crash, messages, more_than_once, row
from kept.verify.scenes.performing import Script
from kept.verify.scenes.stage import Stage
from kept.verify.scenes.telling import LOST, Story

DECK = (
    "M1..M10 are received; the offset is committed (M10); M1..M5 are being processed; the consumer crashes; "
    "it resumes, and M11.. is delivered."
)
WHY = "Whoever records progress after the effect finds unfinished work again; whoever records it before does not."


def play(stage: Stage, word: str, story: Story) -> Mapping[str, int]:
    crashed = crash(stage, word, messages(1, 10), dies_at="M5")
    story.tell("a consumer receives M1..M10", f"received {row(crashed.received)}")
    story.tell("it is killed while at M5 (kill -9)", "processed by then:", crashed.processed)
    next_one = 1 if crashed.recorded is None else crashed.recorded + 1
    nothing = " (none recorded)" if crashed.recorded is None else ""
    story.tell("the progress that the brokers have now", f"M{next_one} is next{nothing}")
    stage.send(crashed.task.topic, messages(11, 12))
    received = crashed.again(last="M12")
    story.tell("M11 and M12 are sent; the consumer starts again", f"it goes on with {received[0]}")
    processed = crashed.ledger.processed()
    lost = [record for record in messages(1, 12) if record not in processed]
    twice = more_than_once(processed)
    story.tell("records processed, in the end", "", sorted(set(processed), key=processed.index))
    story.tell("records never processed", "" if lost else "none", lost, range(len(lost)))
    story.tell(
        "records processed twice",
        "the price (scene double-processing):" if twice else "none",
        twice,
    )
    return {LOST: len(lost), "repeated": len(twice)}


SCRIPT = Script("message-loss", DECK, WHY, AtMostOnce.word, AtLeastOnce.word, LOST, play)
