"""`kept dead-letters` as a person uses it: a topic of letters, looked at and sent back."""

from __future__ import annotations

import json
import re

import pytest

from kept.admin.groups import Groups
from kept.consumer.outgoing import Output
from kept.consumer.records import Record
from kept.consumer.retrying import Retry
from kept.guarantees import AtLeastOnce
from kept.local import Cluster
from kept.producer import Producer
from tests.brokers.pipes import new_name, new_topic, pipe, read
from tests.conftest import Kept


def refuse_bad(sink: str) -> object:
    def transform(record: Record) -> Output:
        if (record.value or b"").startswith(b"bad"):
            raise ValueError("it is bad")
        return Output(sink, record.value, record.key)

    return transform


@pytest.fixture
def graveyard(cluster: Cluster, topic: str) -> str:
    """Three letters that came from `topic`, of six records."""
    dead, sink = new_topic(cluster.bootstrap), new_topic(cluster.bootstrap)
    with Producer(cluster.bootstrap, AtLeastOnce()) as producer:
        for number in range(3):
            producer.send(topic, f"good {number}", key=f"k{number}", partition=number)
            producer.send(topic, f"bad {number}", key=f"k{number}", partition=number, headers=[("trace", b"\xff\x00")])
    options = {"retry": Retry(times=0), "dead_letters": dead}
    pipe(cluster.bootstrap, topic, new_name(), refuse_bad(sink), **options)  # type: ignore[arg-type]
    return dead


def test_letters_are_listed_shown_and_sent_back_once(
    on_cluster: Kept, cluster: Cluster, topic: str, graveyard: str
) -> None:
    listed = json.loads(on_cluster("dead-letters", "list", graveyard, "--json").stdout)
    assert sorted(letter["from"] for letter in listed) == [f"{topic}[{number}]@1" for number in range(3)]
    assert {(letter["reason"], letter["bytes"]) for letter in listed} == {("ValueError: it is bad", 7)}
    table = on_cluster("dead-letters", "list", graveyard).stdout
    assert table.split("\n")[0].split() == ["letter", "from", "reason", "bytes", "when"]

    shown = json.loads(on_cluster("dead-letters", "show", graveyard, listed[0]["letter"], "--json").stdout)
    assert shown["value"].startswith("bad ")
    assert shown["headers"] == [["trace", {"base64": "/wA="}]]
    assert "value: bad" in on_cluster("dead-letters", "show", graveyard, listed[0]["letter"]).stdout

    dry = on_cluster("dead-letters", "redrive", graveyard)
    assert dry.stdout == f"would send 3 to {topic}\n"
    assert "--yes" in dry.stderr
    assert len(read(cluster.bootstrap, topic)) == 6

    done = on_cluster("dead-letters", "redrive", graveyard, "--yes")
    assert (done.returncode, done.stdout) == (0, f"sending 3 to {topic}\nsent 3\n"), done.stderr
    again = on_cluster("dead-letters", "redrive", graveyard, "--yes")
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
    found = read(cluster.bootstrap, topic)
    assert len(found) == 9
    for number in range(3):
        *_, first, back = [record for record in found if record.partition == number]
        assert (back.key, back.value, back.headers) == (first.key, first.value, first.headers)


def test_letters_that_come_later_are_sent_by_the_next_redrive(
    on_cluster: Kept, cluster: Cluster, topic: str, graveyard: str
) -> None:
    elsewhere = new_topic(cluster.bootstrap)
    assert "sent 3\n" in on_cluster("dead-letters", "redrive", graveyard, "--to", elsewhere, "--yes").stdout
    with Producer(cluster.bootstrap, AtLeastOnce()) as producer:
        producer.send(topic, "bad again", partition=0)
    options = {
        "retry": Retry(times=0),
        "dead_letters": graveyard,
        "until": {(topic, 0): 3, (topic, 1): 2, (topic, 2): 2},
    }
    pipe(cluster.bootstrap, topic, new_name(), refuse_bad(elsewhere), **options)  # type: ignore[arg-type]
    assert on_cluster("dead-letters", "redrive", graveyard).stdout == f"would send 4 to {topic}\n"
    assert "sent 4\n" in on_cluster("dead-letters", "redrive", graveyard, "--to", elsewhere, "--yes").stdout
    values = sorted(record.value or b"" for record in read(cluster.bootstrap, elsewhere))
    assert values.count(b"bad 0") == 2
    assert values.count(b"bad again") == 1


def test_a_redrive_whose_progress_expired_says_what_to_type_and_that_works(
    on_cluster: Kept, cluster: Cluster, topic: str, graveyard: str
) -> None:
    assert "sent 3\n" in on_cluster("dead-letters", "redrive", graveyard, "--yes").stdout
    group = f"kept.redrive.{graveyard}"
    assert Groups(cluster.bootstrap).delete(group), "as it expires a week after a redrive"
    for arguments in ((), ("--yes",)):
        told = on_cluster("dead-letters", "redrive", graveyard, *arguments)
        assert told.returncode == 1
        assert "would send" not in told.stdout, "nobody knows which ones"
    command = re.search("`kept ([^`]+)`", told.stderr)
    assert command, told.stderr
    reset = command[1].replace("WHERE", "end").split()
    dry = on_cluster(*(word for word in reset if word != "--yes"))
    assert (dry.returncode, "nothing was moved" in dry.stderr) == (0, True), dry.stderr
    assert on_cluster("dead-letters", "redrive", graveyard).returncode == 1
    assert on_cluster(*reset).returncode == 0
    assert on_cluster("dead-letters", "redrive", graveyard, "--yes").returncode == 0
    assert len(read(cluster.bootstrap, topic)) == 9
    with Producer(cluster.bootstrap, AtLeastOnce()) as producer:
        (letter, *_) = read(cluster.bootstrap, graveyard)
        headers = [(name, value) for name, value in letter.headers if value is not None]
        producer.send(graveyard, letter.value, key=letter.key, headers=dict(headers), partition=letter.partition)
    assert "sent 1\n" in on_cluster("dead-letters", "redrive", graveyard, "--yes").stdout
    assert len(read(cluster.bootstrap, topic)) == 10


def test_mistakes_get_an_error_with_the_way_out(on_cluster: Kept, cluster: Cluster, topic: str, graveyard: str) -> None:
    with Producer(cluster.bootstrap, AtLeastOnce()) as producer:
        producer.send(topic, "no letter")
    for arguments, expected in [
        (("list", "missing"), "kept topics list"),
        (("list", topic), "is not a dead letter"),
        (("redrive", topic, "--yes"), "is not a dead letter"),
        (("redrive", graveyard, "--yes", "--to", "missing"), "kept topics create"),
        (("show", graveyard, "nonsense"), "PARTITION:OFFSET"),
        (("show", graveyard, "0:999"), "no dead letter 0:999"),
    ]:
        result = on_cluster("dead-letters", *arguments)
        assert (result.returncode, expected in result.stderr) == (1, True), result.stderr
        assert "Traceback" not in result.stderr
    assert len(json.loads(on_cluster("dead-letters", "list", graveyard, "--json").stdout)) == 3
    assert on_cluster("dead-letters", "redrive", graveyard).stdout == f"would send 3 to {topic}\n"
