"""`kept outbox` as a person uses it, and the outbox for asyncio."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import pytest

from kept.admin.topics import Topics
from kept.aio import Outbox as Awaited
from kept.consumer import Reader, Start
from kept.errors import JournalFull
from kept.guarantees import ExactlyOnce
from kept.local import Cluster
from kept.outbox import Outbox
from kept.outbox.locks import Lock, beside
from tests.conftest import KEPT, Eventually, Kept


def values(cluster: Cluster, topic: str) -> list[str]:
    with Reader(cluster.bootstrap, topic, start=Start.BEGINNING) as reader:
        return sorted((record.value or b"").decode() for record in reader.to_end())


def test_from_sending_to_purging(on_cluster: Kept, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    path = str(tmp_path / "outbox.db")
    with Outbox(path) as outbox:
        outbox.send_all(
            [(topic, "one", "k"), (topic, "x" * 2_000_000), ("no-such-topic", b"\xff"), (topic, "two", "k")]
        )
    before = json.loads(on_cluster("outbox", "status", path, "--json").stdout)
    assert (before["records"], before["refused"], before["relayed_up_to"], before["end"]) == (4, 0, 0, 4)
    assert before["oldest_age"] > 0
    waiting = json.loads(on_cluster("outbox", "inspect", path, "--json", "--max", "1").stdout)
    assert [(each["position"], each["topic"], each["key"], each["value"]) for each in waiting] == [
        (1, topic, "k", "one")
    ]

    done = on_cluster("outbox", "relay", path, "--until-empty", "--patience", "0.5")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "relayed 2, refused 2, 0 wait\n"
    assert "set aside" in done.stderr
    assert values(cluster, topic) == ["one", "two"]

    after = json.loads(on_cluster("outbox", "status", path, "--json").stdout)
    assert (after["records"], after["refused"], after["relayed_up_to"], after["relay_at_work"]) == (0, 2, 4, False)
    assert after["relay_error"] is None
    assert "relayed up to" in on_cluster("outbox", "status", path).stdout
    refused = json.loads(on_cluster("outbox", "inspect", path, "--refused", "--json").stdout)
    assert [(each["position"], each["topic"]) for each in refused] == [(2, topic), (3, "no-such-topic")]
    assert refused[1]["value"] == {"base64": "/w=="}
    assert "too large" in on_cluster("outbox", "inspect", path).stdout

    assert on_cluster("outbox", "purge", path, stdin="n\n").returncode != 0
    assert on_cluster("outbox", "purge", path, "--yes").stdout == "removed 2 refused records\n"
    assert "nothing waits" in on_cluster("outbox", "inspect", path).stderr


def test_refused_records_are_redriven_when_their_topic_is_there(
    on_cluster: Kept, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    path, late = str(tmp_path / "outbox.db"), f"{topic}-late"
    with Outbox(path) as outbox:
        outbox.send_all([(late, "one", "k"), (topic, "other"), (late, "two", "k")])
    relay = ("outbox", "relay", path, "--until-empty", "--patience", "0.1")
    assert on_cluster(*relay).stdout == "relayed 1, refused 2, 0 wait\n"
    shown = on_cluster("outbox", "redrive", path)
    assert (shown.returncode, shown.stdout) == (0, f"would put back 2 for {late}\n")
    assert "--yes does it" in shown.stderr
    Topics(cluster.bootstrap).create(late, 1, ExactlyOnce("tests"))
    done = on_cluster("outbox", "redrive", path, "--yes")
    assert done.stdout == f"putting back 2 for {late}\n2 wait to be relayed again\n", done.stderr
    assert "nothing was refused" in on_cluster("outbox", "redrive", path, "--yes").stderr
    assert on_cluster(*relay).stdout == "relayed 2, refused 0, 0 wait\n"
    assert values(cluster, late) == ["one", "two"]
    assert values(cluster, topic) == ["other"]


def test_purge_never_removes_what_waits_by_accident(on_cluster: Kept, tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    with Outbox(path) as outbox:
        outbox.send("t", "precious")
    assert on_cluster("outbox", "purge", str(path), "--yes").returncode == 0
    assert json.loads(on_cluster("outbox", "status", str(path), "--json").stdout)["records"] == 1
    lock = Lock(beside(path, "relay"))
    assert lock.alone()
    refused = on_cluster("outbox", "purge", str(path), "--yes", "--unsent")
    assert refused.returncode == 1
    assert "a relay is at work" in refused.stderr
    lock.close()
    assert "1 that were never sent" in on_cluster("outbox", "purge", str(path), "--yes", "--unsent").stdout
    assert json.loads(on_cluster("outbox", "status", str(path), "--json").stdout)["records"] == 0


@pytest.mark.parametrize("command", ["status", "relay", "inspect", "redrive", "purge"])
def test_a_journal_that_is_not_there_is_not_made(on_cluster: Kept, tmp_path: Path, command: str) -> None:
    result = on_cluster("outbox", command, str(tmp_path / "nowhere.db"))
    assert result.returncode == 1
    assert "there is no journal" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.glob("nowhere*"))


def test_a_relay_ends_at_a_signal_and_another_stands_by(
    cluster: Cluster, topic: str, tmp_path: Path, eventually: Eventually
) -> None:
    path = tmp_path / "outbox.db"
    command = [str(KEPT), "outbox", "relay", str(path), "--bootstrap", cluster.bootstrap]
    with Outbox(path) as outbox:
        outbox.send(topic, "a")
        first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert outbox.flush(60) == 0
        second = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert second.stderr is not None
        assert "standing by" in second.stderr.readline()
        first.terminate()
        out, _ = first.communicate(timeout=60)
        assert (first.returncode, out) == (0, "relayed 1, refused 0, 0 wait\n")
        outbox.send(topic, "b")
        assert outbox.flush(60) == 0
        second.send_signal(signal.SIGSTOP)  # it hangs
        outbox.send(topic, "c")
        third = subprocess.run(
            [*command, "--take-over", "--until-empty"], capture_output=True, text=True, timeout=90, check=False
        )
        assert third.returncode == 0, third.stderr
        second.send_signal(signal.SIGCONT)
        outbox.send(topic, "d")
        _, complaint = second.communicate(timeout=90)
        assert second.returncode == 1
        assert "taken over" in complaint
        done = subprocess.run([*command, "--until-empty"], capture_output=True, timeout=90, check=False)
        assert done.returncode == 0
    assert values(cluster, topic) == ["a", "b", "c", "d"]


def test_many_tasks_share_an_fsync(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with Awaited(tmp_path / "outbox.db", relay_to=cluster.bootstrap) as outbox:
            positions = await asyncio.gather(*(outbox.send(topic, str(number)) for number in range(500)))
            assert sorted(positions) == list(range(1, 501))
            assert await outbox.send_all([(topic, "500"), (topic, "501")]) == range(501, 503)
            assert await outbox.send_all([]) == range(0)
            assert await outbox.flush(60) == 0
            metrics = await outbox.metrics()
            assert metrics.commits < 100
            assert metrics.relayed == 502

    asyncio.run(main())
    assert values(cluster, topic) == sorted(str(number) for number in range(502))


def test_a_full_journal_pushes_back_on_tasks(tmp_path: Path) -> None:
    async def main() -> int:
        async with Awaited(tmp_path / "outbox.db", most_records=10) as outbox:
            answers = await asyncio.gather(*(outbox.send("t", "x") for _ in range(20)), return_exceptions=True)
        return sum(isinstance(answer, JournalFull) for answer in answers)

    assert asyncio.run(main()) == 10
