"""`kept groups` as a person uses it: true lag, members, and positions moved by hand."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Producer as Client
from confluent_kafka.admin import AdminClient

from kept.admin import groups as module
from kept.admin.answers import answered
from kept.admin.backlog import Place
from kept.admin.groups import Groups
from kept.errors import FixConfiguration, TryAgain
from kept.guarantees import ExactlyOnce
from kept.local import Cluster
from kept.producer import Producer
from tests.brokers.into_postgres_things import Pipeline
from tests.conftest import Eventually, Kept


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def writer(cluster: Cluster) -> Client:
    """A plain transactional client, so that a test ends each transaction as it likes."""
    client = Client(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": uuid.uuid4().hex,
            "transaction.timeout.ms": 60_000,
            "log_level": 0,
        }
    )
    client.init_transactions(30)
    return client


def write(client: Client, topic: str, records: int, *, partition: int = 0) -> None:
    for number in range(records):
        client.produce(topic, str(number).encode(), partition=partition)
    assert client.flush(30) == 0


def plain(cluster: Cluster, topic: str, records: int, *, partition: int = 0) -> None:
    write(Client({"bootstrap.servers": cluster.bootstrap, "log_level": 0}), topic, records, partition=partition)


def transaction(client: Client, topic: str, records: int, *, commit: bool) -> None:
    client.begin_transaction()
    write(client, topic, records)
    client.commit_transaction(30) if commit else client.abort_transaction(30)


def commit(cluster: Cluster, group: str, topic: str, *offsets: int) -> None:
    """Positions without a member: a group that only carries offsets."""
    Groups(cluster.bootstrap).move(group, {Place(topic, number): offset for number, offset in enumerate(offsets)})


def positions(cluster: Cluster, group: str, topic: str) -> list[int | None]:
    places = [Place(topic, number) for number in range(3)]
    return [each.offset for each in Groups(cluster.bootstrap).positions_at(group, places)]


def stable_end(cluster: Cluster, topic: str) -> int:
    return Groups(cluster.bootstrap).logs.bounds([Place(topic, 0)])[Place(topic, 0)].stable


@contextmanager
def member(cluster: Cluster, group: str, topic: str, protocol: str = "classic") -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": f"reader-{protocol}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe([topic])
        for _ in range(300):
            consumer.poll(0.1)
            if consumer.assignment():
                break
        else:
            pytest.fail("the member was given no partitions")
        yield consumer
    finally:
        consumer.close()


def described(on_cluster: Kept, group: str) -> dict[str, Any]:
    result = on_cluster("groups", "describe", group, "--json")
    assert result.returncode == 0, result.stderr + result.stdout
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_the_lag_counts_records_and_neither_markers_nor_what_was_aborted(
    on_cluster: Kept, cluster: Cluster, topic: str, group: str, writer: Client, eventually: Eventually
) -> None:
    transaction(writer, topic, 3, commit=True)  # 0 to 2, marker 3
    transaction(writer, topic, 2, commit=False)  # 4 and 5, marker 6
    transaction(writer, topic, 1, commit=True)  # 7, marker 8
    writer.begin_transaction()
    write(writer, topic, 2)  # 9 and 10, open
    commit(cluster, group, topic, 1)
    row = described(on_cluster, group)["partitions"][0]
    assert (row["committed"], row["log_start"], row["log_end"]) == (1, 0, 11)
    assert (row["lag"], row["exact"], row["held_back_at"]) == (3, True, 9)
    text = on_cluster("groups", "describe", group).stdout
    assert "held back by an open transaction at offset 9" in text
    assert "lag in all: 3 records" in text

    writer.abort_transaction(30)
    eventually(lambda: described(on_cluster, group)["partitions"][0]["held_back_at"] is None, "the end of it is seen")
    row = described(on_cluster, group)["partitions"][0]
    assert (row["log_end"], row["lag"], row["exact"]) == (12, 3, True)
    commit(cluster, group, topic, 8)  # only a marker and what was aborted are left
    row = described(on_cluster, group)["partitions"][0]
    assert (row["lag"], row["exact"], row["notes"]) == (0, True, [])


def test_too_much_to_count_is_bounded_by_offsets_and_says_so(
    cluster: Cluster,
    topic: str,
    group: str,
    writer: Client,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    transaction(writer, topic, 5, commit=True)  # and a marker
    plain(cluster, topic, 2, partition=1)
    commit(cluster, group, topic, 0, 0, 0)
    monkeypatch.setattr(module, "MOST_OFFSETS_COUNTED", 5)
    groups = Groups(cluster.bootstrap)
    eventually(lambda: stable_end(cluster, topic) == 6, "the end of the transaction is seen")
    found = groups.backlogs(groups.positions(groups.describe(group)))
    assert [(each.lag, each.exact) for each in found] == [(6, False), (2, True), (0, True)]
    monkeypatch.setattr(module, "MOST_OFFSETS_COUNTED", 100)
    monkeypatch.setattr(module, "LONGEST_COUNT", 0.0)
    found = groups.backlogs(groups.positions(groups.describe(group)))
    assert [(each.lag, each.exact) for each in found] == [(6, False), (2, False), (0, True)]


def test_positions_that_are_odd_are_told_in_words(on_cluster: Kept, cluster: Cluster, topic: str, group: str) -> None:
    plain(cluster, topic, 10)
    plain(cluster, topic, 4, partition=1)
    commit(cluster, group, topic, 2, 7)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 5)]).values():
        deleted.result(30)
    below, above, without = described(on_cluster, group)["partitions"]
    assert (below["log_start"], below["lag"], below["exact"]) == (5, 5, True)
    assert "2 is below the log's start 5" in below["notes"][0]
    assert (above["lag"], above["exact"]) == (None, False)
    assert "7 is above the log's end 4" in above["notes"][0]
    assert (without["committed"], without["lag"]) == (None, None)
    assert "no committed position" in without["notes"][0]
    text = on_cluster("groups", "describe", group).stdout
    assert f"{topic}[1]: the committed position 7 is above the log's end 4" in text
    assert "lag in all: 5 records, besides the partitions without a lag" in text


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_are_shown_and_keep_positions_from_being_moved(
    on_cluster: Kept, cluster: Cluster, topic: str, group: str, protocol: str, eventually: Eventually
) -> None:
    plain(cluster, topic, 4)
    with member(cluster, group, topic, protocol) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        shown = described(on_cluster, group)
        assert (shown["state"], shown["type"]) == ("stable", protocol)
        host, _, port = shown["coordinator"]["address"].partition(":")
        assert shown["coordinator"]["node"] in (1, 2, 3)
        assert f"{host}:{port}" in cluster.bootstrap.split(",")
        (only,) = shown["members"]
        assert (only["client_id"], only["host"]) == (f"reader-{protocol}", "127.0.0.1")
        assert [each["partition"] for each in only["partitions"]] == [0, 1, 2]
        assert [(each["committed"], each["lag"]) for each in shown["partitions"]] == [
            (3, 1),
            (None, None),
            (None, None),
        ]
        assert f"{topic}[0,1,2]" in on_cluster("groups", "describe", group).stdout
        listed = json.loads(on_cluster("groups", "list", "--json").stdout)
        assert {"name": group, "state": "stable", "type": protocol, "members": 1} in listed

        dry = on_cluster("groups", "reset", group, "--topic", topic, "--to", "beginning")
        assert dry.returncode == 0
        assert "refused while the group has members" in dry.stderr
        refused = on_cluster("groups", "reset", group, "--topic", topic, "--to", "beginning", "--yes")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "has members" in refused.stderr
        with pytest.raises(FixConfiguration, match="has members"):  # the brokers' own word, for one that joins late
            Groups(cluster.bootstrap).move(group, {Place(topic, 0): 0})
        assert positions(cluster, group, topic) == [3, None, None]
    eventually(lambda: not described(on_cluster, group)["members"], "the member has left")
    assert described(on_cluster, group)["state"] == "empty"
    assert on_cluster("groups", "reset", group, "--topic", topic, "--to", "beginning", "--yes").returncode == 0
    assert positions(cluster, group, topic) == [0, 0, 0]


def test_a_reset_is_only_shown_until_yes(on_cluster: Kept, cluster: Cluster, topic: str, group: str) -> None:
    plain(cluster, topic, 10)
    plain(cluster, topic, 10, partition=1)
    commit(cluster, group, topic, 8, 2)
    arguments = ("groups", "reset", group, "--topic", topic, "--partition", "0", "--partition", "1", "--to", "5")
    shown = on_cluster(*arguments)
    assert shown.returncode == 0
    assert [line.split() for line in shown.stdout.splitlines()[1:3]] == [
        ["0", "8", "->", "5", "at", "most", "3", "read", "again"],
        ["1", "2", "->", "5", "at", "most", "3", "skipped"],
    ]
    assert "at most 3 records read again, at most 3 skipped" in shown.stdout
    assert "nothing was moved: --yes carries it out" in shown.stderr
    assert positions(cluster, group, topic) == [8, 2, None]
    done = json.loads(on_cluster(*arguments, "--yes", "--json").stdout)
    assert (done["group"], done["topic"], done["carried_out"]) == (group, topic, True)
    assert done["partitions"][0] == {
        "partition": 0, "old": 8, "new": 5, "read_again_at_most": 3, "skipped_at_most": 0, "note": "",
    }  # fmt: skip
    assert positions(cluster, group, topic) == [5, 5, None]


def test_every_target_leads_where_it_says(on_cluster: Kept, cluster: Cluster, topic: str, group: str) -> None:
    then = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(hours=1)
    client = Client({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for number in range(10):
        client.produce(topic, b"x", partition=0, timestamp=int(then.timestamp() * 1000) + number * 1000)
    assert client.flush(30) == 0
    commit(cluster, group, topic, 5)
    just, after = ((then + timedelta(seconds=3, microseconds=more)).isoformat() for more in (0, 1))
    late = (then + timedelta(minutes=5)).isoformat()
    for to, expected in [
        ("-2", 3),
        ("+4", 7),
        ("end", 10),
        ("beginning", 0),
        (just, 3),
        (after, 4),
        (late, 10),
        ("6", 6),
    ]:
        arguments = ("groups", "reset", group, "--topic", topic, "--partition", "0", "--to", to, "--yes")
        result = on_cluster(*arguments)
        assert result.returncode == 0, result.stderr
        assert (to, positions(cluster, group, topic)[0]) == (to, expected)


def test_a_position_in_an_open_transaction_is_not_moved(
    on_cluster: Kept,
    cluster: Cluster,
    topic: str,
    group: str,
    writer: Client,
    eventually: Eventually,
) -> None:
    """The brokers would let it: the transaction's records are then committed, and its position is not."""
    plain(cluster, topic, 10)
    commit(cluster, group, topic, 1)
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 0})
    writer.begin_transaction()
    writer.send_offsets_to_transaction([TopicPartition(topic, 0, 4)], reader.consumer_group_metadata(), 30)
    reader.close()
    refused = on_cluster("groups", "reset", group, "--topic", topic, "--to", "end", "--yes")
    assert refused.returncode == 1
    assert f"open transaction carries another position of group {group} on {topic}[0]" in refused.stderr
    assert "open transaction carries another position" in on_cluster("groups", "describe", group).stdout
    writer.commit_transaction(30)
    eventually(lambda: positions(cluster, group, topic)[0] == 4, "the transaction's position is seen")
    assert on_cluster("groups", "reset", group, "--topic", topic, "--to", "end", "--yes").returncode == 0
    assert positions(cluster, group, topic) == [10, 0, 0]


def test_a_group_of_kept_shows_its_mark_and_is_moved_only_with_the_word(
    on_cluster: Kept, cluster: Cluster, topic: str, eventually: Eventually
) -> None:
    name = ExactlyOnce(f"test-{uuid.uuid4().hex[:8]}")
    with Producer(cluster.bootstrap, name) as producer:
        for _ in range(2):
            with producer.transaction():
                producer.send(topic, "payment", partition=0)
    eventually(lambda: described(on_cluster, name.group)["marks"][0].get("sequence") == 2, "the mark is seen")
    eventually(lambda: stable_end(cluster, topic) == 4, "the end of the second transaction is seen")
    shown = described(on_cluster, name.group)
    assert shown["partitions"] == shown["members"] == []
    (mark,) = shown["marks"]
    assert (mark["generation"] > 0, mark["sequence"], mark["in_open_transaction"]) == (True, 2, False)
    text = on_cluster("groups", "describe", name.group).stdout
    assert (
        f"mark         owner {mark['owner']}, generation {mark['generation']}, last committed transaction 2\n" in text
    )
    assert "lag" not in text

    arguments = ("groups", "reset", name.group, "--topic", topic, "--to", "end", "--yes")
    refused = on_cluster(*arguments)
    assert refused.returncode == 1
    assert "twice or never" in refused.stderr
    assert "--break-exactly-once" in refused.stderr
    assert positions(cluster, name.group, topic) == [None, None, None]
    carrier = ("groups", "reset", name.group, "--topic", "kept.progress", "--to", "end", "--yes")
    assert on_cluster(*carrier, "--break-exactly-once").returncode == 1
    assert on_cluster(*arguments, "--break-exactly-once").returncode == 0
    assert positions(cluster, name.group, topic) == [4, 0, 0]
    assert described(on_cluster, name.group)["marks"] == [mark]


def test_who_moves_the_copy_of_a_process_into_postgres_is_told(
    on_cluster: Kept, cluster: Cluster, topic: str, dsn: str, eventually: Eventually
) -> None:
    plain(cluster, topic, 3)
    name = ExactlyOnce(f"test-{uuid.uuid4().hex[:8]}")
    with Pipeline(cluster.bootstrap, topic, name.name, dsn, each=lambda *_: None) as pipeline:
        eventually(lambda: pipeline.fails() or positions(cluster, name.group, topic)[0] == 3, "the copy is shown")
    moved = on_cluster("groups", "reset", name.group, "--topic", topic, "--to", "beginning", "--break-exactly-once")
    assert moved.returncode == 0
    assert "kept_progress" in moved.stderr


def test_what_a_stranger_wrote_in_place_of_a_mark_is_shown(
    on_cluster: Kept, cluster: Cluster, topic: str, eventually: Eventually
) -> None:
    name = ExactlyOnce(f"test-{uuid.uuid4().hex[:8]}")
    with Producer(cluster.bootstrap, name) as producer, producer.transaction():
        producer.send(topic, "payment")
    eventually(lambda: described(on_cluster, name.group)["marks"][0].get("sequence") == 1, "the mark is seen")
    Groups(cluster.bootstrap).move(name.group, {Place("kept.progress", 0): 0})
    assert "stranger" in described(on_cluster, name.group)["marks"][0]["error"]
    assert "a stranger wrote ''" in on_cluster("groups", "describe", name.group).stdout


def test_mistakes_get_an_error_with_the_way_out(on_cluster: Kept, cluster: Cluster, topic: str, group: str) -> None:
    plain(cluster, topic, 3)
    commit(cluster, group, topic, 1)
    for arguments, expected in [
        (("describe", "missing"), "kept groups list"),
        (("describe", ""), "kept groups list"),
        (("reset", "missing", "--topic", topic, "--to", "end"), "there is no group missing"),
        (("reset", "", "--topic", topic, "--to", "end"), "kept groups list"),
        (("reset", group, "--topic", "missing", "--to", "end"), "kept topics list"),
        (("reset", group, "--topic", topic, "--to", "end", "--partition", "7"), "its partitions are 0 to 2"),
        (("reset", group, "--topic", topic, "--to", "4", "--partition", "0"), "goes from 0 to 3"),
        (("reset", group, "--topic", topic, "--to", "-2", "--partition", "0"), "offset -1 is outside the log"),
        (("reset", group, "--topic", topic, "--to", "+1"), f"{topic}[1] has no position to shift"),
        (("reset", group, "--topic", topic, "--to", "yesterday"), "beginning, end"),
        (("reset", group, "--topic", topic, "--to", "2026-01-01T00:00:00"), "time zone"),
    ]:
        result = on_cluster("groups", *arguments, *(["--yes"] if arguments[0] == "reset" else []))
        assert (result.returncode, expected in result.stderr) == (1, True), (arguments, result.stderr)
        assert "way out" in result.stderr
        assert "Traceback" not in result.stderr
    assert positions(cluster, group, topic) == [1, None, None]
    assert "missing" not in on_cluster("groups", "list").stdout


def test_wrong_usage_is_exit_code_2(on_cluster: Kept) -> None:
    for arguments, named in [
        (("describe",), "GROUP"),
        (("reset", "g", "--topic", "t"), "--to"),
        (("reset", "g", "--to", "end"), "--topic"),
        (("reset", "g", "--topic", "t", "--to", "end", "--partition", "-1"), "--partition"),
    ]:
        result = on_cluster("groups", *arguments)
        assert (result.returncode, f"'{named}'" in result.stderr) == (2, True), result.stderr


def test_errors_are_json_when_json_was_asked_for(on_cluster: Kept) -> None:
    result = on_cluster("groups", "describe", "missing", "--json")
    document = json.loads(result.stdout)
    assert (result.returncode, document["error"]) == (1, "FixConfiguration")
    assert document["way_out"]


def test_the_death_of_the_coordinator_is_waited_out(mended: Cluster, on_cluster: Kept, topic: str, group: str) -> None:
    plain(mended, topic, 3)
    commit(mended, group, topic, 1, 0, 0)
    before = described(on_cluster, group)["coordinator"]["node"]
    mended.broker(before).kill()
    shown = described(on_cluster, group)
    assert shown["coordinator"]["node"] != before
    assert [each["lag"] for each in shown["partitions"]] == [2, 0, 0]
    assert group in on_cluster("groups", "list").stdout
    moved = on_cluster("groups", "reset", group, "--topic", topic, "--to", "end", "--yes")
    assert moved.returncode == 0, moved.stderr
    assert positions(mended, group, topic) == [3, 0, 0]


def test_an_address_without_brokers_is_told() -> None:
    nowhere = AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    with pytest.raises(TryAgain, match="cannot be listed: no broker answers") as caught:
        answered(lambda left: nowhere.list_topics(timeout=left), "the groups cannot be listed", within=0.5)
    assert "check the address" in caught.value.way_out
