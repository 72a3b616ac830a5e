"""Progress from Kafka to Kafka that is not what we left: a person must look, and nothing is written meanwhile."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from confluent_kafka import Consumer as Client
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from kept.admin.topics import Topics
from kept.consumer.beginning import Beginning
from kept.consumer.consuming import Consumer
from kept.consumer.outgoing import Output, Transaction
from kept.consumer.positions import Next
from kept.consumer.records import Place, Record
from kept.errors import KeptError, ProgressLost, ProgressMoved, SourceChanged
from kept.guarantees import ExactlyOnce
from kept.local import Cluster
from tests.brokers.pipes import QUICK, copying, fill, member, new_name, new_topic, pipe, values
from tests.conftest import Eventually, Kept

FIRST = [f"record-{number}" for number in range(6)]
WANTED = [value.encode() for value in FIRST]


@pytest.fixture
def begun(cluster: Cluster) -> tuple[str, str, str]:
    """A source, a sink and the name of a pipeline that has read the one into the other."""
    source, sink, name = new_topic(cluster.bootstrap), new_topic(cluster.bootstrap), new_name()
    fill(cluster.bootstrap, source, FIRST)
    pipe(cluster.bootstrap, source, name, copying(sink))
    return source, sink, name


def test_positions_are_signed(cluster: Cluster, begun: tuple[str, str, str]) -> None:
    source, _, name = begun
    client = Client({"bootstrap.servers": cluster.bootstrap, "group.id": f"kept.{name}", "log_level": 0})
    found = client.committed([TopicPartition(source, number) for number in range(3)], timeout=30)
    client.close()
    assert [position.offset for position in found] == [2, 2, 2]
    assert all((position.metadata or "").startswith("kept 1 ") for position in found)
    assert len({position.metadata for position in found}) == 1


def way_out_of(error: KeptError, where: str) -> list[str]:
    """The command that an error names, as a person would type it."""
    command = re.search("`kept ([^`]+)`", error.way_out)
    assert command, error.way_out
    return command[1].replace("WHERE", where).split()


def test_a_strangers_commit_is_told(cluster: Cluster, on_cluster: Kept, begun: tuple[str, str, str]) -> None:
    source, sink, name = begun
    stranger = Client({"bootstrap.servers": cluster.bootstrap, "group.id": f"kept.{name}", "log_level": 0})
    stranger.commit(offsets=[TopicPartition(source, 0, 0)], asynchronous=False)
    stranger.close()
    with pytest.raises(ProgressMoved, match="lacks our signature") as told:
        pipe(cluster.bootstrap, source, name, copying(sink), until={(source, 0): 99})
    assert values(cluster.bootstrap, sink) == WANTED
    assert on_cluster(*way_out_of(told.value, "2")).returncode == 0
    fill(cluster.bootstrap, source, ["record-7"], partition=0)
    pipe(cluster.bootstrap, source, name, copying(sink))
    assert values(cluster.bootstrap, sink) == [*WANTED, b"record-7"]


def test_a_topic_made_again_is_another_source(cluster: Cluster, begun: tuple[str, str, str]) -> None:
    source, sink, name = begun
    topics = Topics(cluster.bootstrap)
    topics.delete(source)
    _make_again(topics, source)
    fill(cluster.bootstrap, source, [*FIRST, *FIRST])
    with pytest.raises(SourceChanged, match="another topic named"):
        pipe(cluster.bootstrap, source, name, copying(sink))
    assert values(cluster.bootstrap, sink) == WANTED


def test_a_topic_made_again_under_a_running_member(
    cluster: Cluster, begun: tuple[str, str, str], eventually: Eventually
) -> None:
    """Between taking its records and committing them: the look before the commit sees it."""
    source, sink, name = begun
    topics = Topics(cluster.bootstrap)
    fill(cluster.bootstrap, source, ["one more"], partition=0)
    again: list[bytes] = []

    def transform(record: Record) -> Output:
        if not again:
            again.append(record.value or b"")
            topics.delete(source)
            _make_again(topics, source)
        return Output(sink, record.value)

    with pytest.raises(SourceChanged, match="deleted and made again"):
        pipe(cluster.bootstrap, source, name, transform)
    assert again == [b"one more"]
    assert values(cluster.bootstrap, sink) == WANTED


def test_a_deleted_group_is_lost_progress(cluster: Cluster, on_cluster: Kept, begun: tuple[str, str, str]) -> None:
    source, sink, name = begun
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for answer in admin.delete_consumer_groups([f"kept.{name}"]).values():
        answer.result()
    with pytest.raises(ProgressLost, match="its progress is gone") as told:
        pipe(cluster.bootstrap, source, name, copying(sink))
    assert values(cluster.bootstrap, sink) == WANTED
    assert on_cluster(*way_out_of(told.value, "2"), "--partition", "0").returncode == 0
    with pytest.raises(ProgressLost, match=r"for partitions \[1, 2\]"):
        pipe(cluster.bootstrap, source, name, copying(sink))
    assert on_cluster(*way_out_of(told.value, "2")).returncode == 0
    fill(cluster.bootstrap, source, ["record-7"], partition=0)
    pipe(cluster.bootstrap, source, name, copying(sink))
    assert values(cluster.bootstrap, sink) == [*WANTED, b"record-7"]


def test_a_birth_that_comes_between_two_looks_is_no_loss(
    cluster: Cluster, begun: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two members of a new group begin at once: one looks for progress just before the other has founded it."""
    source, sink, name = begun
    fill(cluster.bootstrap, source, ["one more"], partition=0)
    looks: list[int] = []
    look = Beginning._committed

    def before_the_founder(beginning: Beginning, places: Sequence[Place]) -> dict[Place, Next | None]:
        looks.append(len(places))
        return dict.fromkeys(places) if len(looks) <= 2 else look(beginning, places)

    monkeypatch.setattr(Beginning, "_committed", before_the_founder)
    pipe(cluster.bootstrap, source, name, copying(sink))
    assert len(looks) > 2
    assert values(cluster.bootstrap, sink) == [b"one more", *WANTED]


def test_the_groups_metadata_is_taken_at_every_commit(
    cluster: Cluster, begun: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """Rule 11: each transaction carries the generation of its moment, and a member without an id commits nothing."""
    source, sink, name = begun
    carried: list[object] = []
    commit = Transaction.commit

    def spied(self: Transaction, positions: list[TopicPartition], group: object) -> None:
        carried.append(group)
        commit(self, positions, group)

    monkeypatch.setattr(Transaction, "commit", spied)
    with member(cluster.bootstrap, source, name, copying(sink)) as one:
        eventually(lambda: len(one.consumer.partitions) == 3, "the assignment")
        fill(cluster.bootstrap, source, ["before"], partition=0)
        eventually(lambda: b"before" in values(cluster.bootstrap, sink), "the first record")
        with member(cluster.bootstrap, source, name, copying(sink)) as other:
            eventually(lambda: 0 < len(other.consumer.partitions) < 3, "a rebalance")
        eventually(lambda: len(one.consumer.partitions) == 3, "all partitions again", 60)
        fill(cluster.bootstrap, source, ["after"], partition=0)
        eventually(lambda: b"after" in values(cluster.bootstrap, sink), "the last record")
    assert len(set(carried)) > 1
    assert all(b"kept." in metadata for metadata in carried if isinstance(metadata, bytes))


def test_a_member_without_an_id_commits_nothing(
    cluster: Cluster, begun: tuple[str, str, str], eventually: Eventually
) -> None:
    """The control: the coordinator itself lets metadata without a member's id through, beside a live member."""
    from confluent_kafka import Producer

    source, sink, name = begun
    with member(cluster.bootstrap, source, name, copying(sink)) as one:
        # Else it would find the stranger's position where it begins, and stop.
        eventually(lambda: len(one.consumer.partitions) == 3, "the member has its partitions")
        outsider = Client({"bootstrap.servers": cluster.bootstrap, "group.id": f"kept.{name}", "log_level": 0})
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": new_name(), "log_level": 0})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(source, 0, 2)], outsider.consumer_group_metadata(), 30)
        producer.commit_transaction(30)
        outsider.close()
    consumer = Consumer(cluster.bootstrap, source, guarantee=ExactlyOnce(new_name()), **QUICK)
    loop = consumer._into_kafka_loop(ExactlyOnce(new_name()), 0.5, {})
    with pytest.raises(Exception, match="not a member of its group"):
        loop._membership()
    consumer.close()


def _make_again(topics: Topics, name: str) -> None:
    import time

    from kept.errors import FixConfiguration

    deadline = time.monotonic() + 30
    while True:
        try:
            topics.create(name, 3, ExactlyOnce("tests"))
        except FixConfiguration:  # its deletion is still under way
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
