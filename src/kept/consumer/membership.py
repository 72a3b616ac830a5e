"""A member of a consumer group: which partitions are ours, what they hold, and progress recorded only while they are.

Rebalances happen inside `take` and `leave`, on the caller's thread; a `Follower` is told before partitions go.
Kafka checks that a commit comes from a member, not whose partitions it names: nothing is committed here for
partitions that have gone, and nothing by a process that is no member any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from kept.consumer.faults import commit_error, deleted, group_reset, is_out_of_range, is_passing, reading_error
from kept.consumer.records import Place, Record, records_of
from kept.errors import Fenced, FixConfiguration, KeptError, TryAgain

ANSWER_WITHIN = 30.0
KNOWN_WITHIN = 3.0


class Next(NamedTuple):
    """The position to go on from, under which leader the record before it was written, and what is noted with it."""

    offset: int
    leader_epoch: int = -1
    note: str = ""


class Follower(Protocol):
    """Whoever must know when partitions come and go."""

    def assigned(self, places: Sequence[Place]) -> Mapping[Place, Next]:
        """These are ours from now on: where to begin in each."""

    def revoked(self, places: Sequence[Place]) -> None:
        """These go to somebody else after this call: the last moment to record their progress."""

    def lost(self, places: Sequence[Place]) -> None:
        """These are somebody else's already: record nothing for them."""


class Membership:
    """One member; to be used from one thread, except for `memberid`."""

    def __init__(self, settings: Mapping[str, object], topics: Sequence[str]) -> None:
        self.topics = list(topics)
        self._settings: dict[str, Any] = dict(settings)
        self._asking: AdminClient | None = None
        self.owned: set[Place] = set()
        self._follower: Follower | None = None
        self._failure: BaseException | None = None
        self._leaving = False
        self._stuck: BaseException | None = None  # why partitions that came could not be begun
        self._gone: set[Place] = set()
        self._begun: dict[Place, Next] = {}
        self._paused: set[Place] = set()
        self._all_paused = False
        self._pauses_changed = False
        self._later: Callable[[KeptError | None], object] | None = None
        self.skipping: Callable[[Place, int], str] = partial(group_reset, str(settings["group.id"]))
        """How a person has it go on at an offset behind records that are gone, as a command."""
        try:
            self.client = Client({**settings, "on_commit": self._committed})
        except (KafkaException, TypeError, ValueError) as failure:
            reason = failure.args[0].str() if isinstance(failure, KafkaException) else failure
            raise FixConfiguration(
                f"the client refuses its settings: {reason}", way_out="correct what it names"
            ) from failure

    def join(self, follower: Follower) -> None:
        """Become a member. A topic that is not there is told now, not waited for."""
        for topic in self.topics:
            self.require(topic)
        self._follower = follower
        self.client.subscribe(self.topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def require(self, topic: str) -> None:
        """A topic that is not there is told; one that has just been made is not known to every broker at once."""
        deadline = time.monotonic() + KNOWN_WITHIN
        while True:
            try:
                error = self.client.list_topics(topic, timeout=ANSWER_WITHIN).topics[topic].error
            except KafkaException as failure:
                raise reading_error(failure.args[0], topic) from failure
            if error is None:
                return
            if time.monotonic() > deadline:
                raise reading_error(error, topic)
            time.sleep(0.1)

    def take(self, most: int, wait: float) -> list[Record]:
        """Up to so many records, as soon as there is one; nothing after `wait` seconds without any.

        When it raises, records may have been taken that nobody got: seek before the next call.
        """
        self._refuse_stuck()
        if self._pauses_changed:
            self._heed_pauses()
        try:
            first = self.client.poll(wait)
            self._gone.clear()  # what went before the first record came is not among the records
            messages = [] if first is None else [first]
            if first is not None and most > 1:
                messages += self.client.consume(most - 1, 0)
        except KafkaException as failure:
            raise reading_error(failure.args[0], self._names()) from failure
        if self._failure is not None:
            failure_inside, self._failure = self._failure, None
            raise failure_inside
        if any(map(Message.error, messages)):
            messages = [message for message in messages if self._sound(message)]
        records = records_of(messages)
        return self._without_gone(records) if self._gone else records

    def commit(self, progress: Mapping[Place, Next]) -> None:
        """Record progress, and wait until it is. `Fenced`: the partitions are not ours any more."""
        self._refuse_stranger()
        try:
            answers = self.client.commit(offsets=_positions(progress), asynchronous=False)
        except KafkaException as failure:
            raise commit_error(failure.args[0]) from failure
        for answer in answers or []:
            if answer.error is not None:
                raise commit_error(answer.error)

    def commit_later(self, progress: Mapping[Place, Next], then: Callable[[KeptError | None], object]) -> None:
        """Record progress without waiting; `then` is told during a later `take`. One at a time."""
        if self._later is not None:
            raise ValueError("a commit is under way already")
        self._later = then
        try:
            self._refuse_stranger()
            self.client.commit(offsets=_positions(progress), asynchronous=True)
        except (Fenced, KafkaException) as failure:
            self._later = None
            then(failure if isinstance(failure, Fenced) else commit_error(failure.args[0]))

    @property
    def committing(self) -> bool:
        """Whether a commit is under way."""
        return self._later is not None

    def hear_out(self, within: float) -> None:
        """Wait for the commit under way: it could arrive behind the next one, and undo it.

        What is read meanwhile is thrown away: only where reading ends, or begins anew.
        """
        deadline = time.monotonic() + within
        while self._later is not None and time.monotonic() < deadline:
            self.client.poll(0.05)

    def _committed(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        then, self._later = self._later, None
        failed = error or next((each.error for each in partitions if each.error is not None), None)
        if then is not None:
            then(None if failed is None else commit_error(failed))

    def _refuse_stranger(self) -> None:
        """Without a member's id, a group that happens to be empty takes a commit from anybody."""
        if not self.client.memberid():
            raise Fenced(
                "this process is not a member of its group any more",
                way_out="nothing to repair: the new owner goes on from what was recorded",
            )

    def committed(self, places: Sequence[Place]) -> dict[Place, Next | None]:
        """What is recorded for these partitions; a transaction that may still move it is waited for."""
        asked = [TopicPartition(topic, partition) for topic, partition in places]
        try:
            answers = self.client.committed(asked, timeout=ANSWER_WITHIN)
            for answer in answers:
                if answer.error is not None:
                    raise KafkaException(answer.error)  # noqa: TRY301 - told as if the whole call had failed
        except KafkaException as failure:
            raise commit_error(failure.args[0]) from failure
        return {
            (answer.topic, answer.partition): None
            if answer.offset < 0
            else Next(answer.offset, _epoch(answer), answer.metadata or "")
            for answer in answers
        }

    def seek(self, positions: Mapping[Place, Next]) -> None:
        """Read on from here; partitions that are not ours are left alone."""
        for place, position in positions.items():
            if place in self.owned:
                try:
                    self.client.seek(_position(place, position))
                except KafkaException as failure:
                    raise reading_error(failure.args[0], place[0]) from failure

    def pause(self, places: Sequence[Place]) -> None:
        """Fetch nothing of these partitions; none named: of any, also of those to come. From any thread."""
        self._paused.update(places)
        self._all_paused = self._all_paused or not places
        self._pauses_changed = True

    def resume(self, places: Sequence[Place]) -> None:
        """Fetch these partitions again; none named: all. From any thread."""
        if not places:
            self._paused.clear()
        else:
            self._paused.update(self.owned if self._all_paused else ())
            self._paused.difference_update(places)
        self._all_paused = False
        self._pauses_changed = True

    def is_paused(self, place: Place) -> bool:
        return self._all_paused or place in self._paused

    def numbers(self, topic: str) -> list[int]:
        """The numbers of a topic's partitions. Asked by another client, for this is asked inside rebalances.

        There `list_topics` of the member's own would make confluent-kafka 2.16 forget the call that it is in, and the
        next callback of that call abort the process (CallState_get: Assertion `cs != NULL' failed).
        """
        if self._asking is None:
            self._asking = AdminClient(self._settings)
        try:
            return sorted(self._asking.list_topics(topic, timeout=ANSWER_WITHIN).topics[topic].partitions)
        except KafkaException as failure:
            raise reading_error(failure.args[0], topic) from failure

    def ends(self, place: Place) -> tuple[int, int]:
        """The first offset there is, and the one behind the last."""
        try:
            found = self.client.get_watermark_offsets(TopicPartition(*place), timeout=ANSWER_WITHIN)
        except KafkaException as failure:
            raise reading_error(failure.args[0], place[0]) from failure
        if found is None:
            raise TryAgain(f"the leader of {place[0]}[{place[1]}] does not answer", way_out="see that the brokers run")
        return found

    def leave(self) -> None:
        """Give every partition back, and go. The follower is told of it.

        Partitions may still come while we go. They are not begun: a client that closes answers no question, so asking
        where to begin would wait for its time-outs.
        """
        self._leaving = True
        self.client.close()
        self.owned.clear()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _assigned(self, client: Client, partitions: list[TopicPartition]) -> None:
        places = [(each.topic, each.partition) for each in partitions]
        if self._follower is None or self._leaving or self._stuck is not None:
            return  # nothing is taken any more
        try:
            begin = self._follower.assigned(places)
            client.incremental_assign([_position(place, begin[place]) for place in places])
            self._begun.update(begin)
            self.owned.update(places)
            self._heed_pauses()  # the client remembers a pause of partitions that went and came back
        except BaseException as error:  # noqa: BLE001 - raised again as soon as the client has returned
            self._stuck = self._failure = error

    def _revoked(self, client: Client, partitions: list[TopicPartition]) -> None:
        self._going(client, partitions, lost=False)

    def _lost(self, client: Client, partitions: list[TopicPartition]) -> None:
        self._going(client, partitions, lost=True)

    def _going(self, client: Client, partitions: list[TopicPartition], *, lost: bool) -> None:
        places = [(each.topic, each.partition) for each in partitions]
        ours = [place for place in places if place in self.owned]
        try:
            if self._follower is not None:
                (self._follower.lost if lost else self._follower.revoked)(ours)
        except BaseException as error:  # noqa: BLE001 - raised again as soon as the client has returned
            self._failure = self._failure or error
        self._gone.update(places)
        self.owned.difference_update(places)
        client.incremental_unassign(partitions)

    def _without_gone(self, records: list[Record]) -> list[Record]:
        """Partitions went while records were gathered; one that came back is read from where it began again."""
        gone = set(self._gone)
        self.seek({place: self._begun[place] for place in gone & self.owned})
        return [record for record in records if record.place not in gone]

    def _heed_pauses(self) -> None:
        """The client waits for the thread that polls it: only that one may pause and resume."""
        self._pauses_changed = False
        wanted = {place for place in self.owned if self.is_paused(place)}
        self.client.pause([TopicPartition(*place) for place in wanted])
        self.client.resume([TopicPartition(*place) for place in self.owned - wanted])

    def _refuse_stuck(self) -> None:
        if self._stuck is not None and self._failure is None:
            raise TryAgain(
                f"this consumer stopped when partitions came to it: {self._stuck!r}",
                way_out="close it, and start another one",
            ) from self._stuck

    def _sound(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return True
        if is_passing(error):
            return False  # the client goes on by itself
        if is_out_of_range(error):
            self._refuse_gone(message)
        raise reading_error(error, message.topic() or self._names())

    def _refuse_gone(self, message: Message) -> None:
        """Records were deleted before they were read: which ones, and how to go on without them."""
        topic, partition, wanted = message.topic(), message.partition(), message.offset()
        if topic is None or partition is None or wanted is None or wanted < 0:
            return
        first, _ = self.ends((topic, partition))
        if wanted < first:
            raise deleted((topic, partition), wanted, first, self.skipping((topic, partition), first))

    def _names(self) -> str:
        return ", ".join(self.topics)


def _positions(progress: Mapping[Place, Next]) -> list[TopicPartition]:
    return [_position(place, position) for place, position in progress.items()]


def _position(place: Place, position: Next) -> TopicPartition:
    topic, partition = place
    return TopicPartition(topic, partition, position.offset, position.note, position.leader_epoch)


def _epoch(answer: TopicPartition) -> int:
    return -1 if answer.leader_epoch is None else answer.leader_epoch


def after(record: Record) -> Next:
    """The position behind a record."""
    return Next(record.offset + 1, record.leader_epoch)


def at(record: Record) -> Next:
    """The position of a record: to read it again."""
    return Next(record.offset)
