"""A coordinator that is found when nobody waits any more: the client library aborts the process, kept does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from kept.coordinator import ask_coordinator
from kept.local import Cluster
from kept.verify.proxy import Api, Delay, Direction, KafkaProxy, Rule, beside
from tests.brokers.programs.asks_coordinators import FOUND_AFTER, TIMES


@pytest.fixture
def late(cluster: Cluster) -> Iterator[KafkaProxy]:
    """Who begins at this proxy finds coordinators late."""
    with beside(cluster) as proxy:
        proxy.add(Rule(Api.FIND_COORDINATOR, Direction.RESPONSE, Delay(FOUND_AFTER)))
        yield proxy


def asking(how: str, bootstrap: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.brokers.programs.asks_coordinators", how, bootstrap],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        # What was freed is written over: the fault does not depend on what memory happens to hold then.
        env={**os.environ, "MALLOC_PERTURB_": "165"},
    )


def test_who_asks_with_a_plain_client_is_aborted(late: KafkaProxy) -> None:
    """The control. When it fails, the library is mended, and kept.coordinator may go."""
    ended = asking("plain", late.bootstrap)
    assert ended.returncode == -signal.SIGABRT, ended
    assert "refcnt > 0" in ended.stderr


def test_who_asks_through_kept_is_told_and_goes_on(late: KafkaProxy) -> None:
    ended = asking("ours", late.bootstrap)
    assert (ended.returncode, ended.stdout) == (0, f"{TIMES} unanswered, and alive\n"), ended


def test_a_coordinator_that_is_not_found_in_time_is_told_as_such(late: KafkaProxy) -> None:
    with pytest.raises(KafkaException) as told:
        ask_coordinator(
            {"bootstrap.servers": late.bootstrap},
            lambda client, timeout: client.describe_consumer_groups(["any"], request_timeout=timeout),
            0.2,
        )
    assert told.value.args[0].code() == KafkaError._TIMED_OUT
