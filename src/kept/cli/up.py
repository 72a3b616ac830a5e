"""`kept up`: a Kafka of three brokers and a Postgres on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from kept.cli import target
from kept.cli.output import as_json, download_bar, print_json, say
from kept.errors import FixConfiguration


@click.command()
@target.directory
@click.option("--fresh", is_flag=True, help="Throw the cluster's data away and start over.")
@click.option(
    "--port",
    type=click.IntRange(1024, 65533),
    help="First broker's port; the others follow. [9091, or free ones]",
)
@click.option("--free-ports", is_flag=True, help="Leave the usual ports alone: a new cluster takes any that are free.")
@click.option(
    "--advertise",
    multiple=True,
    metavar="N=HOST:PORT",
    help="Tell clients that broker N is there (a proxy, say); stays until `--advertise none`.",
)
@as_json
def up(
    directory: Path | None,
    fresh: bool,
    port: int | None,
    free_ports: bool,
    advertise: tuple[str, ...],
    as_json: bool,
) -> None:
    """Start the local cluster: one controller, three brokers, a Postgres.

    What runs already is left alone. The data survives `kept down`.
    """
    from kept.local import Cluster
    from kept.local.ports import Ports
    from kept.local.runtime import prepared

    cluster = Cluster(directory)
    advertised = None if not advertise else {} if advertise == ("none",) else dict(map(_advertised, advertise))
    with download_bar() as progress:
        prepared(say, progress)
    cluster.up(fresh=fresh, ports=Ports(usual=not free_ports, first=port), advertised=advertised, say=say)
    if as_json:
        print_json({"directory": str(cluster.directory), "bootstrap": cluster.bootstrap, "dsn": cluster.dsn})
    else:
        click.echo(f"Kafka     {cluster.bootstrap}\nPostgres  {cluster.dsn}\nData      {cluster.directory}")


def _advertised(text: str) -> tuple[int, str]:
    number, _, address = text.partition("=")
    host, _, port = address.rpartition(":")
    if number not in ("1", "2", "3") or not host or not port.isdigit():
        raise FixConfiguration(
            f"--advertise {text} is not N=HOST:PORT", way_out="for example --advertise 1=127.0.0.1:29091"
        )
    return int(number), address
