"""Exactly once from Kafka to Kafka: the output and the source positions are committed in one transaction.

A member that was succeeded loses: its transaction carries the group's metadata of the moment (rule 11), and the
coordinator refuses a generation that is over. Nothing is guessed: whatever happens to a transaction, it is ended,
the recorded positions are read, and reading goes on from there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from confluent_kafka import TopicPartition

from kept.consumer.beginning import Beginning
from kept.consumer.dead_letters import bury, headers_of
from kept.consumer.membership import Membership, Next, after
from kept.consumer.outgoing import Ended, Outgoing, Output, Refused, Transaction
from kept.consumer.records import Place, Record
from kept.consumer.retrying import Giving, NoLongerOurs, insist
from kept.consumer.sources import Sources, refuse_changed, refuse_strange, signed
from kept.errors import KeptError, ProgressLost, TryAgain

logger = logging.getLogger("kept")
IDLE = 0.5
TAKEN_TOGETHER = 1000
MOST = 200_000
GIVEN_UP_AFTER = 300.0
Transform: TypeAlias = Callable[[Record], Output | Iterable[Output] | None]


@dataclass
class Window:
    """What the open transaction holds: which records are done in it, and how many."""

    transaction: Transaction
    done: dict[Place, Record] = field(default_factory=dict)
    count: int = 0

    def add(self, records: Sequence[Record]) -> None:
        self.done.update((record.place, record) for record in records)
        self.count += len(records)


class IntoKafkaLoop:
    """Takes records, transforms them, and ends a transaction every so many seconds."""

    def __init__(
        self, member: Membership, beginning: Beginning, sources: Sources, outgoing: Outgoing, group: str
    ) -> None:
        self._member = member
        self._beginning = beginning
        self._sources = sources
        self._outgoing = outgoing
        self._group = group
        self._giving = Giving()
        self._seconds = 0.5
        self._window: Window | None = None
        self._waiting: list[Record] = []
        self._topic_ids: dict[str, str] = {}
        self._limit = MOST  # records a transaction: halved when one is refused, until the poison stands alone
        self._poison: dict[Place, tuple[int, KeptError]] = {}
        self._must_rewind = False
        self._failing_since: float | None = None
        self._stopping = False

    def run(self, transform: Transform, seconds: float, giving: Giving) -> None:
        """Until `stop`; what is done by then is committed."""
        self._seconds, self._giving = seconds, giving
        while not self._stopping:
            try:
                if self._must_rewind:
                    self._rewind()
                self._take(transform)
                if self._is_due():
                    self._commit()
            except (Ended, TryAgain) as reason:
                self._abort()
                self._heed(reason)
        try:
            self._commit()
        except (Ended, TryAgain) as reason:
            logger.warning("the last transaction was not committed, and will be done again: %s", reason)

    def stop(self) -> None:
        self._stopping = True

    def close(self) -> None:
        """Leave; a transaction that is open is aborted."""
        try:
            self._abort()
            self._outgoing.close()
        finally:
            self._member.leave()

    def assigned(self, places: Sequence[Place]) -> Mapping[Place, Next]:
        self._topic_ids.update(self._sources.topic_ids(list(dict.fromkeys(topic for topic, _ in places))))
        positions = self._beginning.positions(places)
        for place, position in positions.items():
            refuse_strange(place, position, self._topic_ids[place[0]])
        return positions

    def revoked(self, places: Sequence[Place]) -> None:
        """The last moment at which the transaction's positions are ours to commit."""
        self._waiting = [record for record in self._waiting if record.place not in places]
        try:
            self._commit()
        except (Ended, TryAgain) as reason:
            self._heed(reason)

    def lost(self, places: Sequence[Place]) -> None:  # noqa: ARG002 - the transaction is one: all of it is aborted
        self._abort()

    def _take(self, transform: Transform) -> None:
        """Transform the next records inside the transaction."""
        records = self._next()
        if not records or self._must_rewind:  # a rebalance came with them, and they are read again
            return
        window = self._open()
        send = window.transaction.send
        for number, record in enumerate(records):
            try:
                outputs = _ready(transform(record)) if not self._poison else self._outputs(record, transform)
            except KeptError:
                raise
            except Exception as failed:  # noqa: BLE001 - the record's own trouble: what came before goes on without it
                window.add(records[:number])
                self._waiting = [*records[number + 1 :], *self._waiting]
                self._insist(record, transform, failed)
                return
            try:
                for output in outputs:
                    send(output)
            except Refused as refused:
                self._found(record, refused.refusal)
                raise
        window.add(records)

    def _next(self) -> list[Record]:
        room = max(1, min(TAKEN_TOGETHER, self._limit - (self._window.count if self._window else 0)))
        if self._waiting:
            records, self._waiting = self._waiting[:room], self._waiting[room:]
            return records
        wait = IDLE
        if self._window is not None:
            wait = max(0.0, self._window.transaction.begun + self._seconds - time.monotonic())
        return self._member.take(room, wait)

    def _outputs(self, record: Record, transform: Transform) -> list[Output]:
        """A record that was proven to be poison has a letter for its output."""
        offset, error = self._poison.get(record.place, (-1, None))
        if error is not None and offset == record.offset:
            return [self._letter(record, error)]
        return _ready(transform(record))

    def _insist(self, record: Record, transform: Transform, failed: Exception) -> None:
        """Try again a record that raised; outside any transaction, for its clock would run meanwhile."""
        self._commit()
        try:
            outputs = insist(
                lambda: _ready(transform(record)), failed, self._giving.retry, lambda delay: self._wait(record, delay)
            )
        except NoLongerOurs:
            self._must_rewind = True
            return
        except KeptError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the record made the transform raise
            outputs = [self._letter(record, error)]
        window = self._open()
        for output in outputs:
            window.transaction.send(output)
        window.add([record])

    def _wait(self, record: Record, delay: float) -> bool:
        """Stay a member for so long; whether the record is still ours to try again."""
        deadline = time.monotonic() + delay
        while (left := deadline - time.monotonic()) > 0 and not self._stopping:
            self._waiting += self._member.take(1, min(left, IDLE))
        return record.place in self._member.owned and not self._stopping

    def _letter(self, record: Record, error: Exception) -> Output:
        if self._giving.dead_letters is None:
            raise error
        letter = bury(record, error, self._group)
        return Output(self._giving.dead_letters, letter.value, letter.key, headers_of(letter))

    def _open(self) -> Window:
        if self._window is None:
            self._window = Window(self._outgoing.open())
        return self._window

    def _is_due(self) -> bool:
        window = self._window
        return window is not None and (
            window.count >= self._limit or time.monotonic() >= window.transaction.begun + self._seconds
        )

    def _commit(self) -> None:
        """Commit the output with the positions behind it, under the group's metadata of this moment."""
        window, self._window = self._window, None
        if window is None:
            return
        if not window.done:
            window.transaction.abort()
            return
        for topic, now in self._sources.topic_ids(sorted({topic for topic, _ in window.done})).items():
            refuse_changed(topic, self._topic_ids[topic], now)
        try:
            window.transaction.commit(self._positions(window.done), self._membership())
        except Ended:
            self._narrow(window)
            raise
        self._failing_since = None
        self._limit = min(MOST, self._limit * 2)
        for place, record in window.done.items():
            if place in self._poison and self._poison[place][0] <= record.offset:
                del self._poison[place]

    def _narrow(self, window: Window) -> None:
        """A record that the broker refuses is found by halves; alone, it is proven to be the one (rule 14)."""
        if window.transaction.forbidden is not None:
            raise window.transaction.forbidden
        if window.transaction.refusal is None:
            return
        if window.count > 1:
            self._limit = max(1, window.count // 2)
        else:
            (record,) = window.done.values()
            self._found(record, window.transaction.refusal)

    def _found(self, record: Record, refusal: KeptError) -> None:
        if self._giving.dead_letters is None or self._poison.get(record.place, (-1, None))[0] == record.offset:
            raise refusal  # there is nowhere to put it, or its letter was refused as well
        self._poison[record.place] = (record.offset, refusal)

    def _membership(self) -> object:
        if not self._member.client.memberid():
            raise Ended("this process is not a member of its group")
        return self._member.client.consumer_group_metadata()

    def _positions(self, done: Mapping[Place, Record]) -> list[TopicPartition]:
        found = []
        for (topic, partition), record in done.items():
            position = signed(after(record), self._topic_ids[topic])
            found.append(TopicPartition(topic, partition, position.offset, position.note, position.leader_epoch))
        return found

    def _abort(self) -> None:
        """What was done since the last commit is not: it is read again."""
        window, self._window = self._window, None
        self._must_rewind = True
        if window is not None:
            window.transaction.abort()

    def _heed(self, reason: Exception) -> None:
        """Go on from the recorded positions; when that is in vain for long, it is told."""
        self._must_rewind = True
        self._failing_since = self._failing_since or time.monotonic()
        logger.info("going on from the recorded positions: %s", reason)
        if time.monotonic() - self._failing_since > GIVEN_UP_AFTER:
            raise TryAgain(
                f"nothing could be committed for {GIVEN_UP_AFTER:.0f} s: {reason}",
                way_out="see that the brokers run, then start it again: it goes on where it was",
            ) from reason

    def _rewind(self) -> None:
        """Read on from the recorded positions; an open transaction that may move them is waited for."""
        self._waiting = []
        positions = {}
        for place, position in self._member.committed(sorted(self._member.owned)).items():
            if position is None:
                raise ProgressLost(
                    f"the progress of {place[0]}[{place[1]}] is gone",
                    way_out="find who deleted it; compare the output with the source, then set it by hand",
                )
            refuse_strange(place, position, self._topic_ids[place[0]])
            positions[place] = position
        self._member.seek(positions)
        self._must_rewind = False


def _ready(outputs: Output | Iterable[Output] | None) -> list[Output]:
    """All outputs of a record, before the first is sent: half of them would be torn."""
    return [outputs] if isinstance(outputs, Output) else list(outputs or ())
