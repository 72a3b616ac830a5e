"""`kept transactions`: who keeps the readers of a topic waiting, and how that ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kept.cli import target
from kept.cli.output import as_json, print_json, print_table, say

if TYPE_CHECKING:
    from kept.admin.open_transactions import OpenTransaction


@click.command()
@click.argument("topic")
@target.bootstrap
@as_json
def transactions(topic: str, bootstrap: str | None, as_json: bool) -> None:
    """List the transactions that are open on a topic.

    Whoever reads only what is committed waits where the first of them begins, partition by partition: "from offset". It
    is shown whose it is, by the transactional id, how long it has been open, and what ends it. The brokers are asked in
    plain text only: a cluster that wants TLS or SASL is not supported by this command.
    """
    from kept.admin.open_transactions import OpenTransactions

    found = OpenTransactions(target.address(bootstrap)).on(topic)
    if as_json:
        print_json([_row(topic, each) for each in found])
    elif found:
        _print(topic, found)
    else:
        say(f"no transaction is open on {topic}: nobody who reads it waits for one")


def _row(topic: str, each: OpenTransaction) -> dict[str, Any]:
    return {
        "partition": each.partition,
        "from_offset": each.first_offset,
        "transactional_id": each.transactional_id,
        "producer_id": each.producer_id,
        "open_for_s": None if each.open_for is None else round(each.open_for, 1),
        "times_out_s": each.times_out,
        "way_out": each.way_out(topic),
    }


def _print(topic: str, found: Sequence[OpenTransaction]) -> None:
    headings = ["partition", "from offset", "transactional id", "producer id", "open for", "times out after"]
    rows = [
        [
            each.partition,
            each.first_offset,
            each.transactional_id or "not known",
            each.producer_id,
            _seconds(each.open_for),
            _seconds(each.times_out),
        ]
        for each in found
    ]
    print_table(headings, rows)
    for words in dict.fromkeys(f"{each.transactional_id or each.producer_id}: {each.way_out(topic)}" for each in found):
        click.echo(words)


def _seconds(length: float | None) -> str:
    return "not known" if length is None else f"{length:.0f} s"
