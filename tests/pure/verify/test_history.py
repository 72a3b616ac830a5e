"""A history on disk: every event comes back, a killed writer's last line is kept out, other damage is told."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from kept.errors import DiskFull, FixConfiguration
from kept.verify.history import (
    Attempt,
    Begun,
    Ended,
    Event,
    Fate,
    Fault,
    Found,
    History,
    Read,
    Recorder,
    Settled,
    Shortened,
    Side,
    Told,
    TransactionEnded,
    Trial,
    Unfinished,
    read_history,
)
from kept.verify.history.events import as_line, from_line
from kept.verify.workload import Payload, Value, Workload, payload_of, value_of
from tests.pure.verify.histories import NOT_PERSISTED, PERSISTED, UNKNOWN, bare, sent, together

ONE_OF_EACH: list[Event] = [
    Trial("a-scenario", "exactly-once", Side.CONTROL, "a thing", 7, 1.5, 100, 12.0),
    Begun("s/k1/0", 2.0, "t1"),
    Settled("s/k1/0", Fate.PERSISTED, 3.0, None, "payments", 2, 17),
    TransactionEnded("t1", Fate.UNKNOWN, 3.5),
    Fault("killed broker 2", 4.0, 5.0),
    Found("s/k1/0", "payments", 2, 17, 3.0, "t1"),
    Read("payments", 6.0, False, "a transaction is open"),
    Told("Fenced: a successor\n  way out: stop", 6.5),
    Shortened("source", 1, 300, 6.7),
    Unfinished("the relay", 7.0),
    Ended(8.0),
]


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_an_event_is_one_line_and_comes_back(event: Event) -> None:
    line = as_line(event)
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert from_line(line) == event


def test_what_is_written_is_read(tmp_path: Path) -> None:
    with Recorder(tmp_path / "runner.jsonl") as one, Recorder(tmp_path / "sender.jsonl") as other:
        one.write(*ONE_OF_EACH[:5])
        other.write_all(ONE_OF_EACH[5:])
    history = read_history(tmp_path)
    assert history.trial == ONE_OF_EACH[0]
    assert history.begun == [ONE_OF_EACH[1]]
    assert history.found == [ONE_OF_EACH[5]]
    assert history.ended == Ended(8.0)
    assert history.torn == ()


def test_two_processes_do_not_share_a_file(tmp_path: Path) -> None:
    with Recorder(tmp_path / "one.jsonl"), pytest.raises(FixConfiguration, match="somebody's history already"):
        Recorder(tmp_path / "one.jsonl")


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_kept_out_and_told(tmp_path: Path, cut: int) -> None:
    text = "".join(map(as_line, ONE_OF_EACH))
    (tmp_path / "sender.jsonl").write_text(text[:-cut])
    history = read_history(tmp_path)
    assert history.ended is None
    assert len(history.unfinished) == 1
    (torn,) = history.torn
    assert torn.startswith(f"sender.jsonl, line {len(ONE_OF_EACH)}: {{")


def test_a_line_that_was_torn_within_a_letter_is_torn_too(tmp_path: Path) -> None:
    (tmp_path / "sender.jsonl").write_bytes(as_line(ONE_OF_EACH[0]).encode() + '{"is":"told","what":"é'.encode()[:-1])
    assert read_history(tmp_path).torn == ('sender.jsonl, line 2: {"is":"told","what":"\\xc3',)


def _writes_until_killed(path: Path) -> None:
    recorder = Recorder(path)
    number = 0
    while True:
        recorder.write(Begun(f"s/k/{number}", 1.0), Settled(f"s/k/{number}", Fate.PERSISTED, 1.0))
        number += 1


def test_a_writer_that_is_killed_loses_no_line_that_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "sender.jsonl"
    process = multiprocessing.get_context("fork").Process(target=_writes_until_killed, args=(path,))
    process.start()
    while not path.exists() or path.stat().st_size < 100_000:
        assert process.is_alive()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    history = read_history(tmp_path)
    assert len(history.begun) > 500
    assert len(history.begun) - len(history.settled) in (0, 1)
    assert len(history.torn) <= 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "Expecting"),
        ("[]", "not an object"),
        ('{"value":"x"}', "None is no kind of event"),
        ('{"is":"begin","at":1}', "'begin' is no kind of event"),
        ('{"is":["begun"],"at":1}', "is no kind of event"),
        ('{"is":"begun","value":"x"}', "missing 1 required positional argument: 'at'"),
        ('{"is":"begun","value":7,"at":1}', "begun with a wrong value"),
        ('{"is":"begun","value":"x","at":true}', "begun with a wrong at"),
        ('{"is":"begun","value":"x","at":1,"more":1}', "begun with a wrong more"),
        ('{"is":"settled","value":"x","at":1,"fate":"perhaps"}', "'perhaps' is not a valid Fate"),
        ('{"is":"found","value":"x","at":1,"topic":"t","partition":0.5,"offset":1}', "found with a wrong partition"),
    ],
)
def test_damage_in_the_middle_is_told_with_its_place(tmp_path: Path, line: str, why: str) -> None:
    (tmp_path / "sender.jsonl").write_text(as_line(ONE_OF_EACH[0]) + line + "\n" + as_line(ONE_OF_EACH[1]))
    with pytest.raises(FixConfiguration, match="line 2, is damaged") as caught:
        read_history(tmp_path)
    assert why in str(caught.value)


def test_an_empty_folder_holds_no_history(tmp_path: Path) -> None:
    with pytest.raises(FixConfiguration, match="there is no history"):
        read_history(tmp_path)


def test_a_disk_that_is_full_is_told() -> None:
    recorder = Recorder.__new__(Recorder)
    recorder.path, recorder._file = Path("/dev/full"), os.open("/dev/full", os.O_WRONLY)
    with recorder, pytest.raises(DiskFull, match="No space left"):
        recorder.write(Ended(1.0))


@pytest.mark.parametrize("trials", [0, 2])
def test_a_history_says_once_what_it_is_of(trials: int) -> None:
    with pytest.raises(FixConfiguration, match="says once what it is of"):
        _ = History([ONE_OF_EACH[0]] * trials).trial


@pytest.mark.parametrize(
    ("fates", "fate"),
    [
        ([PERSISTED], PERSISTED),
        ([NOT_PERSISTED], NOT_PERSISTED),
        ([UNKNOWN], UNKNOWN),
        ([None], UNKNOWN),
        ([NOT_PERSISTED, PERSISTED], PERSISTED),
        ([UNKNOWN, PERSISTED], PERSISTED),
        ([NOT_PERSISTED, None], UNKNOWN),
        ([NOT_PERSISTED, UNKNOWN], UNKNOWN),
        ([NOT_PERSISTED, NOT_PERSISTED], NOT_PERSISTED),
    ],
)
def test_the_fate_of_what_was_sent_several_times(fates: list[Fate | None], fate: Fate) -> None:
    assert bare(*(sent("s/k/1", each) for each in fates)).attempts == {Attempt("s/k/1", None): fate}


def test_a_transaction_that_nobody_heard_of_has_an_unknown_fate() -> None:
    history = bare(together("t1", PERSISTED, "s/k/1"), together("t2", None, "s/k/1"))
    assert history.attempts == {Attempt("s/k/1", "t1"): PERSISTED, Attempt("s/k/1", "t2"): UNKNOWN}


def test_a_workload_is_the_same_for_the_same_seed_and_no_value_is_sent_twice() -> None:
    values = list(Workload("s1", 500, 7, seed=3).values())
    assert values == list(Workload("s1", 500, 7, seed=3).values())
    assert values != list(Workload("s1", 500, 7, seed=4).values())
    assert [value.number for value in values] == list(range(500))
    assert {value.key for value in values} == {f"k{number}" for number in range(7)}
    assert len(set(map(str, values))) == 500


@pytest.mark.parametrize(
    ("sender", "records", "keys"), [("", 1, 1), ("a/b", 1, 1), ("a b", 1, 1), ("a", 0, 1), ("a", 1, 0)]
)
def test_a_workload_of_nothing_or_nobody_is_refused(sender: str, records: int, keys: int) -> None:
    with pytest.raises(FixConfiguration):
        Workload(sender, records, keys, seed=1)


@pytest.mark.parametrize(
    "text", ["", "s/k", "s/k/", "s/k/01", "s/k/-1", "s/k/1/2", "s//1", "s/k/1 ", "s/k/1\n", "é/k/1"]
)
def test_a_text_that_no_workload_made_names_no_value(text: str) -> None:
    assert value_of(text) is None


def test_a_value_and_its_transaction_come_back_from_a_record() -> None:
    value = Value("s1", "k2", 17)
    assert value_of(str(value)) == value
    for transaction in (None, "s1-t4"):
        payload = Payload(str(value), transaction)
        assert payload_of(str(payload).encode()) == payload
    assert payload_of(None) == Payload("", None)
    assert payload_of(b"\xff\xfe") == Payload("\\xff\\xfe", None)
