"""What is told of a pipeline while it runs: a line or a document for each batch. Pure; who prints it is elsewhere."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW = 10
"""The pace is that of the last so many batches."""


@dataclass(frozen=True)
class PartitionDone:
    """Where a batch has left one source partition; `log_end` is where its log ended when the batch began."""

    topic: str
    partition: int
    start: int
    next_offset: int
    log_end: int

    @property
    def lag(self) -> int:
        """Offsets that were there and are not done: at most so many records."""
        return max(0, self.log_end - self.next_offset)


@dataclass(frozen=True)
class BatchDone:
    """One micro-batch that is in the sink; `dropped` rows were there before, `buried` ones are dead letters."""

    batch: int
    rows: int
    dropped: int
    seconds: float
    partitions: tuple[PartitionDone, ...]
    buried: int = 0


@dataclass
class Telling:
    """Adds batches up."""

    name: str
    will_end: bool
    batches: int = 0
    rows: int = 0
    dropped: int = 0
    buried: int = 0
    _partitions: dict[tuple[str, int], PartitionDone] = field(default_factory=dict)
    _paces: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _heard: float | None = None

    def hear(self, done: BatchDone, now: float) -> None:
        """Another batch is done; `now` is the time on a clock that only goes forward."""
        since = done.seconds if self._heard is None else max(now - self._heard, done.seconds)
        self._heard = now
        self.batches += 1
        self.rows += done.rows
        self.dropped += done.dropped
        self.buried += done.buried
        offsets = sum(each.next_offset - each.start for each in done.partitions)
        self._paces.append((since, done.rows, offsets))
        self._partitions |= {(each.topic, each.partition): each for each in done.partitions}

    @property
    def rate(self) -> float:
        """Rows a second, lately."""
        seconds = sum(each[0] for each in self._paces)
        return sum(each[1] for each in self._paces) / seconds if seconds > 0 else 0.0

    @property
    def lag(self) -> int:
        return sum(each.lag for each in self._partitions.values())

    @property
    def seconds_left(self) -> float | None:
        """Until the end, at the present pace; None when it has none, or nobody can say."""
        seconds, offsets = sum(each[0] for each in self._paces), sum(each[2] for each in self._paces)
        if not self.will_end or offsets <= 0:
            return None
        return self.lag * seconds / offsets

    @property
    def partitions(self) -> list[PartitionDone]:
        return [self._partitions[part] for part in sorted(self._partitions)]

    def line(self, done: BatchDone) -> str:
        """For a log: one line, the partitions that are behind in it."""
        behind = ", ".join(f"{each.topic}[{each.partition}] {each.lag:,}" for each in self.partitions if each.lag)
        words = [
            f"{self.name}: batch {done.batch}",
            f"{done.rows:,} rows in {done.seconds:.1f} s",
            f"{self.rows:,} in all",
            f"{self.rate:,.0f} a second",
            f"behind by at most {self.lag:,}" + (f" ({behind})" if behind else ""),
        ]
        if done.dropped:
            words.insert(2, f"{done.dropped:,} were there before")
        if done.buried:
            words.insert(2, f"{done.buried:,} buried")
        if self.seconds_left:
            words.append(f"about {spoken(self.seconds_left)} left")
        return ", ".join(words)

    def document(self, done: BatchDone) -> dict[str, object]:
        """For a program."""
        left = self.seconds_left
        return {
            "pipeline": self.name,
            "batch": done.batch,
            "rows": done.rows,
            "dropped": done.dropped,
            "buried": done.buried,
            "seconds": round(done.seconds, 3),
            "rows_in_all": self.rows,
            "rows_a_second": round(self.rate, 1),
            "lag_at_most": self.lag,
            "seconds_left": None if left is None else round(left, 1),
            "partitions": [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "from": each.start,
                    "next_offset": each.next_offset,
                    "log_end": each.log_end,
                    "lag_at_most": each.lag,
                }
                for each in done.partitions
            ],
        }

    def head(self) -> str:
        """For a screen: what holds for the pipeline as a whole."""
        buried = f"   {self.buried:,} buried" if self.buried else ""
        left = f"   {spoken(self.seconds_left)} left" if self.seconds_left else ""
        return (
            f"{self.name}   batch {self.batches}   {self.rows:,} rows   {self.rate:,.0f} a second   "
            f"behind by at most {self.lag:,}{buried}{left}"
        )

    def summary(self) -> str:
        """At the end."""
        before = f"; {self.dropped:,} were there before, and dropped" if self.dropped else ""
        buried = f"; {self.buried:,} were buried: `kept dead-letters list`" if self.buried else ""
        return f"{self.name}: {self.rows:,} rows in {self.batches} batches{before}{buried}"


def spoken(seconds: float) -> str:
    """A time as a person says it."""
    whole = round(seconds)
    if whole < 60:
        return f"{max(1, whole)} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
