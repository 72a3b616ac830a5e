"""What a task accepts (rule 12), how it cuts its input into chunks, and when it tries again."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from kept.errors import Fenced, KeptError, OutcomeUnknown, TryAgain, UnsoundInput
from kept.progress import Identity, Range, Source
from kept.spark.sinks import Assignment, Rows, Written
from kept.spark.tasks import FencedAttempt, Limits, Task, checked, chunks

WANTED = Range("t", 1, 10, 100, 3)
SOURCE = Source(Identity("cluster", "topic", 3), 0, 100, 100)


def batch(offsets: list[int | None], topic: str = "t", partition: int = 1) -> pa.RecordBatch:
    columns = {
        "v": pa.array([f"v{offset}" for offset in offsets]),
        "_kept_topic": pa.array([topic] * len(offsets)),
        "_kept_partition": pa.array([partition] * len(offsets), pa.int32()),
        "_kept_offset": pa.array(offsets, pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


@dataclass
class Memory:
    """A sink in memory that fails as it is told; each open is a new writer."""

    failures: list[KeptError] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    opened: int = 0
    closed: int = 0

    def open(self, _assignment: Assignment) -> Memory:
        self.opened += 1
        return self

    def write(self, rows: Rows, wanted: Range) -> Written:
        if self.failures:
            raise self.failures.pop(0)
        assert rows.table.column_names == ["v"]
        self.rows += rows.offsets.tolist()
        return Written(wanted.end, len(rows), 0)

    def close(self) -> None:
        self.closed += 1


def run(sink: Memory, batches: list[pa.RecordBatch], **limits: float) -> dict[str, object]:
    task = Task({}, sink, replace(Limits(patience=5), **limits))  # type: ignore[arg-type]
    (report,) = task.run(batches, Assignment(WANTED, SOURCE)).to_pylist()
    assert isinstance(report, dict)
    return report


def test_rows_in_order_are_accepted_with_holes() -> None:
    rows = checked([batch([10, 12]), batch([20])], WANTED)
    assert rows.offsets.tolist() == [10, 12, 20]
    assert rows.at_or_above(12).table.to_pydict() == {"v": ["v12", "v20"]}
    assert rows.at_or_above(11).offsets.tolist() == [12, 20]
    assert len(rows.at_or_above(21)) == 0


@pytest.mark.parametrize(
    "batches",
    [
        [batch([12, 11])],
        [batch([12, 12])],
        [batch([12]), batch([12])],
        [batch([9, 10])],
        [batch([99, 100])],
        [batch([10, None])],
        [batch([10]), batch([11], topic="other")],
        [batch([10]), batch([11], partition=2)],
    ],
    ids=["falling", "repeated", "repeated later", "below", "above", "unknown", "another topic", "another partition"],
)
def test_rows_that_are_not_in_order_are_refused(batches: list[pa.RecordBatch]) -> None:
    with pytest.raises(UnsoundInput):
        checked(batches, WANTED)


def test_columns_of_dead_letters_are_put_beside_the_rows() -> None:
    given = batch([10, 12]).append_column("_kept_original", pa.array([b"a", b"b"]))
    rows = checked([given.append_column("_kept_refused", pa.array([None, "no"]))], WANTED)
    assert rows.table.column_names == ["v"]
    assert rows.origin is not None
    assert rows.origin.to_pydict() == {"_kept_original": [b"a", b"b"], "_kept_refused": [None, "no"]}
    assert checked([batch([10])], WANTED).origin is None


def test_chunks_by_rows_and_bytes() -> None:
    batches = [batch(list(range(start, start + 10))) for start in range(10, 60, 10)] + [batch([])]
    assert [len(chunk) for chunk in chunks(batches, Limits(rows=20))] == [2, 2, 1]
    assert [len(chunk) for chunk in chunks(batches, Limits(bytes=1))] == [1, 1, 1, 1, 1]
    assert [len(chunk) for chunk in chunks(batches, Limits(seconds=1e-9))] == [1, 1, 1, 1, 1]
    assert [len(chunk) for chunk in chunks(batches, Limits())] == [5]


def test_a_task_reports_how_far_it_came_and_no_further() -> None:
    sink = Memory()
    report = run(sink, [batch([10, 11]), batch([15])], rows=2)
    assert (report["reached"], report["rows"], report["chunks"], report["stopped"]) == (16, 3, 2, None)
    assert report["buried"] == 0
    assert (sink.opened, sink.closed) == (1, 1)
    assert run(Memory(), [])["reached"] == WANTED.start


def test_rows_that_come_again_in_a_later_chunk_are_refused() -> None:
    report = run(Memory(), [batch([10, 11]), batch([11, 12])], rows=2)
    assert isinstance(pickle.loads(report["stopped"]), UnsoundInput)  # type: ignore[arg-type]


def test_a_store_that_is_away_is_tried_again_on_a_new_connection() -> None:
    sink = Memory([TryAgain("away", way_out="wait"), OutcomeUnknown("lost", way_out="look")])
    assert run(sink, [batch([10])])["rows"] == 1
    assert (sink.rows, sink.opened, sink.closed) == ([10], 3, 3)


def test_patience_ends() -> None:
    with pytest.raises(TryAgain):
        run(Memory([TryAgain("away", way_out="wait")] * 9), [batch([10])], patience=0)


def test_who_is_fenced_by_another_attempt_ends_at_once() -> None:
    sink = Memory([FencedAttempt("another", way_out="none")])
    with pytest.raises(FencedAttempt):
        run(sink, [batch([10])])
    assert sink.closed == 1


def test_what_is_no_use_trying_is_reported_to_the_driver() -> None:
    report = run(Memory([Fenced("succeeded", way_out="stop")]), [batch([10])])
    error = pickle.loads(report["stopped"])  # type: ignore[arg-type]
    assert isinstance(error, Fenced)
    assert error.way_out == "stop"
    assert report["reached"] == WANTED.start
