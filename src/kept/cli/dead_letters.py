"""`kept dead-letters`: list, show, redrive."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from kept.cli import dead_letter_tables as tables
from kept.cli import target
from kept.cli.output import as_json, print_json, print_table, readable, say
from kept.errors import FixConfiguration

if TYPE_CHECKING:
    from kept.consumer.redriving import Found


@click.group("dead-letters")
def dead_letters() -> None:
    """Look at records that were given up, and send them back."""


@dead_letters.command("list")
@click.argument("topic", metavar="[TOPIC|PIPELINE]", required=False)
@target.dsn
@target.bootstrap
@as_json
def list_(topic: str | None, dsn: str | None, bootstrap: str | None, as_json: bool) -> None:
    """List the dead letters of a topic: where each came from, why it was given up, its size, and when.

    With --dsn those that a pipeline buried in its Postgres, and without a name how many each pipeline has, and why.
    """
    from kept.consumer.redriving import letters

    if dsn is not None:
        if topic is None:
            tables.list_pipelines(dsn, as_json=as_json)
        else:
            tables.list_letters(dsn, topic, as_json=as_json)
        return
    if topic is None:
        raise click.UsageError("name a dead-letter topic, or a database with --dsn")
    found = letters(target.address(bootstrap), topic)
    if as_json:
        print_json([_summary(each) for each in found])
    elif found:
        rows = [list(_summary(each).values()) for each in found]
        print_table(["letter", "from", "reason", "bytes", "when"], rows)
    else:
        say(f"no dead letters in {topic}")


@dead_letters.command()
@click.argument("topic", metavar="TOPIC|PIPELINE")
@click.argument("letter", metavar="PARTITION:OFFSET|NUMBER")
@target.dsn
@target.bootstrap
@as_json
def show(topic: str, letter: str, dsn: str | None, bootstrap: str | None, as_json: bool) -> None:
    """Show one dead letter in full: key, value and headers as they were, and what became of it.

    In a topic it is named by PARTITION:OFFSET; in a Postgres (--dsn) by its number, both as `list` shows them.
    """
    from kept.consumer.redriving import letters

    if dsn is not None:
        tables.show_letter(dsn, topic, letter, as_json=as_json)
        return
    partition, offset = _place(letter)
    for each in letters(target.address(bootstrap), topic, partition):
        if each.record.offset == offset:
            document = _document(each)
            if as_json:
                print_json(document)
            else:
                for name, value in document.items():
                    click.echo(f"{name}: {value}")
            return
    raise FixConfiguration(
        f"{topic} has no dead letter {letter}", way_out=f"`kept dead-letters list {topic}` shows those there are"
    )


@dead_letters.command()
@click.argument("topic", metavar="TOPIC|PIPELINE")
@click.option("--to", metavar="TOPIC", help="Send all of them to this topic instead of where each came from.")
@click.option("--yes", is_flag=True, help="Do it. Without this, only what would be done is told.")
@target.dsn
@target.bootstrap
def redrive(topic: str, to: str | None, yes: bool, dsn: str | None, bootstrap: str | None) -> None:
    """Send dead letters back, with their original key, value and headers, to the topic each came from.

    Each is sent exactly once, whatever happens on the way, and never again by another redrive. It ends at the
    end that the topic has at the start: a record that dies once more waits for the next time.

    With --dsn: the letters that a pipeline buried in its Postgres. They are marked and put into an outbox (schema
    kept_redrive) in one transaction; a redrive that was cut short is finished by the next one.
    """
    from kept.consumer.redriving import Redrive

    if dsn is not None:
        tables.redrive_letters(dsn, topic, to, bootstrap, yes=yes)
        return
    work = Redrive(target.address(bootstrap), topic, to)
    pending = work.pending()
    if not pending:
        say(f"nothing to send back: {topic} has no dead letters, or all were sent back before")
        return
    for name, count in sorted(Counter(work.target(each.letter) for each in pending).items()):
        click.echo(f"{'sending' if yes else 'would send'} {count} to {name}")
    if not yes:
        say("nothing was sent: --yes does it")
        return
    work.carry_out()
    click.echo(f"sent {len(pending)}")


def _summary(found: Found) -> dict[str, object]:
    record, letter = found.record, found.letter
    return {
        "letter": f"{record.partition}:{record.offset}",
        "from": f"{letter.topic}[{letter.partition}]@{letter.offset}",
        "reason": letter.reason.partition("\n")[0],
        "bytes": len(letter.key or b"") + len(letter.value or b""),
        "when": datetime.fromtimestamp(record.timestamp / 1000, timezone.utc).isoformat(timespec="seconds"),
    }


def _document(found: Found) -> dict[str, object]:
    letter = found.letter
    written = datetime.fromtimestamp(letter.timestamp / 1000, timezone.utc).isoformat(timespec="milliseconds")
    return {
        **_summary(found),
        "reason": letter.reason,
        "group": letter.group,
        "written": written,
        "headers": [[name, readable(value)] for name, value in letter.headers],
        "key": readable(letter.key),
        "value": readable(letter.value),
    }


def _place(letter: str) -> tuple[int, int]:
    partition, colon, offset = letter.partition(":")
    if not (colon and partition.isdigit() and offset.isdigit()):
        raise FixConfiguration(f"{letter} is not PARTITION:OFFSET", way_out="for example 0:17, as `list` shows it")
    return int(partition), int(offset)
