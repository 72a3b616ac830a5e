"""`kept receive`: look at the records of a topic."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kept.cli import target
from kept.cli.output import as_json, print_json

if TYPE_CHECKING:
    from kept.consumer import Record


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
    seen = 0
    with Reader(target.address(bootstrap), topic, start=start, committed=committed, partition=partition) as reader:
        while not (to_end and reader.at_end) and (most is None or seen < most):
            record = reader.poll(0.5)
            if record is None:
                sys.stdout.flush()
                continue
            seen += 1
            _print(record, as_json=as_json, positions=positions)


def _print(record: Record, *, as_json: bool, positions: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": _readable(record.key),
                "value": _readable(record.value),
                "headers": [[name, _readable(value)] for name, value in record.headers],
            }
        )
        return
    where = f"{record.partition}:{record.offset}\t{_words(record.key)}\t".encode() if positions else b""
    sys.stdout.buffer.write(where + (record.value or b"") + b"\n")


def _readable(data: bytes | None) -> object:
    """Text as text; anything else as base64, so that nothing is lost."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        import base64

        return {"base64": base64.b64encode(data).decode()}


def _words(data: bytes | None) -> str:
    return "-" if data is None else data.decode(errors="replace")
