"""`kept run FILE.toml`: a pipeline on Spark from its file, with progress while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from kept.cli.output import as_json, print_json, print_line, say

if TYPE_CHECKING:
    from rich.console import Group

    from kept.pipelines.telling import BatchDone, Telling

Show: TypeAlias = "Callable[[BatchDone], bool]"
"""Shows a batch; False when nobody looks any more."""
MOST_PARTITIONS = 20


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--check", is_flag=True, help="Only check the file: nothing is started, nobody is asked.")
@click.option("--available-now", is_flag=True, help="End when everything that is there now is done.")
@click.option("--master", help="The Spark to run on. [the file's; else this machine]")
@as_json
def run(file: Path, check: bool, available_now: bool, master: str | None, as_json: bool) -> None:
    """Run the pipeline that a TOML file describes, until Ctrl-C or the end that its trigger has.

    docs/pipelines.md shows a file and every key. What can be checked is checked before Spark starts: an error names the
    line and the key. Ctrl-C and SIGTERM finish the batch in hand. With --json, one document a batch.
    """
    from kept.pipelines.files import read
    from kept.pipelines.telling import Telling

    said = read(file)  # before anything that needs Spark to be installed
    from kept.spark.from_file import FromFile
    from kept.spark.sessions import end

    ready = FromFile(said, until_end=available_now, master=master).checked()
    if check:
        if as_json:
            print_json({"pipeline": said.name, "guarantee": said.guarantee.word})
        else:
            click.echo(f"{file}: {said.name}, {said.guarantee.word}: nothing is wrong with it")
        return
    telling = Telling(said.name, ready.will_end)
    with _shown(telling, as_json=as_json) as show, redirect_stdout(sys.stderr):

        def hear(done: BatchDone) -> None:
            telling.hear(done, time.monotonic())
            if not show(done):
                pipeline.stop()

        say(f"{said.name}: starting Spark")
        spark = ready.session()
        try:
            pipeline = ready.pipeline(spark, hear)
            pipeline.run()
        finally:
            end(spark)
    if not as_json:
        click.echo(telling.summary())


@contextmanager
def _shown(telling: Telling, *, as_json: bool) -> Iterator[Show]:
    """How batches are shown: as documents, on a terminal in place, else as lines."""
    if as_json:
        yield _as_document(telling)
    elif sys.stderr.isatty():
        with _on_screen(telling) as show:
            yield show
    else:
        yield _as_line(telling)


def _as_line(telling: Telling) -> Show:
    def show(done: BatchDone) -> bool:
        say(telling.line(done))
        return True

    return show


def _as_document(telling: Telling) -> Show:
    import json

    out = sys.stdout  # from here on the pipeline's own words, and a transform's, go to standard error
    return lambda done: print_line(json.dumps(telling.document(done), ensure_ascii=False).encode(), out)


@contextmanager
def _on_screen(telling: Telling) -> Iterator[Show]:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:

        def show(_done: BatchDone) -> bool:
            live.update(drawn(telling), refresh=True)
            return True

        yield show


def drawn(telling: Telling) -> Group:
    """For a screen; when there are too many partitions, those that are furthest behind."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table("partition", "next offset", "log end", "behind", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    worst = sorted(telling.partitions, key=lambda each: -each.lag)[:MOST_PARTITIONS]
    for each in sorted(worst, key=lambda each: (each.topic, each.partition)):
        name = f"{each.topic}[{each.partition}]"
        table.add_row(name, f"{each.next_offset:,}", f"{each.log_end:,}", f"{each.lag:,}")
    return Group(Text(telling.head(), style="bold"), table)
