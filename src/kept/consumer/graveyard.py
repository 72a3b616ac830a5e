"""Where records are buried that an effect will not take: a dead-letter topic, under the consumer's own guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from kept.consumer.dead_letters import bury, headers_of
from kept.consumer.records import Record
from kept.guarantees import Guarantee
from kept.producer import Producer

BURIED_WITHIN = 60.0


class Graveyard:
    """Sends letters, and waits for each: a record is given up only when its letter is there."""

    def __init__(self, bootstrap: str, topic: str, guarantee: Guarantee, group: str, connection: Mapping[str, object]):
        self._topic = topic
        self._group = group
        self._producer = Producer(bootstrap, guarantee, **connection)

    def bury(self, record: Record, error: BaseException) -> None:
        letter = bury(record, error, self._group)
        self._producer.send(self._topic, letter.value, key=letter.key, headers=headers_of(letter)).result(BURIED_WITHIN)

    def __enter__(self) -> Graveyard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.__exit__(kind, error, trace)
