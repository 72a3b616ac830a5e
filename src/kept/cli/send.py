"""`kept send`: send records and learn what became of each."""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from kept.cli import target
from kept.cli.exit_codes import ExitCode
from kept.cli.output import as_json, print_line, say
from kept.errors import Fenced, FixConfiguration, KeptError, NotPersisted, OutcomeUnknown, TransactionAborted

if TYPE_CHECKING:
    from kept.producer import Delivery, Producer, Receipt

RECORDS_A_CHUNK = 10_000
SECONDS_A_CHUNK = 0.2
TRIES = 5
# The client waits half a minute for a topic that may be on its way; a person has mistyped it.
MISSING_TOPIC_KNOWN_SOON = {"topic.metadata.propagation.max.ms": 3000}


@click.command()
@click.argument("topic")
@click.argument("value", required=False)
@click.option("--key", help="The records' key; records of one key keep their order.")
@click.option("--partition", type=click.IntRange(min=0), help="The partition, instead of one chosen by key.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("--quiet", is_flag=True, help="Print only the summary.")
@target.guarantee("at-least-once")
@target.bootstrap
@as_json
def send(
    topic: str,
    value: str | None,
    key: str | None,
    partition: int | None,
    headers: tuple[str, ...],
    quiet: bool,
    guarantee: str,
    bootstrap: str | None,
    as_json: bool,
) -> int:
    """Send VALUE, or each line of standard input, or what you type at the prompt.

    Prints the partition and offset of each record. Exit code 1 when a record was refused, 4 when the fate of
    one is unknown.
    """
    from kept.guarantees import ExactlyOnce, parse
    from kept.producer import Producer

    # One call is one run: there is no earlier call to take over from, so each has a name of its own.
    promise = ExactlyOnce(f"send-{uuid.uuid4()}") if guarantee == "exactly-once" else parse(guarantee)
    pairs = [_header(text) for text in headers]
    tally = _Tally(as_json=as_json, quiet=quiet)
    with Producer(target.address(bootstrap), promise, **MISSING_TOPIC_KNOWN_SOON) as producer:

        def hand_over(each: bytes) -> Delivery:
            return producer.send(topic, each, key=key, partition=partition, headers=pairs)

        for chunk in [[value.encode()]] if value is not None else _chunks():
            if not _sent(producer, hand_over, chunk, tally):
                break
        producer.forget()
    return tally.close()


def _sent(producer: Producer, hand_over: Callable[[bytes], Delivery], chunk: list[bytes], tally: _Tally) -> bool:
    """Send a chunk and count its fates; False when it is no use to go on."""
    from kept.guarantees import ExactlyOnce

    if isinstance(producer.guarantee, ExactlyOnce):
        try:
            tally.add_all(_in_a_transaction(producer, hand_over, chunk))
        except KeptError as error:
            tally.failed(error, len(chunk))
            return False
        return True
    deliveries: list[Delivery] = []
    try:
        deliveries.extend(map(hand_over, chunk))
    except KeptError as error:
        tally.add_all(deliveries)
        tally.failed(error, len(chunk) - len(deliveries))
        return False
    tally.add_all(deliveries)
    return True


def _in_a_transaction(producer: Producer, hand_over: Callable[[bytes], Delivery], chunk: list[bytes]) -> list[Delivery]:
    """A chunk as one transaction, begun again when it was aborted: then none of it is visible."""
    for _ in range(TRIES - 1):
        try:
            with producer.transaction():
                return [hand_over(each) for each in chunk]
        except TransactionAborted as error:
            say(f"{error.what}; sending these {len(chunk)} records again")
    with producer.transaction():
        return [hand_over(each) for each in chunk]


def _chunks() -> Iterator[list[bytes]]:
    """Standard input in chunks that never wait long for their last line: on a terminal, one line each."""
    if sys.stdin.isatty():
        say("one record a line; Ctrl-D ends")
        while True:
            try:
                yield [input("> ").encode(errors="surrogateescape")]
            except EOFError:
                return
    lines: queue.Queue[bytes | None] = queue.Queue(RECORDS_A_CHUNK)
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    while (first := lines.get()) is not None:
        chunk, deadline = [first], time.monotonic() + SECONDS_A_CHUNK
        while len(chunk) < RECORDS_A_CHUNK:
            try:
                following = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if following is None:
                yield chunk
                return
            chunk.append(following)
        yield chunk


def _read_lines(lines: queue.Queue[bytes | None]) -> None:
    try:
        for line in sys.stdin.buffer:
            lines.put(line.removesuffix(b"\n"))
    finally:
        lines.put(None)


def _header(text: str) -> tuple[str, str | bytes | None]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise FixConfiguration(f"--header {text} is not NAME=VALUE", way_out="for example --header trace=42")
    return name, value


class _Tally:
    """Counts and prints what became of each record."""

    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self._as_json = as_json
        self._silent = quiet
        self._persisted = self._refused = self._unknown = 0
        self._first_error: KeptError | None = None
        self._gave_up = False

    def add_all(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            try:
                self._add(delivery.result())
            except (OutcomeUnknown, NotPersisted) as error:
                self._count(error, 1)

    def failed(self, error: KeptError, records: int) -> None:
        """These records, and whatever would have followed them."""
        self._gave_up = True
        self._count(error, records)

    def _add(self, receipt: Receipt) -> None:
        self._persisted += 1
        if self._as_json:
            self._print(json.dumps(asdict(receipt)))
        elif not self._silent:
            self._print(f"{receipt.topic} partition {receipt.partition} offset {receipt.offset}")

    def _count(self, error: KeptError, records: int) -> None:
        self._first_error = self._first_error or error
        if isinstance(error, (OutcomeUnknown, Fenced)):
            self._unknown += records
        else:
            self._refused += records
        if self._as_json:
            document = {"error": type(error).__name__, "what": error.what, "way_out": error.way_out, "records": records}
            self._print(json.dumps(document))

    def _print(self, line: str) -> None:
        if not print_line(line.encode()):  # whoever read our output has left: the records are sent all the same
            self._silent, self._as_json = True, False

    def close(self) -> ExitCode:
        total = self._persisted + self._refused + self._unknown
        if self._first_error is not None:
            click.secho("error: ", fg="red", bold=True, nl=False, err=True)
            say(str(self._first_error))
        if total != 1 or self._first_error is not None:
            rest = "; what follows was not sent" if self._gave_up else ""
            say(f"{self._persisted} persisted, {self._refused} refused, {self._unknown} unknown{rest}")
        if self._unknown:
            return ExitCode.UNKNOWN
        return ExitCode.FAILED if self._refused else ExitCode.DONE
