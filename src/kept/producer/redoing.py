"""A batch of records, carried into Kafka by transactions of its own: redone until it is there, or is certainly not.

- Aborted: nothing of it is visible, so all of it is sent again, in the same order.
- One record was refused for itself: it alone fails, the others are sent again.
- Several were refused together (a broker refuses a batch because of one record; a forbidden topic fails the whole
  transaction): halved, until the culprit stands alone.
- Fenced, or the outcome stays unknown: that ends the producer. The records that were not begun are told apart.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as Client

from kept.errors import KeptError, NotPersisted, OutcomeUnknown, TransactionAborted, TryAgain
from kept.producer.clients import TRANSACTION_IS_OVER
from kept.producer.delivery import Delivery, Route, without_place
from kept.producer.fates import error_of, is_forbidden, is_refused_together, refused_alone
from kept.producer.stamping import HeaderList, Text
from kept.producer.transactions import Transaction, Transactions

ATTEMPT_WITHIN = 60.0
REPORTS_WITHIN = 5.0
PAUSE = 0.1
POLL_EVERY = 200

Content: TypeAlias = tuple[Text, Text, int, int, HeaderList | None]
"""What a client is given, as often as it takes: value, key, partition, timestamp and headers."""


class Joined(Delivery):
    """A record that waits for a transaction, and can be sent again until its fate is final."""

    __slots__ = ("content", "noted", "number", "size")

    def __init__(self, topic: str, route: Route, content: Content, size: int) -> None:
        self.topic = topic  # not by super().__init__(): this is done for every record
        self._route = route
        self.content: Content | None = content
        self.size = size
        self.number = 0
        self.noted: Message | KafkaError | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """What the client knows of the present attempt: true only once the transaction is committed."""
        self.noted = message if error is None else error

    def settle(self, fate: Message | KeptError) -> None:
        self.content = None
        super().settle(fate)

    def without_place(self) -> KeptError:
        return without_place(self.topic)


def carry(transactions: Transactions, batch: Sequence[Joined], deadline: float) -> KeptError | None:
    """Settle every record of the batch. An error: the producer must not go on."""
    pieces: list[Sequence[Joined]] = [batch]
    while pieces:
        piece = pieces[0]
        try:
            _in_one_transaction(transactions, piece, deadline)
        except (TryAgain, TransactionAborted) as failure:
            pieces[:1] = _to_redo(piece, failure)
            if pieces and pieces[0] is piece:
                if time.monotonic() > deadline:
                    _give_up(pieces, failure)
                    return None
                time.sleep(PAUSE)
        except KeptError as error:
            for record in piece:
                record.fail(error)  # what was committed all the same has its receipt already
            for record in (each for later in pieces[1:] for each in later):
                record.fail(never_sent(error))
            return error
        else:
            del pieces[0]
    return None


def never_sent(error: KeptError) -> KeptError:
    """The fate of a record that was not begun when the one before it stopped the producer."""
    if not isinstance(error, OutcomeUnknown):
        return error
    return NotPersisted(
        f"nothing was sent, because of the records before it: {error.what}",
        way_out="find out about those first, then send it again with a new producer",
        retriable=True,
    )


def _in_one_transaction(transactions: Transactions, piece: Sequence[Joined], deadline: float) -> None:
    for record in piece:
        record.noted = None
    transaction = transactions.open(ATTEMPT_WITHIN)
    try:
        _hand_over(transaction.client, piece)
    except TransactionAborted:
        transaction.abort(ATTEMPT_WITHIN)  # where it fails, the next fence ends it: it was never told to commit
        raise
    try:
        _commit(transaction, deadline)
    finally:
        if transaction.committed:
            _settle(transaction.client, piece)


def _hand_over(client: Client, piece: Sequence[Joined]) -> None:
    """Give every record to the client; what it refuses at once was never part of the transaction."""
    deadline = time.monotonic() + ATTEMPT_WITHIN
    for number, record in enumerate(piece):
        while not _taken(client, record):
            if time.monotonic() > deadline:
                raise _cut_short("the brokers take nothing")
            _serve(client, 0.05)
        if number % POLL_EVERY == 0:
            _serve(client, 0)


def _taken(client: Client, record: Joined) -> bool:
    """False: there is no room now."""
    if record.content is None:
        return True  # it was refused in an earlier attempt
    value, key, partition, timestamp, headers = record.content
    try:
        client.produce(record.topic, value, key, partition, record, timestamp=timestamp, headers=headers)
    except BufferError:
        return False
    except KafkaException as failure:
        if failure.args[0].code() in TRANSACTION_IS_OVER:
            raise _cut_short(failure.args[0].str()) from failure
        record.refused(failure.args[0])
    except (TypeError, ValueError, OverflowError) as failure:
        record.fail(
            NotPersisted(
                f"the client does not understand the record for {record.topic}: {failure}",
                way_out="give value, key and headers as bytes, str or None, and the rest as whole numbers",
                retriable=False,
            )
        )
    return True


def _commit(transaction: Transaction, deadline: float) -> None:
    """An outcome that nobody could be asked about is asked for again until the time is over."""

    def wait(unknown: OutcomeUnknown) -> None:
        if time.monotonic() > deadline:
            raise unknown from unknown.__cause__
        time.sleep(PAUSE)

    transaction.commit_and_know(ATTEMPT_WITHIN, ATTEMPT_WITHIN, wait)


def _settle(client: Client, piece: Sequence[Joined]) -> None:
    """The transaction is visible: what was noted of its records is true."""
    deadline = time.monotonic() + REPORTS_WITHIN
    while any(record.noted is None and record.content is not None for record in piece):
        if time.monotonic() > deadline:
            break
        _serve(client, 0.01)
    for record in piece:
        if isinstance(record.noted, Message):
            record.settle(record.noted)
        elif record.content is not None:
            record.fail(without_place(record.topic))


def _to_redo(piece: Sequence[Joined], failure: KeptError) -> list[Sequence[Joined]]:
    """What is left of a piece that was aborted: whole, without the refused ones, or in halves."""
    together = is_forbidden(failure)
    for record in piece:
        if isinstance(record.noted, KafkaError) and record.content is not None:
            error = error_of(record.noted, record.topic, may_have_been_resent=False)
            if isinstance(error, NotPersisted) and not error.retriable:
                record.fail(error)
            together = together or is_refused_together(record.noted)
    left = [record for record in piece if record.content is not None]
    if len(left) < len(piece):
        return [left] if left else []
    if not together:
        return [piece]
    if len(left) > 1:
        half = len(left) // 2
        return [left[:half], left[half:]]
    _blame(left[0], failure)
    return []


def _blame(record: Joined, failure: KeptError) -> None:
    """Refused when it was all alone: trying again would not help."""
    cause = failure.__cause__
    if isinstance(record.noted, KafkaError) and is_refused_together(record.noted):
        record.fail(refused_alone(record.noted, record.topic))
    elif isinstance(cause, KafkaException):
        record.fail(refused_alone(cause.args[0], record.topic))


def _give_up(pieces: Sequence[Sequence[Joined]], failure: KeptError) -> None:
    error = NotPersisted(
        f"the record was not sent within its time: {failure.what}",
        way_out="send it again when the brokers are back",
        retriable=True,
    )
    for record in (each for piece in pieces for each in piece):
        record.fail(error)


def _cut_short(reason: str) -> TransactionAborted:
    return TransactionAborted(f"the transaction was aborted: {reason}", way_out="nothing of it is visible")


def _serve(client: Client, timeout: float) -> None:
    try:
        client.poll(timeout)
    except KafkaException:
        return  # a client that was fenced raises here too; its commit tells the same better
