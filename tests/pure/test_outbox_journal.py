"""The journal: what was sent is on the disk in its order, bounded, shared by threads and processes."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kept.errors import DiskFull, Fenced, FixConfiguration, FixMachine, JournalFull, KeptError
from kept.outbox import Outbox, Sending
from kept.outbox import journal as journals
from kept.outbox.journal import Journal
from kept.outbox.locks import beside
from kept.outbox.pages import PAGE
from kept.outbox.rows import OVERHEAD, pack_headers, packed, unpack_headers
from kept.progress import keys
from tests.brokers.programs.outbox_life import dies
from tests.conftest import Eventually
from tests.pure.outbox_files import entries


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


def test_a_record_is_kept_as_it_was_given(path: Path) -> None:
    stamp = uuid.uuid4()
    with Outbox(path) as outbox:
        first = outbox.send("a", None)
        second = outbox.send(
            "b", '{"n": 1}', key=b"\x00\xff", headers=[("h", None), ("h", b""), ("é", "ü")], partition=7,
            timestamp=1234567890123, idempotency_key=stamp,
        )  # fmt: skip
        assert outbox.send_all([Sending("c", "x"), ("c", "y", "k")]) == range(second + 1, second + 3)
    one, two, three, four = entries(path)
    assert (one.position, one.topic, one.key, one.value, one.headers, one.partition) == (
        first,
        "a",
        None,
        None,
        (),
        None,
    )
    assert abs((one.timestamp or 0) / 1000 - time.time()) < 60, "the time of the call"
    assert (two.key, two.partition, two.timestamp) == (b"\x00\xff", 7, 1234567890123)
    assert two.headers == [("h", None), ("h", b""), ("é", "ü".encode()), (keys.NAME, str(stamp).encode())]
    assert keys.read(two.headers, two.value) == stamp
    assert [(each.topic, each.value, each.key) for each in (three, four)] == [("c", b"x", None), ("c", b"y", b"k")]


def test_stamps_are_the_producers(path: Path) -> None:
    with Outbox(path, stamp="content") as outbox:
        outbox.send("t", "same", key="k")
        outbox.send("t", "same", key="k")
    one, two = entries(path)
    assert keys.read(one.headers, one.value) == keys.read(two.headers, two.value) == keys.of_content("t", "k", "same")


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": ""}, {"topic": "no spaces"}, {"topic": "x" * 250}, {"topic": ".."}, {"value": 5}, {"key": 5.0},
        {"partition": -1}, {"partition": "0"}, {"partition": 2**31}, {"timestamp": 0}, {"timestamp": True},
        {"headers": [("a", 5)]}, {"headers": ["ab"]}, {"headers": [(1, "x")]}, {"idempotency_key": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_what_kafka_could_never_take_is_refused_at_once(path: Path, wrong: dict[str, object]) -> None:
    with Outbox(path) as outbox:
        with pytest.raises(FixConfiguration):
            outbox.send(**{"topic": "t", "value": "x", **wrong})  # type: ignore[arg-type]
        assert outbox.lag().records == 0


def test_headers_survive_their_packing() -> None:
    headers: list[tuple[str, bytes | None]] = [("", b""), ("a", None), ("ü" * 300, bytes(range(256)) * 300)]
    assert unpack_headers(pack_headers(headers)) == headers


def test_bounds_push_back_and_drop_nothing(path: Path) -> None:
    with Outbox(path, most_records=3) as outbox:
        outbox.send("t", "1")
        with pytest.raises(JournalFull, match="1 records wait, and 3 may"):
            outbox.send_all([("t", "2"), ("t", "3"), ("t", "4")])
        assert outbox.lag().records == 1, "all or none"
        outbox.send_all([("t", "2"), ("t", "3")])
        with pytest.raises(JournalFull):
            outbox.send("t", "4")
        journal = Journal(path)
        journal.own(1)
        journal.trim(1)
        journal.close()
        outbox.send("t", "4")  # there is room again
    with Outbox(path, most_bytes=1000) as outbox, pytest.raises(JournalFull, match="bytes wait"):
        outbox.send("t", "x" * 1000)
    with Outbox(path, most_age=0.05) as outbox:
        time.sleep(0.06)
        with pytest.raises(JournalFull, match="has waited for"):
            outbox.send("t", "5")
    assert [entry.value for entry in entries(path)] == [b"2", b"3", b"4"]


@pytest.mark.parametrize("bounds", [{"most_records": 0}, {"most_bytes": 0}, {"most_age": 0}, {"acks": "all"}], ids=str)
def test_senseless_settings_are_refused(path: Path, bounds: dict[str, object]) -> None:
    with pytest.raises(FixConfiguration):
        Outbox(path, **bounds)  # type: ignore[arg-type]


def commits_in_the_log(path: Path) -> int:
    """Counted by the format of the file, not by us: with synchronous=FULL each is one fsync."""
    log = beside(path, "wal").read_bytes()
    return sum(1 for at in range(32, len(log), 24 + PAGE) if struct.unpack_from(">I", log, at + 4)[0])


def test_senders_that_wait_together_share_an_fsync(path: Path) -> None:
    with Outbox(path) as outbox:
        assert outbox._journal is not None
        begun = threading.Barrier(33)

        def work() -> None:
            begun.wait()
            for number in range(10):
                outbox.send("t", str(number))

        threads = [threading.Thread(target=work) for _ in range(32)]
        for thread in threads:
            thread.start()
        begun.wait()
        for thread in threads:
            thread.join()
        metrics = outbox.metrics()
        assert (metrics.enqueued, metrics.records) == (320, 320)
        assert commits_in_the_log(path) == metrics.commits < 160
        outbox.send("t", "alone")
        assert commits_in_the_log(path) == metrics.commits + 1


WRITER = """
import sys
from kept.outbox import Outbox
with Outbox(sys.argv[1]) as outbox:
    print("open", flush=True)
    for number in range(int(sys.argv[3])):
        outbox.send("t", f"{sys.argv[2]}-{number}")
        print(number, flush=True)
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)], stdout=subprocess.PIPE, text=True
    )


def test_two_processes_send_into_one_journal(path: Path) -> None:
    for process in [writer(path, name, 200) for name in "ab"]:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert out.split()[-1] == "199"
    found = entries(path)
    assert [entry.position for entry in found] == list(range(1, 401))
    for name in "ab":
        mine = [(entry.value or b"").decode() for entry in found if (entry.value or b"").startswith(name.encode())]
        assert mine == [f"{name}-{number}" for number in range(200)]


def test_a_sender_that_is_killed_loses_nothing_that_it_was_told_is_safe(path: Path) -> None:
    process = writer(path, "x", 1_000_000)
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(50)]
    process.kill()
    told += process.stdout.read().split()
    process.wait()
    process.stdout.close()
    last = int(told[-1])
    assert process.returncode == -signal.SIGKILL
    found = [(entry.value or b"").decode() for entry in entries(path)]
    assert found == [f"x-{number}" for number in range(len(found))]
    assert last + 1 <= len(found) <= last + 2, "at most the one in hand is there without a word"


def test_a_fork_is_refused_and_harms_nobody(path: Path) -> None:
    with Outbox(path) as outbox:
        outbox.send("t", "parent")
        child = os.fork()
        if child == 0:
            try:
                outbox.send("t", "child")
            except FixConfiguration:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        outbox.send("t", "parent again")
    assert [entry.value for entry in entries(path)] == [b"parent", b"parent again"]


def test_closing_after_a_fork_ends_nothing_of_the_parents_and_waits_for_nothing(path: Path) -> None:
    """The fork comes while the writing thread has its lock; in the child nobody is there to give it back."""
    with Outbox(path) as outbox:
        outbox.send("t", "parent")
        with outbox._appender._lock:
            child = os.fork()
            if child == 0:
                signal.alarm(5)  # ends a child that waits
                outbox.close()
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        outbox.send("t", "parent again")
    assert [entry.value for entry in entries(path)] == [b"parent", b"parent again"]


FULL_DISK = """
import resource, sys
from kept.errors import KeptError
from kept.outbox import Outbox
outbox = Outbox(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
kept = 0
try:
    while True:
        outbox.send("t", b"x" * 1000)
        kept += 1
except KeptError as error:
    print(type(error).__name__, kept, flush=True)
"""


def test_a_disk_without_room_is_told_and_what_was_kept_stays(path: Path) -> None:
    out = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    kind, kept = out.split()
    assert kind in {DiskFull.__name__, FixMachine.__name__, "OutcomeUnknown"}
    assert len(entries(path)) in ({int(kept)} if kind != "OutcomeUnknown" else {int(kept), int(kept) + 1})


FAILING_DISK = """
import resource, sqlite3, sys, threading, time
from pathlib import Path
from kept.outbox import Outbox, Sending
path = Path(sys.argv[1])
outbox, held = Outbox(path), sqlite3.connect(path, isolation_level=None)
held.execute("BEGIN IMMEDIATE")  # the first batch waits inside its transaction, the others behind it
settled = [threading.Event() for _ in range(3)]
batches = []
for number, event in enumerate(settled):
    batches.append(outbox.begin([Sending("t", str(number) * 50_000)], event.set))
    while number == 0 and outbox._appender._waiting:
        time.sleep(0.001)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
held.execute("ROLLBACK")
for event in settled:
    assert event.wait(30)
print(*(type(batch.fate).__name__ for batch in batches), flush=True)
try:
    outbox.send("t", "later")
except Exception as error:
    print(type(error).__name__)
"""


def test_only_what_was_begun_when_the_disk_failed_is_in_doubt(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILING_DISK, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["OutcomeUnknown", "FixMachine", "FixMachine", "FixMachine"], done.stderr
    assert len(entries(path)) <= 1


def test_a_closed_outbox_says_so(path: Path) -> None:
    outbox = Outbox(path)
    outbox.close()
    with pytest.raises(FixConfiguration, match="closed"):
        outbox.send("t", "x")
    with pytest.raises(FixConfiguration, match="closed"):
        outbox.metrics()


def test_a_relay_that_was_succeeded_may_not_touch_the_journal(path: Path) -> None:
    with Outbox(path) as outbox:
        outbox.send_all([("t", str(number)) for number in range(10)])
    old, new = Journal(path), Journal(path)
    old.own(1)
    old.trim(3)
    entry = old.read(3, 1)[0]
    new.own(2)
    calls: list[Callable[[], object]] = [
        lambda: old.trim(5), lambda: old.attempt(5), lambda: old.refuse(entry, "no"), lambda: old.own(1),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(Fenced, match="generation 2"):
            call()
    with pytest.raises(Fenced):
        Journal(path).own(2)
    new.refuse(entry, "too large")
    new.refuse(entry, "again")
    assert [each.position for each in new.read(3, 100)] == [5, 6, 7, 8, 9, 10]
    assert [(each.entry.position, each.reason) for each in new.refused()] == [(4, "too large")]
    assert new.lag().records == 6
    assert new.standing() == (2, 3, 3)
    new.attempt(10)
    new.trim(10)
    assert new.standing() == (2, 10, 10)
    assert (new.lag().records, new.lag().bytes, new.end()) == (0, 0, 10)
    old.close()
    new.close()


def test_a_restored_journal_is_recognised_by_the_record_that_was_relayed_last(path: Path, tmp_path: Path) -> None:
    from tests.pure.outbox_files import as_left_by_a_dead_process

    with Outbox(path) as outbox:
        outbox.send_all([("t", str(number)) for number in range(5)])
        older = as_left_by_a_dead_process(path, tmp_path / "backup")
        outbox.send_all([("t", str(number)) for number in range(5)])
    journal = Journal(path)
    last = journal.read(0, 100)[7]
    assert journal.knows(last.position, last.tag)
    journal.own(1)
    journal.trim(last.position)
    assert journal.knows(last.position, last.tag), "also when it was trimmed"
    with Outbox(older) as outbox:
        outbox.send_all([("t", "another") for _ in range(5)])
    restored = Journal(older)
    assert not restored.knows(last.position, last.tag)
    assert restored.knows(3, restored.read(0, 3)[2].tag)
    restored.close()
    journal.close()


def test_large_records_are_read_a_few_at_a_time(path: Path) -> None:
    with Outbox(path) as outbox:
        for _ in range(5):
            outbox.send("t", b"x" * (6 << 20))
        outbox.send("t", b"x" * (20 << 20))
    journal = Journal(path)
    assert len(journal.read(0, 1000)) == 2
    assert len(journal.read(5, 1000)) == 1, "one is always given, however large"
    journal.close()


def with_refused(path: Path) -> None:
    """Ten records, of which the second, fifth and last were refused, and those before the fourth relayed."""
    with Outbox(path) as outbox:
        outbox.send_all([("t", str(number), "k", {"h": "v"}, 3, 1_700_000_000_000) for number in range(1, 11)])
    with closing(Journal(path)) as journal:
        journal.own(1)
        for position in (2, 5, 10):
            journal.refuse(journal.read(position - 1, 1)[0], "no such topic")
        journal.trim(3)


def test_redriven_records_wait_behind_all_others_as_they_were(path: Path) -> None:
    with_refused(path)
    with closing(Journal(path)) as journal:
        before = {each.entry.value: each.entry for each in journal.refused()}
        assert journal.refused_for() == {"t": 3}
        assert journal.redrive() == 3
        assert (journal.refused_count(), journal.lag().records, journal.end()) == (0, 8, 13)
        assert journal.redrive() == 0
    found = entries(path)
    assert [(each.position, each.value) for each in found] == [
        (4, b"4"), (6, b"6"), (7, b"7"), (8, b"8"), (9, b"9"), (11, b"2"), (12, b"5"), (13, b"10"),
    ]  # fmt: skip
    for each in found[-3:]:
        was = before[each.value]
        assert each._replace(position=was.position, tag=was.tag) == was
        assert each.tag != was.tag
    journal = Journal(path)
    assert journal.damage is None, "how much waits is counted right"
    journal.own(2)
    journal.trim(13)
    assert (journal.lag().records, journal.lag().bytes) == (0, 0)
    journal.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_redrive_that_is_killed_before_its_commit_has_not_happened(path: Path, when: str) -> None:
    with_refused(path)
    child = os.fork()
    if child == 0:
        dies({"noting": (journals, "write_state")}, (when, "noting", 1))
        Journal(path).redrive()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with closing(Journal(path)) as journal:
        assert journal.damage is None
        assert [each.entry.position for each in journal.refused()] == [2, 5, 10]
        assert journal.redrive() == 3
    assert len(entries(path)) == 8


def test_a_refused_record_that_was_redriven_is_not_brought_back_by_a_salvage(path: Path) -> None:
    with Outbox(path) as outbox:
        outbox.send_all([("t", bytes([65 + number]) * 5000) for number in range(8)])
    with closing(Journal(path)) as journal:
        journal.own(1)
        for position in range(1, 9):
            journal.refuse(journal.read(position - 1, 1)[0], "no such topic")
        assert journal.redrive() == 8
        journal.trim(16)
    content = bytearray(path.read_bytes())
    content[3] ^= 0xFF
    path.write_bytes(content)
    with closing(Journal(path)) as journal:
        assert journal.damage is not None
        assert journal.refused_count() == 0


def test_purging_what_waits_leaves_no_trace_to_salvage(path: Path) -> None:
    with Outbox(path) as outbox:
        outbox.send_all([("t", f"secret-{number}") for number in range(100)])
        outbox.send("t", "refused")
    journal = Journal(path)
    journal.own(1)
    journal.refuse(journal.read(100, 1)[0], "why not")
    assert journal.purge_unsent() == 100
    assert journal.refused_count() == 1
    assert journal.purge_refused() == 1
    journal.compact()
    journal.close()
    assert b"secret-5" not in path.read_bytes()
    assert entries(path) == []


def test_no_error_escapes_the_tree_when_the_folder_is_missing(tmp_path: Path, eventually: Eventually) -> None:
    with pytest.raises(KeptError, match="no folder"):
        Outbox(tmp_path / "nowhere" / "outbox.db")
    with pytest.raises(KeptError, match="no journal"):
        Journal(tmp_path / "outbox.db", create_missing=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_several_records_are_read_trimmed_and_refused_record_by_record(path: Path, seed: int) -> None:
    """Against a list: whatever is done, what waits, how much it is, and what the next one to open it finds."""
    print(f"seed {seed}")
    dice, wanted, aside, last = random.Random(seed), dict[int, bytes](), dict[int, bytes](), 0
    for _ in range(6):
        with Outbox(path) as outbox:
            for _ in range(dice.randrange(1, 4)):
                some = [bytes(dice.randrange(2000)) for _ in range(dice.choice([1, 5, 60]))]
                wanted |= dict(zip(outbox.send_all([("t", value) for value in some]), some, strict=True))
        journal = Journal(path)
        assert journal.damage is None
        journal.own(journal.standing().generation + 1)
        for position in dice.sample(sorted(wanted), min(3, len(wanted))):
            (entry,) = journal.read(position - 1, 1)
            for _ in range(2):
                journal.refuse(entry, "why")
            aside[position] = wanted.pop(position)
        assert {each.entry.position: each.entry.value for each in journal.refused()} == aside
        last = dice.choice([last, *wanted])
        journal.trim(last)
        wanted = {position: value for position, value in wanted.items() if position > last}
        journal.close()
        found = entries(path)
        assert {entry.position: entry.value for entry in found} == wanted
        assert [entry.position for entry in found] == sorted(wanted)
        journal = Journal(path)
        assert journal.damage is None
        lag, size = journal.lag(), len(packed("t", None, b"", b"", None, 0)) + OVERHEAD
        assert (lag.records, lag.bytes) == (len(wanted), sum(map(len, wanted.values())) + len(wanted) * size)
        journal.close()


def test_a_journal_of_an_older_form_is_left_alone(path: Path) -> None:
    with Outbox(path) as outbox:
        outbox.send("t", "x")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")
    with pytest.raises(FixConfiguration, match="older kept"):
        Outbox(path)
