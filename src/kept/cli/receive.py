"""`kept receive`: look at the records of a topic, or consume them as a member of a group, under a guarantee."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from kept.cli import target
from kept.cli.output import as_json, print_line, readable
from kept.errors import FixConfiguration
from kept.guarantees.levels import WORDS

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
@click.option("--group", help="Consume as a member of this group: its progress is recorded.")
@click.option("--guarantee", type=click.Choice(WORDS), help="What to promise; with --group.  [at-least-once]")
@click.option("--exec", "command", metavar="CMD", help="Run CMD for each record, its value on standard input.")
@click.option("--dead-letters", metavar="TOPIC", help="Where to put a record that CMD keeps failing for.")
@click.option("--into", metavar="TOPIC", help="Copy the records there, exactly once.")
@click.option("--into-postgres", metavar="DSN", help="Put the records into the table messages, exactly once.")
@click.option("--idle", type=click.FloatRange(min=0.1), help="Stop when no record came for so many seconds.")
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
    group: str | None,
    guarantee: str | None,
    command: str | None,
    dead_letters: str | None,
    into: str | None,
    into_postgres: str | None,
    idle: float | None,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    """Print the records of a topic as they come, until Ctrl-C.

    Without --group it joins no group and moves nobody's progress. With --group the records are shared among its
    members, and printing them, or running CMD, is the effect: progress is recorded before it (at-most-once) or after
    it (at-least-once). Exactly-once takes --into or --into-postgres, where the effect shares a transaction with the
    progress. CMD finds KEPT_TOPIC, KEPT_PARTITION, KEPT_OFFSET and KEPT_KEY in its environment; a status other than 0
    is tried again, then the record goes to --dead-letters, or the command ends with its progress before that record.

    With --json, one document a record; bytes that are not text are shown as {"base64": ...}.
    """
    address = target.address(bootstrap)
    if group is not None:
        from kept.cli.receive_group import Consuming, Effect

        _refuse(
            "looks without a group",
            {"--to-end": to_end, "--partition": partition is not None, "--uncommitted": not committed},
        )
        effect = Effect(command, dead_letters, into, into_postgres, lambda record: _line(record, as_json, positions))
        consuming = Consuming(address, topic, group, guarantee or "at-least-once", from_beginning=from_beginning)
        consuming.run(effect, most=most, idle=idle)
        return
    _refuse(
        "needs --group",
        {
            "--guarantee": guarantee,
            "--exec": command,
            "--dead-letters": dead_letters,
            "--into": into,
            "--into-postgres": into_postgres,
            "--idle": idle,
        },
    )
    from kept.consumer import Reader, Start

    start = Start.BEGINNING if from_beginning else Start.END
    with Reader(address, topic, start=start, committed=committed, partition=partition) as reader:
        records = reader.to_end() if to_end else _for_ever(reader)
        for record in islice(records, most):
            if not print_line(_line(record, as_json, positions)):
                return  # whoever read our output has left


def _refuse(why: str, options: dict[str, object]) -> None:
    given = [name for name, value in options.items() if value]
    if given:
        way_out = "leave it out, or leave --group out" if "without" in why else "say --group NAME, or leave it out"
        raise FixConfiguration(f"{' and '.join(given)} {why}", way_out=way_out)


def _for_ever(reader: Reader) -> Iterator[Record]:
    while True:
        record = reader.poll(0.5)
        if record is not None:
            yield record


def _line(record: Record, as_json: bool, positions: bool) -> bytes:
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
