"""How commands speak: results on standard output, talk on standard error, colour and bars only on a terminal."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from kept.local.jars import Progress

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def say(text: str) -> None:
    """Tell a person what is going on; never part of the result."""
    click.echo(text, err=True)


def print_line(line: bytes, out: TextIO | None = None) -> bool:
    """One line of a result, at once; False when its reader has left, and then nothing more is printed."""
    out = sys.stdout if out is None else out
    try:
        out.buffer.write(line + b"\n")
        out.buffer.flush()
    except BrokenPipeError:
        # Python flushes once more at its end, and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        return False
    return True


def print_json(document: object) -> None:
    """One JSON document on a line of its own."""
    click.echo(json.dumps(document, ensure_ascii=False, default=str))


def readable(data: bytes | None) -> object:
    """Text as text; anything else as base64, so that nothing is lost."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table: drawn and coloured on a terminal, plain columns elsewhere."""
    texts = [[str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*headings, header_style="bold", box=None, pad_edge=False)
        for row in texts:
            table.add_row(*(_coloured(cell) for cell in row))
        Console().print(table)
        return
    widths = [max(len(cell) for cell in column) for column in zip(headings, *texts, strict=True)]
    for row in [list(headings), *texts]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _coloured(cell: str) -> Any:
    from rich.text import Text

    return Text(cell, style={"running": "green", "paused": "yellow", "stopped": "red"}.get(cell, ""))


@contextmanager
def download_bar() -> Iterator[Progress | None]:
    """A progress bar for downloads on a terminal; None elsewhere, where words do."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("[bold]the broker's jars"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("jars", total=None)
        yield lambda done, whole: bars.update(task, completed=done, total=whole)
