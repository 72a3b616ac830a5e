"""`kept receive`: look at the records of a topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from kept.cli import target
from kept.cli.output import as_json, print_line, readable

if TYPE_CHECKING:
    from kept.consumer import Reader, Record


@click.command()
@click.argument("topic")
@click.option("--from-beginning", is_flag=True, help="Begin with the oldest record instead of the next new one.")
@click.option("--to-end", is_flag=True, help="Stop at the end of the topic instead of waiting for more.")
@click.option("--max", "most", type=click.IntRange(min=1), help="Stop after so many records.")
@click.option("--partition", type=click.IntRange(min=0), help="Read one partition only.")
@click.option(
    "--committed/--uncommitted",
    default=True,
    show_default=True,
    help="Only what transactions have committed, or also what is open or was aborted.",
)
@click.option("--positions", is_flag=True, help="Print partition, offset and key before each value.")
@target.bootstrap
@as_json
def receive(
    topic: str,
    from_beginning: bool,
    to_end: bool,
    most: int | None,
    partition: int | None,
    committed: bool,
    positions: bool,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    """Print the records of a topic as they come, until Ctrl-C.

    It joins no group and moves nobody's progress. With --json, one document a record; bytes that are not text
    are shown as {"base64": ...}.
    """
    from kept.consumer import Reader, Start

    start = Start.BEGINNING if from_beginning else Start.END
    with Reader(target.address(bootstrap), topic, start=start, committed=committed, partition=partition) as reader:
        records = reader.to_end() if to_end else _for_ever(reader)
        for record in islice(records, most):
            if not print_line(_line(record, as_json=as_json, positions=positions)):
                return  # whoever read our output has left


def _for_ever(reader: Reader) -> Iterator[Record]:
    while True:
        record = reader.poll(0.5)
        if record is not None:
            yield record


def _line(record: Record, *, as_json: bool, positions: bool) -> bytes:
    if not as_json:
        where = f"{record.partition}:{record.offset}\t{_words(record.key)}\t".encode() if positions else b""
        return where + (record.value or b"")
    document = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": readable(record.key),
        "value": readable(record.value),
        "headers": [[name, readable(value)] for name, value in record.headers],
    }
    return json.dumps(document, ensure_ascii=False).encode()


def _words(data: bytes | None) -> str:
    return "-" if data is None else data.decode(errors="replace")
