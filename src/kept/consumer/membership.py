"""A member of a consumer group: which partitions are ours, what they hold, and progress recorded only while they are.

Rebalances happen inside `take` and `leave`, on the caller's thread; a `Follower` is told before partitions go.
Kafka checks that a commit comes from a member, not whose partitions it names: nothing is committed here for
partitions that have gone, and nothing by a process that is no member any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from kept.consumer.asking import ANSWER_WITHIN, require
from kept.consumer.faults import commit_error, deleted, group_reset, is_out_of_range, is_passing, reading_error
from kept.consumer.follower import Follower
from kept.consumer.logs import Logs
from kept.consumer.onward import Onward
from kept.consumer.positions import Next, from_client, to_client
from kept.consumer.records import Place, Record, records_of
from kept.consumer.sharing import Sharing
from kept.consumer.undisturbed import undisturbed
from kept.errors import Fenced, FixConfiguration, KeptError, TryAgain

GIVEN_BACK_WITHIN = 10.0


class Membership:
    """One member; to be used from one thread, except for `memberid`."""

    def __init__(self, settings: Mapping[str, object], topics: Sequence[str]) -> None:
        self.topics = list(topics)
        self.logs = Logs(settings)
        self.owned: set[Place] = set()
        self._follower: Follower | None = None
        self._failure: BaseException | None = None
        self._leaving = False
        self._stuck: BaseException | None = None  # why partitions that came could not be begun
        self._gone: set[Place] = set()
        self._begun: dict[Place, Next] = {}
        self._onward = Onward(one_topic=len(self.topics) == 1)
        self._unsure: dict[Place, Next] = {}  # begun, and nobody has asked yet whether the log was cut below
        self._paused: set[Place] = set()
        self._all_paused = False
        self._pauses_changed = False
        self._idle_since: float | None = None
        self._has_joined = False  # the group has said what is ours, be it nothing
        self._sharing = Sharing(settings, self.topics, self.logs.numbers)
        self._later: Callable[[KeptError | None], object] | None = None
        self.skipping: Callable[[Place, int], str] = partial(group_reset, str(settings["group.id"]))
        """How a person has it go on at an offset behind records that are gone, as a command."""
        self.note: Callable[[Place], str] = lambda _place: ""
        """What is noted with progress that bears no note of its own."""
        self.doubted: Callable[..., object] = lambda **_how: None
        """Called when the client tells of trouble; what does not pass may be that the topic is another one: raises."""
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
            require(self.client, topic)
        self._follower = follower
        self._subscribe()

    def _subscribe(self) -> None:
        self.client.subscribe(self.topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def take(self, most: int, wait: float) -> list[Record]:
        """Up to so many records, as soon as there is one; nothing after `wait` seconds without any.

        When it raises, records may have been taken that nobody got: seek before the next call.
        """
        self._refuse_stuck()
        messages = self._messages(most, wait)
        with undisturbed():
            records = records_of(messages)
        if self._gone:
            records = self._without_gone(records)
        if self._unsure:
            records = self._made_sure(records)
        if records:
            self._idle_since = None
            records = self._onward.first_time(records)
        elif self._idle_since is None and wait > 0 and not self._is_resting():
            self._idle_since = time.monotonic()
        return records

    def _messages(self, most: int, wait: float) -> list[Message]:
        try:
            self._prepare()
            first = self.client.poll(wait)
            self._gone.clear()  # what went before the first record came is not among the records
            messages = [] if first is None else [first]
            if first is not None and most > 1:
                with undisturbed():  # not while it waits: others would have no collector for as long
                    messages += self.client.consume(most - 1, 0)
        except KafkaException as failure:
            raise reading_error(failure.args[0], self._names()) from failure
        if self._failure is not None:
            failure_inside, self._failure = self._failure, None
            raise failure_inside
        if any(map(Message.error, messages)):
            messages = [message for message in messages if self._sound(message)]
        return messages

    def _prepare(self) -> None:
        if self._pauses_changed:
            self._heed_pauses()
        if self._sharing.is_due and self._sharing.is_up_to(self.client.memberid()):
            self.client.unsubscribe()  # whoever leaves and joins has the group share out everything again
            self._subscribe()

    @property
    def idle_for(self) -> float:
        """For so many seconds nothing came though it was waited for; 0 while records are worked on."""
        since = self._idle_since
        return 0.0 if since is None else time.monotonic() - since

    def _is_resting(self) -> bool:
        """Whether nothing can come: it is still joining, or tries something again with all that it owns paused."""
        return not self._has_joined or (bool(self.owned) and all(map(self.is_paused, self.owned)))

    def commit(self, progress: Mapping[Place, Next]) -> None:
        """Record progress, and wait until it is. `Fenced`: the partitions are not ours any more."""
        self._refuse_stranger()
        try:
            answers = self.client.commit(offsets=self._noted(progress), asynchronous=False)
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
            self.client.commit(offsets=self._noted(progress), asynchronous=True)
        except (Fenced, KafkaException) as failure:
            self._later = None
            then(failure if isinstance(failure, Fenced) else commit_error(failure.args[0]))

    def _noted(self, progress: Mapping[Place, Next]) -> list[TopicPartition]:
        """With the note of each, or what is noted for its partition."""
        return [
            to_client(place, position if position.note else position._replace(note=self.note(place)))
            for place, position in progress.items()
        ]

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

    @property
    def is_member(self) -> bool:
        """Whether the group knows this process, as far as it was told."""
        return bool(self.client.memberid())

    def _refuse_stranger(self) -> None:
        """Without a member's id, a group that happens to be empty takes a commit from anybody."""
        if not self.is_member:
            raise self._stranger()

    def _stranger(self) -> Fenced:
        return Fenced(
            "this process is not a member of its group any more",
            way_out="nothing to repair: the new owner goes on from what was recorded",
        )

    def credentials(self) -> object:
        """The group's metadata, of a member: one without an id would be let through, though it was succeeded."""
        metadata = self.client.consumer_group_metadata()
        member = self.client.memberid()
        if not member or member.encode() not in metadata:
            raise self._stranger()
        return metadata

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
        return {(answer.topic, answer.partition): from_client(answer) for answer in answers}

    def seek(self, positions: Mapping[Place, Next]) -> None:
        """Read on from here; partitions that are not ours are left alone."""
        for place, position in positions.items():
            if place in self.owned:
                self._unsure.pop(place, None)
                try:
                    self.client.seek(to_client(place, position))
                except KafkaException as failure:
                    raise reading_error(failure.args[0], place[0]) from failure
                self._onward.begin(place, position.offset)

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

    def leave(self) -> None:
        """Give every partition back, and go. The follower is told of it.

        Partitions may still come while we go. They are not begun: a client that closes answers no question, so asking
        where to begin would wait for its time-outs.
        """
        self._leaving = True
        self._give_back()
        self.client.close()
        self.owned.clear()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _give_back(self) -> None:
        """Before the client closes: librdkafka (2.16) answers nobody whose call meets the end of its group, so giving
        partitions back while it closes could wait for ever."""
        deadline = time.monotonic() + GIVEN_BACK_WITHIN
        with suppress(KafkaException, RuntimeError):  # whatever is wrong with it, it is closed
            if self.owned:
                self.client.unsubscribe()
            while self.owned and time.monotonic() < deadline:
                self.client.poll(0.05)

    def _assigned(self, client: Client, partitions: list[TopicPartition]) -> None:
        places = [(each.topic, each.partition) for each in partitions]
        if self._follower is None or self._leaving or self._stuck is not None:
            return  # nothing is taken any more
        try:
            begin = self._follower.assigned(places)
            client.incremental_assign([to_client(place, begin[place]) for place in places])
            self._begun.update(begin)
            for place in places:
                self._onward.begin(place, begin[place].offset)
            self._unsure.update({place: begin[place] for place in places if begin[place].leader_epoch >= 0})
            self.owned.update(places)
            self._sharing.shared_out(self.owned)
            self._has_joined = True
            self._idle_since = None  # it took its time to join
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
        for place in places:
            self._unsure.pop(place, None)
        self.owned.difference_update(places)
        self._has_joined = self._has_joined and not lost  # who has lost them joins anew
        client.incremental_unassign(partitions)

    def _without_gone(self, records: list[Record]) -> list[Record]:
        """Partitions went while records were gathered; one that came back is read from where it began again."""
        gone = set(self._gone)
        self.seek({place: self._begun[place] for place in gone & self.owned})
        return [record for record in records if record.place not in gone]

    def _made_sure(self, records: list[Record]) -> list[Record]:
        """Have the client ask whether the log was cut below where partitions began; until it has, nothing counts.

        librdkafka (2.16) asks by itself when it hears of a new leader, which for a partition that was just assigned may
        have been before. It asks at every seek. What it had fetched before is read again.
        """
        unsure = set(self._unsure)
        for place in unsure:
            try:
                self.client.seek(to_client(place, self._unsure[place]))
            except KafkaException as failure:
                if failure.args[0].code() != KafkaError._STATE:
                    raise reading_error(failure.args[0], place[0]) from failure
                # the client has not begun with it yet: at the next call
            else:
                del self._unsure[place]
        return [record for record in records if record.place not in unsure]

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
            self.doubted(passing=True)
            return False  # the client goes on by itself
        self.doubted(passing=False)
        if is_out_of_range(error):
            self._refuse_gone(message)
        raise reading_error(error, message.topic() or self._names())

    def _refuse_gone(self, message: Message) -> None:
        """Records were deleted before they were read: which ones, and how to go on without them."""
        topic, partition, wanted = message.topic(), message.partition(), message.offset()
        if topic is None or partition is None or wanted is None or wanted < 0:
            return
        place = (topic, partition)
        first = self.logs.first_offsets([place])[place]
        if wanted < first:
            raise deleted(place, wanted, first, self.skipping(place, first))

    def _names(self) -> str:
        return ", ".join(self.topics)
