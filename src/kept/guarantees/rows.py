"""One row a setting: its name, the value that kept gives it, the values that keep the promise, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from kept.guarantees.acceptable import Acceptable
from kept.guarantees.levels import Guarantee


class Side(Enum):
    """Who reads the settings; it decides how their names are spelled."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    TOPIC = "topic"
    BROKER = "broker"
    SPARK_SOURCE = "Spark source"
    SPARK_SINK = "Spark sink"
    SPARK_SESSION = "Spark session"

    def plain(self, name: str) -> str:
        """The name as its reader understands it, so that no spelling of it escapes the rows."""
        match self:
            case Side.PRODUCER | Side.CONSUMER:
                # librdkafka drops a leading "topic.", and C ends a name at its first NUL.
                return name.partition("\0")[0].removeprefix("topic.")
            case Side.TOPIC | Side.BROKER:
                return name.strip()
            case Side.SPARK_SINK:
                # The part after "kafka." goes to librdkafka.
                low = name.partition("\0")[0].lower()
                return "kafka." + low[12:] if low.startswith("kafka.topic.") else low
            case _:
                return name.lower()


@dataclass(frozen=True)
class Setting:
    """What kept sets on a person's behalf, and why."""

    name: str
    value: str
    because: str


@dataclass(frozen=True)
class Row:
    """A setting that decides the promise; `value` is None when kept leaves it unset and only guards it."""

    name: str
    value: str | None
    keeps: Acceptable
    because: str
    aliases: tuple[str, ...] = ()

    @property
    def setting(self) -> Setting | None:
        return None if self.value is None else Setting(self.name, self.value, self.because)

    def prefixed(self, prefix: str) -> Row:
        """The same row under a longer name, as Spark passes a Kafka setting on."""
        return replace(self, name=prefix + self.name, aliases=tuple(prefix + alias for alias in self.aliases))


@dataclass(frozen=True)
class Settings:
    """The rows that carry out one guarantee on one side."""

    side: Side
    guarantee: Guarantee
    rows: tuple[Row, ...]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def find(self, name: str) -> Row | None:
        """The row that a name means, by whatever alias or spelling; None when no row knows it."""
        plain = self.side.plain(name)
        for row in self.rows:
            if plain in (self.side.plain(known) for known in (row.name, *row.aliases)):
                return row
        return None

    def values(self) -> dict[str, str]:
        """What kept sets when nobody overrides anything."""
        return {row.name: row.value for row in self.rows if row.value is not None}
