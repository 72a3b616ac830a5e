"""`kept transactions` as a person uses it who wonders why nothing more is read."""

from __future__ import annotations

import json

from confluent_kafka import Producer as Client

from kept.local import Cluster
from tests.conftest import Eventually, Kept


def left_open(cluster: Cluster, topic: str, name: str, *, times_out_ms: int = 60_000) -> Client:
    """One record in partitions 0 and 2, in a transaction that nobody ends. Behind a record that is committed."""
    plain = Client({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    plain.produce(topic, "before", partition=2)
    plain.flush(30)
    client = Client(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": times_out_ms,
            "log_level": 0,
        }
    )
    client.init_transactions(30)
    client.begin_transaction()
    for partition in (0, 2):
        client.produce(topic, "in doubt", partition=partition)
    client.flush(30)
    return client


def test_the_culprit_is_named_with_the_way_out(cluster: Cluster, on_cluster: Kept, topic: str) -> None:
    culprit = left_open(cluster, topic, f"{topic}-app")
    found = json.loads(on_cluster("transactions", topic, "--json").stdout)
    assert [(each["partition"], each["from_offset"], each["transactional_id"]) for each in found] == [
        (0, 0, f"{topic}-app"),
        (2, 1, f"{topic}-app"),
    ]
    assert {each["producer_id"] for each in found} == {found[0]["producer_id"]}
    assert all(0 <= each["open_for_s"] < 60 and each["times_out_s"] == 60 for each in found)
    shown = on_cluster("transactions", topic)
    assert shown.returncode == 0
    assert shown.stdout.splitlines()[0].split("  ")[0] == "partition"
    assert shown.stdout.count("by fencing") == 1
    assert "when it is 60 s old" in shown.stdout
    culprit.abort_transaction(30)


def test_whoever_uses_the_id_again_ends_it(
    cluster: Cluster, on_cluster: Kept, topic: str, eventually: Eventually
) -> None:
    """As the way out says."""
    culprit = left_open(cluster, topic, f"{topic}-app")
    again = Client({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{topic}-app", "log_level": 0})
    again.init_transactions(30)
    eventually(lambda: json.loads(on_cluster("transactions", topic, "--json").stdout) == [], "it has ended")
    del culprit


def test_it_ends_by_its_time_out(cluster: Cluster, on_cluster: Kept, topic: str, eventually: Eventually) -> None:
    culprit = left_open(cluster, topic, f"{topic}-app", times_out_ms=1_000)
    eventually(lambda: json.loads(on_cluster("transactions", topic, "--json").stdout) == [], "it has ended")
    del culprit


def test_nothing_is_open(on_cluster: Kept, topic: str) -> None:
    result = on_cluster("transactions", topic)
    assert (result.returncode, result.stdout) == (0, "")
    assert f"no transaction is open on {topic}" in result.stderr
    assert json.loads(on_cluster("transactions", topic, "--json").stdout) == []


def test_mistakes_get_an_error_with_the_way_out(on_cluster: Kept, kept: Kept, cluster: Cluster) -> None:
    missing = on_cluster("transactions", "missing")
    assert (missing.returncode, "kept topics list" in missing.stderr) == (1, True)
    nowhere = kept("transactions", "t", "--bootstrap", "127.0.0.1:1")
    assert (nowhere.returncode, "check the address" in nowhere.stderr) == (1, True)
    postgres = kept("transactions", "t", "--bootstrap", cluster.postgres.address)
    assert (postgres.returncode, "in plain text only" in postgres.stderr) == (1, True)
    assert "Traceback" not in missing.stderr + nowhere.stderr + postgres.stderr
