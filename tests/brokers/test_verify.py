"""`kept verify` on a real cluster: the smoke tier holds, a broken product is caught, a missed fault is not green."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest

from kept.admin.groups import Groups
from kept.admin.topics import Topics
from kept.guarantees import CARRIER, AtLeastOnce, ExactlyOnce
from kept.guarantees.levels import WORDS
from kept.local import Cluster
from kept.verify.checkers import Anomaly
from kept.verify.report.document import Report
from kept.verify.run_directory import RunDirectory
from kept.verify.scenarios import NAMES, SMOKE, scenario
from kept.verify.trials import arena
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.running import Runner, in_full
from kept.verify.trials.scenario import Scenario, Volume
from kept.verify.trials.things import Thing
from kept.verify.verdict import Verdict
from tests.brokers import mutants
from tests.conftest import KEPT, Eventually, Kept

SEED = 20261116
Verify = Callable[..., Report]


@pytest.fixture
def verify(mended: Cluster, tmp_path: Path) -> Verify:
    """Runs a scenario on the shared cluster, with little volume; what it said is in the test's output."""

    def run(*scenarios: Scenario) -> Report:
        print(f"seed {SEED}")
        runner = Runner(mended, RunDirectory(tmp_path / "run"), SEED, smoke=True, lasting=False, say=print)
        return runner.run(scenarios)

    return run


@pytest.mark.parametrize("name", SMOKE)
def test_the_smoke_tier_holds_and_every_control_breaks(verify: Verify, name: str) -> None:
    report = verify(scenario(name))
    assert [(outcome.cell.name, outcome.verdict.value, outcome.reasons) for outcome in report.outcomes] == [
        (cell.name, "holds", ()) for cell in scenario(name).cells()
    ]
    for outcome in report.outcomes:
        assert outcome.control_broke
        judgement = outcome.subject.judgement
        assert judgement is not None
        assert judgement.counts.persisted > 0.5 * scenario(name).smoke.records


@pytest.mark.parametrize(
    ("name", "word", "mutation", "seen"),
    [
        ("late-commit", ExactlyOnce.word, "one_producer_for_all_transactions", Anomaly.TORN),
        pytest.param(
            "lost-acknowledgement", ExactlyOnce.word, "idempotence_off", Anomaly.DUPLICATED, marks=pytest.mark.slow
        ),
        pytest.param("zombie", ExactlyOnce.word, "no_fence", Anomaly.DUPLICATED, marks=pytest.mark.slow),
        ("processor-killed", ExactlyOnce.word, "progress_before_effect", Anomaly.LOST),
        pytest.param(
            "processor-killed",
            AtLeastOnce.word,
            "progress_to_the_end_of_what_was_taken",
            Anomaly.LOST,
            marks=pytest.mark.slow,
        ),
        pytest.param("records-deleted", ExactlyOnce.word, "no_gap_check", Anomaly.SILENT, marks=pytest.mark.slow),
    ],
)
def test_a_rule_that_is_taken_out_of_kept_is_missed(
    verify: Verify, monkeypatch: pytest.MonkeyPatch, name: str, word: str, mutation: str, seen: Anomaly
) -> None:
    sound = scenario(name)
    monkeypatch.setattr(arena, "PATIENCE", 10.0)  # what loses records loses the marks of their end, too
    thing = sound.things[word]
    mutant = replace(thing, role=mutants.ROLE, options={**thing.options, "mutation": mutation})
    volume = sound.full if seen is Anomaly.SILENT else sound.smoke  # a short log has been read before it is cut
    (outcome,) = verify(replace(sound, smoke=volume, things={word: mutant}, controls={})).outcomes
    assert outcome.verdict is Verdict.VIOLATED, outcome.reasons
    assert any(f"{seen.value}, and {word} allows none; first: " in reason for reason in outcome.reasons)


def test_poison_that_nobody_met_is_not_green(verify: Verify) -> None:
    sound = scenario("poison")
    thing = sound.things[ExactlyOnce.word]
    digests = replace(thing, role=mutants.ROLE, options={**thing.options, "mutation": "no_poison"})
    (outcome,) = verify(replace(sound, things={ExactlyOnce.word: digests}, controls={})).outcomes
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.reasons[0] == "no fault struck"
    assert "the run was cut short: 5 of 5 poisonous records are not buried" in outcome.reasons[1]


def nothing_happens(where: Arena, thing: Thing) -> None:
    topic = where.topic()
    where.finish(where.start(thing, topic))
    audit_topic(where, topic)


def harmless() -> Scenario:
    """Under one guarantee, with its control."""
    sound = scenario("lost-acknowledgement")
    things = {AtLeastOnce.word: sound.things[AtLeastOnce.word]}
    return replace(sound, things=things, play=nothing_happens, smoke=Volume(200, 1))


def test_a_fault_that_misses_is_not_green(verify: Verify) -> None:
    (outcome,) = verify(harmless()).outcomes
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.reasons[0] == "no fault struck"
    assert outcome.reasons[1].endswith("no fault struck it")


def test_a_run_that_had_no_time_for_all_of_it_goes_on(mended: Cluster, kept: Kept, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    runner = Runner(mended, directory, SEED, smoke=True, lasting=False, say=print)
    first = runner.run([harmless()], minutes=0.001)
    assert first.outcomes[0].reasons[1:] == ("the control shows nothing: the control was not run",)
    (subject,) = (directory.path / "cells").iterdir()
    written = (subject / "runner.jsonl").read_bytes()
    whole = runner.resume([harmless()])
    assert whole.outcomes[0].reasons[1].endswith("no fault struck it")
    assert (subject / "runner.jsonl").read_bytes() == written  # what has come to its end stays
    again = kept("verify", "resume", str(directory.path))
    assert again.returncode == 4
    assert "all of it was run" in again.stderr


def test_a_thing_that_ends_too_early_cuts_the_trial_short(verify: Verify) -> None:
    sound = scenario("lost-acknowledgement")
    things = {ExactlyOnce.word: Thing("no such role", "nobody", ExactlyOnce.word)}
    (outcome,) = verify(replace(sound, things=things, controls={})).outcomes
    assert outcome.verdict is Verdict.UNKNOWN
    assert any("ModuleNotFoundError" in reason for reason in outcome.reasons), outcome.reasons


def left_in(cluster: Cluster) -> set[str]:
    """The runs of which a cluster still has anything. A group whose coordinator moves is in nobody's list for a moment:
    so not what it has of them."""
    with psycopg.connect(cluster.dsn) as connection:
        databases = [str(name) for (name,) in connection.execute("SELECT datname FROM pg_database").fetchall()]
    topics = [topic.name for topic in Topics(cluster.bootstrap).list()]
    groups = [group.name for group in Groups(cluster.bootstrap).list()]
    named = (re.search(r"kept.verify.([0-9a-f]{8})", name) for name in [*databases, *topics, *groups])
    return {found[1] for found in named if found}


def test_a_run_on_the_command_line_leaves_nothing_and_can_be_judged_again(
    cluster: Cluster, on_cluster: Kept, tmp_path: Path
) -> None:
    out = tmp_path / "a run"
    before = left_in(cluster)
    result = on_cluster("verify", "poison", "--here", "--smoke", "--seed", "11", "--out", str(out))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "seed 11: `kept verify --seed 11` repeats it" in result.stderr
    assert "[1/1] poison: Some records cannot be processed" in result.stderr
    assert "exactly-once: holds: 1503 sent, nothing amiss; control 1503 sent, 5 lost" in result.stderr
    rows = [line.split()[:3] for line in result.stdout.splitlines()[1:]]
    assert rows == [["poison", word, "holds"] for word in WORDS]
    assert left_in(cluster) == before
    document = json.loads((out / "report.json").read_text())
    assert (document["seed"], document["verdict"]) == (11, "holds")
    (out / "report.json").unlink()
    again = on_cluster("verify", "judge", str(out), "--json")
    assert again.returncode == 0
    assert (
        json.loads(again.stdout)["cells"] == document["cells"] == json.loads((out / "report.json").read_text())["cells"]
    )
    twice = on_cluster("verify", "poison", "--here", "--smoke", "--out", str(out))
    assert twice.returncode == 1
    assert "holds a run already" in twice.stderr


def topics_and_groups(cluster: Cluster) -> set[str]:
    topics, groups = Topics(cluster.bootstrap).list(), Groups(cluster.bootstrap).list()
    return {each.name for each in topics} | {each.name for each in groups}


def yours(cluster: Cluster, out: Path) -> tuple[str, ...]:
    """`kept verify` on this cluster as if it were somebody's own."""
    where = ("--bootstrap", cluster.bootstrap, "--topic-prefix", "scratch-")
    return ("verify", "zombie", "--smoke", *where, "--out", str(out))


def test_on_a_cluster_of_the_users_own_only_what_is_safe(cluster: Cluster, kept: Kept, tmp_path: Path) -> None:
    before = topics_and_groups(cluster)
    refused = kept(*yours(cluster, tmp_path / "refused"), "leader-killed", "--yes")
    assert refused.returncode == 1
    assert "leader-killed: it kills, stops or fills brokers" in refused.stderr
    assert not (tmp_path / "refused").exists()
    result = kept(*yours(cluster, tmp_path / "run"), "--yes")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[1].split()[:3] == ["zombie", "exactly-once", "holds"]
    assert topics_and_groups(cluster) - before <= {CARRIER}


def test_nothing_is_done_on_a_cluster_of_the_users_own_without_a_yes(
    cluster: Cluster, kept: Kept, tmp_path: Path
) -> None:
    before, out = topics_and_groups(cluster), tmp_path / "run"
    nobody = kept(*yours(cluster, out))
    assert nobody.returncode == 1
    assert "nobody is there to ask" in nobody.stderr
    person, terminal = os.openpty()
    try:
        os.write(person, b"n\n")
        refused = subprocess.run(
            [KEPT, *yours(cluster, out)], stdin=terminal, capture_output=True, text=True, check=False, timeout=60
        )
    finally:
        os.close(person)
        os.close(terminal)
    assert refused.returncode == 1
    assert "topics and groups that begin with scratch- or kept.scratch- are made, filled, and deleted" in refused.stderr
    assert "nothing was done" in refused.stderr
    assert not out.exists()
    assert topics_and_groups(cluster) == before


def workers(children_of: int) -> list[psutil.Process]:
    try:
        found = psutil.Process(children_of).children(recursive=True)
        return [one for one in found if any("trials.worker" in word for word in one.cmdline())]
    except psutil.NoSuchProcess:
        return []


def started(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stderr=subprocess.DEVNULL, env={**os.environ, **environment}, start_new_session=True
    )


def test_a_run_that_is_interrupted_leaves_nothing(mended: Cluster, tmp_path: Path, eventually: Eventually) -> None:
    before = left_in(mended)
    command = [str(KEPT), "verify", "lost-acknowledgement", "--here", "--smoke", "--out", str(tmp_path / "run")]
    with started(command, {"KEPT_DIR": str(mended.directory)}) as run:
        eventually(lambda: workers(run.pid), "a thing under test was started", within=60)
        things = workers(run.pid)
        run.send_signal(signal.SIGINT)
        run.wait(60)
    eventually(lambda: not any(thing.is_running() for thing in things), "it is gone")
    assert run.returncode == 130
    assert left_in(mended) == before
    assert json.loads((tmp_path / "run" / "report.json").read_text())["verdict"] == "unknown"


def test_a_run_on_a_cluster_of_the_users_own_that_is_interrupted_leaves_nothing(
    cluster: Cluster, tmp_path: Path, eventually: Eventually
) -> None:
    before = topics_and_groups(cluster)
    with started([str(KEPT), *yours(cluster, tmp_path / "run"), "--yes"], {}) as run:
        eventually(lambda: workers(run.pid), "a thing under test was started", within=60)
        things = workers(run.pid)
        run.send_signal(signal.SIGINT)
        run.wait(60)
    eventually(lambda: not any(thing.is_running() for thing in things), "it is gone")
    assert run.returncode == 130
    assert topics_and_groups(cluster) - before <= {CARRIER}


def test_a_run_that_is_killed_leaves_no_process(tmp_path: Path, eventually: Eventually) -> None:
    """Without --here: the cluster that was started for it goes, too."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def servers() -> list[psutil.Process]:
        return [one for one in psutil.process_iter(["cmdline"]) if str(scratch) in " ".join(one.info["cmdline"] or ())]

    with started(
        [str(KEPT), "verify", "poison", "--smoke", "--out", str(tmp_path / "run")], {"TMPDIR": str(scratch)}
    ) as run:
        eventually(lambda: workers(run.pid), "a thing under test was started", within=120)
        things = workers(run.pid)
        assert len(servers()) >= 5
        run.kill()
        run.wait(60)
    eventually(lambda: not any(thing.is_running() for thing in things), "it is gone")
    eventually(lambda: not servers(), "the cluster is down", within=60)


def test_the_list_of_scenarios(kept: Kept, tmp_path: Path) -> None:
    result = kept("verify", "--list")
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == list(NAMES)
    assert [each["name"] for each in json.loads(kept("verify", "--list", "--json").stdout)] == list(NAMES)
    wrong = kept("verify", "no-such-scenario")
    assert wrong.returncode == 2
    assert "late-commit" in wrong.stderr
    none = kept("verify", "judge", str(tmp_path))
    assert none.returncode == 1
    assert "holds no run" in none.stderr
    down = kept("verify", "--here", KEPT_DIR=str(tmp_path / "none"))
    assert down.returncode == 1
    assert "there is no cluster" in down.stderr


def test_what_was_not_played_yet_is_told_in_one_line(kept: Kept, tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run").begin(in_full(["lost-acknowledgement"], 7))
    told = kept("verify", "judge", str(tmp_path / "run"))
    assert "3 of 3 were not played to their end: `kept verify resume" in told.stderr
    assert "was not run" not in told.stderr
