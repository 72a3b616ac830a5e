"""The outbox on real brokers: each record once and in order, whoever is killed, fenced or restored meanwhile."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka import Producer as Client
from confluent_kafka.admin import AdminClient

from kept.admin.topics import Topics
from kept.consumer import Reader, Record, Start
from kept.errors import Fenced, FixConfiguration, ProgressLost, SourceChanged
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.local import Cluster
from kept.outbox import Outbox, Relay, carrying, relay
from kept.outbox.journal import Journal
from kept.progress import keys
from kept.verify.proxy import Api, Direction, Reset, Rule, beside
from tests.brokers.outbox_proof import audit, played, said, start
from tests.brokers.programs.outbox_life import FENCED, World
from tests.conftest import Eventually
from tests.pure.outbox_files import as_left_by_a_dead_process

QUICK: dict[str, Any] = {"transaction.timeout.ms": 6000}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


def records(cluster: Cluster, topic: str) -> list[Record]:
    with Reader(cluster.bootstrap, topic, start=Start.BEGINNING) as reader:
        return list(reader.to_end())


def values(cluster: Cluster, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in records(cluster, topic)]


def filled(path: Path, topic: str, numbers: range) -> None:
    with Outbox(path) as outbox:
        outbox.send_all([(topic, str(number), "one key") for number in numbers])


@contextmanager
def opened(path: Path) -> Iterator[Journal]:
    journal = Journal(path)
    try:
        yield journal
    finally:
        journal.close()


def relayed(cluster: Cluster, path: Path, guarantee: ExactlyOnce | AtLeastOnce | None = None) -> int:
    """Everything that waits."""
    with opened(path) as journal:
        work = Relay(journal, cluster.bootstrap, guarantee, patience=1.0)
        work.run(until_empty=True)
        return work.relayed


def text(numbers: range) -> list[str]:
    return [str(number) for number in numbers]


def test_a_record_arrives_as_it_was_sent(cluster: Cluster, topic: str, path: Path) -> None:
    stamp = uuid.uuid4()
    with Outbox(path, relay_to=cluster.bootstrap) as outbox:
        outbox.send(
            topic, b"\x00\xff", key=b"k", headers=[("a", None), ("b", "c")], partition=2, timestamp=1234567890123
        )
        outbox.send(topic, None, key="gone", idempotency_key=stamp)
        assert outbox.flush(60) == 0
        metrics = outbox.metrics()
        assert (metrics.enqueued, metrics.relayed, metrics.records, metrics.last_error) == (2, 2, 0, None)
    one, two = sorted(records(cluster, topic), key=lambda record: record.value is None)
    assert (one.value, one.key, one.partition, one.timestamp) == (b"\x00\xff", b"k", 2, 1234567890123)
    assert list(one.headers) == [("a", None), ("b", b"c")]
    assert (two.value, two.key) == (None, b"gone")
    assert keys.read(list(two.headers), two.value) == stamp


@pytest.mark.slow
def test_six_seeds_of_deaths_and_an_outage(mended: Cluster, tmp_path: Path) -> None:
    """The sample; `make prove-outbox` is the whole."""
    verdicts = played(mended, range(6), tmp_path)
    print(*verdicts, sep="\n")
    assert all(verdict.good for verdict in verdicts)
    assert all(verdict.safe > 500 for verdict in verdicts)
    assert sum(verdict.deaths for verdict in verdicts) > 6, "the deaths struck"
    assert sum(verdict.in_the_outage for verdict in verdicts) > 100, "records were sent while no broker was there"


PLAIN = """
import os, signal, sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1], "acks": "all", "enable.idempotence": True, "linger.ms": 50})
for number in range(1000):
    producer.produce(sys.argv[2], str(number))
    producer.poll(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_plain_producer_loses_what_the_outbox_keeps(cluster: Cluster, topic: str, path: Path) -> None:
    """The control: `produce` returned a thousand times, and so did `send`; then both were killed."""
    killed = subprocess.run([sys.executable, "-c", PLAIN, cluster.bootstrap, topic], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(values(cluster, topic)) < 1000
    ours = PLAIN.replace("from confluent_kafka import Producer", "from kept.outbox import Outbox")
    ours = "\n".join(line for line in ours.splitlines() if "poll" not in line and "Producer(" not in line)
    ours = ours.replace("producer.produce(", "outbox.send(").replace(
        "for number", "outbox = Outbox(sys.argv[3])\nfor number"
    )
    name = f"{topic}-kept"
    Topics(cluster.bootstrap).create(name, 1, ExactlyOnce("tests"))
    killed = subprocess.run([sys.executable, "-c", ours, cluster.bootstrap, name, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert relayed(cluster, path) == 1000
    assert values(cluster, name) == text(range(1000))


def test_a_plain_producer_gives_up_in_an_outage_that_the_outbox_waits_for(
    cluster: Cluster, topic: str, path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """The other control: nobody dies, but the brokers are away for longer than the plain producer tries."""
    for limit in ("OPENED_WITHIN", "COMMITTED_WITHIN"):
        monkeypatch.setattr(carrying, limit, 3.0)
    again: dict[str, Any] = {"reconnect.backoff.max.ms": 200}
    name = f"{topic}-kept"
    Topics(cluster.bootstrap).create(name, 1, ExactlyOnce("tests"))
    failed: list[KafkaError | None] = []
    with beside(cluster) as proxy, Outbox(path, relay_to=proxy.bootstrap, **QUICK, **again) as outbox:
        outbox.send(name, "before", key="one key")
        plain = Client({"bootstrap.servers": proxy.bootstrap, "message.timeout.ms": 1500, "log_level": 0, **again})
        plain.produce(topic, "before")
        assert plain.flush(30) == 0
        assert outbox.flush(60) == 0
        proxy.cut()
        for number in range(100):
            plain.produce(topic, str(number), on_delivery=lambda error, _: failed.append(error))
            outbox.send(name, str(number), key="one key")
        eventually(lambda: plain.flush(0.1) == 0, "the plain producer has given its records up")
        proxy.mend()
        assert outbox.flush(60) == 0
        plain.produce(topic, "after")
        assert plain.flush(30) == 0
    assert [error and error.code() for error in failed] == [KafkaError._MSG_TIMED_OUT] * 100
    assert sorted(values(cluster, topic)) == ["after", "before"], "it lost them, though it lived on"
    assert values(cluster, name) == ["before", *text(range(100))]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_relay_killed_around_a_refusal_neither_loses_nor_repeats(
    cluster: Cluster, topic: str, tmp_path: Path, when: str
) -> None:
    world = World(cluster.bootstrap, topic, str(tmp_path), settings=dict(QUICK))
    with Outbox(world.path) as outbox:
        for value in ("1", "2", "x" * 2_000_000, "3"):
            outbox.send(topic, value, key="k")
    world.done.touch()
    world.relay = [(when, "setting aside", 1)]
    assert start(world, "relay").wait(90) == 0
    assert values(cluster, topic) == ["1", "2", "3"]
    with opened(world.path) as journal:
        assert [each.entry.position for each in journal.refused()] == [3]


def test_poison_is_proven_and_set_aside_and_the_others_keep_their_order(
    cluster: Cluster, topic: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Too large for the broker, in the middle of a batch; for a topic and a partition that are not there."""
    small = f"{topic}-small"
    Topics(cluster.bootstrap).create(small, 1, ExactlyOnce("tests"), {"max.message.bytes": "20000"})
    with Outbox(path) as outbox:
        outbox.send_all([(small, f"{number:03}" + "x" * 300) for number in range(50)])
        outbox.send(small, b"y" * 30_000)
        outbox.send_all([("no-such-topic", "x"), (topic, "x", None, None, 99)])
        outbox.send_all([(small, f"{number:03}" + "x" * 300) for number in range(50, 100)])
    assert relayed(cluster, path) == 100
    assert [value[:3] for value in values(cluster, small)] == [f"{number:03}" for number in range(100)]
    assert values(cluster, topic) == []
    with opened(path) as journal:
        reasons = {each.entry.position: each.reason for each in journal.refused()}
    assert set(reasons) == {51, 52, 53}
    with Outbox(path) as outbox:  # the last one is refused too: the position stays behind it, and that is no harm
        outbox.send_all([(small, "good"), (small, b"y" * 30_000)])
    assert [relayed(cluster, path), relayed(cluster, path)] == [1, 0]
    assert "too large" in reasons[51]
    assert "no-such-topic" in reasons[52]
    assert f"{topic}[99]" in reasons[53]
    assert caplog.text.count("was refused and set aside") == 4


def test_what_never_gets_through_together_is_halved_and_each_half_sent_once(
    cluster: Cluster, topic: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a transaction that is too long for its time: no record of it is to blame."""
    for name in ("OPENED_WITHIN", "COMMITTED_WITHIN"):
        monkeypatch.setattr(carrying, name, 2.0)
    monkeypatch.setattr(relay, "FAILURES", 2)
    with Outbox(path) as outbox:
        outbox.send_all([(topic, f"{number}" + "x" * 30_000, "one key") for number in range(8)])
    with beside(cluster) as proxy, opened(path) as journal:
        wide = Rule(Api.PRODUCE, Direction.REQUEST, Reset(), about=lambda frame: len(frame) > 150_000)
        narrow = proxy.add(wide)
        work = Relay(journal, proxy.bootstrap)
        work.run(until_empty=True)
    assert narrow.caught >= 2
    assert (work.relayed, work.refused) == (8, 0)
    assert [value[0] for value in values(cluster, topic)] == list("01234567")


def test_a_topic_that_is_made_in_time_loses_nothing(cluster: Cluster, path: Path, eventually: Eventually) -> None:
    name = f"late-{uuid.uuid4().hex[:8]}"
    with Outbox(path, relay_to=cluster.bootstrap) as outbox:
        outbox.send(name, "patient")
        eventually(lambda: name in (outbox.metrics().last_error or ""), "the relay says what it waits for")
        Topics(cluster.bootstrap).create(name, 1, ExactlyOnce("tests"))
        assert outbox.flush(60) == 0
        assert outbox.metrics().refused == 0
    assert values(cluster, name) == ["patient"]


def test_of_two_relays_one_is_fenced_for_good_and_each_record_is_there_once(
    cluster: Cluster, topic: str, tmp_path: Path, eventually: Eventually
) -> None:
    world = World(cluster.bootstrap, topic, str(tmp_path), records=100_000, pause=0.005, settings=dict(QUICK))
    sender, *relays = [start(world, what) for what in ("send", "relay", "relay")]
    try:
        eventually(lambda: FENCED in [process.poll() for process in relays], "one relay has ended", within=60)
        safe = len(said(world, "safe"))
        eventually(lambda: len(said(world, "safe")) > safe + 500, "the other has more to do")
        os.killpg(sender.pid, signal.SIGKILL)
        world.done.touch()
        assert sorted(process.wait(90) for process in relays) == [0, FENCED]
    finally:
        for process in (sender, *relays):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    verdict = audit(0, world)
    print(verdict)
    assert verdict.good


def test_a_relay_that_slept_while_another_took_over_ends(
    cluster: Cluster, topic: str, tmp_path: Path, eventually: Eventually
) -> None:
    world = World(cluster.bootstrap, topic, str(tmp_path), settings=dict(QUICK))
    filled(world.path, topic, range(100))
    sleeper = subprocess.Popen(
        [sys.executable, "-m", "tests.brokers.programs.outbox_life", "relay", world.as_argument()],
        stderr=subprocess.PIPE, start_new_session=True, text=True,
    )  # fmt: skip
    try:
        with opened(world.path) as journal:
            eventually(lambda: journal.lag().records == 0, "the first relay has begun")
        os.killpg(sleeper.pid, signal.SIGSTOP)
        filled(world.path, topic, range(100, 200))
        assert relayed(cluster, world.path) == 100
        os.killpg(sleeper.pid, signal.SIGCONT)
        filled(world.path, topic, range(200, 300))
        _, complaint = sleeper.communicate(timeout=60)
        assert sleeper.returncode == FENCED
        assert "taken over" in complaint
    finally:
        os.killpg(sleeper.pid, signal.SIGKILL) if sleeper.poll() is None else None
        sleeper.wait()
    assert relayed(cluster, world.path) == 100
    assert values(cluster, topic) == text(range(300))


STANDBY = """
import sys, time
from kept.outbox import Outbox
with Outbox(sys.argv[1], relay_to=sys.argv[2]) as outbox:
    while not outbox.metrics().relayed:
        time.sleep(0.02)
    print("relays", flush=True)
    time.sleep(600)
"""


def test_when_the_process_that_relays_is_killed_another_takes_over(
    cluster: Cluster, topic: str, path: Path, eventually: Eventually
) -> None:
    filled(path, topic, range(10))
    other = subprocess.Popen([sys.executable, "-c", STANDBY, str(path), cluster.bootstrap], stdout=subprocess.PIPE)
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == b"relays\n"
        with Outbox(path, relay_to=cluster.bootstrap) as outbox:
            outbox.send_all([(topic, str(number), "one key") for number in range(10, 20)])
            assert outbox.flush(60) == 0
            assert outbox.metrics().relayed == 0, "it stands by"
            other.kill()
            other.wait()
            outbox.send_all([(topic, str(number), "one key") for number in range(20, 30)])
            assert outbox.flush(60) == 0
            assert outbox.metrics().relayed == 10
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    assert values(cluster, topic) == text(range(30))


def test_without_brokers_everything_is_taken_and_told(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(carrying, "OPENED_WITHIN", 1.0)
    with Outbox(path, relay_to="localhost:1") as outbox:
        for number in range(100):
            outbox.send("t", str(number))
        eventually(lambda: outbox.metrics().last_error, "the relay says that no broker answers")
        metrics = outbox.metrics()
        assert (metrics.records, metrics.relayed) == (100, 0)
        assert metrics.bytes > 0
        assert metrics.oldest_age > 0
    assert "is not relayed now" in caplog.text
    with opened(path) as journal:
        assert "no broker answers" in (journal.word() or ""), "whoever looks later is told too"


def forgotten(cluster: Cluster, path: Path) -> None:
    """Kafka's position expires, as it does after a week."""
    with opened(path) as journal:
        group = ExactlyOnce(f"outbox-{journal.identity}").group
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_consumer_groups([group])[group].result(30)


def test_a_position_that_kafka_forgot_is_not_taken_for_zero(cluster: Cluster, topic: str, path: Path) -> None:
    filled(path, topic, range(10))
    relayed(cluster, path)
    forgotten(cluster, path)
    filled(path, topic, range(10, 20))
    assert relayed(cluster, path) == 10, "the journal knows where it stood, since nothing was in doubt"
    filled(path, topic, range(20, 30))
    forgotten(cluster, path)
    with opened(path) as journal:  # a relay that died before it noted what was confirmed
        journal.own(journal.standing().generation + 1)
        journal.attempt(25)
    with pytest.raises(ProgressLost, match="from 21 to 25 are in Kafka is not known"):
        relayed(cluster, path)
    assert values(cluster, topic) == text(range(20))
    assert relayed(cluster, path, AtLeastOnce()) == 10
    filled(path, topic, range(30, 40))
    assert relayed(cluster, path) == 10, "and exactly once goes on from there"
    assert values(cluster, topic) == text(range(40))


def test_an_idle_relay_renews_its_position(
    cluster: Cluster, topic: str, path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(relay, "REFRESH_EVERY", 0.1)
    filled(path, topic, range(3))
    relayed(cluster, path)
    forgotten(cluster, path)
    with opened(path) as journal:
        group = ExactlyOnce(f"outbox-{journal.identity}").group
        work = Relay(journal, cluster.bootstrap)
        thread = threading.Thread(target=work.run)
        thread.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

        def sequence() -> int:
            found = work._carrier._transactions._marks.glance()  # type: ignore[attr-defined]
            return 0 if found is None else int(found.sequence)

        try:
            eventually(lambda: sequence() >= 2, "the position was committed again though nothing was sent")
            assert group in {each.group_id for each in admin.list_consumer_groups().result(30).valid}
        finally:
            work.stop()
            thread.join(60)
    assert values(cluster, topic) == text(range(3))


def test_a_restored_journal_stops_the_relay(cluster: Cluster, topic: str, path: Path, tmp_path: Path) -> None:
    """Rule 13: as it was, and after it was written to, when its positions have been used twice."""
    with Outbox(path) as outbox:
        outbox.send_all([(topic, str(number), "one key") for number in range(5)])
        backups = [as_left_by_a_dead_process(path, tmp_path / name) for name in ("older", "written")]
        outbox.send_all([(topic, str(number), "one key") for number in range(5, 10)])
        same = as_left_by_a_dead_process(path, tmp_path / "same")
    relayed(cluster, path)
    with pytest.raises(SourceChanged, match="it was restored"):
        relayed(cluster, backups[0])
    filled(backups[1], topic, range(100, 110))
    with pytest.raises(SourceChanged, match="is not the one that was relayed"):
        relayed(cluster, backups[1])
    filled(same, topic, range(10, 12))
    assert relayed(cluster, same) == 2, "a copy that lacks nothing goes on"
    assert values(cluster, topic) == text(range(12))


def test_another_journal_under_the_same_name_stops_and_does_not_disturb(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    name = ExactlyOnce(f"relay-{uuid.uuid4().hex[:8]}")
    mine, other = tmp_path / "mine.db", tmp_path / "other.db"
    filled(mine, topic, range(3))
    filled(other, topic, range(50, 53))
    relayed(cluster, mine, name)
    with pytest.raises(SourceChanged, match="give each journal a name"):
        relayed(cluster, other, name)
    filled(mine, topic, range(3, 6))
    assert relayed(cluster, mine, name) == 3
    assert values(cluster, topic) == text(range(6))


def test_a_salvaged_journal_sends_what_was_not_sent_and_nothing_twice(
    cluster: Cluster, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Damaged after half of it was relayed, and before the relay could trim it."""
    path = tmp_path / "outbox.db"
    with Outbox(path) as outbox:
        outbox.send_all([(topic, str(number), "one key") for number in range(500)])
        dead = as_left_by_a_dead_process(path, tmp_path / "dead")  # what the relay confirms is not noted in it
    relayed(cluster, path)
    filled(dead, topic, range(500, 600))
    content = bytearray(dead.read_bytes())
    content[3] ^= 0xFF
    dead.write_bytes(content)
    assert relayed(cluster, dead) == 100
    assert "are intact and kept; lost: none" in caplog.text
    filled(dead, topic, range(600, 610))
    assert relayed(cluster, dead) == 10
    assert values(cluster, topic) == text(range(610))


def test_at_least_once_repeats_but_does_not_lose(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    world = World(cluster.bootstrap, topic, str(tmp_path), records=100, at_least_once=True)
    world.relay = [("after", "carrying, at least once", 1), ("before", "trimming", 2)]
    running = [start(world, what) for what in ("send", "relay")]
    assert [process.wait(90) for process in running] == [0, 0]
    verdict = audit(0, world)
    print(verdict)
    assert (verdict.lost, verdict.strange) == ([], [])
    assert verdict.safe == 400
    assert verdict.deaths >= 1
    assert verdict.twice, "the control: without the position in the transaction, these deaths repeat records"


def test_at_most_once_is_refused(cluster: Cluster, path: Path) -> None:
    with pytest.raises(FixConfiguration, match="would lose"):
        Outbox(path, relay_to=cluster.bootstrap, guarantee=AtMostOnce())


def test_a_relay_that_was_ended_is_told_by_close(
    cluster: Cluster, topic: str, path: Path, caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    logging.getLogger("kept").setLevel(logging.INFO)
    outbox = Outbox(path, relay_to=cluster.bootstrap)
    outbox.send(topic, "0")
    assert outbox.flush(60) == 0
    with opened(path) as journal:
        journal.own_without_a_mark()
    outbox.send(topic, "1")
    eventually(lambda: "taken over" in (outbox.metrics().last_error or ""), "the relay has ended")
    with pytest.raises(Fenced, match="taken over"):
        outbox.close()
    assert "has ended, and nothing is relayed" in caplog.text


def test_memory_stays_bounded_while_a_large_backlog_is_relayed(cluster: Cluster, topic: str, path: Path) -> None:
    """150 MB of records wait; the relay has a few of them in hand at a time."""
    program = (
        "import re, sys\nfrom pathlib import Path\nfrom kept.outbox import Relay\n"
        "from kept.outbox.journal import Journal\nrelay = Relay(Journal(Path(sys.argv[1])), sys.argv[2])\n"
        "def most(): return int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "before = most()\nrelay.run(until_empty=True)\nprint(relay.relayed, most() - before)"
    )
    with Outbox(path) as outbox:
        for _ in range(15):
            outbox.send_all([(topic, bytes(500_000)) for _ in range(20)])
    begun = time.monotonic()
    answer = subprocess.run(
        [sys.executable, "-c", program, str(path), cluster.bootstrap], check=True, capture_output=True, text=True
    )
    count, grown = map(int, answer.stdout.split())
    print(f"{time.monotonic() - begun:.1f} s, {grown / 1024:.0f} MB more")
    assert count == 300
    assert grown < 100 * 1024
