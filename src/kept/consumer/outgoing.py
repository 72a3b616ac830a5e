"""The transactions of a loop that is fenced by its group: each has a fresh client (rule 1), two ids take turns.

Whatever happens to a transaction here, it has ended when `Ended` is raised; whether it was committed is not guessed:
the recorded positions tell.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import Producer as Client

from kept.errors import KeptError, NotPersisted, TryAgain
from kept.producer.clients import FENCED, fenced_client
from kept.producer.fates import error_of

ENDED_WITHIN = 60.0
PREPARED_WITHIN = 30.0
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
    """It was aborted because of the very record that was to be sent."""

    def __init__(self, refusal: KeptError) -> None:
        super().__init__(refusal.what)
        self.refusal = refusal


class Transaction:
    """One transaction on its own client: records, then positions, then the end.

    `refusal` is why the broker refused one of the records, `forbidden` why it would refuse any.
    """

    def __init__(self, client: Client, fence: partial[Client]) -> None:
        self._client = client
        self._fence = fence
        self.refusal: KeptError | None = None
        self.forbidden: KeptError | None = None
        self.begun = time.monotonic()

    def send(self, output: Output) -> None:
        """Hand a record over; a full buffer is waited for."""
        topic, value, key, headers, partition, timestamp = output
        deadline = time.monotonic() + ENDED_WITHIN
        while True:
            try:
                self._client.produce(
                    topic, value, key, partition, headers=headers, timestamp=timestamp, on_delivery=self._report
                )
            except BufferError:
                if time.monotonic() > deadline:
                    self.abort()
                    raise Ended("the buffer stayed full") from None
                self._client.poll(0.05)
            except KafkaException as failure:
                self.abort()
                error = failure.args[0]
                if error.code() in _ABOUT_THE_RECORD:
                    raise Refused(error_of(error, topic, may_have_been_resent=False)) from failure
                self._report(error, topic=topic)
                raise Ended(error.str()) from failure
            else:
                return

    def commit(self, positions: list[TopicPartition], group: Any) -> None:
        """Make the records visible and the positions recorded, together."""
        deadline = time.monotonic() + ENDED_WITHIN
        while True:
            left = max(1.0, deadline - time.monotonic())
            try:
                self._client.send_offsets_to_transaction(positions, group, left)
                self._client.commit_transaction(left)
            except KafkaException as failure:
                error = failure.args[0]
                if error.retriable() and error.code() not in FENCED and time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
                self.abort()
                raise Ended(error.str()) from failure
            return

    def abort(self) -> None:
        """End it; when the broker does not say that it has, a fence does, and at last its time-out."""
        try:
            self._client.abort_transaction(ENDED_WITHIN)
        except KafkaException:
            with suppress(TryAgain):  # whoever reads the positions waits until it has ended
                self._fence()

    def _report(self, error: KafkaError | None, message: Message | None = None, *, topic: str = "") -> None:
        if error is None:
            return
        told = error_of(error, topic or str(message and message.topic()), may_have_been_resent=False)
        if error.code() in _ABOUT_THE_RECORD:
            self.refusal = self.refusal or told
        elif isinstance(told, NotPersisted) and not told.retriable:
            self.forbidden = self.forbidden or told


class Outgoing:
    """Opens transactions; the next client is made ready while the current one works."""

    def __init__(self, settings: Mapping[str, object], group: str) -> None:
        self._settings = {**settings, "delivery.report.only.error": True}
        member = uuid.uuid4()
        self._ids = [f"{group}/{member}/{number}" for number in range(2)]
        self._background = ThreadPoolExecutor(1, thread_name_prefix="kept-fence")
        self._prepared: Future[Client] | None = None

    def open(self) -> Transaction:
        """Begin a transaction on a client on which nothing was ever sent."""
        used = self._ids[0]
        client = self._ready() or self._make(used)
        try:
            client.begin_transaction()
        except KafkaException as failure:
            raise TryAgain(f"no transaction could be opened: {failure.args[0].str()}", way_out="try again") from failure
        self._ids.reverse()
        self._prepared = self._background.submit(self._make, self._ids[0])
        return Transaction(client, partial(self._make, used))

    def close(self) -> None:
        self._background.shutdown(wait=True, cancel_futures=True)
        self._prepared = None

    def _ready(self) -> Client | None:
        prepared, self._prepared = self._prepared, None
        try:
            return None if prepared is None else prepared.result(PREPARED_WITHIN)
        except TryAgain:
            return None  # the brokers were away while it was prepared; they may be back

    def _make(self, transactional_id: str) -> Client:
        return fenced_client({**self._settings, "transactional.id": transactional_id}, PREPARED_WITHIN)
