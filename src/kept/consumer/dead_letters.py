"""Dead letters: records that were given up, with the reason, where they came from, and every original byte. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kept.consumer.records import Headers, Place, Record
from kept.errors import FixConfiguration

PREFIX = "kept.dead."
LONGEST_REASON = 1000


@dataclass(frozen=True)
class DeadLetter:
    """A record that was given up."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    reason: str
    group: str
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def place(self) -> Place:
        return self.topic, self.partition


def bury(record: Record, error: BaseException, group: str) -> DeadLetter:
    """The letter for a record that its effect, or the sink, will not take."""
    reason = f"{type(error).__name__}: {error}"[:LONGEST_REASON]
    return DeadLetter(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        reason,
        group,
        record.key,
        record.value,
        record.headers,
    )


def headers_of(letter: DeadLetter) -> list[tuple[str, str | bytes | None]]:
    """The original headers, then ours."""
    ours = {
        "reason": letter.reason,
        "topic": letter.topic,
        "partition": str(letter.partition),
        "offset": str(letter.offset),
        "timestamp": str(letter.timestamp),
        "group": letter.group,
    }
    return [*letter.headers, *((PREFIX + name, value) for name, value in ours.items())]


def read_letter(record: Record) -> DeadLetter:
    """The letter that a record of a dead-letter topic is. A record that died twice tells of the last time."""
    own: list[tuple[str, bytes | None]] = []
    ours: dict[str, str] = {}
    for name, value in record.headers:
        if name.startswith(PREFIX):
            if name == PREFIX + "reason":
                own += [(PREFIX + known, text.encode()) for known, text in ours.items()]
                ours.clear()
            ours[name.removeprefix(PREFIX)] = (value or b"").decode(errors="replace")
        else:
            own.append((name, value))
    try:
        return DeadLetter(
            ours["topic"],
            int(ours["partition"]),
            int(ours["offset"]),
            int(ours["timestamp"]),
            ours["reason"],
            ours["group"],
            record.key,
            record.value,
            tuple(own),
        )
    except (KeyError, ValueError):
        raise FixConfiguration(
            f"{record!r} is not a dead letter: it does not say where it came from",
            way_out="name a topic that dead letters were sent to",
        ) from None
