"""The transactions of a loop that is fenced by its group: each has a fresh client (rule 1).

Three ids take turns: one transaction ends, one is gathered, and a client for the next is made ready.

Whatever happens to a transaction here, it has ended when `Ended` is raised; whether it was committed is not guessed:
the recorded positions tell.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import Producer as Client

from kept.errors import KeptError, NotPersisted, TryAgain
from kept.producer.clients import FENCED, fenced_client, put_offsets
from kept.producer.fates import error_of

ENDED_WITHIN = 30.0
PREPARED_WITHIN = 30.0
REFUSED_WITHIN = 2.0
GLANCE = 0.1
HEARD_WITHIN = 1.0
A_FEW = 10
"""Topics that a fresh client is told of in advance."""
TOPIC_KNOWN_WITHIN = 5.0
"""A topic that was made a moment ago may not be known to every broker."""
_ABOUT_THE_RECORD = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
}


class Output(NamedTuple):
    """A record to send."""

    topic: str
    value: bytes | str | None
    key: bytes | str | None = None
    headers: list[tuple[str, str | bytes | None]] | None = None
    partition: int = -1
    timestamp: int = 0


class Ended(Exception):
    """The transaction has ended without our knowing that it was committed."""


class Refused(Ended):
    """It cannot be committed because of the very record that was to be sent."""

    def __init__(self, refusal: KeptError) -> None:
        super().__init__(refusal.what)
        self.refusal = refusal
        self.number = 0
        """Whose output it was, counted from the first record that was sent together."""


class Reports:
    """What the broker said of records: `refusal` is why it refused one, `forbidden` why it would refuse any.

    The client holds this object and nothing that holds the client: a circle would keep old clients, with their
    threads and connections, until the garbage collector comes by.
    """

    def __init__(self) -> None:
        self.refusal: KeptError | None = None
        self.forbidden: KeptError | None = None

    @property
    def refused(self) -> KeptError | None:
        """Why the same records would end the same."""
        return self.forbidden or self.refusal

    def hear(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        told = error_of(error, str(message.topic()), may_have_been_resent=False)
        if error.code() in _ABOUT_THE_RECORD:
            self.refusal = self.refusal or told
        elif _is_forbidden(told):
            self.forbidden = self.forbidden or told


class Transaction:
    """One transaction on its own client: records, then positions, then the end."""

    def __init__(self, settings: Mapping[str, object], known: set[str], fence: Callable[[], object]) -> None:
        self.reports = Reports()
        self._client: Client = fenced_client(
            {**settings, "on_delivery": self.reports.hear}, PREPARED_WITHIN, list(known)[:A_FEW]
        )
        self._produce = self._client.produce
        self._known = known  # output topics that are there
        self._fence = fence
        self._over = False
        self.begun = time.monotonic()

    def begin(self) -> None:
        try:
            self._client.begin_transaction()
        except KafkaException as failure:
            raise TryAgain(f"no transaction could be opened: {failure.args[0].str()}", way_out="try again") from failure
        self.begun = time.monotonic()

    def send_plain(self, topic: str, values: Iterable[bytes | str | None], keys: Iterable[bytes | str | None]) -> None:
        """Hand over records of one topic, none with more than a value and a key; `send`, in half the time."""
        if topic not in self._known:
            self._meet(topic)
        produce = self._produce
        for value, key in zip(values, keys, strict=False):  # keys may be without an end
            try:
                produce(topic, value, key)
            except (BufferError, KafkaException, TypeError, ValueError):  # it was not taken: `send` waits, or says why
                self.send(Output(topic, value, key))

    def send_all(self, made: Sequence[Output | Sequence[Output]], *, one_by_one: bool) -> None:
        """Hand over what came of several records; one by one, each output travels in a batch of its own."""
        produce, known = self._produce, self._known
        for number, of_one in enumerate(made):
            if of_one.__class__ is Output and not one_by_one:
                topic, value, key, headers, partition, timestamp = of_one
                if headers is None and not timestamp and topic in known:
                    try:
                        produce(topic, value, key, partition)
                    except (BufferError, KafkaException, TypeError, ValueError):
                        pass  # it was not taken
                    else:
                        continue
            self._send_carefully(of_one, number, one_by_one=one_by_one)

    def _send_carefully(self, of_one: Output | Sequence[Output], number: int, *, one_by_one: bool) -> None:
        """What came of one record: `send` waits for room, or says why it is not taken."""
        try:
            for output in (of_one,) if isinstance(of_one, Output) else of_one:
                self.send(output)
                if one_by_one:
                    self.flush()
        except Refused as refused:
            refused.number = number
            raise

    def send(self, output: Output) -> None:
        """Hand a record over; a full buffer is waited for."""
        try:
            topic, value, key, headers, partition, timestamp = output
            if topic not in self._known:
                self._meet(topic)
            self._produce(topic, value, key, partition, headers=headers, timestamp=timestamp)
        except BufferError:
            self._wait_for_room()
            self.send(output)
        except KafkaException as failure:
            raise self._not_sent(failure.args[0], str(output[0])) from failure
        except (TypeError, ValueError) as error:
            raise Refused(
                NotPersisted(
                    f"{output!r} cannot be sent: {error}",
                    way_out="return Output(topic, value, key), with bytes or text",
                    retriable=False,
                )
            ) from error

    def flush(self, within: float = ENDED_WITHIN) -> None:
        """Wait until everything is in the log, or a record was refused: what waits behind that one is never sent."""
        deadline = time.monotonic() + within
        while (left := self._served(self._client.flush, GLANCE)) and not self.reports.refused:
            if time.monotonic() > deadline:
                raise Ended(f"{left} records did not reach the log within {within:.0f} s")

    def commit(self, positions: list[TopicPartition], group: object) -> None:
        """Make the records visible and the positions recorded, together."""
        deadline = time.monotonic() + ENDED_WITHIN
        try:
            _insist(partial(put_offsets, self._client, positions, group), deadline)
            _insist(self._client.commit_transaction, deadline)
        except KafkaException as failure:
            self.hear()
            self.abort()
            raise Ended(failure.args[0].str()) from failure
        self._over = True

    def hear(self) -> KeptError | None:
        """Of a transaction that has failed: the refusal of a record, if it was for one; another attempt would meet it.

        The client knows that the transaction is over a moment before it tells of the record.
        """
        deadline = time.monotonic() + HEARD_WITHIN
        while len(self._client) and not self.reports.refused and time.monotonic() < deadline:
            with suppress(Ended):  # which is known here
                self._served(self._client.poll, GLANCE / 10)
        return self.reports.refused

    def abort(self) -> None:
        """End it; when the broker does not say that it has, a fence does, and at last its time-out."""
        if self._over:
            return
        self._over = True
        refused = self.reports.refusal is not None  # the client may then wait in vain for what it sent behind it
        try:
            self._client.abort_transaction(REFUSED_WITHIN if refused else ENDED_WITHIN)
        except KafkaException:
            with suppress(TryAgain):  # whoever reads the positions waits until it has ended
                self._fence()

    def _meet(self, topic: str) -> None:
        """A topic that is not there is told now: the client would wait for it, longer than a transaction may last."""
        deadline = time.monotonic() + TOPIC_KNOWN_WITHIN
        while True:
            try:
                found = self._client.list_topics(topic, timeout=ENDED_WITHIN).topics.get(topic)
            except KafkaException as failure:
                raise Ended(failure.args[0].str()) from failure
            error = KafkaError(KafkaError.TOPIC_EXCEPTION) if found is None else found.error
            if error is None:
                self._known.add(topic)
                return
            told = error_of(error, topic, may_have_been_resent=False)
            if time.monotonic() > deadline:
                raise told if isinstance(told, NotPersisted) else Ended(error.str())
            time.sleep(0.1)

    def _wait_for_room(self) -> None:
        deadline = time.monotonic() + ENDED_WITHIN
        before = len(self._client)
        while len(self._client) >= before:
            if time.monotonic() > deadline:
                raise Ended("the buffer stayed full")
            self._served(self._client.poll, 0.05)

    def _served(self, serve: Callable[[float], int], seconds: float) -> int:
        """A client that was fenced tells it, once, by whichever of its calls comes next."""
        try:
            return serve(seconds)
        except KafkaException as failure:
            raise Ended(failure.args[0].str()) from failure

    def _not_sent(self, error: KafkaError, topic: str) -> Exception:
        """What to raise for a record that the client itself did not take."""
        told = error_of(error, topic, may_have_been_resent=False)
        if error.code() in _ABOUT_THE_RECORD:
            return Refused(told)
        return told if _is_forbidden(told) else Ended(error.str())


class Outgoing:
    """Opens transactions; the next client is made ready while the current one works."""

    def __init__(self, settings: Mapping[str, object], group: str) -> None:
        self._settings = {**settings, "delivery.report.only.error": True}
        self.longest = float(str(settings["transaction.timeout.ms"])) / 1000
        """After so many seconds the broker aborts a transaction by itself."""
        member = uuid.uuid4()
        self._ids = [f"{group}/{member}/{number}" for number in range(3)]
        self._known: set[str] = set()
        self._background = ThreadPoolExecutor(1, thread_name_prefix="kept-fence")
        self._prepared: Future[Transaction] | None = None
        self._last: Transaction | None = None

    def open(self) -> Transaction:
        """Begin a transaction on a client on which nothing was ever sent."""
        transaction = self._ready() or self._make(self._ids[0])
        transaction.begin()
        self._ids.append(self._ids.pop(0))
        self._prepared = self._background.submit(self._make, self._ids[0])
        self._background.submit(_forget, self._last)  # to end a client takes a while, too
        self._last = transaction
        return transaction

    def record(self, positions: list[TopicPartition], group: object) -> None:
        """Positions by themselves. A copy of them that comes late is turned away, as one of a plain commit is not."""
        try:
            self.open().commit(positions, group)
        except Ended as reason:
            raise TryAgain(f"positions may not have been recorded: {reason}", way_out="look, and try again") from reason

    def close(self) -> None:
        self._background.shutdown(wait=True, cancel_futures=True)
        self._prepared = self._last = None

    def _ready(self) -> Transaction | None:
        prepared, self._prepared = self._prepared, None
        try:
            return None if prepared is None else prepared.result()
        except TryAgain:
            return None  # the brokers were away while it was prepared; they may be back

    def _make(self, transactional_id: str) -> Transaction:
        settings = {**self._settings, "transactional.id": transactional_id}
        return Transaction(settings, self._known, partial(fenced_client, settings, PREPARED_WITHIN))


def _insist(call: Callable[[float], object], deadline: float) -> None:
    """Repeat a call that the client says may be repeated, until it is too late for that."""
    while True:
        try:
            call(max(1.0, deadline - time.monotonic()))
        except KafkaException as failure:
            error = failure.args[0]
            if not error.retriable() or error.code() in FENCED or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _forget(_transaction: Transaction | None) -> None:
    """Whoever held it last ends its client: this thread."""


def _is_forbidden(told: KeptError) -> bool:
    return isinstance(told, NotPersisted) and not told.retriable
