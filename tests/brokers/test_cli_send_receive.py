"""`kept send` and `kept receive` as a person uses them, a leader killed in between included."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.guarantees import ExactlyOnce
from kept.local import Cluster
from kept.producer import Producer
from tests.conftest import KEPT, Eventually, Kept

RECORDS = 10_000


def read(cluster: Cluster, topic: str) -> list[str]:
    with Reader(cluster.bootstrap, topic, start=Start.BEGINNING) as reader:
        return [record.value.decode() for record in reader.to_end() if record.value is not None]


def test_an_argument_is_sent_and_its_place_printed(on_cluster: Kept, topic: str) -> None:
    sent = on_cluster("send", topic, "hello", "--key", "k", "--partition", "1", "--header", "a=1", "--header", "b=2=3")
    assert sent.stdout == f"{topic} partition 1 offset 0\n"
    received = on_cluster("receive", topic, "--from-beginning", "--to-end", "--json")
    record = json.loads(received.stdout)
    assert (record["partition"], record["offset"], record["key"], record["value"]) == (1, 0, "k", "hello")
    assert record["headers"] == [["a", "1"], ["b", "2=3"]]


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "exactly-once"])
def test_lines_are_sent_one_record_each(
    on_cluster: Kept, cluster: Cluster, topic: str, guarantee: str, eventually: Eventually
) -> None:
    lines = [f"line {number}" for number in range(50)] + ["", "  spaces kept  ", "not the last"]
    sent = on_cluster("send", topic, "--guarantee", guarantee, "--json", "--key", "one", stdin="\n".join(lines) + "\n")
    assert sent.returncode == 0, sent.stderr
    assert [json.loads(row)["offset"] for row in sent.stdout.splitlines()] == list(range(len(lines)))
    assert "53 persisted, 0 refused, 0 unknown" in sent.stderr
    # With acks=1 the record is acknowledged a moment before readers may see it.
    eventually(lambda: read(cluster, topic) == lines, "every line is there, in order")


def test_the_prompt_sends_what_is_typed(cluster: Cluster, topic: str) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [KEPT, "send", topic, "--key", "one", "--bootstrap", cluster.bootstrap],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(theirs)
        os.write(ours, b"first\nsecond\n\x04")
        output, errors = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0, errors
    assert b"Ctrl-D ends" in errors
    assert output.count(b"offset") == 2
    assert read(cluster, topic) == ["first", "second"]


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_leader_killed_while_sending_loses_nothing(mended: Cluster, topic: str, guarantee: str) -> None:
    """The input is handed over in two halves; the leader of a partition dies after the first is under way."""
    lines = [f"{number}" for number in range(RECORDS)]
    with subprocess.Popen(
        [KEPT, "send", topic, "--guarantee", guarantee, "--bootstrap", mended.bootstrap],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n".join(lines[: RECORDS // 2]) + "\n")
        process.stdin.flush()
        first = process.stdout.readline()
        assert "offset" in first, "the first half is being persisted"
        mended.broker(Topics(mended.bootstrap).describe(topic).partitions[0].leader).kill()
        _, errors = process.communicate("\n".join(lines[RECORDS // 2 :]) + "\n", timeout=120)
    assert process.returncode == 0, errors
    assert f"{RECORDS} persisted, 0 refused, 0 unknown" in errors
    found, wanted = Counter(read(mended, topic)), Counter(lines)
    assert wanted - found == Counter(), "lost"
    if guarantee == "exactly-once":
        assert found == wanted, "duplicated"


def test_refused_records_are_counted_and_the_others_sent(on_cluster: Kept, cluster: Cluster, topic: str) -> None:
    sent = on_cluster("send", topic, stdin="fits\n" + "x" * 2_000_000 + "\nfits too\n")
    assert sent.returncode == 1
    assert "2 persisted, 1 refused, 0 unknown" in sent.stderr
    assert sorted(read(cluster, topic)) == ["fits", "fits too"]


def test_mistakes_in_sending_are_told(on_cluster: Kept, topic: str) -> None:
    missing = on_cluster("send", "no-such-topic", "x")
    assert (missing.returncode, "kept topics create" in missing.stderr) == (1, True)
    header = on_cluster("send", topic, "x", "--header", "nonsense")
    assert (header.returncode, "is not NAME=VALUE" in header.stderr) == (1, True)
    guarantee = on_cluster("send", topic, "x", "--guarantee", "perhaps")
    assert (guarantee.returncode, "at-most-once" in guarantee.stderr) == (2, True)


def test_receive_shows_committed_records_only_unless_asked(on_cluster: Kept, cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap, ExactlyOnce(topic)) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(topic, "aborted")
            producer.flush()
            _ = 1 // 0
        with producer.transaction():
            producer.send(topic, "committed")
    committed = on_cluster("receive", topic, "--from-beginning", "--to-end", "--committed")
    assert committed.stdout == "committed\n"
    everything = on_cluster("receive", topic, "--from-beginning", "--to-end", "--uncommitted")
    assert sorted(everything.stdout.splitlines()) == ["aborted", "committed"]


def test_receive_tails_new_records_only(on_cluster: Kept, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    on_cluster("send", topic, "old")
    with subprocess.Popen(
        [KEPT, "receive", topic, "--max", "2", "--positions", "--bootstrap", cluster.bootstrap],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        # It prints nothing until a record comes: send until it has seen enough.
        number = 0
        while process.poll() is None and number < 60:
            on_cluster("send", topic, f"new {number}", "--partition", "2", "--key", "k")
            number += 1
        assert process.stdout is not None
        rows = [row.rstrip("\n").split("\t") for row in process.stdout]
    assert len(rows) == 2
    assert all(value.startswith("new") and key == "k" and place.startswith("2:") for place, key, value in rows)


def test_bytes_that_are_not_text_survive(on_cluster: Kept, cluster: Cluster, topic: str) -> None:
    raw = b"\xff\x00\x01"
    with Producer(cluster.bootstrap, ExactlyOnce(topic)) as producer, producer.transaction():
        producer.send(topic, raw)
    shown = json.loads(on_cluster("receive", topic, "--from-beginning", "--to-end", "--json").stdout)
    assert shown["value"] == {"base64": "/wAB"}


def test_a_closed_pipe_ends_receive_quietly_and_does_not_stop_send(cluster: Cluster, topic: str) -> None:
    """`... | head -n 1`: PIPESTATUS tells the exit code of kept itself."""
    for command in (
        f"seq 30000 | {KEPT} send {topic} --bootstrap {cluster.bootstrap}",
        f"{KEPT} receive {topic} --from-beginning --to-end --bootstrap {cluster.bootstrap}",
    ):
        line = f"{command} | head -n 1; exit ${{PIPESTATUS[-2]}}"
        piped = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
        assert piped.returncode == 0, piped.stderr
        assert "Traceback" not in piped.stderr
        assert "Broken pipe" not in piped.stderr
    assert len(read(cluster, topic)) == 30000


def test_receive_ends_on_ctrl_c(cluster: Cluster, topic: str, on_cluster: Kept) -> None:
    on_cluster("send", topic, "here")
    command = [str(KEPT), "receive", topic, "--from-beginning", "--bootstrap", cluster.bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors.strip()) == (130, "interrupted")


def test_lines_that_are_not_text_are_sent_as_they_are(cluster: Cluster, topic: str) -> None:
    raw = b"\xff\xfe\n\x00\n"
    command = [str(KEPT), "send", topic, "--key", "one", "--bootstrap", cluster.bootstrap]
    sent = subprocess.run(command, input=raw, capture_output=True, timeout=60, check=False)
    assert sent.returncode == 0, sent.stderr
    with Reader(cluster.bootstrap, topic, start=Start.BEGINNING) as reader:
        assert [record.value for record in reader.to_end()] == [b"\xff\xfe", b"\x00"]


def test_what_was_committed_is_counted_when_a_later_chunk_is_refused(cluster: Cluster, topic: str) -> None:
    """Whoever runs it again must know that the first chunk is there."""
    lines = b"\n".join([b"good"] * 10_000 + [b"x" * 2_000_000, b"never looked at"]) + b"\n"
    command = [str(KEPT), "send", topic, "--guarantee", "exactly-once", "--quiet", "--bootstrap", cluster.bootstrap]
    sent = subprocess.run(command, input=lines, capture_output=True, timeout=120, check=False)
    assert sent.returncode == 1
    assert b"10000 persisted, 2 refused, 0 unknown; what follows was not sent" in sent.stderr
    assert read(cluster, topic) == ["good"] * 10_000


def test_a_refused_record_is_named_and_not_tried_five_times(on_cluster: Kept, topic: str) -> None:
    sent = on_cluster("send", topic, "x", "--partition", "99", "--guarantee", "exactly-once", "--json")
    assert sent.returncode == 1
    assert "again" not in sent.stderr.replace("before you send it again", "")
    assert "partition" in json.loads(sent.stdout)["what"]


def test_mistakes_in_receiving_are_told(on_cluster: Kept, topic: str) -> None:
    missing = on_cluster("receive", "no-such-topic", "--to-end")
    assert (missing.returncode, "kept topics list" in missing.stderr) == (1, True)
    partition = on_cluster("receive", topic, "--partition", "9", "--to-end")
    assert (partition.returncode, "its partitions are 0 to 2" in partition.stderr) == (1, True)
