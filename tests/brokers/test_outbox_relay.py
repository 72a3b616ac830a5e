"""The relay of an outbox against what passes: a topic that a broker does not know yet, a client that is lost."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path

import pytest

from kept.admin.topics import Topics
from kept.errors import TryAgain
from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.local import Cluster
from kept.outbox import Outbox, Relay
from kept.outbox import topics as looking
from kept.outbox.backlog import Entry
from kept.outbox.journal import Journal
from kept.outbox.topics import Destinations
from tests.brokers.pipes import new_topic, values
from tests.conftest import Eventually


def entry_for(topic: str, partition: int | None) -> Entry:
    return Entry(1, topic, None, b"x", (), partition, None, 1)


def waits(destinations: Destinations, entry: Entry) -> bool:
    """Whether it is waited for; it must not be refused."""
    try:
        assert destinations.refused([entry]) == []
    except TryAgain:
        return True
    return False


@pytest.mark.parametrize("partition", [None, 1])
def test_a_topic_that_was_seen_is_waited_for_anew_when_a_broker_does_not_know_it(
    cluster: Cluster, eventually: Eventually, partition: int | None
) -> None:
    """Deleted here: what a broker answers that has just started and was not told of the topic yet."""
    name, patience = f"late-{uuid.uuid4().hex[:8]}", 2.0
    destinations = Destinations({"bootstrap.servers": cluster.bootstrap, "log_level": 0}, patience)
    entry = entry_for(name, partition)
    assert waits(destinations, entry)
    begun = time.monotonic()
    Topics(cluster.bootstrap).create(name, 2, ExactlyOnce("tests"))
    eventually(lambda: not waits(destinations, entry), "it is seen")
    Topics(cluster.bootstrap).delete(name)
    eventually(lambda: time.monotonic() > begun + patience, "patience with the first absence would be over")

    def missing() -> bool:
        destinations.forget()
        return waits(destinations, entry)

    eventually(missing, "it is missing again, and waited for")
    eventually(lambda: _is_refused(destinations, entry), "patience ends the second time too")


def _is_refused(destinations: Destinations, entry: Entry) -> bool:
    try:
        return destinations.refused([entry]) != []
    except TryAgain:
        return False


def test_an_absence_that_nobody_looked_at_for_long_is_not_counted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """A topic was missing once, and the next record for it came long after: it was not looked for all that time."""
    destinations = Destinations({"bootstrap.servers": cluster.bootstrap, "log_level": 0}, 0.2)
    entry = entry_for(f"never-{uuid.uuid4().hex[:8]}", None)
    eventually(lambda: _is_refused(destinations, entry), "it was missing for long enough")
    assert _is_refused(destinations, entry), "as is the next record for it"
    monkeypatch.setattr(looking, "LOOKS_APART", 0.0)
    last = time.monotonic()
    eventually(lambda: time.monotonic() > last + 0.2, "the last look is long ago")
    assert waits(destinations, entry)


def test_a_client_that_is_lost_is_replaced(cluster: Cluster, tmp_path: Path, eventually: Eventually) -> None:
    """At least once: with this setting, a record that the broker refuses ends the client that sent it for good."""
    topic = new_topic(cluster.bootstrap, 1, max_message_bytes=20_000)
    with Outbox(tmp_path / "outbox.db") as outbox:
        outbox.send_all([(topic, value) for value in ("1", "2", "x" * 100_000, "3")])
        journal = Journal(outbox.path)
        work = Relay(journal, cluster.bootstrap, AtLeastOnce(), **{"enable.gapless.guarantee": True})
        thread = threading.Thread(target=work.run)
        thread.start()
        try:
            eventually(lambda: outbox.lag().records == 0, "everything is relayed or set aside")
            outbox.send(topic, "4")
            eventually(lambda: outbox.lag().records == 0, "and what comes later too")
        finally:
            work.stop()
            thread.join(60)
        assert [each.entry.position for each in journal.refused()] == [3]
        journal.close()
    assert set(values(cluster.bootstrap, topic)) == {b"1", b"2", b"3", b"4"}
