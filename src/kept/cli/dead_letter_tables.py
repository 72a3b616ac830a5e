"""`kept dead-letters ... --dsn`: the letters that a pipeline into Postgres buried in its own database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from kept.cli import target
from kept.cli.output import print_json, print_table, readable, say
from kept.errors import FixConfiguration

if TYPE_CHECKING:
    from kept.stores import Buried, Session

MOST = 10_000


def list_pipelines(dsn: str, *, as_json: bool) -> None:
    """Every pipeline's letters, counted by reason."""
    from kept.stores import overview

    with _session(dsn) as session:
        found = overview(session)
    if as_json:
        print_json([each._asdict() for each in found])
    elif found:
        rows = [[*each[:5], each.last.isoformat(timespec="seconds")] for each in found]
        print_table(["pipeline", "from topic", "reason", "waiting", "redriven", "last"], rows)
    else:
        say("no dead letters in this database")


def list_letters(dsn: str, pipeline: str, *, as_json: bool) -> None:
    """One pipeline's letters that wait to be redriven."""
    from kept.stores import DeadLetters

    with _session(dsn) as session:
        name = _known(session, pipeline)
        found = DeadLetters(name).list(session, limit=MOST)
    if as_json:
        print_json([_summary(each) for each in found])
    elif found:
        print_table(["letter", "from", "reason", "bytes", "when"], [list(_summary(each).values()) for each in found])
    else:
        say(f"no dead letters of {name} wait: all were redriven")
    if len(found) == MOST:
        say(f"the first {MOST} are shown")


def show_letter(dsn: str, pipeline: str, letter: str, *, as_json: bool) -> None:
    """One letter in full."""
    from kept.stores import DeadLetters

    if not letter.isdigit():
        raise FixConfiguration(f"{letter} is not the number of a letter", way_out="for example 17, as `list` shows it")
    with _session(dsn) as session:
        document = _document(DeadLetters(_known(session, pipeline)).show(session, int(letter)))
    if as_json:
        print_json(document)
    else:
        for name, value in document.items():
            click.echo(f"{name}: {value}")


def redrive_letters(dsn: str, pipeline: str, to: str | None, bootstrap: str | None, *, yes: bool) -> None:
    """Send one pipeline's letters back to the topics that they came from."""
    from kept.outbox.redriving import TableRedrive

    with _session(dsn) as session:
        name = _known(session, pipeline)
    work = TableRedrive(target.plain(dsn), name, target.address(bootstrap), to)
    pending = work.pending()
    for topic, count in sorted(Counter(pending).items()):
        click.echo(f"{'sending' if yes else 'would send'} {count} to {topic}")
    if not pending:
        say(f"nothing to send back: all dead letters of {name} were sent back before")
    elif not yes:
        say("nothing was sent: --yes does it")
    else:
        click.echo(f"sent {work.carry_out()}")


@contextmanager
def _session(dsn: str) -> Iterator[Session]:
    from kept.stores import dead_letters
    from kept.stores.sessions import open_session
    from kept.stores.sql_errors import told_as

    session = open_session(target.plain(dsn), "kept:dead-letters", 5.0, 60.0)
    try:
        with told_as("looking at the dead letters"):
            if session.execute("SELECT to_regclass(%s)", (next(iter(dead_letters.TABLES)),)).fetchall() == [(None,)]:
                raise FixConfiguration(
                    "this database has no dead letters: the table kept_dead_letters is not there",
                    way_out="name the database that into_postgres writes to, with the same search_path",
                )
            yield session
    finally:
        session.close()


def _known(session: Session, name: str) -> str:
    """The pipeline as the table calls it: an exactly-once name has `kept.` before it there."""
    there = [row[0] for row in session.execute("SELECT DISTINCT pipeline FROM kept_dead_letters").fetchall()]
    for known in (name, f"kept.{name}"):
        if known in there:
            return known
    raise FixConfiguration(
        f"no dead letters of {name!r} are in this database",
        way_out=f"those of {', '.join(sorted(there)) or 'nobody'} are; `kept dead-letters list --dsn ...` counts them",
    )


def _summary(buried: Buried) -> dict[str, object]:
    letter = buried.letter
    return {
        "letter": buried.id,
        "from": f"{letter.topic}[{letter.partition}]@{letter.offset}",
        "reason": letter.reason.partition("\n")[0],
        "bytes": len(letter.key or b"") + len(letter.value or b""),
        "when": buried.died_at.isoformat(timespec="seconds"),
    }


def _document(buried: Buried) -> dict[str, object]:
    letter, redriven = buried.letter, buried.redriven_at
    return {
        **_summary(buried),
        "reason": letter.reason,
        "redriven": None if redriven is None else redriven.isoformat(timespec="seconds"),
        "headers": [[name, readable(value)] for name, value in letter.headers],
        "key": readable(letter.key),
        "value": readable(letter.value),
    }
