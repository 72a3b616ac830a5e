"""`kept outbox`: status, relay, inspect, purge."""

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
    from kept.outbox.backlog import Entry
    from kept.outbox.journal import Journal
    from kept.outbox.locks import Lock
    from kept.outbox.relay import Relay

journal_path = click.argument("path", type=click.Path(path_type=Path, dir_okay=False))


@click.group()
def outbox() -> None:
    """Look after an outbox: a journal of records on disk, and the relay that carries them into Kafka."""


@outbox.command()
@journal_path
@as_json
def status(path: Path, as_json: bool) -> None:
    """Show how much waits, how old it is, how far the relay came, and what was refused or damaged."""
    with _opened(path) as journal:
        lag, state, damages = journal.lag(), journal.state(), journal.damages()
        document: dict[str, object] = {
            "identity": state.identity,
            "records": lag.records,
            "bytes": lag.bytes,
            "oldest_age": round(lag.oldest_age, 3),
            "relayed_up_to": state.confirmed,
            "end": state.end,
            "relay_generation": state.generation,
            "relay_at_work": _is_relayed(path),
            "refused": journal.refused_count(),
            "damages": [damage._asdict() for damage in damages],
        }
    if as_json:
        print_json(document)
        return
    print_table(
        ["journal", str(path)],
        [[name.replace("_", " "), value] for name, value in document.items() if name != "damages"],
    )
    for damage in damages:
        click.echo(
            f"damaged and mended {_time(damage.at)}: {damage.kept} kept; lost: {damage.lost or 'none'}; "
            f"the damaged file is {damage.moved_to}"
        )


@outbox.command()
@journal_path
@click.option("--until-empty", is_flag=True, help="End when nothing waits, instead of waiting for more.")
@click.option("--take-over", is_flag=True, help="Do not wait for a relay that is at work already: fence it.")
@click.option("--name", help="The relay's name, under exactly-once. [outbox-<the journal's identity>]")
@click.option("--patience", type=click.FloatRange(min=0), default=60.0, show_default=True,
              help="Seconds to wait for a missing topic before its records are set aside.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the Kafka client.")
@target.guarantee("exactly-once")
@target.bootstrap
def relay(
    path: Path,
    until_empty: bool,
    take_over: bool,
    name: str | None,
    patience: float,
    settings: tuple[str, ...],
    guarantee: str,
    bootstrap: str | None,
) -> None:
    """Carry the records of a journal into Kafka, until Ctrl-C.

    Under exactly-once the records and the relay's position are committed together: a relay that was killed, or runs
    twice, sends each record once and in order. While another relay is at work on the same machine this one stands by,
    and takes over when that one ends. A record that the brokers refuse for good is set aside; `inspect` shows it.
    """
    from kept.consumer.signals import stopped_by_signals
    from kept.outbox.relay import Relay

    address = target.address(bootstrap)
    overrides: dict[str, object] = dict(_pair(text) for text in settings)
    with _opened(path) as journal, _turn(path, take_over=take_over):
        work = Relay(journal, address, _promise(guarantee, name), patience=patience, **overrides)
        say(f"relaying {path} to {address}, {guarantee}")
        with stopped_by_signals(work.stop):
            work.run(until_empty=until_empty)
        _summary(work, journal)


@outbox.command()
@journal_path
@click.option("--refused", "only_refused", is_flag=True, help="Only records that were set aside.")
@click.option("--max", "most", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many.")
@as_json
def inspect(path: Path, only_refused: bool, most: int, as_json: bool) -> None:
    """Show the records that wait, and those that were refused with the reason, oldest first."""
    with _opened(path) as journal:
        refused = [{**_document(each.entry), "refused": each.reason} for each in journal.refused(most)]
        confirmed = journal.state().confirmed
        waiting = [] if only_refused else [_document(entry) for entry in journal.read(confirmed, most)]
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
@journal_path
@click.option("--unsent", is_flag=True, help="Also remove what waits to be sent: it is lost.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(path: Path, unsent: bool, yes: bool) -> None:
    """Remove the refused records for good, and give unused space back to the disk.

    Records that wait to be sent stay, unless --unsent is given; that needs the relay to be stopped.
    """
    with _opened(path) as journal:
        refused, waiting = journal.refused_count(), journal.lag().records
        what = f"{refused} refused records" + (f" and {waiting} that were never sent" if unsent else "")
        if not yes:
            click.confirm(f"Remove {what} from {path}?", abort=True)
        if unsent:
            with _turn(path, wait=False):
                waiting = journal.purge_unsent()
        journal.purge_refused()
        journal.compact()
    click.echo(f"removed {refused} refused records" + (f" and {waiting} that were never sent" if unsent else ""))


@contextmanager
def _opened(path: Path) -> Iterator[Journal]:
    from kept.outbox.journal import Journal

    journal = Journal(path.absolute(), create_missing=False)
    try:
        if journal.damage is not None:
            say(f"{path} was damaged, and has been mended: `kept outbox status` shows what was lost")
        yield journal
    finally:
        journal.close()


@contextmanager
def _turn(path: Path, *, take_over: bool = False, wait: bool = True) -> Iterator[None]:
    """Hold the relay's lock: whoever has it ends first, unless it is to be fenced."""
    import time

    lock = _relay_lock(path)
    try:
        if not take_over and not lock.alone():
            if not wait:
                raise Busy(f"a relay is at work on {path}", way_out="stop it first")
            say(f"another relay is at work on {path}: standing by")
            while not lock.alone():
                time.sleep(0.2)
        yield
    finally:
        lock.close()


def _relay_lock(path: Path) -> Lock:
    from kept.outbox.locks import Lock, beside

    return Lock(beside(path.absolute(), "relay"))


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


def _summary(work: Relay, journal: Journal) -> None:
    lag = journal.lag()
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
