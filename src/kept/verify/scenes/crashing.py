"""What the two scenes of a crashing consumer share: it is killed at a record, and started again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kept.errors import TryAgain
from kept.verify.scenes.ledger import Ledger
from kept.verify.scenes.stage import Stage
from kept.verify.scenes.worker import Task


@dataclass(frozen=True)
class Crash:
    """What was seen when the consumer was killed; `again` starts it once more."""

    stage: Stage
    task: Task
    received: tuple[str, ...]
    at: str
    processed: tuple[str, ...]
    recorded: int | None

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.task.dsn, self.task.table)

    def again(self, last: str) -> tuple[str, ...]:
        """The same consumer, up to this record; what it received first."""
        with self.stage.child(replace(self.task, dies_at=None, last=last).text()) as child:
            received = tuple(child.hear("received").split())
            child.hear("finished")
            child.end()
        return received


def messages(first: int, last: int) -> list[str]:
    """M1, M2 and so on."""
    return [f"M{number}" for number in range(first, last + 1)]


def row(records: Sequence[str]) -> str:
    """Records in short: `M1..M10`; they stand in a row."""
    if not records:
        return "nothing"
    return records[0] if len(records) == 1 else f"{records[0]}..{records[-1]}"


def more_than_once(records: Sequence[str]) -> list[str]:
    """Each record that is there twice or more often."""
    return [record for record, times in Counter(records).items() if times > 1]


def second_times(records: Sequence[str]) -> set[int]:
    """Where a record stands that stood before."""
    return {position for position, record in enumerate(records) if record in records[:position]}


def crash(stage: Stage, guarantee: str, records: Sequence[str], dies_at: str) -> Crash:
    """Have these records in a topic, and a consumer that is killed while it is at one of them."""
    topic, ledger = stage.topic(), stage.ledger()
    stage.send(topic, records)
    task = Task(
        stage.bootstrap, topic, stage.name(), guarantee, ledger.dsn, ledger.table, dies_at=dies_at, last=records[-1]
    )
    stage.group(task.group)
    with stage.child(task.text()) as child:
        received = tuple(child.hear("received").split())
        if dies_at not in received:
            raise TryAgain(
                f"only {row(received)} arrived together, and {dies_at} was not among them", way_out="play it again"
            )
        at = child.hear("at")
        child.kill()
    return Crash(stage, task, received, at, tuple(ledger.processed()), stage.recorded(task.group, topic))
