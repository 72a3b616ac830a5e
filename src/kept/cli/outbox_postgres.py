"""`kept outbox init DSN` and `status DSN`: what is different for an outbox in Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kept.cli.output import print_json, print_table

if TYPE_CHECKING:
    from kept.cli.target import Dsn


def make(dsn: Dsn) -> None:
    """Make the outbox, and say what was done."""
    from kept.outbox.postgres_backlog import name_of
    from kept.outbox.postgres_schema import COLUMNS, make_outbox
    from kept.stores.sessions import open_session

    session = open_session(dsn.plain, "kept:outbox", 5.0, 60.0)
    try:
        made = make_outbox(session)
    finally:
        session.close()
    where = f"schema {made.schema} of {name_of(dsn.plain)}"
    if made.new:
        click.echo(f"made the outbox {made.identity} in {where}: {', '.join(COLUMNS)}, their trigger and functions")
    else:
        click.echo(f"the outbox {made.identity} is in {where} already, and fits: nothing was changed")


def show_status(dsn: Dsn, *, as_json: bool) -> None:
    """How much waits, how far the relay came, and what is in its way."""
    from kept.outbox.postgres_looking import InspectedBacklog

    backlog = InspectedBacklog(dsn.plain)
    try:
        lag, standing, health = backlog.lag(), backlog.standing(), backlog.health()
        document: dict[str, object] = {
            "identity": backlog.identity,
            "records": lag.records,
            "bytes": lag.bytes,
            "oldest_age": round(lag.oldest_age, 3),
            "relayed_up_to": standing.confirmed,
            "end": backlog.end(),
            "relay_generation": standing.generation,
            "relay_at_work": health.relay_at_work,
            "relay_error": health.relay_error,
            "refused": backlog.refused_count(),
            "without_a_position": health.without_a_position,
            "held_up_by": health.held_up_by,
        }
    finally:
        backlog.close()
    if as_json:
        print_json(document)
        return
    rows = [[name.replace("_", " "), value] for name, value in document.items() if name != "held_up_by"]
    print_table(["outbox", backlog.name], rows)
    if health.held_up_by:
        click.echo(f"held up by {', '.join(health.held_up_by)}: positions were taken there, and not committed yet")
    if health.without_a_position:
        click.echo("records without a position were inserted while triggers were off, and are not relayed")
