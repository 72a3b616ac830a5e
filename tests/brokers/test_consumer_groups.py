"""Groups: where they begin, how members share, what lost progress means, and what handlers give up."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from typing import Any

import pytest

from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.consumer.consuming import Consumer
from kept.consumer.dead_letters import read_letter
from kept.consumer.policies import AfterEach, Every
from kept.consumer.records import Record
from kept.consumer.retrying import Retry
from kept.errors import FixConfiguration, KeptError, ProgressLost, SourceChanged
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce, Guarantee
from kept.local import Cluster
from kept.producer import Producer
from tests.brokers.groups import Watcher, fill, make_topic
from tests.conftest import Eventually, Grow

AT_LEAST, AT_MOST = AtLeastOnce(), AtMostOnce()
QUICK = {"topic.metadata.refresh.interval.ms": 500}


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@contextmanager
def in_background(consumer: Consumer, seen: list[Record]) -> Iterator[Consumer]:
    """The loop in a thread of its own; what it raised is raised here."""
    failed: list[BaseException] = []

    def loop() -> None:
        try:
            with consumer:
                for record in consumer:
                    seen.append(record)  # noqa: PERF402 - one by one, as they come
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield consumer
    finally:
        consumer.stop()
        thread.join(60)
    assert not failed, failed


def read_on(consumer: Consumer) -> None:
    """Read, until it is refused; not for ever where it is not. A group waits for a member whose leave was lost."""
    had: list[object] = []

    def stop() -> None:
        had.extend((consumer.partitions, consumer.idle_for))
        consumer.stop()

    timer = threading.Timer(120, stop)
    timer.start()
    try:
        with consumer:
            list(consumer)
    finally:
        timer.cancel()
    pytest.fail(f"nothing refused it; its partitions, and for how long nothing came: {had}")


def born(consumer: Consumer, eventually: Eventually) -> None:
    """Let a group begin, and go again."""
    with in_background(consumer, []):
        eventually(lambda: consumer.partitions, "partitions", within=60)


def test_members_share_the_partitions_and_groups_do_not(
    cluster: Cluster, topic: str, group: str, eventually: Eventually
) -> None:
    """Four members for three partitions: one has none, and waits without complaint."""
    watcher = Watcher(cluster.bootstrap, group, topic, 3)
    seen: list[list[Record]] = [[], [], [], []]
    elsewhere: list[Record] = []
    with ExitStack() as stack:
        members = [
            stack.enter_context(
                in_background(Consumer(cluster.bootstrap, topic, group=group, guarantee=AT_LEAST), found)
            )
            for found in seen
        ]
        other = Consumer(cluster.bootstrap, topic, group=f"other-{group}", guarantee=AT_LEAST)
        stack.enter_context(in_background(other, elsewhere))
        eventually(
            lambda: sorted(len(member.partitions) for member in members) == [0, 1, 1, 1],
            "one partition each",
            within=90,
        )
        fill(cluster.bootstrap, topic, range(30), 3)
        eventually(lambda: sum(map(len, seen)) == 30 and len(elsewhere) == 30, "every record in both groups")
        assert watcher.members() == 4
    assert watcher.recorded() == [10, 10, 10]
    assert sorted(len(found) for found in seen) == [0, 10, 10, 10]
    watcher.close()


@pytest.mark.parametrize("guarantee", [AT_LEAST, AT_MOST], ids=lambda each: each.word)
@pytest.mark.parametrize("by_time", [False, True])
def test_the_end_is_chosen_once_for_all_partitions(
    cluster: Cluster, topic: str, group: str, guarantee: Guarantee, by_time: bool, eventually: Eventually
) -> None:
    """What comes while nobody runs is read later, also in partitions that had no record at the birth."""
    fill(cluster.bootstrap, topic, range(6), 3)
    time.sleep(0.01)
    start = datetime.now(timezone.utc) if by_time else Start.END
    watcher = Watcher(cluster.bootstrap, group, topic, 3)

    def consumer() -> Consumer:
        return Consumer(cluster.bootstrap, topic, group=group, guarantee=guarantee, start=start)

    born(consumer(), eventually)
    assert watcher.recorded() == [2, 2, 2]
    fill(cluster.bootstrap, topic, range(6, 12), 3)
    seen: list[Record] = []
    with in_background(consumer(), seen):
        eventually(lambda: len(seen) == 6, "what was written since the birth")
    assert sorted(int(record.value or b"") for record in seen) == list(range(6, 12))
    watcher.close()


def test_a_moment_in_the_past_begins_there(cluster: Cluster, group: str, eventually: Eventually) -> None:
    topic = make_topic(cluster.bootstrap, 1)
    an_hour_ago = int(time.time()) - 3600  # older than the topic's retention would be deleted under the test
    with Producer(cluster.bootstrap, AT_LEAST) as producer:
        for number in range(5):
            producer.send(topic, str(number), timestamp=(an_hour_ago + number) * 1000)
    seen: list[Record] = []
    moment = datetime.fromtimestamp(an_hour_ago + 3, timezone.utc)
    with in_background(Consumer(cluster.bootstrap, topic, group=group, guarantee=AT_LEAST, start=moment), seen):
        eventually(lambda: len(seen) == 2, "the records since that moment")
    assert [record.value for record in seen] == [b"3", b"4"]


@pytest.mark.parametrize("guarantee", [AT_LEAST, AT_MOST], ids=lambda each: each.word)
def test_partitions_added_later_are_read_from_their_beginning(
    cluster: Cluster, group: str, guarantee: Guarantee, eventually: Eventually, grow: Grow
) -> None:
    topic = make_topic(cluster.bootstrap, 1)
    watcher = Watcher(cluster.bootstrap, group, topic, 3)
    more: dict[str, Any] = {"group": group, "guarantee": guarantee, "start": Start.END, **QUICK}
    born(Consumer(cluster.bootstrap, topic, **more), eventually)
    grow(topic, 3)
    fill(cluster.bootstrap, topic, range(9), 3)
    seen: list[Record] = []
    with in_background(Consumer(cluster.bootstrap, topic, **more), seen):
        eventually(lambda: len(seen) == 9, "every record, although the group begins at the end")
    assert watcher.recorded() == [3, 3, 3]
    watcher.set_by_hand({2: 0})
    watcher.delete()
    watcher.set_by_hand({0: 3, 1: 3})
    with pytest.raises(ProgressLost, match=r"partitions \[2\]"):  # the last one: it was known, so it is not new
        read_on(Consumer(cluster.bootstrap, topic, **more))
    watcher.close()


def test_progress_that_was_deleted_is_never_taken_for_a_beginning(
    cluster: Cluster, topic: str, group: str, eventually: Eventually
) -> None:
    fill(cluster.bootstrap, topic, range(6), 3)
    watcher = Watcher(cluster.bootstrap, group, topic, 3)
    born(Consumer(cluster.bootstrap, topic, group=group, guarantee=AT_MOST), eventually)
    watcher.delete()
    with pytest.raises(ProgressLost, match="its progress is gone"):
        read_on(Consumer(cluster.bootstrap, topic, group=group, guarantee=AT_MOST))
    seen: list[Record] = []  # at least once may read again, so it does
    with in_background(Consumer(cluster.bootstrap, topic, group=group, guarantee=AT_LEAST), seen):
        eventually(lambda: len(seen) == 6, "everything, from the beginning")
    watcher.close()


def test_a_topic_made_again_is_another_source(cluster: Cluster, group: str, eventually: Eventually) -> None:
    topic = make_topic(cluster.bootstrap, 1)
    born(Consumer(cluster.bootstrap, topic, group=group, guarantee=AT_MOST), eventually)
    admin = Watcher(cluster.bootstrap, group, topic)
    admin.admin.delete_topics([topic])[topic].result(30)
    eventually(lambda: topic not in [each.name for each in Topics(cluster.bootstrap).list()], "the topic gone")
    Topics(cluster.bootstrap).create(topic, 1, ExactlyOnce("tests"))
    with pytest.raises(SourceChanged, match="has read another topic named"):
        read_on(Consumer(cluster.bootstrap, topic, group=group, guarantee=AT_MOST))
    admin.close()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"group": ""}, "none is named"),
        ({"group": None}, "none is named"),
        ({"topics": []}, "no topic"),
        ({"topics": ""}, "no topic"),
        ({"commit": "each"}, "is no policy"),
        ({"guarantee": AtMostOnce(), "commit": Every()}, "not by the clock"),
        ({"guarantee": AtLeastOnce}, "is no guarantee"),
        ({"start": "end"}, "cannot begin"),
        ({"guarantee": ExactlyOnce("x"), "group": None, "commit": AfterEach()}, "no policy to choose"),
        ({"guarantee": ExactlyOnce("x")}, "the name of the guarantee"),
        ({"enable.auto.commit": True}, "weakens"),
        ({"no.such.setting": 1}, "no.such.setting"),
    ],
)
def test_what_is_wrong_is_told_at_once(cluster: Cluster, wrong: dict[str, Any], told: str) -> None:
    right: dict[str, Any] = {"topics": "any", "group": "any", "guarantee": AT_LEAST}
    with pytest.raises(FixConfiguration, match=told):
        Consumer(cluster.bootstrap, **{**right, **wrong})


def test_a_topic_that_is_not_there_is_told_before_the_first_record(cluster: Cluster, topic: str, group: str) -> None:
    with (
        Consumer(cluster.bootstrap, "no-such-topic", group=group, guarantee=AT_LEAST) as consumer,
        pytest.raises(FixConfiguration, match="the topic is not there"),
    ):
        iter(consumer)
    with Consumer(cluster.bootstrap, topic, group=group, guarantee=AT_LEAST) as consumer:
        with pytest.raises(FixConfiguration, match="the topic is not there"):
            consumer.run(print, dead_letters="no-such-topic")
        with pytest.raises(FixConfiguration, match="is none"):
            next(consumer.batches(0))


def test_a_handler_is_tried_again_then_its_record_is_buried_whole(cluster: Cluster, group: str) -> None:
    topic, dead = make_topic(cluster.bootstrap, 1), make_topic(cluster.bootstrap, 1)
    with Producer(cluster.bootstrap, AT_LEAST) as producer:
        for number in range(4):
            producer.send(topic, f"value {number}", key=b"\x00key", headers=[("a", b"\xff"), ("a", None)])
    tried: list[int] = []
    with Consumer(cluster.bootstrap, topic, group=group, guarantee=AT_LEAST) as consumer:

        def handler(record: Record) -> None:
            tried.append(record.offset)
            if record.offset == 1 and tried.count(1) < 3:
                raise ValueError("passes")
            if record.offset == 2:
                raise ValueError("never passes")
            if record.offset == 3:
                consumer.stop()

        consumer.run(handler, retry=Retry(times=2, first=0.01), dead_letters=dead)
    assert tried == [0, 1, 1, 1, 2, 2, 2, 3]
    with Reader(cluster.bootstrap, dead, start=Start.BEGINNING) as reader:
        (letter,) = map(read_letter, reader.to_end())
    assert (letter.place, letter.offset, letter.group) == ((topic, 0), 2, group)
    assert letter.reason == "ValueError: never passes"
    assert (letter.key, letter.value) == (b"\x00key", b"value 2")
    assert letter.headers == (("a", b"\xff"), ("a", None))


def test_stopped_between_two_tries_the_record_is_neither_done_nor_buried(cluster: Cluster, group: str) -> None:
    topic, dead = make_topic(cluster.bootstrap, 1), make_topic(cluster.bootstrap, 1)
    fill(cluster.bootstrap, topic, range(3))
    watcher = Watcher(cluster.bootstrap, group, topic)
    with Consumer(cluster.bootstrap, topic, group=group, guarantee=AT_LEAST) as consumer:

        def handler(record: Record) -> None:
            if record.offset == 1:
                consumer.stop()
                raise ValueError("would pass later")

        consumer.run(handler, retry=Retry(times=3, first=5.0), dead_letters=dead)
    assert watcher.recorded() == [1]
    with Reader(cluster.bootstrap, dead, start=Start.BEGINNING) as reader:
        assert list(reader.to_end()) == []
    watcher.close()


def test_a_record_whose_partition_went_and_came_back_is_not_tried_again(
    cluster: Cluster, group: str, eventually: Eventually
) -> None:
    """While it waits for its next try another member does it and the ones behind it, and leaves."""
    topic, beside = make_topic(cluster.bootstrap, 1), make_topic(cluster.bootstrap, 1)
    fill(cluster.bootstrap, topic, range(3))
    done: list[tuple[str, int]] = []
    failed = threading.Event()
    session: dict[str, Any] = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
    # Only the first reads the topic beside it, so that this one goes to whoever comes.
    first = Consumer(cluster.bootstrap, [topic, beside], group=group, guarantee=AT_LEAST, **session)

    def handler(record: Record) -> None:
        if not failed.is_set():
            failed.set()
            raise ValueError("would pass later")
        done.append(("first", record.offset))

    def run() -> None:
        with first:
            first.run(handler, retry=Retry(times=1, first=20.0))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert failed.wait(60)
        seen: list[Record] = []
        with in_background(Consumer(cluster.bootstrap, topic, group=group, guarantee=AT_LEAST, **session), seen):
            eventually(lambda: len(seen) == 3, "the other member does them", within=60)
        eventually(lambda: (topic, 0) in first.partitions, "it has come back", within=60)
        fill(cluster.bootstrap, topic, ["3"])
        eventually(lambda: done, "the first goes on", within=60)
    finally:
        first.stop()
        thread.join(60)
    assert done == [("first", 3)], "what the other one did is behind us"


def test_without_dead_letters_the_error_ends_the_loop_and_the_record_is_not_done(cluster: Cluster, group: str) -> None:
    topic = make_topic(cluster.bootstrap, 1)
    fill(cluster.bootstrap, topic, range(3))
    watcher = Watcher(cluster.bootstrap, group, topic)
    for guarantee, recorded in ((AT_LEAST, 0), (AT_MOST, 1)):
        with (
            pytest.raises(ZeroDivisionError),
            Consumer(cluster.bootstrap, topic, group=group, guarantee=guarantee) as consumer,
        ):
            consumer.run(lambda record: 1 // 0, retry=Retry(times=0))
        assert watcher.recorded() == [recorded]
    with (
        pytest.raises(KeptError, match="tries nothing twice"),
        Consumer(cluster.bootstrap, topic, group=group, guarantee=AT_MOST) as consumer,
    ):
        consumer.run(print, retry=Retry())
    watcher.close()
