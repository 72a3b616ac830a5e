"""`kept down`: leave nothing running."""

from __future__ import annotations

from pathlib import Path

import click

from kept.cli import target
from kept.cli.output import say


@click.command()
@target.directory
def down(directory: Path | None) -> None:
    """Stop the local cluster. The data stays; nothing is left running."""
    from kept.local import Cluster

    cluster = Cluster(directory)
    cluster.down(say)
    say(f"nothing of {cluster.directory} is running")
