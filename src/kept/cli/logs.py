"""`kept logs`: what the servers wrote."""

from __future__ import annotations

import time
from pathlib import Path

import click

from kept.cli import target


@click.command()
@click.argument("server", default="broker-1")
@target.directory
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="How many of the last lines.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on printing what comes, until Ctrl-C.")
def logs(server: str, directory: Path | None, lines: int, follow: bool) -> None:
    """Show the log of a server: controller, broker-1, broker-2, broker-3 or postgres."""
    from kept.local import Cluster

    chosen = Cluster(directory).server(server)
    for line in chosen.log_tail(lines):
        click.echo(line)
    if follow:
        _follow(chosen.logs[0])


def _follow(path: Path) -> None:
    position = path.stat().st_size if path.exists() else 0
    while True:
        size = path.stat().st_size if path.exists() else 0
        if size < position:
            position = 0  # the log was rolled over
        if size > position:
            with path.open("rb") as file:
                file.seek(position)
                chunk = file.read(size - position)
            position = size
            click.echo(chunk.decode(errors="replace"), nl=False)
        time.sleep(0.2)
