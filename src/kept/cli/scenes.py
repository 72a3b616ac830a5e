"""`kept scenes`: the failures of the slide deck, step by step on a real cluster, each beside its fix."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kept.cli.exit_codes import ExitCode
from kept.cli.output import as_json, print_json, print_table, say
from kept.verify.scenes import NAMES, TITLES

if TYPE_CHECKING:
    from rich.text import Text

    from kept.local import Cluster
    from kept.verify.scenes.telling import Scene, Step

LEGEND = "Every number is measured in this run. [M2] is a record that came to harm."
WIDEST = 132


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES), metavar="[NAME]...")
@click.option("--list", "only_list", is_flag=True, help="Show the scenes' names, and play none.")
@as_json
def scenes(names: tuple[str, ...], only_list: bool, as_json: bool) -> int:
    """Play the failures that Kafka is known for, step by step, each beside its fix.

    Nothing differs between the two sides but one word. Runs on the local cluster when that is up, with topics,
    groups and a database of its own that are gone afterwards; else on a cluster that is started for the show.
    All scenes are played, in this order, when none is named:

    \b
    lost-acknowledgement     a record is stored twice
    message-loss             records are received, and never processed
    double-processing        records are processed twice
    order                    a record lands behind a later one
    order-across-partitions  records are read in another order than they were sent

    Exit code 0 when every scene did harm without the fix and none with it; 1 when a fault did not strike; 3 when
    a fix did not prevent the harm.
    """
    if only_list:
        _list(as_json)
        return ExitCode.DONE
    from kept.verify.scenes import script
    from kept.verify.scenes.performing import perform
    from kept.verify.scenes.stage import Stage

    played: list[Scene] = []
    chosen = list(dict.fromkeys(names)) or list(NAMES)
    with _cluster() as (cluster, lasting), Stage(cluster, lasting=lasting) as stage:
        for number, name in enumerate(chosen, start=1):
            scene = perform(script(name), stage, say)
            played.append(scene)
            if not as_json:
                if number == 1:
                    click.echo(LEGEND)
                _show(scene, number, len(chosen))
        say("clearing the stage" if lasting else "taking everything down")
    if as_json:
        print_json(
            {"scenes": [scene.document() for scene in played], "as_promised": exit_code_of(played) is ExitCode.DONE}
        )
    return exit_code_of(played)


def exit_code_of(played: list[Scene]) -> ExitCode:
    """Whether the show proves what it promises."""
    if not all(scene.struck for scene in played):
        return ExitCode.FAILED
    return ExitCode.DONE if all(scene.prevented for scene in played) else ExitCode.ANSWER_IS_NO


def _list(as_json: bool) -> None:
    if as_json:
        print_json([{"name": name, "title": title} for name, title in TITLES.items()])
    else:
        print_table(["name", "what happens"], list(TITLES.items()))


@contextmanager
def _cluster() -> Iterator[tuple[Cluster, bool]]:
    """The local cluster when all of it runs, else one for the show; and whether it lasts longer than that."""
    from kept.local import Cluster, layout
    from kept.local.ports import ANY_FREE
    from kept.local.processes import State
    from kept.local.runtime import prepared
    from kept.local.tether import tethered

    local = Cluster()
    found = layout.load(local.directory)
    if found is not None and all(server.state is State.RUNNING for server in local.status()):
        say(f"on the local cluster in {local.directory}")
        yield local, True
        return
    say("no local cluster is up: starting one for the show")
    prepared(say)
    with (
        tempfile.TemporaryDirectory(prefix="kept-scenes-") as scratch,
        tethered(Cluster(Path(scratch, "cluster"))) as cluster,
    ):
        cluster.up(ports=ANY_FREE, say=say)
        yield cluster, False


def _show(scene: Scene, number: int, of: int) -> None:
    heading = f"{number} of {of}  {scene.name}: {scene.title}"
    if sys.stdout.isatty():
        _draw(scene, heading)
    else:
        _write(scene, heading)
    sys.stdout.flush()


def _write(scene: Scene, heading: str) -> None:
    """One side after the other, for files and pipes."""
    click.echo(f"{heading}\n  the story: {scene.deck}")
    for label, side in (("without the fix", scene.without), ("with the fix", scene.fixed)):
        click.echo(f"  {label}: {side.word}")
        for number, step in enumerate(side.steps, start=1):
            click.echo(f"    {number}. {step.done}: {_seen(step).plain}".rstrip(": "))
        if side.not_struck is not None:
            click.echo(f"    the fault did not strike: {side.not_struck}")
    click.echo(f"  {_verdict(scene)}\n  {scene.why}\n")


def _draw(scene: Scene, heading: str) -> None:
    """Both sides beside each other, for a terminal."""
    from rich import box
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", expand=False)
    table.add_column("", justify="right", style="dim")
    table.add_column("step", ratio=4)
    table.add_column(Text(f"without the fix\n{scene.without.word}", style="red"), ratio=3)
    table.add_column(Text(f"with the fix\n{scene.fixed.word}", style="green"), ratio=3)
    rows = zip_longest(scene.without.steps, scene.fixed.steps)
    for number, (left, right) in enumerate(rows, start=1):
        done = (left or right).done
        table.add_row(str(number), Text(done), *(Text("-") if step is None else _seen(step) for step in (left, right)))
    good = scene.as_promised
    console.print(Text(f"\n{heading}", style="bold"))
    console.print(Padding(Text(f"The story: {scene.deck}", style="italic dim"), (0, 0, 1, 0)))
    console.print(table)
    console.print(Text(f"\n{_verdict(scene)}", style="bold green" if good else "bold red"))
    console.print(Text(f"{scene.why}\n"))


def _seen(step: Step) -> Text:
    """What was seen at a step; a harmed record is marked by brackets too, for eyes and terminals without colour."""
    from rich.text import Text

    text = Text(step.seen)
    for position, record in enumerate(step.records):
        text.append(" " if text.plain else "")
        if position in step.harmed:
            text.append(f"[{record}]", style="bold white on red")
        else:
            text.append(record, style="cyan")
    return text


def _verdict(scene: Scene) -> str:
    shown = "shown" if scene.as_promised else "NOT SHOWN"
    return f"{shown}: {scene.verdict} ({scene.seconds:.1f} s)"
