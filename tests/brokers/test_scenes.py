"""`kept scenes`: each failure happens without its fix and does not with it, and nothing of the show is left."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from kept.admin.groups import Groups
from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.guarantees import CARRIER
from kept.local import Cluster
from kept.verify.scenes import NAMES, script
from kept.verify.scenes.performing import Script, perform
from kept.verify.scenes.stage import Stage
from kept.verify.scenes.telling import Scene, Side
from tests.conftest import KEPT, Eventually, Kept

QUICK = "order-across-partitions"
TEN = [f"M{number}" for number in range(1, 11)]


@pytest.fixture(scope="module")
def stage(cluster: Cluster) -> Iterator[Stage]:
    with Stage(cluster) as stage:
        yield stage


def end(side: Side, step: str) -> list[str]:
    """The records of a step."""
    (found,) = [each for each in side.steps if each.done == step]
    return list(found.records)


def played(name: str, stage: Stage) -> Scene:
    scene = perform(script(name), stage)
    assert scene.as_promised, scene.document()
    assert [step.done for step in scene.without.steps] == [step.done for step in scene.fixed.steps], "the same steps"
    return scene


def test_a_lost_acknowledgement(stage: Stage) -> None:
    scene = played("lost-acknowledgement", stage)
    assert end(scene.without, "the log, in the end") == ["M1", "M2", "M2"]
    assert end(scene.fixed, "the log, in the end") == ["M1", "M2"]
    assert scene.without.steps[-1].harmed == {2}


def test_message_loss(stage: Stage) -> None:
    scene = played("message-loss", stage)
    assert end(scene.without, "records never processed") == ["M5", "M6", "M7", "M8", "M9", "M10"]
    assert end(scene.without, "records processed, in the end") == ["M1", "M2", "M3", "M4", "M11", "M12"]
    assert end(scene.fixed, "records processed, in the end") == [*TEN, "M11", "M12"]
    assert scene.without.counted["repeated"] == 0


def test_double_processing(stage: Stage) -> None:
    scene = played("double-processing", stage)
    assert end(scene.without, "rows in Postgres after the crash") == TEN[:5]
    assert end(scene.without, "rows in Postgres, in the end") == [*TEN[:5], *TEN]
    assert scene.without.steps[-2].harmed == {5, 6, 7, 8, 9}
    assert end(scene.fixed, "rows in Postgres after the crash") == []
    assert end(scene.fixed, "rows in Postgres, in the end") == TEN


def test_order(stage: Stage) -> None:
    scene = played("order", stage)
    assert end(scene.without, "the log, in the end") == ["M1", "M3", "M2"]
    assert end(scene.fixed, "the log, in the end") == ["M1", "M2", "M3"]


def test_order_across_partitions(stage: Stage) -> None:
    scene = played(QUICK, stage)
    assert scene.fixed.counted == {"out of order": 0, "lost": 0}


def test_a_fault_that_does_not_strike_shows_nothing(stage: Stage) -> None:
    def waits_in_vain(stage: Stage, word: str, story: object) -> dict[str, int]:
        with stage.child("no task at all") as child:
            child.hear("received")
        return {}

    scene = perform(Script(QUICK, "", "", "one", "other", "lost", waits_in_vain), stage)
    assert not scene.struck
    assert "the fault did not strike under one" in scene.verdict
    assert "JSONDecodeError" in scene.verdict, "the consumer's last words"


def left_in(cluster: Cluster) -> list[str]:
    """Whatever of a show a cluster still has."""
    with psycopg.connect(cluster.dsn) as connection:
        databases = [str(name) for (name,) in connection.execute("SELECT datname FROM pg_database").fetchall()]
    topics = [topic.name for topic in Topics(cluster.bootstrap).list()]
    groups = [group.name for group in Groups(cluster.bootstrap).list()]
    births: dict[bytes | None, bytes | None] = {}
    if CARRIER in topics:
        with Reader(cluster.bootstrap, CARRIER, start=Start.BEGINNING) as reader:
            births = {record.key: record.value for record in reader.to_end()}
    born = [(key or b"").decode() for key, value in births.items() if value is not None]
    return [name for name in [*databases, *topics, *groups, *born] if re.search("kept.scenes", name)]


def test_nothing_is_left_in_the_cluster(cluster: Cluster) -> None:
    before = left_in(cluster)
    with Stage(cluster) as stage:
        played("message-loss", stage)
        assert len(left_in(cluster)) - len(before) >= 2 + 2 + 1 + 1, "topics, groups, a database and a birth"
    assert left_in(cluster) == before


def test_as_text(on_cluster: Kept) -> None:
    result = on_cluster("scenes", "lost-acknowledgement", QUICK)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\x1b[" not in result.stdout
    assert "1 of 2  lost-acknowledgement" in result.stdout
    assert "5. the log, in the end: M1 M2 [M2]\n" in result.stdout
    assert "5. the log, in the end: M1 M2\n" in result.stdout
    assert "shown: stored twice: 1 without the fix, none with it" in result.stdout
    assert "on the local cluster in" in result.stderr


def test_as_json(on_cluster: Kept) -> None:
    result = on_cluster("scenes", "order", QUICK, QUICK, "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["as_promised"] is True
    order, across = document["scenes"]
    assert (order["name"], across["name"]) == ("order", QUICK)
    assert order["without"]["steps"][-1]["records"] == ["M1", "M3", "M2"]
    assert order["without"]["steps"][-1]["harmed"] == ["M2"]
    assert order["with"]["counted"] == {"out of order": 0, "lost": 0}


def test_the_list_of_scenes(kept: Kept) -> None:
    result = kept("scenes", "--list")
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == list(NAMES)
    assert [each["name"] for each in json.loads(kept("scenes", "--list", "--json").stdout)] == list(NAMES)
    wrong = kept("scenes", "no-such-scene")
    assert wrong.returncode == 2
    assert "lost-acknowledgement" in wrong.stderr
    text = " ".join(kept("scenes", "--help").stdout.split())
    assert [name for name in NAMES if name not in text] == []


def on_a_terminal(cluster: Cluster, *arguments: str, **environment: str) -> str:
    """What a person sees on a terminal of 110 columns."""
    outside, inside = pty.openpty()
    words = {**os.environ, "KEPT_DIR": str(cluster.directory), "COLUMNS": "110", "TERM": "xterm-256color"}
    words.pop("NO_COLOR", None)
    shown = b""
    with subprocess.Popen(
        [KEPT, *arguments], stdout=inside, stderr=subprocess.DEVNULL, env={**words, **environment}
    ) as command:
        os.close(inside)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                if select.select([outside], [], [], 1)[0]:
                    shown += os.read(outside, 65536)
            except OSError:  # the other end is closed
                break
    os.close(outside)
    assert command.returncode == 0
    return shown.decode()


def test_on_a_terminal_both_sides_stand_beside_each_other(cluster: Cluster) -> None:
    shown = on_a_terminal(cluster, "scenes", QUICK)
    assert re.search("without the fix.*with the fix", shown)
    assert "\x1b[1;37;41m[M" in shown, "a record that came to harm is marked in colour"
    plain = on_a_terminal(cluster, "scenes", QUICK, NO_COLOR="1")
    assert re.search(r"\[M\d\].*M1 M2 M3 M4 M5 M6 M7 M8 M9 *\r\n", plain), "and by brackets"
    assert not re.search(r"\x1b\[[\d;]*\b(3[0-7]|4[0-7]|9[0-7])m", plain)


def workers(children_of: int) -> list[psutil.Process]:
    try:
        found = psutil.Process(children_of).children(recursive=True)
        return [one for one in found if any("scenes.worker" in word for word in one.cmdline())]
    except psutil.NoSuchProcess:
        return []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_show_that_is_stopped_leaves_nothing_running(
    cluster: Cluster, eventually: Eventually, how: signal.Signals
) -> None:
    before = left_in(cluster)
    environment = {**os.environ, "KEPT_DIR": str(cluster.directory)}
    with subprocess.Popen(
        [KEPT, "scenes", "message-loss"], stderr=subprocess.PIPE, env=environment, start_new_session=True
    ) as show:
        eventually(lambda: workers(show.pid), "a consumer was started", within=60)
        (worker,) = workers(show.pid)
        show.send_signal(how)
        show.communicate(timeout=60)
    eventually(lambda: not worker.is_running(), "the consumer is gone")
    if how is signal.SIGINT:
        assert show.returncode == 130
        assert left_in(cluster) == before


def test_without_a_cluster_one_is_started_for_the_show(kept: Kept, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    result = kept("scenes", QUICK, KEPT_DIR=str(tmp_path / "none"), TMPDIR=str(scratch))
    assert result.returncode == 0, result.stderr
    assert "no local cluster is up: starting one for the show" in result.stderr
    assert "taking everything down" in result.stderr
    assert list(scratch.glob("kept-scenes-*")) == []
    assert not (tmp_path / "none").exists()
    started = [one for one in psutil.process_iter(["cmdline"]) if str(scratch) in " ".join(one.info["cmdline"] or ())]
    assert started == []
