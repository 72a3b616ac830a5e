"""`kept pipelines`: list, show, replay, repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kept.cli import target
from kept.cli.exit_codes import ExitCode
from kept.cli.output import as_json, print_json, print_table, say
from kept.errors import FixConfiguration

if TYPE_CHECKING:
    from kept.pipelines.standing import Change, Goal, Standing
    from kept.spark.upkeep import Keeping, Upkeep

Command = TypeVar("Command", bound=Callable[..., Any])
UNNAMED = "-"


@dataclass(frozen=True)
class Where:
    """What a person said about where a pipeline is: by options, or by its file."""

    name: str
    dsn: str | None
    bootstrap: str | None
    source: str | None
    checkpoint: str | None
    into: str | None = None


def _where(command: Command) -> Command:
    for option in (
        click.option("--checkpoint", metavar="DIR", help="The pipeline's checkpoint, to compare."),
        click.option("--source", metavar="HOST:PORT,...", help="The Kafka that is read, if it is another one."),
        target.bootstrap,
        target.dsn,
        click.argument("name", metavar="NAME|FILE.toml"),
    ):
        command = option(command)
    return command


def _moving(command: Command) -> Command:
    for option in (
        click.option("--yes", is_flag=True, help="Carry it out; without it, it is only shown."),
        click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True,
                     help="Only this one; repeatable."),
        click.option("--topic", help="Only this topic of the pipeline's."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group()
def pipelines() -> None:
    """Look after pipelines on Spark: where they stand, what a restart would do, and their progress moved on purpose.

    Progress is kept in the sink: name it with --dsn for a Postgres, with --bootstrap for a Kafka. Or give the file of
    the pipeline instead of its name: it says where everything is.
    """


@pipelines.command("list")
@target.dsn
@target.bootstrap
@as_json
def list_(dsn: str | None, bootstrap: str | None, as_json: bool) -> None:
    """List the pipelines that keep their progress in a Postgres (--dsn), else in a Kafka."""
    rows = _listed_in_postgres(dsn) if dsn is not None else _listed_in_kafka(target.address(bootstrap))
    if as_json:
        print_json(rows)
    elif rows:
        print_table([name.replace("_", " ") for name in rows[0]], [list(row.values()) for row in rows])
    else:
        say("no pipeline keeps its progress here")


@pipelines.command()
@_where
@as_json
@click.pass_context
def show(
    context: click.Context,
    name: str,
    dsn: str | None,
    bootstrap: str | None,
    source: str | None,
    checkpoint: str | None,
    as_json: bool,
) -> None:
    """Show where each partition stands in the source and in the sink, and what a restart would do.

    Exit code 3 when the pipeline would not go on, because a person has to decide something.
    """
    with _upkeep(Where(name, dsn, bootstrap, source, checkpoint)) as upkeep:
        standings, name = upkeep.standings(), upkeep.keeping.pipeline
        at_work = upkeep.keeping.at_work() if upkeep.keeping.knows_who_is_at_work else None
    if as_json:
        print_json({"pipeline": name, "at_work": at_work, "partitions": [_row(each, name) for each in standings]})
    else:
        _print_standings(standings, name)
        if at_work is not None:
            click.echo(f"at work: {'; '.join(at_work) or 'nobody'}")
    stop = _stop(standings, name)
    if stop is not None:
        say(f"a person has to decide: {stop}")
        context.exit(ExitCode.ANSWER_IS_NO)


@pipelines.command()
@_where
@click.option("--from", "start", required=True, metavar="WHERE",
              help="beginning, end, an offset, +N, -N, or an ISO 8601 time with its zone.")  # fmt: skip
@_moving
@as_json
def replay(
    name: str,
    dsn: str | None,
    bootstrap: str | None,
    source: str | None,
    checkpoint: str | None,
    start: str,
    topic: str | None,
    partitions: tuple[int, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Show what reading again from somewhere would do; with --yes, move the progress there.

    Records that are read again are written again: this is the one thing that no guarantee covers. The pipeline must be
    stopped: in a Postgres that is looked at; in a Kafka, whoever is at work is fenced, and ends.
    """
    from kept.pipelines.standing import Goal, chosen, refuse_troubled

    goal = Goal.typed(start, datetime.now(timezone.utc))
    with _upkeep(Where(name, dsn, bootstrap, source, checkpoint)) as upkeep:
        everyone = upkeep.standings()
        standings = chosen(everyone, topic, partitions)
        refuse_troubled(upkeep.keeping.pipeline, standings)
        _carry_out(upkeep, goal, upkeep.plan(goal, standings, everyone), yes=yes, as_json=as_json)


@pipelines.command()
@_where
@click.option("--from", "start", metavar="WHERE",
              help="Where to go on: copy, beginning, end, an offset, or an ISO 8601 time with its zone.")  # fmt: skip
@click.option("--into", metavar="SINK",
              help="The table, or the topic of a Kafka (* where rows name it), to write to now.")  # fmt: skip
@_moving
@as_json
def repair(
    name: str,
    dsn: str | None,
    bootstrap: str | None,
    source: str | None,
    checkpoint: str | None,
    start: str | None,
    into: str | None,
    topic: str | None,
    partitions: tuple[int, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Show why a pipeline does not go on and what there is to choose; with --from and --yes, choose.

    Only the partitions that are in trouble are moved: their records were deleted, their log was cut, their topic was
    made anew, their progress is lost or a stranger's, or it was recorded for another sink (the file of a pipeline, or
    --into, says which one is meant now).
    """
    from kept.pipelines.standing import Goal, chosen

    goal = None if start is None else Goal.typed(start, datetime.now(timezone.utc))
    with _upkeep(Where(name, dsn, bootstrap, source, checkpoint, into)) as upkeep:
        name = upkeep.keeping.pipeline
        everyone = upkeep.standings()
        meant = chosen(everyone, topic, partitions)
        standings = [each for each in meant if each.trouble(name)]
        if not standings:
            say(_stop(meant, name) or f"nothing is wrong with {name}: it goes on where it is")
            if as_json:
                print_json({"pipeline": name, "carried_out": False, "troubles": []})
        elif goal is None:
            _print_troubles(standings, name, as_json=as_json)
        else:
            there = [each for each in standings if not each.gone]
            _carry_out(upkeep, goal, upkeep.plan(goal, there or standings, everyone), yes=yes, as_json=as_json)


def _carry_out(upkeep: Upkeep, goal: Goal, changes: Sequence[Change], *, yes: bool, as_json: bool) -> None:
    from kept.pipelines.standing import meaning

    keeping, checkpoint = upkeep.keeping, upkeep.checkpoint
    words = meaning(goal, changes, None if checkpoint is None else checkpoint.restart)
    if not as_json:
        print_table(
            ["topic", "partition", "old", "new", "read again", "skipped"],
            [[c.part[0], c.part[1], _or_none(c.move.old), c.move.new, _or_none(c.move.read_again),
              _or_none(c.move.skipped)] for c in changes],
        )  # fmt: skip
        for each in [f"{c.move.place}: {c.move.note}" for c in changes if c.move.note] + words:
            click.echo(each)
    if yes:
        upkeep.carry_out(changes)
        say(f"moved the progress of {keeping.pipeline} in {len(changes)} partitions")
    else:
        at_work = keeping.at_work()
        say(
            "nothing was moved: --yes carries it out" + (f"; refused while it is at work: {at_work}" if at_work else "")
        )
    if not keeping.knows_who_is_at_work:
        say("whether a driver is at work cannot be seen in a Kafka: one that is will be fenced, and ends")
    if as_json:
        print_json({"pipeline": keeping.pipeline, "carried_out": yes, "meaning": words,
                    "partitions": [_moved(each) for each in changes]})  # fmt: skip


def _moved(change: Change) -> dict[str, object]:
    move = change.move
    return {
        "topic": change.part[0], "partition": change.part[1], "old": move.old, "new": move.new,
        "read_again_at_most": move.read_again, "skipped_at_most": move.skipped, "note": move.note,
    }  # fmt: skip


def _stop(standings: Sequence[Standing], name: str) -> str | None:
    """The next step of a person, where the pipeline would not go on; moving progress comes first."""
    from kept.pipelines.standing import way_out

    stops = [stop for each in standings if (stop := each.stops(name)) is not None]
    if any(each.trouble(name) for each in standings):
        return way_out(name)
    return f"{stops[0].what}; {stops[0].way_out}" if stops else None


def _row(each: Standing, name: str) -> dict[str, object]:
    trouble = each.stops(name)
    return {
        "topic": each.part[0],
        "partition": each.part[1],
        "recorded": each.next_offset,
        "log_start": each.source and each.source.log_start,
        "log_end": each.source and each.source.log_end,
        "behind_at_most": each.behind,
        "checkpoint": each.checkpoint,
        "restart": each.restart() if trouble is None else "stops",
        "trouble": trouble and trouble.what,
    }


def _print_standings(standings: Sequence[Standing], name: str) -> None:
    rows = [_row(each, name) for each in standings]
    shown = [key for key in rows[0] if key != "trouble"]
    print_table([key.replace("_", " ") for key in shown], [[_or_none(row[key]) for key in shown] for row in rows])
    for row in rows:
        if row["trouble"]:
            click.echo(f"{row['topic']}[{row['partition']}]: {row['trouble']}")


def _print_troubles(standings: Sequence[Standing], name: str, *, as_json: bool) -> None:
    from kept.pipelines.standing import choices

    found = [(each, stop, choices(stop, each)) for each in standings if (stop := each.trouble(name)) is not None]
    if as_json:
        troubles = [{"topic": each.part[0], "partition": each.part[1], "error": stop.kind.__name__, "what": stop.what,
                     "choices": words} for each, stop, words in found]  # fmt: skip
        print_json({"pipeline": name, "carried_out": False, "troubles": troubles})
        return
    for each, stop, words in found:
        click.echo(f"{each.place}: {stop.what}\n  to choose: {words}")
    say("nothing was moved: --from WHERE shows what a choice would do, and --yes carries it out")


def _or_none(value: object) -> object:
    return "-" if value is None else value


def _listed_in_postgres(dsn: str) -> list[dict[str, object]]:
    from kept.stores.keeping import PostgresKeeping, listed, looking

    with looking(target.plain(dsn)) as session:
        return [
            {
                **each._asdict(),
                "moved_at": each.moved_at and each.moved_at.isoformat(timespec="seconds"),
                "at_work": bool(PostgresKeeping(session, each.pipeline).at_work()),
            }
            for each in listed(session)
        ]


def _listed_in_kafka(address: str) -> list[dict[str, object]]:
    from kept.spark import KafkaSink
    from kept.spark.kafka_keeping import listed

    return [each._asdict() for each in listed(KafkaSink(address))]


@contextmanager
def _upkeep(where: Where) -> Iterator[Upkeep]:
    """The pipeline that is meant, with its sink open."""
    from kept.pipelines import checkpoints
    from kept.spark import KafkaSink, KafkaSource, PostgresSink
    from kept.spark.kafka_keeping import KafkaKeeping
    from kept.spark.kafka_topics import NAMED_BY_ROWS
    from kept.spark.looking import Looking
    from kept.spark.upkeep import Upkeep
    from kept.stores.keeping import PostgresKeeping

    name, checkpoint, into = where.name, where.checkpoint, where.into
    sink: PostgresSink | KafkaSink
    source: Mapping[str, object] | None
    if where.name.endswith(".toml"):
        from kept.pipelines.files import read
        from kept.spark.from_file import FromFile

        ready = FromFile(read(Path(where.name)))
        name, checkpoint = ready.said.name, checkpoint or ready.said.checkpoint
        sink, source = ready.sink(), ready.source().client
        if isinstance(sink, KafkaSink):
            into = into or sink.topic or NAMED_BY_ROWS
        elif into is not None:
            raise FixConfiguration(f"{where.name} names its table, and so does --into", way_out="leave --into out")
    elif where.dsn is not None:
        sink = PostgresSink(target.plain(where.dsn), where.into or UNNAMED)
        source = _asked(where.source or where.bootstrap)
    else:
        sink = KafkaSink(target.address(where.bootstrap))
        source = KafkaSource(where.source or sink.bootstrap, "-").client
    found = None if checkpoint is None else checkpoints.read(checkpoint)
    with _kept_in(sink, name, into) as keeping:
        another = keeping.another_sink() if isinstance(keeping, PostgresKeeping) else None
        upkeep = Upkeep(keeping, None if source is None else Looking(source), found, another_sink=another)
        yield replace(upkeep, sink_now=keeping.sink_now) if isinstance(keeping, KafkaKeeping) else upkeep


def _asked(given: str | None) -> dict[str, object] | None:
    """The source of a pipeline into Postgres; without one its sink is shown all the same."""
    from kept.spark import KafkaSource

    try:
        return KafkaSource(target.address(given), "-").client
    except FixConfiguration:
        say("where the source stands is not shown: name it with --bootstrap")
        return None


@contextmanager
def _kept_in(sink: Any, name: str, into: str | None) -> Iterator[Keeping]:
    from kept.spark import PostgresSink
    from kept.spark.kafka_keeping import KafkaKeeping
    from kept.stores.keeping import PostgresKeeping, looking

    if isinstance(sink, PostgresSink):
        with looking(sink.dsn) as session:
            yield PostgresKeeping(session, name, None if sink.table == UNNAMED else sink.noted)
        return
    keeping = KafkaKeeping(sink, name, into)
    try:
        yield keeping
    finally:
        keeping.close()
