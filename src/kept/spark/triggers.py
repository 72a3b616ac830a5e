"""When a pipeline takes the next micro-batch, and what an aggregation lets out of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from kept.errors import FixConfiguration

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True)
class Every:
    """A micro-batch every so many seconds, or as soon as the last one ended; until the pipeline is stopped."""

    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.seconds < 0:
            raise FixConfiguration(f"every {self.seconds} s is no pace", way_out="use 0 or more seconds")

    def given_to(self, writer: DataStreamWriter) -> DataStreamWriter:
        return writer.trigger(processingTime=f"{round(self.seconds * 1000)} milliseconds")

    def __str__(self) -> str:
        return f"a batch every {self.seconds:g} s" if self.seconds else "batch after batch"


@dataclass(frozen=True)
class UntilEnd:
    """Everything that is there now, in as many micro-batches as it takes; then the pipeline ends."""

    def given_to(self, writer: DataStreamWriter) -> DataStreamWriter:
        return writer.trigger(availableNow=True)

    def __str__(self) -> str:
        return "until the end of what is there"


Trigger: TypeAlias = Every | UntilEnd


class Emit(Enum):
    """What a transform with state lets out; the value is Spark's name of it."""

    CHANGES = "update"
    """Every result that has changed in the batch: for a sink that replaces what it has under the same key."""
    FINAL = "append"
    """A result once, when the watermark says that it cannot change any more."""
