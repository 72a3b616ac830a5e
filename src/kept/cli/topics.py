"""`kept topics`: create, list, describe, delete."""

from __future__ import annotations

from collections.abc import Iterable

import click

from kept.cli import target
from kept.cli.output import as_json, print_json, print_table, say
from kept.errors import FixConfiguration


@click.group()
def topics() -> None:
    """Create, list, describe and delete topics."""


@topics.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), default=3, show_default=True, help="How many partitions.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A topic setting; replication.factor too.")
@target.guarantee("exactly-once")
@target.bootstrap
@as_json
def create(
    name: str,
    partitions: int,
    settings: tuple[str, ...],
    guarantee: str,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    """Create a topic on which the guarantee can be kept.

    Settings that weaken it are refused; --guarantee at-most-once allows anything. One of kept's own that carries
    progress, known by its name, is compacted under each.
    """
    from kept.admin.topics import Topics
    from kept.guarantees import ExactlyOnce, parse

    promise = ExactlyOnce("topics") if guarantee == "exactly-once" else parse(guarantee)
    topic = Topics(target.address(bootstrap)).create(name, partitions, promise, dict(_pairs(settings)))
    if as_json:
        print_json(
            {
                "name": name,
                "partitions": len(topic.partitions),
                "replication_factor": topic.replication_factor,
            }
        )
    else:
        click.echo(f"created {name}: {len(topic.partitions)} partitions, {topic.replication_factor} copies of each")


@topics.command("list")
@click.option("--internal", is_flag=True, help="Kafka's own topics too.")
@target.bootstrap
@as_json
def list_(internal: bool, bootstrap: str | None, as_json: bool) -> None:
    """List the topics."""
    from kept.admin.topics import Topics

    found = Topics(target.address(bootstrap)).list(internal=internal)
    if as_json:
        print_json(
            [
                {"name": t.name, "partitions": len(t.partitions), "replication_factor": t.replication_factor}
                for t in found
            ]
        )
    elif found:
        print_table(
            ["topic", "partitions", "copies"],
            [[t.name, len(t.partitions), t.replication_factor] for t in found],
        )
    else:
        say("no topics yet: `kept topics create NAME` makes one")


@topics.command()
@click.argument("name")
@target.bootstrap
@as_json
def describe(name: str, bootstrap: str | None, as_json: bool) -> None:
    """Show a topic's partitions, leaders, replicas and settings."""
    from kept.admin.topics import Topics

    cluster = Topics(target.address(bootstrap))
    topic, settings = cluster.describe(name), cluster.settings(name)
    if as_json:
        parts = [
            {"partition": p.number, "leader": p.leader, "replicas": p.replicas, "in_sync": p.in_sync}
            for p in topic.partitions
        ]
        print_json({"name": name, "partitions": parts, "settings": settings})
        return
    rows = [
        [p.number, p.leader if p.leader >= 0 else "none", _numbers(p.replicas), _numbers(p.in_sync)]
        for p in topic.partitions
    ]
    print_table(["partition", "leader", "replicas", "in sync"], rows)
    for key, value in settings.items():
        click.echo(f"{key}={value}")


@topics.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@target.bootstrap
def delete(name: str, yes: bool, bootstrap: str | None) -> None:
    """Delete a topic and every record in it."""
    from kept.admin.topics import Topics

    cluster = Topics(target.address(bootstrap))
    cluster.describe(name)
    if not yes:
        click.confirm(f"Delete {name} and every record in it?", abort=True)
    cluster.delete(name)
    click.echo(f"deleted {name}")


def _pairs(settings: Iterable[str]) -> Iterable[tuple[str, str]]:
    for text in settings:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise FixConfiguration(f"--set {text} is not NAME=VALUE", way_out="for example --set retention.ms=-1")
        yield name, value


def _numbers(ids: Iterable[int]) -> str:
    return ",".join(str(each) for each in ids)
