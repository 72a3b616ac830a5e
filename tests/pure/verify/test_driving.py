"""Faults of Spark as decisions: what shows that one struck, and at which records they strike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import pytest

from kept.verify.scenarios import scenario
from kept.verify.trials.driving import deep_in_their_tasks, one_of_each, why_not_failed_at
from kept.verify.trials.roles.perils import mark_of, refusal_of, through_perils
from kept.verify.trials.roles.pipeline import QUIETLY
from kept.verify.trials.roles.raw_pipeline import _chunks
from kept.verify.trials.things import BATCHES
from kept.verify.workload import Workload

VALUE = "s1/k3/120"
ROWS_AT_ONCE = int(QUIETLY["spark.sql.execution.python.udf.maxRecordsPerBatch"])
"""Rows of which none goes on before all have passed the perils."""


def test_a_plan_that_failed_at_the_record_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the very words that its task raises, wherever in a log they stand."""
    monkeypatch.setattr("kept.verify.trials.roles.perils.UNTIL_WRITTEN", 0.0)
    with pytest.raises(ValueError, match="cannot be taken") as failure:
        through_perils({"fails_at": VALUE})(VALUE)
    said = f"26/11/18 ERROR Executor: Exception in task 0.0\nValueError: {failure.value}\n\tat java.lang.Thread\n"
    assert why_not_failed_at(VALUE, said) == []


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("", "it said: nothing"),
        ("a\nb\nno broker answers\n  way out: wait\n", "it said: b / no broker answers /   way out: wait"),
        (refusal_of("s1/k3/121"), "it said: record"),
    ],
    ids=["a driver that never began", "one that could not start", "another record"],
)
def test_whatever_else_ends_a_driver_is_not_the_fault(said: str, shown: str) -> None:
    (doubt,) = why_not_failed_at(VALUE, said)
    assert doubt.startswith(f"the plan was to fail at {VALUE}, and nothing shows that it did; ")
    assert shown in doubt


def test_a_log_in_plain_letters_can_name_any_record() -> None:
    assert refusal_of("Zoë \n\x00").isascii()


def test_records_that_are_alike_are_chosen_once() -> None:
    """They share a mark: a death at one of them was counted for each."""
    lines = ["a", "b", "b", "b", "c"]
    chosen = one_of_each(lines, [1, 2, 3])
    assert chosen == ["b", "c", "a"]
    assert len({mark_of("marks", each) for each in chosen}) == 3
    assert one_of_each(lines, [4, 0]) == ["c", "a"]
    assert one_of_each(["x", "x"], [0, 1]) == ["x"]


def places_of(records: int, seed: int) -> list[tuple[str, int, int]]:
    """Where records stand whose keys decide their partition, as by Kafka's partitioner; the largest has most."""
    reached, places = Counter[int](), []
    for value in Workload("s1", records, 20, seed).values():
        partition = min(2, int(value.key[1:]) // 5)
        places.append((str(value), partition, reached[partition]))
        reached[partition] += 1
    return places


def batches(places: list[tuple[str, int, int]], per_batch: int) -> Iterator[dict[int, range]]:
    """The offsets of each task, batch by batch, as Spark shares them out: by what is left, rounded down."""
    left = Counter(partition for _, partition, _ in places)
    reached = dict.fromkeys(left, 0)
    while total := left.total():
        taken = {
            part: min(left[part], max(1, math.floor(min(1.0, per_batch / total) * left[part])))
            for part in left
            if left[part]
        }
        yield {part: range(reached[part], reached[part] + count) for part, count in taken.items()}
        for part, count in taken.items():
            reached[part] += count
            left[part] -= count


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "records", [500, scenario("input-cut-short").smoke.records, scenario("input-cut-short").full.records]
)
def test_a_plan_fails_deep_in_a_task(records: int, seed: int) -> None:
    """However Spark rounds, and even with the fewest records that a user may bring: rows before it are in the sink."""
    places, per_batch = places_of(records, seed), records // BATCHES
    deep = deep_in_their_tasks(places, per_batch)
    tasks = [(part, offsets) for batch in batches(places, per_batch) for part, offsets in batch.items()]
    first_half = {text for text, *_ in places[: records // 2]}
    assert len(deep & first_half) > len(first_half) // 6
    for text, partition, offset in places:
        if text in deep & first_half:
            (offsets,) = [each for part, each in tasks if part == partition and offset in each]
            assert offset - offsets[0] >= max(ROWS_AT_ONCE, len(offsets) / 3), (text, offset, offsets)


def test_a_record_that_stands_elsewhere_too_is_not_deep() -> None:
    """The plan fails at the first of those that are alike."""
    places = [(f"{'twice' if number in (1, 16) else number}", 0, number) for number in range(20)]
    deep = deep_in_their_tasks(places, 10)
    assert deep == {"5", "6", "7", "15", "17"}


def test_progress_is_moved_with_the_first_row_already() -> None:
    assert [*map(len, _chunks(range(45)))] == [1, 20, 20, 4]
    assert [*_chunks([])] == []
