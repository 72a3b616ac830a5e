"""`kept groups`: list, describe, reset."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from kept.cli import target
from kept.cli.output import as_json, print_json, print_table, say
from kept.errors import FixConfiguration, ProgressMoved

if TYPE_CHECKING:
    from kept.admin.backlog import Backlog, Place, Position
    from kept.admin.groups import Group, Groups
    from kept.admin.moves import Move

_OURS = "kept."
_NOT_OURS = (
    "a stranger's, or the copy that a process into Postgres leaves for lag tools. Such a process "
    "goes on from its table kept_progress, whatever is moved here"
)


@click.group()
def groups() -> None:
    """List and describe consumer groups, and move their positions."""


@groups.command("list")
@target.bootstrap
@as_json
def list_(bootstrap: str | None, as_json: bool) -> None:
    """List the groups: name, state, type and how many members."""
    from kept.admin.groups import Groups

    found = Groups(target.address(bootstrap)).list()
    if as_json:
        print_json([{"name": g.name, "state": g.state, "type": g.type, "members": len(g.members)} for g in found])
    elif found:
        rows = [[g.name, g.state, g.type, len(g.members)] for g in found]
        print_table(["group", "state", "type", "members"], rows)
    else:
        say("no groups yet: a consumer's first commit makes one")


@groups.command()
@click.argument("group")
@target.bootstrap
@as_json
def describe(group: str, bootstrap: str | None, as_json: bool) -> None:
    """Show a group's members, positions and true lag.

    The lag is the number of records that a read_committed reader would still get: they are counted one by one,
    without the markers of transactions and without aborted records. Beyond 100,000 offsets, or when it takes too
    long, "at most" stands before a bound taken from offsets ("exact": false with --json).
    """
    from kept.admin.groups import Groups
    from kept.guarantees import CARRIER

    cluster = Groups(target.address(bootstrap))
    found = cluster.describe(group)
    positions = cluster.positions(found)
    marks = [each for each in positions if each.place.topic == CARRIER]
    backlogs = cluster.backlogs([each for each in positions if each.place.topic != CARRIER])
    if as_json:
        print_json(_document(found, backlogs, marks))
    else:
        _print_group(found, marks)
        _print_backlogs(backlogs)


def _document(group: Group, backlogs: Sequence[Backlog], marks: Sequence[Position]) -> dict[str, Any]:
    return {
        "name": group.name,
        "state": group.state,
        "type": group.type,
        "coordinator": {"node": group.coordinator.node, "address": group.coordinator.address},
        "members": [
            {
                "id": member.id,
                "client_id": member.client,
                "host": member.host,
                "partitions": [{"topic": place.topic, "partition": place.partition} for place in member.places],
            }
            for member in group.members
        ],
        "partitions": [_row(each) for each in backlogs],
        "marks": [_mark(each) for each in marks],
    }


def _row(backlog: Backlog) -> dict[str, Any]:
    bounds = backlog.bounds
    return {
        "topic": backlog.position.place.topic,
        "partition": backlog.position.place.partition,
        "committed": backlog.position.offset,
        "log_start": bounds and bounds.start,
        "log_end": bounds and bounds.end,
        "held_back_at": backlog.held_back_at,
        "lag": backlog.lag,
        "exact": backlog.exact,
        "notes": backlog.notes,
    }


def _mark(position: Position) -> dict[str, Any]:
    from kept.producer.marks import read_mark

    if position.offset is None:
        return {"in_open_transaction": position.moving}
    try:
        mark = read_mark(position.metadata)
    except ProgressMoved as stranger:
        return {"error": stranger.what, "way_out": stranger.way_out, "in_open_transaction": position.moving}
    return {
        "owner": mark.owner,
        "generation": mark.generation,
        "sequence": mark.sequence,
        "sequence_of_generation_before": mark.before,
        "in_open_transaction": position.moving,
    }


def _print_group(group: Group, marks: Sequence[Position]) -> None:
    click.echo(f"group        {group.name}")
    click.echo(f"state        {group.state}, {group.type}")
    click.echo(f"coordinator  node {group.coordinator.node}, {group.coordinator.address}")
    for each in marks:
        click.echo(f"mark         {_mark_in_words(_mark(each))}")
    if group.members:
        rows = [[member.client, member.host, _places(member.places)] for member in group.members]
        click.echo()
        print_table(["client id", "host", "partitions"], rows)
    else:
        click.echo("members      none")


def _mark_in_words(mark: dict[str, Any]) -> str:
    moving = "; a transaction is open" if mark["in_open_transaction"] else ""
    if "error" in mark:
        return f"{mark['error']}{moving}"
    if "owner" not in mark:
        return f"none committed{moving}"
    return (
        f"owner {mark['owner']}, generation {mark['generation']}, last committed transaction {mark['sequence']}{moving}"
    )


def _print_backlogs(backlogs: Sequence[Backlog]) -> None:
    if not backlogs:
        click.echo("positions    none on topics of records")
        return
    rows = [
        [
            each.position.place.topic,
            each.position.place.partition,
            "none" if each.position.offset is None else each.position.offset,
            "-" if each.bounds is None else each.bounds.end,
            _lag(each.lag, exact=each.exact),
        ]
        for each in backlogs
    ]
    click.echo()
    print_table(["topic", "partition", "committed", "log end", "lag"], rows)
    for each in backlogs:
        for note in each.notes:
            click.echo(f"{each.position.place}: {note}")
    click.echo(f"lag in all: {_total(backlogs)}")


def _total(backlogs: Sequence[Backlog]) -> str:
    known = [each for each in backlogs if each.lag is not None]
    if not known:
        return "unknown"
    total = _lag(sum(each.lag or 0 for each in known), exact=all(each.exact for each in known))
    return f"{total} records" + ("" if len(known) == len(backlogs) else ", besides the partitions without a lag")


def _lag(lag: int | None, *, exact: bool) -> str:
    if lag is None:
        return "unknown"
    return str(lag) if exact else f"at most {lag}"


def _places(places: Sequence[Place]) -> str:
    by_topic: dict[str, list[str]] = {}
    for place in places:
        by_topic.setdefault(place.topic, []).append(str(place.partition))
    return " ".join(f"{topic}[{','.join(numbers)}]" for topic, numbers in by_topic.items()) or "none"


@groups.command()
@click.argument("group")
@click.option("--topic", required=True, help="The topic whose positions are moved.")
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this one; repeatable.")
@click.option(
    "--to", required=True, metavar="WHERE", help="beginning, end, an offset, +N, -N, or an ISO 8601 time with its zone."
)
@click.option("--yes", is_flag=True, help="Carry it out; without it, it is only shown.")
@click.option("--break-exactly-once", is_flag=True, help="Move a group of kept's own too (kept.*).")
@target.bootstrap
@as_json
def reset(
    group: str,
    topic: str,
    partitions: tuple[int, ...],
    to: str,
    yes: bool,
    break_exactly_once: bool,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    """Show what moving a group's positions would do; with --yes, move them.

    The group must have no members. What is read again or skipped is told as upper bounds: offsets are counted,
    not records. A time means the first record that is not older. A group whose progress has expired or was deleted
    is given one anew; with --break-exactly-once each position is signed, so that its process goes on from there.
    """
    from kept.admin.groups import Groups, has_members

    _refuse_what_is_ours(group, topic, break_exactly_once=break_exactly_once)
    address = target.address(bootstrap)
    cluster = Groups(address)
    found = cluster.find(group)
    if found is None and not _was_born(address, group, topic):
        found = cluster.describe(group)  # a name that was never used, or mistyped: that is told
    members = () if found is None else found.members
    positions = cluster.settled_positions_at(group, cluster.logs.chosen(topic, partitions))
    moves = _planned(cluster, positions, to)
    note = _signature(address, topic) if break_exactly_once else ""
    other = {each.place for each in positions if each.metadata != note}  # the same offset of another topic, say
    changes = {move.place: move.new for move in moves if move.new != move.old or move.place in other}
    if yes and members:
        raise has_members(group)
    if yes and changes:
        cluster.move(group, changes, note=note)
    if break_exactly_once and any(each.offset is not None and not each.metadata for each in positions):
        say(f"a position of {group} is unsigned: {_NOT_OURS}")
    if as_json:
        print_json({"group": group, "topic": topic, "carried_out": yes, "partitions": [_shown(m) for m in moves]})
    else:
        _print_moves(moves)
    if yes:
        say(f"moved {len(changes)} of {len(moves)} positions of {group}")
    else:
        refused = f"; it is refused while the group has members, now {len(members)}" if members else ""
        say(f"nothing was moved: --yes carries it out{refused}")


def _refuse_what_is_ours(group: str, topic: str, *, break_exactly_once: bool) -> None:
    from kept.guarantees import CARRIER

    if topic == CARRIER:
        raise FixConfiguration(
            f"{CARRIER} holds no records: a position there is the mark by which an exactly-once name knows its owner",
            way_out="name a topic with records; `kept groups describe` shows the mark",
        )
    if group.startswith(_OURS) and not break_exactly_once:
        raise FixConfiguration(
            f"{group} is the progress of an exactly-once process: each position was committed in one transaction "
            "with its effects. Moved by hand, the effects of the records in between happen twice or never",
            way_out="to have just that, stop the process for good, and say so with --break-exactly-once",
        )


def _was_born(address: str, group: str, topic: str) -> bool:
    """Whether a group that the brokers do not know is known to have read the topic: then its progress is lost."""
    from kept.consumer.births import Births
    from kept.consumer.sources import Sources

    reached_by = {"bootstrap.servers": address, "log_level": 0}
    return bool(Births(reached_by, group, Sources(reached_by)).glance(topic))


def _signature(address: str, topic: str) -> str:
    from kept.consumer.sources import Sources, signature

    return signature(Sources({"bootstrap.servers": address, "log_level": 0}).topic_ids([topic])[topic])


def _planned(cluster: Groups, positions: Sequence[Position], to: str) -> list[Move]:
    from kept.admin.moves import Kind, Spot, plan, read_target

    where = read_target(to, datetime.now(timezone.utc))
    places = [each.place for each in positions]
    bounds = cluster.logs.bounds(places)
    moments = cluster.logs.since(places, where.number) if where.kind is Kind.MOMENT else {}
    return plan(where, [Spot(each, bounds[each.place], moments.get(each.place)) for each in positions])


def _shown(move: Move) -> dict[str, Any]:
    return {
        "partition": move.place.partition,
        "old": move.old,
        "new": move.new,
        "read_again_at_most": move.read_again,
        "skipped_at_most": move.skipped,
        "note": move.note,
    }


def _print_moves(moves: Sequence[Move]) -> None:
    rows = [
        [move.place.partition, "none" if move.old is None else move.old, "->", move.new, _effect(move)]
        for move in moves
    ]
    print_table(["partition", "old", "", "new", "effect"], rows)
    for move in moves:
        if move.note:
            click.echo(f"{move.place}: {move.note}")
    again, skipped = sum(move.read_again or 0 for move in moves), sum(move.skipped or 0 for move in moves)
    click.echo(f"in all: at most {again} records read again, at most {skipped} skipped")


def _effect(move: Move) -> str:
    if move.old is None:
        return f"first position; at most {move.new - move.bounds.start} lie before it"
    if move.read_again:
        return f"at most {move.read_again} read again"
    if move.skipped:
        return f"at most {move.skipped} skipped"
    return "the same records" if move.old != move.new else "unchanged"
