"""A member of a consumer group: which partitions are ours, what they hold, and progress recorded only while they are.

Rebalances happen inside `take` and `leave`, on the caller's thread; a `Follower` is told before partitions go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from kept.consumer.faults import commit_error, is_passing, reading_error
from kept.consumer.records import Place, Record, records_of
from kept.errors import FixConfiguration, KeptError

ANSWER_WITHIN = 30.0


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
        self.owned: set[Place] = set()
        self._follower: Follower | None = None
        self._failure: BaseException | None = None
        self._moved = False
        self._later: Callable[[KeptError | None], object] | None = None
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
            try:
                found = self.client.list_topics(topic, timeout=ANSWER_WITHIN).topics[topic]
            except KafkaException as failure:
                raise reading_error(failure.args[0], topic) from failure
            if found.error is not None:
                raise reading_error(found.error, topic)
        self._follower = follower
        self.client.subscribe(self.topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def take(self, most: int, wait: float) -> list[Record]:
        """Up to so many records, as soon as there is one; nothing after `wait` seconds without any."""
        self._moved = False
        try:
            first = self.client.poll(wait)
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
        return [record for record in records if record.place in self.owned] if self._moved else records

    def commit(self, progress: Mapping[Place, Next]) -> None:
        """Record progress, and wait until it is. `Fenced`: the partitions are not ours any more."""
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
            self.client.commit(offsets=_positions(progress), asynchronous=True)
        except KafkaException as failure:
            self._later = None
            then(commit_error(failure.args[0]))

    @property
    def committing(self) -> bool:
        """Whether a commit is under way."""
        return self._later is not None

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
        self.client.pause([TopicPartition(*place) for place in places if place in self.owned])

    def resume(self, places: Sequence[Place]) -> None:
        self.client.resume([TopicPartition(*place) for place in places if place in self.owned])

    def leave(self) -> None:
        """Give every partition back, and go. The follower is told of it."""
        self.client.close()
        self.owned.clear()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _assigned(self, client: Client, partitions: list[TopicPartition]) -> None:
        places = [(each.topic, each.partition) for each in partitions]

        def follow(follower: Follower) -> None:
            begin = follower.assigned(places)
            client.incremental_assign([_position(place, begin[place]) for place in places])
            self.owned.update(places)

        self._tell(follow)

    def _revoked(self, client: Client, partitions: list[TopicPartition]) -> None:
        self._going(client, partitions, lost=False)

    def _lost(self, client: Client, partitions: list[TopicPartition]) -> None:
        self._going(client, partitions, lost=True)

    def _going(self, client: Client, partitions: list[TopicPartition], *, lost: bool) -> None:
        places = [(each.topic, each.partition) for each in partitions]
        ours = [place for place in places if place in self.owned]
        self._tell(lambda follower: follower.lost(ours) if lost else follower.revoked(ours))
        self._moved = True
        self.owned.difference_update(places)
        client.incremental_unassign(partitions)

    def _tell(self, follow: Callable[[Follower], None]) -> None:
        """An error inside a callback would leave the client between two states: it is kept, and raised by `take`."""
        if self._follower is None or self._failure is not None:
            return
        try:
            follow(self._follower)
        except BaseException as error:  # noqa: BLE001 - raised again as soon as the client has returned
            self._failure = error

    def _committed(self, error: KafkaError | None, _partitions: list[TopicPartition]) -> None:
        then, self._later = self._later, None
        if then is not None:
            then(None if error is None else commit_error(error))

    def _sound(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return True
        if is_passing(error):
            return False  # the client goes on by itself
        raise reading_error(error, message.topic() or self._names())

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
