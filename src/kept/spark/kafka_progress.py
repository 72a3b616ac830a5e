"""Progress of a pipeline in the sink's cluster: signed offsets of a group of ours, on a topic of ours (rule 6).

For source topic `payments` the offsets are those of the group `kept.<pipeline>` on `kept.progress.payments`, partition
by partition: deleting the source does not delete them. Offsets expire and groups can be deleted, so each transaction
also writes a record with the same content to that topic, which is compacted: the last one stays for good.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from kept.consumer.asking import ask_offsets
from kept.consumer.faults import reading_error
from kept.consumer.outgoing import Output
from kept.errors import ProgressMoved, TryAgain
from kept.guarantees import BATCHES, CARRIER, ExactlyOnce, only_asks
from kept.producer.marks import COORDINATOR_MOVES
from kept.progress import BatchRecord, Identity, Owner, Position, Progress, Recorded, Unsigned

log = logging.getLogger("kept.spark")
ANSWER_WITHIN = 30.0
# Another pipeline's open transaction on the same topic hides what came after it: it ends by its time-out at last, of a
# minute for most.
COPY_WITHIN = 90.0
LONGEST_OPEN = "15 minutes"
AS_IT_IS = {"isolation.level": "read_uncommitted"}
"""Of offsets: those that are committed, though a transaction that would move them is open."""
EVERYTHING = IsolationLevel.READ_UNCOMMITTED
"""Of logs: up to the end, open transactions included."""
AT_THE_END = {"fetch.wait.max.ms": 10}
"""A log's end is told by an answer without records, and the broker waits so long for some."""
KNOWN_WITHIN = 10.0
NOT_YET_KNOWN = {
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
}
LONGEST_TOPIC = 249
_NOTE = re.compile(
    r"kept progress [12] (?P<fingerprint>\S+) (?P<generation>\d+) (?P<cluster>\S+) (?P<topic>\S+) (?P<epoch>-?\d+)"
    r"(?: (?P<sink>\S+))?"
)
_BATCH = re.compile(r"kept batch 1 (?P<query>\S+) (?P<number>\d+) (?P<digest>[0-9a-f]+) (?P<with>with|without) state")
_COPY = re.compile(r"(?P<offset>\d+) (?P<note>.*)")


def carrier_of(topic: str) -> str:
    """The topic of ours that carries the progress in a source topic."""
    name = f"{CARRIER}.{topic}"
    if len(name) <= LONGEST_TOPIC:
        return name
    return f"{CARRIER}.{hashlib.sha256(topic.encode()).hexdigest()}"


def note(progress: Progress) -> str:
    """Our signature: who wrote it, in which source, and for which sink; the first form of it did not know the sink."""
    owner, source = progress.owner, progress.identity
    words = (owner.fingerprint, owner.generation, source.cluster_id, source.topic_id, source.leader_epoch)
    form, sink = ("1", ()) if owner.sink is None else ("2", (owner.sink,))
    return " ".join(("kept progress", form, *map(str, words), *sink))


def _batch_note(record: BatchRecord) -> str:
    words = (record.query_id, record.batch_id, record.digest, "with" if record.stateful else "without")
    return " ".join(("kept batch 1", *map(str, words), "state"))


def _read_batch(text: str) -> BatchRecord:
    match = _BATCH.fullmatch(text)
    if match is None:
        raise ProgressMoved(
            f"a stranger wrote {text!r} where the record of the last batch should be",
            way_out=f"find who commits to this group on {BATCHES}; delete these offsets: the copy in the topic serves",
        )
    return BatchRecord(match["query"], int(match["number"]), match["digest"], match["with"] == "with")


def read_note(position: Position, text: str) -> Progress | Unsigned:
    """What was recorded; without our signature a stranger wrote it."""
    match = _NOTE.fullmatch(text)
    if match is None:
        return Unsigned(position)
    identity = Identity(match["cluster"], match["topic"], int(match["epoch"]))
    return Progress(position, identity, Owner(match["fingerprint"], int(match["generation"]), match["sink"]))


class KafkaProgress:
    """Reads what is recorded; says how to record.

    To be asked behind a fence: it waits for transactions that are open. Without a fence one may be a dead driver's,
    which only its time-out ends; a `glance` does not wait, and may not have seen what a commit under way records.
    """

    def __init__(self, settings: Mapping[str, object], pipeline: str, *, glance: bool = False) -> None:
        self._plain = settings
        self._settings = {**settings, "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._pipeline = pipeline
        self._glances = glance
        asking = {"group.id": ExactlyOnce(pipeline).group, **(AS_IT_IS if glance else {})}
        self._client = Consumer({**self._settings, **asking})
        self.group_metadata = self._client.consumer_group_metadata()
        self._one_at_a_time = threading.Lock()

    def close(self) -> None:
        self._client.close()

    def recorded(self, topic: str, partitions: Sequence[int], within: float = ANSWER_WITHIN) -> dict[int, Recorded]:
        """What was committed last; an offset that is gone comes from its copy."""
        found: dict[int, Recorded] = {}
        for place in self._committed(carrier_of(topic), partitions, within):
            position = Position(topic, place.partition, place.offset)
            found[place.partition] = None if place.offset < 0 else read_note(position, place.metadata or "")
        gone = [partition for partition, each in found.items() if each is None]
        return found | self.copies(topic, gone) if gone else found

    def copies(self, topic: str, partitions: Sequence[int]) -> dict[int, Recorded]:
        """What the copies say."""
        found = self._copies(carrier_of(topic), partitions)
        return {partition: _read_copy(topic, partition, value) for partition, value in found.items()}

    def last_batch(self) -> BatchRecord | None:
        """The last batch of batch mode, recorded like progress: an offset with a note, and a copy that outlives it."""
        (place,) = self._committed(BATCHES, [0])
        if place.offset >= 0:
            return _read_batch(place.metadata or "")
        copies = self._copies(BATCHES, [0], IsolationLevel.READ_COMMITTED if self._glances else EVERYTHING)
        return _read_batch(copies[0].decode(errors="replace")) if copies else None

    @staticmethod
    def batch_offset(record: BatchRecord) -> TopicPartition:
        return TopicPartition(BATCHES, 0, record.batch_id, _batch_note(record))

    def batch_copy(self, record: BatchRecord) -> Output:
        return Output(BATCHES, _batch_note(record), self._pipeline, partition=0)

    @staticmethod
    def offset(progress: Progress) -> TopicPartition:
        """The offset that records progress."""
        where = progress.position
        return TopicPartition(carrier_of(where.topic), where.partition, where.next_offset, note(progress))

    def copy(self, progress: Progress) -> Output:
        """The record that stays when the offset has expired."""
        where = progress.position
        text = f"{where.next_offset} {note(progress)}"
        return Output(carrier_of(where.topic), text, self._pipeline, partition=where.partition)

    def _committed(
        self, carrier: str, partitions: Sequence[int], within: float = ANSWER_WITHIN
    ) -> list[TopicPartition]:
        """Each partition's error is looked at; a coordinator that has just moved is asked for again."""
        question = [TopicPartition(carrier, partition) for partition in partitions]
        deadline = time.monotonic() + within
        while True:
            try:
                with self._one_at_a_time:
                    found = self._client.committed(question, timeout=within)
                for each in found:
                    if each.error is not None:
                        raise KafkaException(each.error)  # noqa: TRY301 - told below, as if the call had failed
            except KafkaException as failure:
                if failure.args[0].code() not in COORDINATOR_MOVES or time.monotonic() > deadline:
                    raise TryAgain(
                        f"progress cannot be read: {failure.args[0].str()}", way_out="see that the brokers run"
                    ) from failure
                time.sleep(0.1)
            else:
                return found

    def _copies(self, carrier: str, partitions: Sequence[int], upto: IsolationLevel = EVERYTHING) -> dict[int, bytes]:
        """The last copies, read up to the end of the log: behind a fence none of ours is under way.

        Rule 6: not up to the last stable offset, above which a transaction that another pipeline has left open hides
        what we have committed since. Only who does not go by it may do with that.
        """
        reading = {"group.id": "kept.reader", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
        client = Consumer({**self._settings, **reading, **AT_THE_END})
        try:
            ends = _ends(AdminClient(only_asks(self._plain)), carrier, partitions, upto)
            last = _last_values(client, carrier, ends, self._pipeline.encode())
        except KafkaException as failure:
            raise reading_error(failure.args[0], carrier) from failure
        finally:
            client.close()
        for partition in last:
            log.warning("the offset of %s[%d] was gone; its copy is used", carrier, partition)
        return last


def _last_values(client: Consumer, topic: str, ends: Mapping[int, int], key: bytes) -> dict[int, bytes]:
    """The last committed value of a key in each partition, once everything below these ends has been seen."""
    unread = {partition for partition, end in ends.items() if end > 0}
    found: dict[int, bytes] = {}
    client.assign([TopicPartition(topic, partition, 0) for partition in ends])
    deadline = time.monotonic() + COPY_WITHIN
    while unread:
        message = client.poll(0.5)
        if time.monotonic() > deadline:
            raise TryAgain(
                f"partitions {sorted(unread)} of {topic} could not be read to their ends: a transaction of another "
                "pipeline is open there, or brokers are away; the last copy of our progress may be behind it",
                way_out="try again: what a pipeline that died has left open ends when it is started, else by its "
                f"time-out: after a minute, in batch mode after {LONGEST_OPEN} at most",
            )
        if message is None:
            continue
        error, partition = message.error(), int(message.partition() or 0)
        at_end = error is not None and error.code() == KafkaError._PARTITION_EOF
        if at_end and (message.offset() or 0) >= ends[partition]:
            unread.discard(partition)
        elif error is None and message.key() == key:
            found[partition] = message.value() or b""
    return found


def _ends(admin: AdminClient, topic: str, partitions: Sequence[int], level: IsolationLevel) -> dict[int, int]:
    """Where the logs end, with open transactions or without; a topic that was made a moment ago may not be known to
    every broker."""
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    question = {TopicPartition(topic, partition): latest for partition in partitions}
    deadline = time.monotonic() + KNOWN_WITHIN
    while True:
        try:
            answers = ask_offsets(admin, question, level)
            return {place.partition: answer.offset for place, answer in answers.items()}
        except KafkaException as failure:
            if failure.args[0].code() not in NOT_YET_KNOWN or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _read_copy(topic: str, partition: int, value: bytes) -> Recorded:
    match = _COPY.fullmatch(value.decode(errors="replace"))
    if match is None:
        return Unsigned(Position(topic, partition, 0))
    return read_note(Position(topic, partition, int(match["offset"])), match["note"])
