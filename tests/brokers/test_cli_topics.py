"""`kept topics` as a person uses it."""

from __future__ import annotations

import json
import uuid

from kept.local import Cluster
from tests.conftest import Kept


def test_a_topic_is_created_shown_and_deleted(on_cluster: Kept) -> None:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    made = on_cluster("topics", "create", name, "--partitions", "5", "--set", "retention.ms=-1", "--json")
    assert json.loads(made.stdout) == {"name": name, "partitions": 5, "replication_factor": 3}
    assert name in on_cluster("topics", "list").stdout
    described = json.loads(on_cluster("topics", "describe", name, "--json").stdout)
    assert [len(part["in_sync"]) for part in described["partitions"]] == [3] * 5
    assert described["settings"]["min.insync.replicas"] == "2"
    assert described["settings"]["retention.ms"] == "-1"
    text = on_cluster("topics", "describe", name).stdout
    assert text.splitlines()[0].split() == ["partition", "leader", "replicas", "in", "sync"]
    refused = on_cluster("topics", "delete", name, stdin="n\n")
    assert refused.returncode == 130
    assert name in on_cluster("topics", "list").stdout
    assert on_cluster("topics", "delete", name, "--yes").stdout == f"deleted {name}\n"
    assert name not in on_cluster("topics", "list").stdout


def test_a_topic_of_our_own_that_carries_progress_is_compacted(on_cluster: Kept) -> None:
    """For who may make topics, in place of a pipeline that may not: the command that its error names."""
    name = f"kept.progress.cli-{uuid.uuid4().hex[:8]}"
    refused = on_cluster("topics", "create", name, "--set", "cleanup.policy=delete")
    assert "cleanup.policy=delete weakens" in refused.stderr
    made = on_cluster("topics", "create", name, "--partitions", "2", "--set", "cleanup.policy=compact", "--json")
    assert json.loads(made.stdout) == {"name": name, "partitions": 2, "replication_factor": 3}
    settings = json.loads(on_cluster("topics", "describe", name, "--json").stdout)["settings"]
    assert (settings["cleanup.policy"], settings["min.insync.replicas"]) == ("compact", "2")


def test_internal_topics_show_only_when_asked_for(on_cluster: Kept) -> None:
    assert "__consumer_offsets" not in on_cluster("topics", "list", "--json").stdout
    assert "__consumer_offsets" in on_cluster("topics", "list", "--internal", "--json").stdout


def test_a_weakening_setting_is_refused_and_at_most_once_allows_it(on_cluster: Kept) -> None:
    name = f"weak-{uuid.uuid4().hex[:8]}"
    refused = on_cluster("topics", "create", name, "--set", "replication.factor=1", "--set", "min.insync.replicas=1")
    assert refused.returncode == 1
    for part in ("replication.factor=1", "min.insync.replicas=1", "exactly-once", "way out"):
        assert part in refused.stderr
    allowed = on_cluster(
        "topics", "create", name, "--guarantee", "at-most-once", "--set", "replication.factor=1", "--json"
    )
    assert json.loads(allowed.stdout)["replication_factor"] == 1


def test_mistakes_get_an_error_with_the_way_out(on_cluster: Kept, topic: str) -> None:
    for arguments, expected in [
        (("create", topic), "already exists"),
        (("create", "bad/name"), "letters, digits"),
        (("create", "x", "--set", "nonsense"), "is not NAME=VALUE"),
        (("create", "x", "--set", "retention.ms=soon"), "retention.ms"),
        (("create", "x", "--set", "replication.factor=9"), "start more brokers"),
        (("describe", "missing"), "kept topics list"),
        (("delete", "missing", "--yes"), "kept topics list"),
    ]:
        result = on_cluster("topics", *arguments)
        assert (result.returncode, expected in result.stderr) == (1, True), result.stderr
        assert "way out" in result.stderr
        assert "Traceback" not in result.stderr


def test_wrong_usage_is_exit_code_2(on_cluster: Kept) -> None:
    assert on_cluster("topics", "create").returncode == 2
    assert on_cluster("topics", "create", "x", "--partitions", "0").returncode == 2
    assert on_cluster("nonsense").returncode == 2


def test_errors_are_json_when_json_was_asked_for(on_cluster: Kept) -> None:
    result = on_cluster("topics", "describe", "missing", "--json")
    document = json.loads(result.stdout)
    assert result.returncode == 1
    assert document["error"] == "FixConfiguration"
    assert document["way_out"]


def test_no_cluster_and_no_address_is_told(kept: Kept) -> None:
    result = kept("topics", "list")
    assert result.returncode == 1
    assert "kept up" in result.stderr
    assert "--bootstrap" in result.stderr


def test_an_address_without_brokers_is_told(kept: Kept, cluster: Cluster) -> None:
    by_name = kept("topics", "list", KEPT_BOOTSTRAP=cluster.bootstrap)
    assert by_name.returncode == 0, by_name.stderr
