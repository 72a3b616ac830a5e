"""`kept demo`: payments into Postgres under each guarantee, the driver killed twice, and an audit."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kept.cli.exit_codes import ExitCode
from kept.cli.output import as_json, print_json, print_table, say
from kept.errors import FixConfiguration
from kept.guarantees.levels import WORDS

if TYPE_CHECKING:
    from kept.demo.place import Place
    from kept.demo.running import Outcome, Show

FEWEST = 1_000
"""With fewer the pipeline may be done before it can be killed twice."""


@click.command()
@click.option(
    "--records", type=click.IntRange(min=FEWEST), default=100_000, show_default=True, help="How many payments to send."
)
@click.option(
    "--guarantee", "words", type=click.Choice(WORDS), multiple=True, help="Only under this one; repeatable. [all three]"
)
@click.option("--seed", type=int, default=1, show_default=True, help="Decides the payments and when it is killed.")
@click.option("--bootstrap", metavar="HOST:PORT,...", help="A Kafka of yours, together with --dsn.")
@click.option("--dsn", metavar="DSN", help="A Postgres of yours: postgresql://..., or env:NAME or file:PATH.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    default=Path("kept-demo.html"),
    show_default=True,
    help="Where the report is written.",
)
@as_json
def demo(
    records: int,
    words: tuple[str, ...],
    seed: int,
    bootstrap: str | None,
    dsn: str | None,
    report: Path,
    as_json: bool,
) -> int:
    """Send payments through a pipeline into Postgres under each guarantee, kill its driver twice, and audit.

    Each time the driver, its JVM and its workers are killed together, in the middle of a batch, and started again.
    A lock in Postgres holds the pipeline up for a moment, so that the kills certainly strike between progress and
    rows, and between rows and progress; in the same way under every guarantee. Then every payment that was sent is
    looked for in the table, which has no key that could hide a duplicate.

    Runs on a cluster of its own, and takes it down again; on servers of yours it uses a topic and a schema of its own,
    and removes them. Exit code 3 when a guarantee is broken.
    """
    if (bootstrap is None) != (dsn is None):
        raise click.UsageError("name both servers, --bootstrap and --dsn, or none: then a cluster is started")
    if not os.access(report.parent, os.W_OK):
        raise FixConfiguration(f"{report} cannot be written", way_out="name a file in a directory of yours: --report")
    from kept.demo.report import conclusion, page

    outcomes = _played(records, tuple(dict.fromkeys(words)) or WORDS, seed, bootstrap, dsn)
    report.write_text(page(outcomes, seed), encoding="utf-8")
    audits = [each.audit for each in outcomes]
    kept = all(each.as_promised for each in audits)
    if as_json:
        print_json(
            {
                "records": records,
                "seed": seed,
                "guarantees": [each.document() for each in outcomes],
                "as_promised": kept,
                "report": str(report),
            }
        )
    else:
        _tell(outcomes)
        click.echo(f"\n{conclusion(audits)}\nThe report, with pictures: {report}")
    return ExitCode.DONE if kept else ExitCode.ANSWER_IS_NO


def _played(records: int, words: tuple[str, ...], seed: int, bootstrap: str | None, dsn: str | None) -> list[Outcome]:
    """Everything between up and down."""
    from kept.demo.payments import payments, send
    from kept.demo.running import Demo

    _refuse_without_spark()
    sent = payments(records, seed)
    with (
        tempfile.TemporaryDirectory(prefix="kept-demo-", ignore_cleanup_errors=True) as scratch,
        _place(Path(scratch), bootstrap, dsn) as place,
    ):
        say(f"sending {records:,} payments exactly once to topic {place.topic} (seed {seed})")
        send(place.bootstrap, place.topic, sent)
        with _shown(records) as show:
            demo = Demo(place, sent, seed, Path(scratch), show)
            outcomes = []
            for number, word in enumerate(words, start=1):
                show.say(f"{word} ({number} of {len(words)}): starting the pipeline")
                outcomes.append(demo.under(word))
                show.say(f"{word}: {outcomes[-1].audit.verdict} ({outcomes[-1].seconds:.0f} s)")
        say("clearing up")
    return outcomes


def _refuse_without_spark() -> None:
    """Whatever would fail minutes later is told now, and what has to be fetched is fetched."""
    from kept.local.jars import fetch, spark_jars
    from kept.local.places import cache_directory
    from kept.spark.sessions import refuse_without_pyspark

    refuse_without_pyspark()
    fetch(spark_jars(), cache_directory() / "jars")


@contextmanager
def _place(scratch: Path, bootstrap: str | None, dsn: str | None) -> Iterator[Place]:
    """On the servers that were named, else on a cluster that goes down with this process."""
    from kept.cli.target import plain
    from kept.demo.place import place

    if bootstrap is not None and dsn is not None:
        with place(bootstrap, plain(dsn)) as here:
            yield here
        return
    from kept.local import Cluster
    from kept.local.ports import ANY_FREE
    from kept.local.runtime import prepared
    from kept.local.tether import tethered

    prepared(say)
    with tethered(Cluster(scratch / "cluster")) as cluster:
        cluster.up(ports=ANY_FREE, say=say)
        with place(cluster.bootstrap, cluster.dsn) as here:
            yield here


class _InLines:
    """For files and pipes: a line when something happens."""

    def say(self, text: str) -> None:
        say(text)

    def rows(self, guarantee: str, stored: int) -> None:
        """Too often for a line each."""


@contextmanager
def _shown(records: int) -> Iterator[Show]:
    """On a terminal with a bar for each guarantee, else in lines."""
    if not sys.stderr.isatty():
        yield _InLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rows"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        class OnScreen:
            def say(self, text: str) -> None:
                bars.console.print(text, highlight=False)

            def rows(self, guarantee: str, stored: int) -> None:
                if guarantee not in tasks:
                    tasks[guarantee] = bars.add_task(guarantee, total=records)
                bars.update(tasks[guarantee], completed=stored)

        yield OnScreen()


def _tell(outcomes: list[Outcome]) -> None:
    from kept.demo.audit import HEADINGS

    print_table(HEADINGS, [each.audit.row() for each in outcomes])
