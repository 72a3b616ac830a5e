"""Exactly once from Kafka to Kafka: the output and the source positions are committed in one transaction.

A member that was succeeded loses: its transaction carries the group's metadata of the moment (rule 11), and the
coordinator refuses a generation that is over. Nothing is guessed: whatever happens to a transaction, it is ended,
the recorded positions are read, and reading goes on from there. A transaction is committed while the next is gathered.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

from confluent_kafka import TopicPartition

from kept.consumer.beginning import Beginning
from kept.consumer.dead_letters import bury, headers_of
from kept.consumer.ending import Ending
from kept.consumer.faults import set_position
from kept.consumer.membership import Membership
from kept.consumer.outgoing import Ended, Outgoing, Output, Refused
from kept.consumer.positions import Next, after
from kept.consumer.records import Place, Record
from kept.consumer.retrying import Giving, NoLongerOurs, insist
from kept.consumer.sources import Sources, refuse_changed, refuse_strange, signed
from kept.consumer.window import Limit, Window
from kept.errors import Fenced, FixConfiguration, KeptError, ProgressLost, TryAgain

logger = logging.getLogger("kept")
IDLE = 0.5
HEARD_WITHIN = 0.05
"""While nothing comes: how soon it is noticed that a commit is done."""
SERVED_EVERY = 1.0
"""A member is heard of at least so often, however long its records take."""
TAKEN_TOGETHER = 200
"""Three objects for each record: of a few hundred the garbage collector hears nothing, of 1,000 it takes a tenth of all
work."""
GIVEN_UP_AFTER = 300.0
ASSIGNED_WITHIN = 60.0
Transform: TypeAlias = Callable[[Record], Output | Iterable[Output] | None]
Until: TypeAlias = Mapping[Place, int]


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
        self._until: Until = {}
        self._window: Window | None = None
        self._ending: Ending | None = None  # the one before
        self._failed: Window | None = None
        self._waiting: list[Record] = []
        self._topic_ids: dict[str, str] = {}
        self._limit = Limit(outgoing.longest)
        self._poison: dict[tuple[Place, int], KeptError] = {}
        self._rebalances = 0
        self._served = 0.0
        self._must_rewind = False
        self._failing_since: float | None = None
        self._not_assigned: BaseException | None = None
        self._stopping = False
        self._end = ThreadPoolExecutor(1, thread_name_prefix="kept-end")

    def run(self, transform: Transform, seconds: float, giving: Giving, until: Until) -> None:
        """Until `stop`, or until these positions are reached; what is done by then is committed."""
        if not 0 < seconds <= self._outgoing.longest / 2:
            raise FixConfiguration(
                f"a transaction every {seconds} s: the broker ends one after {self._outgoing.longest:.0f} s",
                way_out="give seconds above 0, and a transaction.timeout.ms of at least twice as long",
            )
        self._seconds, self._giving, self._until = seconds, giving, until
        try:
            self._go_on(transform)
            self._must_rewind = True  # what is in hand was not done, and is read again
        except BaseException:
            self._abort()
            raise

    def stop(self) -> None:
        self._stopping = True

    def close(self) -> None:
        """Leave; a transaction that is open is aborted."""
        try:
            self._abort()
            self._end.shutdown()
            self._outgoing.close()
        finally:
            self._member.leave()

    def assigned(self, places: Sequence[Place]) -> Mapping[Place, Next]:
        """Where to begin; brokers that are away are waited for, since the group does not ask a second time."""
        self._rebalances += 1
        deadline = time.monotonic() + ASSIGNED_WITHIN
        while True:
            try:
                return self._begin(places)
            except BaseException as error:
                if not isinstance(error, TryAgain) or time.monotonic() > deadline:
                    self._not_assigned = error
                    raise
                time.sleep(0.2)

    def revoked(self, places: Sequence[Place]) -> None:
        """The last moment at which the transaction's positions are ours to commit."""
        self._rebalances += 1
        self._waiting = [record for record in self._waiting if record.place not in places]
        try:
            self._commit()
        except (Ended, TryAgain) as reason:
            self._go_back(reason)

    def lost(self, places: Sequence[Place]) -> None:  # noqa: ARG002 - the transaction is one: all of it is aborted
        self._rebalances += 1
        self._abort()

    def _go_on(self, transform: Transform) -> None:
        while not self._stopping and not self._is_finished():
            try:
                if self._must_rewind:
                    self._rewind()
                self._take(transform)
                if self._ending is not None and self._ending.is_over():
                    self._hear_end()
                if self._is_due():
                    self._begin_commit()
            except (Ended, TryAgain) as reason:
                self._go_back(reason)
                time.sleep(0.1)
        try:
            self._commit()
        except (Ended, TryAgain) as reason:
            self._go_back(reason)
            logger.warning("the last transaction was not committed, and will be done again: %s", reason)

    def _begin(self, places: Sequence[Place]) -> Mapping[Place, Next]:
        self._topic_ids.update(self._sources.topic_ids(list(dict.fromkeys(topic for topic, _ in places))))
        positions = self._beginning.positions(places)
        for place, position in positions.items():
            refuse_strange(self._group, place, position, self._topic_ids[place[0]])
        return positions

    def _take(self, transform: Transform) -> None:
        """Transform the next records, then send what came of them: no transaction's clock runs for a slow transform."""
        records = self._next()
        if not records or self._must_rewind:  # a rebalance came with them, and they are read again
            return
        began = time.monotonic()
        outputs, failed = self._transformed(records, transform, began + self._seconds)
        done, rest = records[: len(outputs)], records[len(outputs) :]
        if done:
            self._send(done, outputs, began)
        if failed is None:
            self._waiting = [*rest, *self._waiting]
        else:
            self._waiting = [*rest[1:], *self._waiting]
            self._insist(rest[0], transform, failed)

    def _next(self) -> list[Record]:
        if self._waiting and time.monotonic() > self._served + SERVED_EVERY:
            self._keep(self._poll(1, 0))
        window = self._window
        room = max(1, min(TAKEN_TOGETHER, self._limit.records - (window.count if window else 0)))
        if self._waiting:
            records, self._waiting = self._waiting[:room], self._waiting[room:]
            return records
        records = self._poll(room, self._patience())
        if window is None and self._ending is None and not records:
            self._failing_since = None  # there is nothing that could fail
        return records

    def _patience(self) -> float:
        """How long to wait for records."""
        if self._window is not None:
            return max(0.0, self._window.begun + self._seconds - time.monotonic())
        return IDLE if self._ending is None else HEARD_WITHIN

    def _poll(self, most: int, wait: float) -> list[Record]:
        try:
            records = self._member.take(most, wait)
        except KeptError:
            self._hear_end()  # it may know why: the topic was made anew
            raise
        self._served = time.monotonic()
        if self._until:
            records = [each for each in records if each.offset < self._until.get(each.place, each.offset + 1)]
        return records

    def _keep(self, records: Iterable[Record]) -> None:
        self._waiting = [*self._waiting, *records]

    def _transformed(
        self, records: Sequence[Record], transform: Transform, late: float
    ) -> tuple[list[Output | Sequence[Output]], Exception | None]:
        """What came of the first records, up to the first that raised; no more than there is time for."""
        make = partial(self._letter_or, transform) if self._poison else transform
        made: list[Output | Sequence[Output]] = []
        add, now = made.append, time.monotonic
        for record in records:
            try:
                outputs = make(record)
                add(outputs if outputs.__class__ is Output else tuple(outputs or ()))  # type: ignore[arg-type]
            except KeptError:
                raise
            except Exception as failed:  # noqa: BLE001 - the record's own trouble: what came before goes on without it
                return made, failed
            if self._stopping or now() > late:
                break
        return made, None

    def _send(self, records: Sequence[Record], made: Sequence[Output | Sequence[Output]], began: float) -> None:
        """Put records into the transaction. From here on it is committed with all of them, or not at all."""
        if self._ending is not None:
            self._ending.wait_until_sent()  # or records of a key could overtake each other
        window = self._window
        if window is None:
            window = self._window = Window(self._outgoing.open(), began, one_by_one=self._limit.records == 1)
        window.add(records)
        try:
            window.transaction.send_all(made, one_by_one=window.one_by_one)
        except Refused as refused:
            self._found(records[refused.number], refused.refusal)
            raise

    def _letter_or(self, transform: Transform, record: Record) -> Output | Iterable[Output] | None:
        """A record that was proven to be poison has a letter for its output."""
        error = self._poison.get((record.place, record.offset))
        return transform(record) if error is None else self._letter(record, error)

    def _insist(self, record: Record, transform: Transform, failed: Exception) -> None:
        """Try again a record that raised; outside any transaction, for its clock would run meanwhile."""
        self._commit()
        outputs: Output | Iterable[Output] | None
        try:
            outputs = insist(lambda: _ready(transform(record)), failed, self._giving.retry, self._wait)
        except NoLongerOurs:
            self._must_rewind = True
            return
        except KeptError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the record made the transform raise
            outputs = self._letter(record, error)
        self._send([record], [_ready(outputs)], time.monotonic())

    def _wait(self, delay: float) -> bool:
        """Stay a member for so long; whether all is as it was: a partition that went and came back is read anew."""
        before = self._rebalances
        deadline = time.monotonic() + delay
        paused = sorted(self._member.owned)
        self._member.pause(paused)
        try:
            while (left := deadline - time.monotonic()) > 0 and not self._stopping and before == self._rebalances:
                self._keep(self._poll(1, min(left, IDLE)))
        finally:
            self._member.resume(paused)
        return before == self._rebalances and not self._stopping and not self._must_rewind

    def _letter(self, record: Record, error: Exception) -> Output:
        if self._giving.dead_letters is None:
            raise error
        letter = bury(record, error, self._group)
        return Output(self._giving.dead_letters, letter.value, letter.key, headers_of(letter))

    def _is_due(self) -> bool:
        window = self._window
        return window is not None and (
            window.count >= self._limit.records or time.monotonic() >= window.begun + self._seconds
        )

    def _is_finished(self) -> bool:
        """Whether everything up to the given positions is committed, by whichever member."""
        if not self._until or self._window or self._ending or self._waiting or self._must_rewind:
            return False
        try:
            committed = self._member.committed(sorted(self._until))
        except TryAgain:
            return False
        return all(found and found.offset >= self._until[place] for place, found in committed.items())

    def _commit(self) -> None:
        """Commit everything that was done, and wait until it is."""
        self._begin_commit()
        self._hear_end()

    def _begin_commit(self) -> None:
        """Commit the output with the positions behind it, under the group's metadata of this moment."""
        window = self._window
        if window is None:
            return
        self._hear_end()
        topics = sorted({topic for topic, _ in window.done})
        check = partial(self._refuse_changed, self._sources.ask_topic_ids(topics))
        self._ending = Ending(self._end, window, check, self._positions(window.done), self._membership())
        self._window = None

    def _refuse_changed(self, topic_ids: Callable[[], Mapping[str, str]]) -> None:
        for topic, now in topic_ids().items():
            refuse_changed(topic, self._topic_ids[topic], now)

    def _hear_end(self) -> None:
        """Wait until the transaction that is being committed is."""
        ending, self._ending = self._ending, None
        if ending is None:
            return
        try:
            ending.wait()
        except (Ended, TryAgain):
            self._failed = ending.window
            raise
        self._failing_since = None
        self._limit.widen()
        done = ending.window.done
        for place, offset in list(self._poison):
            if place in done and offset <= done[place].offset:
                del self._poison[place, offset]

    def _membership(self) -> object:
        try:
            return self._member.credentials()
        except Fenced as stranger:
            raise Ended(stranger.what) from stranger

    def _positions(self, done: Mapping[Place, Record]) -> list[TopicPartition]:
        found = []
        for (topic, partition), record in done.items():
            position = signed(after(record), self._topic_ids[topic])
            found.append(TopicPartition(topic, partition, position.offset, position.note, position.leader_epoch))
        return found

    def _abort(self) -> None:
        """What was done since the last commit is not: it is read again."""
        window, self._window = self._window, None
        ending, self._ending = self._ending, None
        self._must_rewind = True
        if ending is not None:
            ending.wait_for_any_end()
        if window is not None:
            window.transaction.abort()

    def _go_back(self, reason: Exception) -> None:
        """Go on from the recorded positions; when that is in vain for long, it is told."""
        failed, self._failed = self._failed or self._window, None
        self._abort()
        if self._not_assigned is not None:
            raise self._not_assigned
        if failed is not None:
            poison = self._limit.narrow(failed)
            if poison is not None:
                self._found(*poison)
        self._failing_since = self._failing_since or time.monotonic()
        logger.info("going on from the recorded positions: %s", reason)
        if time.monotonic() - self._failing_since > GIVEN_UP_AFTER:
            raise TryAgain(
                f"nothing could be committed for {GIVEN_UP_AFTER:.0f} s: {reason}",
                way_out="see that the brokers run, then start it again: it goes on where it was",
            ) from reason

    def _found(self, record: Record, refusal: KeptError) -> None:
        """This record was refused by itself."""
        if self._giving.dead_letters is None or (record.place, record.offset) in self._poison:
            raise refusal  # there is nowhere to put it, or its letter was refused as well
        self._poison[record.place, record.offset] = refusal

    def _rewind(self) -> None:
        """Read on from the recorded positions; an open transaction that may move them is waited for."""
        self._member.take(1, 0)  # stay a member, however often this is tried; what comes is read again
        self._waiting = []
        positions = {}
        for place, position in self._member.committed(sorted(self._member.owned)).items():
            if position is None:
                raise ProgressLost(
                    f"the progress of {place[0]}[{place[1]}] is gone",
                    way_out="find who deleted it; compare the output with the source, then set it where that ends: "
                    f"`{set_position(self._group, *place)}`",
                )
            refuse_strange(self._group, place, position, self._topic_ids[place[0]])
            positions[place] = position
        self._member.seek(positions)
        self._must_rewind = False


def _ready(outputs: Output | Iterable[Output] | None) -> Sequence[Output]:
    """All outputs of a record, before the first is sent: half of them would be torn."""
    return (outputs,) if isinstance(outputs, Output) else tuple(outputs or ())
