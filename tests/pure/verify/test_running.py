"""A run and its pieces: an error ends one trial and not the run; only pieces of the same things are put together."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kept.errors import FixConfiguration, TryAgain
from kept.guarantees import ExactlyOnce
from kept.verify.history import Side, read_history
from kept.verify.run_directory import RunDirectory
from kept.verify.scenarios import NAMES, scenario
from kept.verify.trials.arena import Arena
from kept.verify.trials.code import code
from kept.verify.trials.elsewhere import Elsewhere
from kept.verify.trials.running import Runner, in_full
from kept.verify.trials.scenario import Play, Scenario, Volume
from kept.verify.trials.things import Thing

NOWHERE = Elsewhere("127.0.0.1:1")
ROOT = Path(__file__).parents[3]


def scene(name: str, play: Play) -> Scenario:
    sound = scenario("zombie")
    return replace(sound, name=name, play=play, controls={}, things={ExactlyOnce.word: sound.things[ExactlyOnce.word]})


def runner(path: Path) -> Runner:
    return Runner(NOWHERE, RunDirectory(path), 7, smoke=True, lasting=False, say=print)


def fails(_arena: Arena, _thing: Thing) -> None:
    raise ZeroDivisionError("nobody thought of this")


@contextmanager
def will_not_close() -> Iterator[None]:
    yield
    raise OSError("it will not close")


def cannot_be_cleared_up(arena: Arena, _thing: Thing) -> None:
    arena.use(will_not_close())
    arena.doubts.append("a doubt")


def fails_both_ways(arena: Arena, _thing: Thing) -> None:
    arena.use(will_not_close())
    raise TryAgain("the fault missed", way_out="again")


def nothing_happens(_arena: Arena, _thing: Thing) -> None:
    pass


def test_whatever_goes_wrong_cuts_one_trial_short_and_the_run_goes_on(tmp_path: Path) -> None:
    plays = {"first": fails, "second": cannot_be_cleared_up, "third": fails_both_ways, "last": nothing_happens}
    report = runner(tmp_path / "run").run([scene(name, play) for name, play in plays.items()])
    said = [outcome.reasons[-1] for outcome in report.outcomes]
    assert said == [
        "the run was cut short: ZeroDivisionError: nobody thought of this",
        "the run was cut short: a doubt; OSError: it will not close",
        "the run was cut short: the fault missed; OSError: it will not close",
        "nobody read what is there",
    ]
    folder = RunDirectory(tmp_path / "run").folder(report.outcomes[0].cell, Side.SUBJECT)
    assert "in fails" in (folder / "error.log").read_text()


def test_an_interrupted_trial_has_no_end_and_ends_the_run(tmp_path: Path) -> None:
    def interrupted(_arena: Arena, _thing: Thing) -> None:
        raise KeyboardInterrupt

    scenes = [scene("first", interrupted), scene("last", nothing_happens)]
    with pytest.raises(KeyboardInterrupt):
        runner(tmp_path / "run").run(scenes)
    run = RunDirectory(tmp_path / "run")
    assert [cell.scenario for cell, _ in run.left()] == ["first", "last"]
    assert read_history(run.folder(run.plan.cells[0], Side.SUBJECT)).ended is None
    assert (run.path / "report.html").exists()


def test_pieces_of_another_volume_are_not_put_together(tmp_path: Path) -> None:
    small = scene("one", nothing_happens)
    runner(tmp_path / "run").run([small], minutes=0)
    with pytest.raises(FixConfiguration, match=r"one had \(records, faults\) \(600, 1\), and has \(700, 1\)"):
        runner(tmp_path / "run").resume([replace(small, smoke=Volume(700, 1))])
    runner(tmp_path / "run").resume([small])
    assert RunDirectory(tmp_path / "run").left() == []


def test_two_may_go_through_a_run_from_both_ends(tmp_path: Path) -> None:
    """What another process is at work on is left to it."""
    played: list[str] = []

    def noted(name: str) -> Play:
        return lambda _arena, _thing: played.append(name)

    scenes = [scene(name, noted(name)) for name in ("first", "second", "last")]
    runner(tmp_path / "run").run(scenes, minutes=0)
    with RunDirectory(tmp_path / "run").claimed("first"):
        runner(tmp_path / "run").resume(scenes, backwards=True)
    assert played == ["last", "second"]
    runner(tmp_path / "run").resume(scenes)
    assert played == ["last", "second", "first"]


def test_the_script_begins_another_run_where_it_may_not_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("prove", ROOT / "scripts" / "prove.py")
    assert spec is not None
    assert spec.loader is not None
    prove = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prove)
    plan = in_full(NAMES, 7)
    assert plan.volumes["leader-killed"] == (15_000, 10)
    assert prove.unfinished(tmp_path) is None
    assert prove.begun(7, tmp_path / "others") == prove.unfinished(tmp_path / "others")
    RunDirectory(tmp_path / "proof-1").begin(plan)
    assert prove.unfinished(tmp_path) == tmp_path / "proof-1"
    RunDirectory(tmp_path / "proof-2").begin(replace(plan, versions={**plan.versions, "code": "commit of yesterday"}))
    assert prove.unfinished(tmp_path) is None
    assert "is left as it is, and another run begins: code was commit of yesterday" in capsys.readouterr().err


def test_which_code_it_is(tmp_path: Path) -> None:
    package = tmp_path / "src" / "kept"
    package.mkdir(parents=True)
    (package / "a.py").write_text("1")

    def git(*words: str) -> None:
        who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    def commit() -> str:
        git("add", "-A")
        git("commit", "-m", "a change")
        return code(package)

    bare = code(package)
    assert bare.startswith("files ")
    git("init")
    assert code(package) == bare, "a repository that does not know the package says nothing of it"
    first = commit()
    assert first.startswith("commit ")
    (tmp_path / "README.md").write_text("beside it")
    assert commit() == first, "the code is the same"
    (package / "a.py").write_text("2")
    changed = code(package)
    assert changed.startswith(f"{first}, changed: files ")
    assert commit() not in (first, changed)
