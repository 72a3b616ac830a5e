"""Rows as records for Kafka: which columns a frame may have, and how they are sent, in a transaction or apart."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as Client

from kept.consumer.outgoing import Ended, Output, Refused, Reports, Transaction
from kept.errors import FixConfiguration, KeptError, NotPersisted, OutcomeUnknown
from kept.guarantees import AtMostOnce, Guarantee
from kept.producer.clients import flushed, make_client
from kept.producer.fates import error_of, is_refused_together

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("kept.spark")
BYTES = ("string", "binary")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "value": BYTES,
    "key": BYTES,
    "topic": ("string",),
    "partition": ("int", "smallint", "tinyint"),
    "headers": ("array<struct<key:string,value:binary>>",),
}
DELIVERED_WITHIN = 120.0
Judgement: TypeAlias = tuple[int, KeptError]
"""The number of a record that was refused, and why."""
Hear: TypeAlias = "Callable[[KafkaError | None, Message], None]"


@dataclass(frozen=True)
class Shape:
    """The columns of a frame that become records, and the topic where none says another."""

    columns: tuple[str, ...]
    topic: str | None

    @staticmethod
    def fitting(types: Mapping[str, str], topic: str | None) -> Shape:
        """The shape of a frame with these columns, or what is wrong with it."""
        problems = [f"{name} has no meaning" for name in types if name not in COLUMNS]
        problems += [
            f"{name} is {kind}, not {' or '.join(COLUMNS[name])}"
            for name, kind in types.items()
            if name in COLUMNS and kind not in COLUMNS[name]
        ]
        if "value" not in types:
            problems.append("there is no value")
        if ("topic" in types) == (topic is not None):
            problems.append("the topic is named twice" if topic else "no topic is named, here or in a column")
        if problems:
            raise FixConfiguration(
                f"the frame cannot be sent to Kafka: {'; '.join(problems)}",
                way_out='select what becomes a record: frame.select("key", "value", *kept.spark.POSITION); '
                "also topic, partition and headers",
            )
        return Shape(tuple(types), topic)

    def records(self, table: pa.Table) -> Iterator[Output]:
        """The rows, in the order of Output's fields."""
        columns = self._listed(table)
        headers = columns.get("headers")
        fields: list[Any] = [
            columns.get("topic", repeat(self.topic)),
            columns["value"],
            columns.get("key", repeat(None)),
            repeat(None) if headers is None else map(_pairs, headers),
            repeat(-1) if "partition" not in columns else (-1 if at is None else at for at in columns["partition"]),
        ]
        return map(Output._make, zip(*fields, repeat(0), strict=False))

    def values_and_keys(self, table: pa.Table) -> tuple[Iterable[bytes | None], Iterable[bytes | None]] | None:
        """Of records of one topic that are nothing else; None where a row says more."""
        if not {"value", "key"}.issuperset(self.columns):
            return None
        columns = self._listed(table)
        return columns["value"], columns.get("key", repeat(None))

    def _listed(self, table: pa.Table) -> dict[str, list[Any]]:
        return {name: _listed(name, column) for name, column in zip(self.columns, table.columns, strict=True)}


def sent_inside(transaction: Transaction, shape: Shape, table: pa.Table) -> None:
    """Visible when the transaction is committed, or not at all."""
    plain = shape.values_and_keys(table)
    if plain is not None and shape.topic is not None:
        transaction.send_plain(shape.topic, *plain)
    else:
        transaction.send_all(list(shape.records(table)), one_by_one=False)


def sent_and_judged(transaction: Transaction, records: Sequence[Output]) -> None:
    """The same, and what the brokers say of each record is known now, not when the commit fails.

    A refusal ends the transaction: nothing behind it is taken any more. Then it is the refusal that is told.
    """
    try:
        transaction.send_all(records, one_by_one=False)
        transaction.flush()
    except Refused:
        raise
    except Ended:
        transaction.hear()
        _refuse(transaction.reports)
        raise
    _refuse(transaction.reports)


def _refuse(reports: Reports) -> None:
    if reports.forbidden is not None:
        raise reports.forbidden
    if reports.refusal is not None:
        raise Refused(reports.refusal)


def sent_apart(settings: Mapping[str, object], guarantee: Guarantee, records: Iterable[Output]) -> None:
    """All acknowledged; under at-most-once those that were not are told, and not sent again."""
    failed = _sender_of(settings).sent(records)
    if failed:
        _sender.cache_clear()  # a client that has failed may never send again
    _tell(failed, guarantee)


def refused_apart(settings: Mapping[str, object], guarantee: Guarantee, records: Sequence[Output]) -> list[Judgement]:
    """All acknowledged, but those that Kafka refuses for what is in them: these by number, with the refusal.

    A broker refuses a whole batch for one record of it (rule 14), so those that were refused are sent again, half of
    them at a time, until one is refused alone; what was acknowledged is not. At most once sends nothing again: what
    was refused with others counts as refused.
    """
    proven: list[Judgement] = []
    failed: list[KeptError] = []
    waiting = [list(enumerate(records))]
    while waiting:
        group = waiting.pop()
        refused, others = _sender_of(settings).judged(group)
        if refused or others:
            _sender.cache_clear()  # a client that has failed may never send again
        failed += others
        if len(group) == 1 or isinstance(guarantee, AtMostOnce):
            proven += refused
        elif refused:
            again = [(number, records[number]) for number, _ in refused]
            middle = (len(again) + 1) // 2
            waiting += [half for half in (again[middle:], again[:middle]) if half]
    _tell(failed, guarantee)
    return proven


def _tell(failed: Sequence[KeptError], guarantee: Guarantee) -> None:
    if failed and isinstance(guarantee, AtMostOnce):
        log.warning("at most once: %d records were not acknowledged: %s", len(failed), failed[0])
    elif failed:
        raise next((error for error in failed if isinstance(error, NotPersisted)), failed[0])


class _Sender:
    """A producer that stays: a fresh one would wait half a second for its number, chunk by chunk."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._failed: list[KeptError] = []
        reports = partial(_hear, self._failed)  # nothing that holds the client: it would never end
        self._client = make_client({**settings, "delivery.report.only.error": True, "on_delivery": reports})

    def sent(self, records: Iterable[Output]) -> list[KeptError]:
        """What went wrong."""
        failed = self._failed
        failed.clear()
        for record in records:
            try:
                _produced(self._client, record)
            except KafkaException as failure:
                failed.append(error_of(failure.args[0], record.topic, may_have_been_resent=False))
        if flushed(self._client, DELIVERED_WITHIN):
            failed.append(_late())
        return list(failed)

    def judged(self, records: Iterable[tuple[int, Output]]) -> tuple[list[Judgement], list[KeptError]]:
        """Of numbered records those that were refused for what is in them; and what else went wrong."""
        refused: list[Judgement] = []
        failed: list[KeptError] = []

        def hear(number: int, error: KafkaError | None, message: Message) -> None:
            if error is None:
                return
            told = error_of(error, str(message.topic()), may_have_been_resent=True)
            if is_refused_together(error):
                refused.append((number, told))
            else:
                failed.append(told)

        for number, record in records:
            try:
                _produced(self._client, record, partial(hear, number))
            except KafkaException as failure:
                told = error_of(failure.args[0], record.topic, may_have_been_resent=False)
                if is_refused_together(failure.args[0]):
                    refused.append((number, told))
                else:
                    failed.append(told)
            except (TypeError, ValueError) as error:
                what = f"{record!r} cannot be sent: {error}"
                refused.append((number, NotPersisted(what, way_out="send bytes or text", retriable=False)))
        if flushed(self._client, DELIVERED_WITHIN):
            failed.append(_late())
        return sorted(refused, key=lambda each: each[0]), failed


def _hear(failed: list[KeptError], error: KafkaError | None, message: Message) -> None:
    if error is not None:
        failed.append(error_of(error, str(message.topic()), may_have_been_resent=True))


@lru_cache(maxsize=4)
def _sender(settings: tuple[tuple[str, object], ...], thread: int) -> _Sender:  # noqa: ARG001 - one for each thread
    return _Sender(dict(settings))


def _sender_of(settings: Mapping[str, object]) -> _Sender:
    return _sender(tuple(settings.items()), threading.get_ident())


def _late() -> OutcomeUnknown:
    return OutcomeUnknown("not every record was acknowledged in time", way_out="see that the brokers run")


def _produced(client: Client, record: Output, hear: Hear | None = None) -> None:
    """Handed over; a full buffer is waited for. Without a `hear` of its own the client's is told of its fate."""
    topic, value, key, headers, partition, _ = record
    while True:
        try:
            client.produce(topic, value, key, partition, headers=headers, on_delivery=hear)
        except BufferError:
            client.poll(0.1)
        else:
            return


def _listed(name: str, column: pa.ChunkedArray) -> list[Any]:
    """Text by its bytes: Spark's may hold some that are no text, and Kafka takes any. By way of numpy, which makes them
    in a fifth of the time of `to_pylist`.
    """
    found: list[Any]
    found = column.cast("binary").to_numpy().tolist() if COLUMNS[name] == BYTES else column.to_pylist()
    return found


def _pairs(headers: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]] | None:
    return None if headers is None else [(each["key"], each["value"]) for each in headers]
