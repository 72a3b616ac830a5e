"""`kept outbox`: init, status, relay, inspect, redrive, purge; of a journal on disk, or of an outbox in Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kept.cli import target
from kept.cli.output import as_json, print_json, print_table, readable, say
from kept.errors import Busy, FixConfiguration

if TYPE_CHECKING:
    from kept.guarantees import Guarantee
    from kept.outbox.backlog import Backlog, Entry
    from kept.outbox.journal import Journal
    from kept.outbox.locks import Lock
    from kept.outbox.postgres_looking import InspectedBacklog, Turn
    from kept.outbox.relay import Relay

outbox_place = click.argument("place", metavar="PATH|DSN", type=target.Place())


@click.group()
def outbox() -> None:
    """Look after an outbox: records that wait on disk or in your Postgres, and the relay that carries them into Kafka.

    PATH is the journal of a kept.Outbox. DSN is the Postgres of a kept.PostgresOutbox: postgresql://..., or env:NAME
    or file:PATH that holds it.
    """


@outbox.command()
@click.argument("dsn")
def init(dsn: str) -> None:
    """Make the outbox in a Postgres, once; one that is there already is left as it is, or refused if it does not fit.

    It goes into the first schema of the search_path. Who enqueues needs the right to INSERT into kept_outbox.
    """
    from kept.cli.outbox_postgres import make

    make(target.Dsn(dsn))


@outbox.command()
@outbox_place
@as_json
def status(place: Path | target.Dsn, as_json: bool) -> None:
    """Show how much waits, how old it is, how far the relay came, and what was refused or damaged."""
    if isinstance(place, target.Dsn):
        from kept.cli.outbox_postgres import show_status

        show_status(place, as_json=as_json)
        return
    with _opened_journal(place) as journal:
        lag, state, damages = journal.lag(), journal.state(), journal.damages()
        document: dict[str, object] = {
            "identity": state.identity,
            "records": lag.records,
            "bytes": lag.bytes,
            "oldest_age": round(lag.oldest_age, 3),
            "relayed_up_to": state.confirmed,
            "end": state.end,
            "relay_generation": state.generation,
            "relay_at_work": _is_relayed(place),
            "relay_error": journal.word(),
            "refused": journal.refused_count(),
            "damages": [damage._asdict() for damage in damages],
        }
    if as_json:
        print_json(document)
        return
    print_table(
        ["journal", str(place)],
        [[name.replace("_", " "), value] for name, value in document.items() if name != "damages"],
    )
    for damage in damages:
        click.echo(
            f"damaged and mended {_time(damage.at)}: {damage.kept} kept; lost: {damage.lost or 'none'}; "
            f"the damaged file is {damage.moved_to}"
        )


@outbox.command()
@outbox_place
@click.option("--until-empty", is_flag=True, help="End when nothing waits, instead of waiting for more.")
@click.option("--take-over", is_flag=True, help="Do not wait for a relay that is at work already: fence it.")
@click.option("--name", help="The relay's name, under exactly-once. [outbox-<the journal's identity>]")
@click.option("--patience", type=click.FloatRange(min=0), default=60.0, show_default=True,
              help="Seconds to wait for a missing topic before its records are set aside.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the Kafka client.")
@target.guarantee("exactly-once")
@target.bootstrap
def relay(
    place: Path | target.Dsn,
    until_empty: bool,
    take_over: bool,
    name: str | None,
    patience: float,
    settings: tuple[str, ...],
    guarantee: str,
    bootstrap: str | None,
) -> None:
    """Carry the records of an outbox into Kafka, until Ctrl-C.

    Under exactly-once the records and the relay's position are committed together: a relay that was killed, or runs
    twice, sends each record once and in order. While another relay is at work (of a journal: on the same machine) this
    one stands by, and takes over when that one ends. A record that the brokers refuse for good is set aside; `inspect`
    shows it.
    """
    from kept.consumer.signals import stopped_by_signals
    from kept.outbox.relay import Relay

    address = target.address(bootstrap)
    overrides: dict[str, object] = dict(_pair(text) for text in settings)
    with _opened(place) as backlog, _turn(place, take_over=take_over):
        work = Relay(backlog, address, _promise(guarantee, name), patience=patience, **overrides)
        say(f"relaying {backlog.name} to {address}, {guarantee}")
        with stopped_by_signals(work.stop):
            work.run(until_empty=until_empty)
        _summary(work, backlog)


@outbox.command()
@outbox_place
@click.option("--refused", "only_refused", is_flag=True, help="Only records that were set aside.")
@click.option("--max", "most", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many.")
@as_json
def inspect(place: Path | target.Dsn, only_refused: bool, most: int, as_json: bool) -> None:
    """Show the records that wait, and those that were refused with the reason, oldest first."""
    with _opened(place) as backlog:
        refused = [{**_document(each.entry), "refused": each.reason} for each in backlog.refused(most)]
        confirmed = backlog.standing().confirmed
        waiting = [] if only_refused else [_document(entry) for entry in backlog.read(confirmed, most)]
    documents = [*refused, *waiting][:most]
    if as_json:
        print_json(documents)
    elif documents:
        rows = [[each["position"], each["topic"], each["key"], each["bytes"], each["time"], each.get("refused", "")]
                for each in documents]  # fmt: skip
        print_table(["position", "topic", "key", "bytes", "time", "refused"], rows)
    else:
        say("nothing waits, and nothing was refused")


@outbox.command()
@outbox_place
@click.option("--yes", is_flag=True, help="Do it. Without this, only what would be done is told.")
def redrive(place: Path | target.Dsn, yes: bool) -> None:
    """Put the refused records back, behind all that waits, so that a relay sends them; once their topic is there, say.

    All of them or none, in one transaction of the outbox, and each once: a relay may be at work meanwhile. They come
    after what was sent since, also of the same key. What the brokers still refuse is set aside again.
    """
    with _opened(place) as backlog:
        pending = backlog.refused_for()
        if not pending:
            say(f"nothing was refused in {backlog.name}")
            return
        for topic, count in sorted(pending.items()):
            click.echo(f"{'putting' if yes else 'would put'} back {count} for {topic}")
        if not yes:
            say("nothing was put back: --yes does it")
            return
        click.echo(f"{backlog.redrive()} wait to be relayed again")


@outbox.command()
@outbox_place
@click.option("--unsent", is_flag=True, help="Also remove what waits to be sent: it is lost.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(place: Path | target.Dsn, unsent: bool, yes: bool) -> None:
    """Remove the refused records for good, and have their space used again.

    Records that wait to be sent stay, unless --unsent is given; that needs the relay to be stopped.
    """
    with _opened(place) as backlog:
        refused, waiting = backlog.refused_count(), backlog.lag().records
        what = f"{refused} refused records" + (f" and {waiting} that were never sent" if unsent else "")
        if not yes:
            click.confirm(f"Remove {what} from {backlog.name}?", abort=True)
        if unsent:
            with _turn(place, wait=False):
                waiting = backlog.purge_unsent()
        backlog.purge_refused()
        backlog.compact()
    click.echo(f"removed {refused} refused records" + (f" and {waiting} that were never sent" if unsent else ""))


@contextmanager
def _opened(place: Path | target.Dsn) -> Iterator[Journal | InspectedBacklog]:
    if isinstance(place, target.Dsn):
        from kept.outbox.postgres_looking import InspectedBacklog

        backlog = InspectedBacklog(place.plain)
        try:
            yield backlog
        finally:
            backlog.close()
    else:
        with _opened_journal(place) as journal:
            yield journal


@contextmanager
def _opened_journal(path: Path) -> Iterator[Journal]:
    from kept.outbox.journal import Journal

    journal = Journal(path.absolute(), create_missing=False)
    try:
        if journal.damage is not None:
            say(f"{path} was damaged, and has been mended: `kept outbox status` shows what was lost")
        yield journal
    finally:
        journal.close()


@contextmanager
def _turn(place: Path | target.Dsn, *, take_over: bool = False, wait: bool = True) -> Iterator[None]:
    """Hold the relay's lock: whoever has it ends first, unless it is to be fenced."""
    import time

    lock = _relay_lock(place)
    try:
        if not take_over and not lock.alone():
            if not wait:
                raise Busy("a relay is at work on this outbox", way_out="stop it first")
            say("another relay is at work on this outbox: standing by")
            while not lock.alone():
                time.sleep(0.2)
        yield
    finally:
        lock.close()


def _relay_lock(place: Path | target.Dsn) -> Lock | Turn:
    if isinstance(place, target.Dsn):
        from kept.outbox.postgres_looking import Turn

        return Turn(place.plain)
    from kept.outbox.locks import Lock, beside

    return Lock(beside(place.absolute(), "relay"))


def _is_relayed(path: Path) -> bool:
    lock = _relay_lock(path)
    try:
        return not lock.alone()
    finally:
        lock.close()


def _promise(word: str, name: str | None) -> Guarantee | None:
    from kept.guarantees import ExactlyOnce, parse

    if word == ExactlyOnce.word:
        return None if name is None else ExactlyOnce(name)
    return parse(word, name)


def _pair(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise FixConfiguration(f"--set {text} is not NAME=VALUE", way_out="for example --set linger.ms=5")
    return name, value


def _summary(work: Relay, backlog: Backlog) -> None:
    lag = backlog.lag()
    click.echo(f"relayed {work.relayed}, refused {work.refused}, {lag.records} wait")


def _document(entry: Entry) -> dict[str, object]:
    return {
        "position": entry.position,
        "topic": entry.topic,
        "key": readable(entry.key),
        "value": readable(entry.value),
        "headers": [[name, readable(value)] for name, value in entry.headers],
        "partition": entry.partition,
        "bytes": len(entry.key or b"") + len(entry.value or b""),
        "time": _time(entry.timestamp or 0),
    }


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).isoformat(timespec="milliseconds")
