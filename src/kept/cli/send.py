"""`kept send`: send records and learn what became of each."""

from __future__ import annotations

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
from kept.cli.output import as_json, print_json, say
from kept.errors import FixConfiguration, KeptError, NotPersisted, OutcomeUnknown, TransactionAborted

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

        def hand_over(each: str) -> Delivery:
            return producer.send(topic, each, key=key, partition=partition, headers=pairs)

        for chunk in [[value]] if value is not None else _chunks():
            try:
                for delivery in _deliver(producer, hand_over, chunk):
                    tally.add(delivery)
            except OutcomeUnknown as error:
                tally.unknown(error, len(chunk))
                break
    return tally.close()


def _deliver(producer: Producer, hand_over: Callable[[str], Delivery], chunk: list[str]) -> list[Delivery]:
    """Send a chunk; under exactly-once as one transaction, begun again when it was aborted: none of it is visible."""
    from kept.guarantees import ExactlyOnce

    if not isinstance(producer.guarantee, ExactlyOnce):
        return [hand_over(each) for each in chunk]
    for _ in range(TRIES - 1):
        try:
            with producer.transaction():
                return [hand_over(each) for each in chunk]
        except TransactionAborted as error:
            say(f"{error.what}; sending these {len(chunk)} records again")
    with producer.transaction():
        return [hand_over(each) for each in chunk]


def _chunks() -> Iterator[list[str]]:
    """Standard input in chunks that never wait long for their last line: on a terminal, one line each."""
    if sys.stdin.isatty():
        say("one record a line; Ctrl-D ends")
        while True:
            try:
                yield [input("> ")]
            except EOFError:
                return
    lines: queue.Queue[str | None] = queue.Queue(RECORDS_A_CHUNK)
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


def _read_lines(lines: queue.Queue[str | None]) -> None:
    for line in sys.stdin:
        lines.put(line.removesuffix("\n"))
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
        self._quiet = quiet
        self._persisted = self._refused = self._unknown = 0
        self._first_error: KeptError | None = None

    def add(self, delivery: Delivery) -> None:
        try:
            self.persisted(delivery.result())
        except OutcomeUnknown as error:
            self.unknown(error, 1)
        except NotPersisted as error:
            self._refused += 1
            self._first_error = self._first_error or error

    def persisted(self, receipt: Receipt) -> None:
        self._persisted += 1
        if self._as_json:
            print_json(asdict(receipt))
        elif not self._quiet:
            click.echo(f"{receipt.topic} partition {receipt.partition} offset {receipt.offset}")

    def unknown(self, error: OutcomeUnknown, records: int) -> None:
        self._unknown += records
        self._first_error = self._first_error or error

    def close(self) -> ExitCode:
        total = self._persisted + self._refused + self._unknown
        if self._first_error is not None:
            click.secho("error: ", fg="red", bold=True, nl=False, err=True)
            say(str(self._first_error))
        if total != 1 or self._first_error is not None:
            say(f"{self._persisted} persisted, {self._refused} refused, {self._unknown} unknown")
        if self._unknown:
            return ExitCode.UNKNOWN
        return ExitCode.FAILED if self._refused else ExitCode.DONE
