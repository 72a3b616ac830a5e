"""`kept verify`: faults against guarantees on a real cluster, judged, with a report."""

from __future__ import annotations

import math
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kept.cli.exit_codes import ExitCode
from kept.cli.output import as_json, print_json, print_table, say
from kept.cli.verify_places import Place
from kept.errors import FixConfiguration
from kept.verify.scenarios import NAMES, OF_SPARK, SMOKE, TITLES
from kept.verify.trials.peers import PEERS, all_instead

if TYPE_CHECKING:
    from kept.verify.report.document import Report
    from kept.verify.run_directory import RunDirectory

LARGEST_SEED = 2**31
minutes = click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    default=math.inf,
    help="Begin no trial after them; `kept verify resume` goes on. When none are given: all of it.",
)


seeded = click.option(
    "--seed", type=click.IntRange(0, LARGEST_SEED), help="Repeat the keys, moments and victims of a run."
)
kept_in = click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Where to keep the run.")


class _RunsByDefault(click.Group):
    """`kept verify late-commit` is `kept verify run late-commit`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_RunsByDefault)
def verify() -> None:
    """Prove the guarantees: faults on a real cluster, and what became of every record.

    \b
    kept verify [SCENARIO]...    run scenarios, all of them when none is named; `kept verify run --help` says more
    kept verify --list           what there is
    kept verify --smoke          five of them, small
    kept verify pipeline FILE    put a pipeline of yours under the faults of Spark
    kept verify resume RUN       go on with a run that was interrupted
    kept verify judge RUN        judge a stored run again
    """


@verify.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES), metavar="[SCENARIO]...")
@click.option("--list", "only_list", is_flag=True, help="Show the scenarios, and run none.")
@click.option("--smoke", is_flag=True, help=f"With little volume; when none is named: {', '.join(SMOKE)}.")
@seeded
@kept_in
@click.option("--here", is_flag=True, help="On the local cluster that is up: its brokers are killed, and mended.")
@click.option("--bootstrap", metavar="HOST:PORT,...", help="On your own cluster: only what is safe there. Asks before.")
@click.option("--topic-prefix", metavar="PREFIX", help="With --bootstrap: of the topics that it makes, and deletes.")
@click.option("--peer", type=click.Choice(list(PEERS)), help="Put this in the place of kept, where it can be.")
@click.option("--yes", is_flag=True, help="With --bootstrap: do it without asking.")
@minutes
@as_json
def run(
    names: tuple[str, ...],
    only_list: bool,
    smoke: bool,
    seed: int | None,
    out: Path | None,
    peer: str | None,
    minutes: float,
    as_json: bool,
    **where: Any,
) -> int:
    """Run scenarios, and judge what each guarantee has shown.

    Each has a control: the same fault, and a weaker thing that must visibly lose or repeat records. A control that
    does not break makes the cell unknown, not green. Runs on a cluster that is started for it, and gone afterwards.

    With --bootstrap it runs on yours: on topics of its own, with faults of the client's side only. What would hurt
    others, or needs what is not there, is refused with the reason.

    Exit code 0 when every cell holds, 3 when one is violated, 4 when none is and one is unknown.
    """
    if only_list:
        return _list(as_json)
    from kept.verify.scenarios import scenario
    from kept.verify.trials.running import Runner

    place = Place(**where)
    chosen = place.chosen(list(dict.fromkeys(names)), list(SMOKE if smoke else NAMES))
    number = _seed(seed)
    directory = _directory(out, number)
    scenarios = [scenario(name) for name in chosen]
    if peer is not None:
        scenarios = all_instead(scenarios, peer, named=bool(names))
    say(f"seed {number}: `kept verify --seed {number}` repeats it")
    with place.cluster() as cluster:
        runner = Runner(cluster, directory, number, smoke=smoke, lasting=place.lasts, say=say, prefix=place.prefix)
        report = runner.run(scenarios, minutes)
    return _tell(report, directory.path, as_json)


@verify.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("names", nargs=-1, type=click.Choice(OF_SPARK), metavar="[SCENARIO]...")
@click.option(
    "--input", "records", required=True, type=click.Path(path_type=Path), help="What it reads: a record a line."
)
@seeded
@kept_in
@minutes
@as_json
def pipeline(
    file: Path, names: tuple[str, ...], records: Path, seed: int | None, out: Path | None, minutes: float, as_json: bool
) -> int:
    """Put a pipeline of yours, from its TOML file, under the faults of Spark.

    It runs on a cluster that is started for it: topics, tables and the checkpoint of the file are replaced by others.
    What it makes of the records undisturbed is what it owes under every fault, row by row, under its guarantee.

    \b
    kept verify pipeline examples/payments-to-postgres.toml --input payments.jsonl
    """
    from kept.pipelines.files import read
    from kept.verify.scenarios import scenario
    from kept.verify.trials.running import Runner
    from kept.verify.trials.users import lines_of, put_on_trial, write_reference

    possible = [name for name in OF_SPARK if name != "sink-restored" or "postgres" in read(file).part("sink")]
    chosen = list(dict.fromkeys(names)) or possible
    if impossible := [name for name in chosen if name not in possible]:
        raise FixConfiguration(f"{impossible[0]} needs a sink in Postgres", way_out="leave it out")
    lines_of(records)
    number = _seed(seed)
    directory = _directory(out, number)
    say(f"seed {number}: `--seed {number}` repeats it")
    with Place.of_its_own().cluster() as cluster, tempfile.TemporaryDirectory(prefix="kept-verify-") as folder:
        say(f"{file.name}, undisturbed, twice")
        reference = write_reference(cluster, file, records, Path(folder))
        scenarios = [put_on_trial(scenario(name), file, records, reference) for name in chosen]
        report = Runner(cluster, directory, number, smoke=False, lasting=False, say=say).run(scenarios, minutes)
    return _tell(report, directory.path, as_json)


@verify.command()
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--backwards", is_flag=True, help="From its last scenario on, beside another process that goes on with it."
)
@minutes
@as_json
def resume(run: Path, backwards: bool, minutes: float, as_json: bool) -> int:
    """Go on with a run that was interrupted, or had no time for all of it.

    RUN is a directory that `kept verify` made, on a cluster that was started for it. A trial that came to its end
    stays, whatever it has shown; one that was interrupted is done anew. Two may go on with the same run at a time, each
    on a cluster of its own: a scenario is played by the one that comes to it first.
    """
    from kept.verify.report import write_reports
    from kept.verify.run_directory import RunDirectory
    from kept.verify.scenarios import scenario
    from kept.verify.trials.running import Runner

    directory = RunDirectory(run)
    if not directory.left():
        say("all of it was run")
        return _tell(write_reports(directory), run, as_json)
    plan = directory.plan
    planned = dict.fromkeys(cell.scenario for cell in plan.cells)
    with Place.of_its_own().cluster() as cluster:
        runner = Runner(cluster, directory, plan.seed, smoke=plan.smoke, lasting=False, say=say)
        scenarios = [scenario(name) for name in planned if name in NAMES]
        report = runner.resume(scenarios, minutes, backwards=backwards)
    return _tell(report, run, as_json)


@verify.command()
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@as_json
def judge(run: Path, as_json: bool) -> int:
    """Judge a stored run again, and write its reports anew.

    RUN is a directory that `kept verify` made. Its histories are read, nothing is run.
    """
    from kept.verify.report import write_reports
    from kept.verify.run_directory import RunDirectory

    return _tell(write_reports(RunDirectory(run)), run, as_json)


def _seed(given: int | None) -> int:
    return random.randrange(LARGEST_SEED) if given is None else given  # noqa: S311 - not a secret


def _directory(out: Path | None, seed: int) -> RunDirectory:
    from kept.verify.run_directory import RunDirectory

    return RunDirectory(out or Path("kept-verify") / f"{time.strftime('%Y%m%d-%H%M%S')}-{seed}")


def exit_code_of(report: Report) -> ExitCode:
    """What the run has shown."""
    from kept.verify.verdict import Verdict

    codes = {
        Verdict.HOLDS: ExitCode.DONE,
        Verdict.VIOLATED: ExitCode.ANSWER_IS_NO,
        Verdict.UNKNOWN: ExitCode.UNKNOWN,
    }
    return codes[report.verdict]


def _list(as_json: bool) -> int:
    if as_json:
        print_json([{"name": name, "title": title, "smoke": name in SMOKE} for name, title in TITLES.items()])
    else:
        print_table(["scenario", "smoke", "what happens"], [(n, "x" if n in SMOKE else "", TITLES[n]) for n in NAMES])
    return ExitCode.DONE


def _left(path: Path) -> set[str]:
    """The cells of which something was not played to its end: that says nothing of a guarantee."""
    from kept.verify.run_directory import RunDirectory

    return {cell.name for cell, _ in RunDirectory(path).left()}


def _tell(report: Report, path: Path, as_json: bool) -> int:
    if as_json:
        print_json({**report.document(), "run": str(path)})
        return exit_code_of(report)
    rows = []
    for outcome in report.outcomes:
        judgement = outcome.subject.judgement
        counts = {} if judgement is None else judgement.counts.document()
        numbers = [counts.get(name, "-") for name in ("sent", "lost", "duplicated")]
        control = "-" if outcome.control is None else "broke" if outcome.control_broke else "did not break"
        rows.append((outcome.cell.scenario, outcome.cell.guarantee, outcome.verdict.value, *numbers, control))
    print_table(["scenario", "guarantee", "verdict", "sent", "lost", "duplicated", "control"], rows)
    left = _left(path)
    for outcome in report.outcomes:
        for reason in outcome.reasons if outcome.cell.name not in left else ():
            say(f"{outcome.cell.name}: {reason}")
    if left:
        say(f"{len(left)} of {len(report.outcomes)} were not played to their end: `kept verify resume {path}` goes on")
    say(f"the report: {path / 'report.html'}")
    return exit_code_of(report)
