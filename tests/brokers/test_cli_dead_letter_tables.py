"""`kept dead-letters --dsn`: the letters of a pipeline into Postgres, looked at and sent back, each once."""

from __future__ import annotations

import json
import threading
from typing import Any

import psycopg
import pytest

from kept.consumer.records import Record
from kept.consumer.retrying import Retry
from kept.errors import KeptError, Refused
from kept.guarantees import AtLeastOnce
from kept.local import Cluster
from kept.outbox.redriving import TableRedrive
from kept.outbox.relay import Relay
from kept.producer import Producer
from tests.brokers.into_postgres_things import Pipeline, a_name, count
from tests.brokers.pipes import new_topic, read
from tests.conftest import Eventually, Kept


def refuse_bad(connection: psycopg.Connection[Any], record: Record) -> None:
    if (record.value or b"").startswith(b"bad"):
        raise ValueError("it is bad")
    connection.execute("INSERT INTO effects VALUES (%s, %s)", (record.partition, record.offset))


@pytest.fixture
def name() -> str:
    return a_name()


@pytest.fixture
def buried(cluster: Cluster, topic: str, dsn: str, name: str, eventually: Eventually) -> str:
    """A database with three letters that came from `topic`, of six records."""
    with Producer(cluster.bootstrap, AtLeastOnce()) as producer:
        for number in range(3):
            producer.send(topic, f"good {number}", key=f"k{number}", partition=number)
            producer.send(topic, f"bad {number}", key=f"k{number}", partition=number, headers=[("trace", b"\xff\x00")])
    with Pipeline(cluster.bootstrap, topic, name, dsn, each=refuse_bad, retry=Retry(times=0)) as pipeline:
        eventually(
            lambda: pipeline.fails() or (count(dsn, "effects"), count(dsn, "kept_dead_letters")) == (3, 3),
            "all is done",
        )
    return dsn


def test_letters_are_counted_listed_shown_and_sent_back_once(
    on_cluster: Kept, cluster: Cluster, topic: str, buried: str, name: str
) -> None:
    (counted,) = json.loads(on_cluster("dead-letters", "list", "--dsn", "env:SHOP", "--json", SHOP=buried).stdout)
    assert counted["pipeline"] == f"kept.{name}"
    assert (counted["topic"], counted["reason"]) == (topic, "ValueError: it is bad")
    assert (counted["waiting"], counted["redriven"]) == (3, 0)
    listed = json.loads(on_cluster("dead-letters", "list", name, "--dsn", buried, "--json").stdout)
    assert sorted(letter["from"] for letter in listed) == [f"{topic}[{number}]@1" for number in range(3)]
    table = on_cluster("dead-letters", "list", f"kept.{name}", "--dsn", buried).stdout
    assert table.split("\n")[0].split() == ["letter", "from", "reason", "bytes", "when"]
    number = str(listed[0]["letter"])
    shown = json.loads(on_cluster("dead-letters", "show", name, number, "--dsn", buried, "--json").stdout)
    assert shown["value"].startswith("bad ")
    assert shown["headers"] == [["trace", {"base64": "/wA="}]]
    assert shown["redriven"] is None

    dry = on_cluster("dead-letters", "redrive", name, "--dsn", buried)
    assert dry.stdout == f"would send 3 to {topic}\n", dry.stderr
    assert len(read(cluster.bootstrap, topic)) == 6
    done = on_cluster("dead-letters", "redrive", name, "--dsn", buried, "--yes")
    assert (done.returncode, done.stdout) == (0, f"sending 3 to {topic}\nsent 3\n"), done.stderr
    again = on_cluster("dead-letters", "redrive", name, "--dsn", buried, "--yes")
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
    found = read(cluster.bootstrap, topic)
    assert len(found) == 9
    for partition in range(3):
        *_, first, back = [record for record in found if record.partition == partition]
        assert (back.key, back.value, back.headers) == (first.key, first.value, first.headers)
    (counted,) = json.loads(on_cluster("dead-letters", "list", "--dsn", buried, "--json").stdout)
    assert (counted["waiting"], counted["redriven"]) == (0, 3)


@pytest.mark.parametrize("when", ["before the mark", "after the mark", "after Kafka"])
def test_a_redrive_that_was_cut_short_is_finished_by_the_next(
    cluster: Cluster, topic: str, buried: str, name: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    def crash(*_: object, **__: object) -> None:
        raise Crash

    def run_and_crash(relay: Relay, *, until_empty: bool = False) -> None:
        run(relay, until_empty=until_empty)
        raise Crash

    run = Relay.run
    with monkeypatch.context() as patched:
        if when == "before the mark":
            patched.setattr("kept.stores.DeadLetters.mark_all_redriven", crash)
        else:
            patched.setattr(Relay, "run", crash if when == "after the mark" else run_and_crash)
        with pytest.raises(Crash):
            TableRedrive(buried, f"kept.{name}", cluster.bootstrap).carry_out()
    left = 0 if when == "after Kafka" else 3
    work = TableRedrive(buried, f"kept.{name}", cluster.bootstrap)
    assert work.pending().total() == left
    assert work.carry_out() == left
    assert len(read(cluster.bootstrap, topic)) == 9


def test_two_at_once_send_each_letter_once(cluster: Cluster, topic: str, buried: str, name: str) -> None:
    elsewhere = new_topic(cluster.bootstrap)
    sent: list[int] = []
    told: list[str] = []

    def one() -> None:
        try:
            sent.append(TableRedrive(buried, f"kept.{name}", cluster.bootstrap, elsewhere).carry_out())
        except KeptError as error:
            told.append(type(error).__name__)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(told) <= {"Busy"}
    assert sum(sent) == 3
    assert len(read(cluster.bootstrap, elsewhere)) == 3


def test_letters_that_the_brokers_refuse_are_told_and_kept_whole(
    cluster: Cluster, topic: str, buried: str, name: str
) -> None:
    narrow = new_topic(cluster.bootstrap, max_message_bytes=20_000)
    with psycopg.connect(buried) as connection:
        connection.execute("UPDATE kept_dead_letters SET value = repeat('y', 30000)::bytea WHERE partition = 1")
    work = TableRedrive(buried, f"kept.{name}", cluster.bootstrap, narrow)
    with pytest.raises(Refused, match="1 letters were refused by the brokers, 2 were sent") as refused:
        work.carry_out()
    assert "kept_redrive.kept_outbox_refused" in refused.value.way_out
    with psycopg.connect(buried) as connection:
        kept = connection.execute("SELECT value, reason FROM kept_redrive.kept_outbox_refused").fetchall()
    assert [(bytes(value), "did not take the record" in reason) for value, reason in kept] == [(b"y" * 30000, True)]
    assert sorted(record.value or b"" for record in read(cluster.bootstrap, narrow)) == [b"bad 0", b"bad 2"]
    assert work.pending().total() == 0, "the next redrive does not meet it again"


def test_mistakes_get_an_error_with_the_way_out(
    on_cluster: Kept, cluster: Cluster, topic: str, buried: str, name: str
) -> None:
    for arguments, expected in [
        (("list", "--dsn", "env:NOT_SET"), "export NOT_SET"),
        (("list", "--dsn", "file:/no/such/file"), "cannot be read"),
        (("list", "other", "--dsn", buried), f"kept.{name}"),
        (("list", "--dsn", cluster.dsn), "no dead letters"),
        (("show", name, "0:1", "--dsn", buried), "not the number"),
        (("show", name, "999999", "--dsn", buried), "no dead letter 999999"),
        (("redrive", name, "--dsn", buried, "--to", "missing", "--yes"), "kept topics create"),
    ]:
        result = on_cluster("dead-letters", *arguments)
        assert (result.returncode, expected in result.stderr) == (1, True), result.stderr
        assert "Traceback" not in result.stderr
    assert on_cluster("dead-letters", "list").returncode == 2
    assert on_cluster("dead-letters", "redrive", name, "--dsn", buried).stdout == f"would send 3 to {topic}\n"
