"""`kept demo`: watch a guarantee being kept while a broker is killed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from kept.cli.exit_codes import ExitCode
from kept.cli.output import as_json, print_json, print_table, say


@click.command()
@click.option("--records", type=click.IntRange(min=10), default=10_000, show_default=True, help="How many to send.")
@as_json
def demo(records: int, as_json: bool) -> int:
    """Send records exactly once, kill a leader halfway, read everything back and count.

    Runs on a cluster of its own, and takes it down again. Exit code 3 when a record is lost or duplicated.
    """
    from kept.cli.demo_run import run
    from kept.local import Cluster
    from kept.local.ports import ANY_FREE
    from kept.local.runtime import prepared
    from kept.local.tether import tethered

    prepared(say)
    with (
        tempfile.TemporaryDirectory(prefix="kept-demo-") as scratch,
        tethered(Cluster(Path(scratch, "cluster"))) as cluster,
    ):
        cluster.up(ports=ANY_FREE, say=say)
        audit = run(cluster, records, say)
        say("taking everything down")
    if as_json:
        print_json(audit.document())
    else:
        print_table(*audit.table())
    return ExitCode.DONE if audit.balanced else ExitCode.ANSWER_IS_NO
