"""`kept status`: what runs, and where."""

from __future__ import annotations

from pathlib import Path

import click

from kept.cli import target
from kept.cli.exit_codes import ExitCode
from kept.cli.output import as_json, print_json, print_table


@click.command()
@target.directory
@as_json
def status(directory: Path | None, as_json: bool) -> int:
    """Show the local cluster's servers. Exit code 3 when one of them is not running."""
    from kept.local import Cluster
    from kept.local.processes import State

    cluster = Cluster(directory)
    servers = cluster.status()
    if as_json:
        rows = [{"name": s.name, "state": s.state.value, "pid": s.pid, "address": s.address} for s in servers]
        print_json(
            {
                "directory": str(cluster.directory),
                "bootstrap": cluster.bootstrap,
                "dsn": cluster.dsn,
                "servers": rows,
            }
        )
    else:
        print_table(
            ["server", "state", "pid", "address"],
            [[s.name, s.state.value, s.pid or "-", s.address] for s in servers],
        )
    return ExitCode.DONE if all(s.state is State.RUNNING for s in servers) else ExitCode.ANSWER_IS_NO
