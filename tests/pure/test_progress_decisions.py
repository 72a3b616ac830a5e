"""Batches, staging, modes and poison: the other decisions that sinks share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.errors import ProgressMoved
from kept.progress import (
    Batch,
    Fate,
    Mode,
    Operator,
    Range,
    Stop,
    Verdict,
    check_batch,
    check_move,
    choose_mode,
    fate_of_sqlstate,
    isolate,
    staging_is_whole,
)

LAST = Batch("query", 7, (Range("payments", 0, 100, 200, 1), Range("payments", 1, 50, 60, 1)))
NEXT = Batch("query", 8, (Range("payments", 0, 200, 300, 1), Range("payments", 1, 60, 60, 1)))


AFTER_LAST = {("payments", 0): 200, ("payments", 1): 60}
BEFORE_LAST = {("payments", 0): 100, ("payments", 1): 50}
FIRST = replace(LAST, batch_id=0)


def test_a_first_batch_and_the_next_one_are_written_and_the_same_one_is_skipped() -> None:
    assert check_batch(FIRST, None, BEFORE_LAST) is Verdict.WRITE
    assert check_batch(NEXT, LAST.record, AFTER_LAST) is Verdict.WRITE
    assert check_batch(LAST, LAST.record, AFTER_LAST) is Verdict.SKIP


def test_a_record_without_its_progress_does_not_count() -> None:
    """A person has moved progress back, or somebody has restored it without the record."""
    assert isinstance(check_batch(LAST, LAST.record, BEFORE_LAST), Stop)
    for stateful in (True, False):
        batch = replace(LAST, stateful=stateful)
        assert check_move(batch, None, BEFORE_LAST) is Verdict.WRITE
        assert check_move(batch, batch.record, AFTER_LAST) is Verdict.SKIP
        assert isinstance(check_move(batch, None, AFTER_LAST), Stop)
        assert isinstance(check_move(batch, batch.record, AFTER_LAST | {("payments", 1): 55}), Stop)
    plain = replace(LAST, stateful=False)
    assert check_move(plain, plain.record, BEFORE_LAST) is Verdict.WRITE
    assert isinstance(check_move(LAST, LAST.record, BEFORE_LAST), Stop), "its state would not fit"


def test_an_election_between_two_attempts_makes_no_other_batch() -> None:
    elected = replace(LAST, ranges=tuple(replace(each, leader_epoch=9) for each in LAST.ranges))
    assert check_batch(elected, LAST.record, AFTER_LAST) is Verdict.SKIP


def test_a_new_source_partition_may_join() -> None:
    joined = replace(NEXT, ranges=(*NEXT.ranges, Range("payments", 2, 0, 5, 1)))
    assert check_batch(joined, LAST.record, AFTER_LAST | {("payments", 2): 0}) is Verdict.WRITE


def test_a_batch_without_rows_of_its_source_is_known_by_its_number() -> None:
    """Spark runs one to let out windows that have closed."""
    closing = replace(NEXT, ranges=())
    assert check_batch(closing, LAST.record, AFTER_LAST) is Verdict.WRITE
    assert check_batch(closing, closing.record, AFTER_LAST) is Verdict.SKIP


@pytest.mark.parametrize(
    "batch",
    [
        replace(LAST, ranges=(Range("payments", 0, 100, 150, 1), *LAST.ranges[1:])),
        replace(LAST, query_id="other"),
        replace(NEXT, query_id="other"),
        replace(NEXT, batch_id=9),
        replace(NEXT, batch_id=3),
        replace(NEXT, ranges=(Range("payments", 0, 201, 300, 1),)),
        replace(NEXT, ranges=(Range("payments", 0, 199, 300, 1),)),
        replace(NEXT, query_id="other", batch_id=0),
    ],
    ids=[
        "other end",
        "other query",
        "other query next",
        "number skipped",
        "number back",
        "gap",
        "overlap",
        "new query",
    ],
)
def test_any_other_batch_stops_a_plan_with_state(batch: Batch) -> None:
    verdict = check_batch(batch, LAST.record, AFTER_LAST)
    assert isinstance(verdict, Stop)
    assert isinstance(verdict.error(), ProgressMoved)


def test_state_of_which_nothing_is_recorded_stops() -> None:
    assert isinstance(check_batch(NEXT, None, AFTER_LAST), Stop)
    stateless_before = replace(LAST, stateful=False).record
    assert isinstance(check_batch(NEXT, stateless_before, AFTER_LAST), Stop)
    assert check_batch(replace(NEXT, batch_id=0), stateless_before, AFTER_LAST) is Verdict.WRITE


def test_without_state_progress_alone_decides() -> None:
    plain = replace(NEXT, stateful=False, query_id="other", batch_id=0)
    assert check_batch(plain, LAST.record, AFTER_LAST) is Verdict.WRITE
    assert check_batch(replace(LAST, stateful=False), None, AFTER_LAST) is Verdict.SKIP
    partly = replace(plain, ranges=(Range("payments", 0, 150, 300, 1),))
    assert isinstance(check_batch(partly, None, AFTER_LAST), Stop)
    ahead = replace(plain, ranges=(Range("payments", 0, 250, 300, 1),))
    assert isinstance(check_batch(ahead, None, AFTER_LAST), Stop)


names = st.sampled_from("abc")


@given(st.lists(names), st.lists(names))
def test_staging_is_whole_only_with_every_promised_row(promised: list[str], abandoned: list[str]) -> None:
    counts = {name: promised.count(name) for name in set(promised)}
    strangers = [f"abandoned {name}" for name in abandoned]
    assert staging_is_whole(counts, Counter(strangers + promised))
    assert not promised or not staging_is_whole(counts, Counter(promised[1:]))
    assert not promised or not staging_is_whole(counts, Counter([*promised, promised[0]]))


def test_an_empty_task_is_whole() -> None:
    assert staging_is_whole({"a": 0}, {})


@given(st.lists(st.sampled_from(Operator)))
def test_partition_mode_is_an_allow_list(plan: list[Operator]) -> None:
    harmless = set(plan) <= {Operator.SCAN, Operator.PROJECT, Operator.FILTER}
    expected = Mode.PARTITION if harmless and plan.count(Operator.SCAN) == 1 else Mode.BATCH
    assert choose_mode(plan) is expected


@pytest.mark.parametrize(
    ("sqlstate", "fate"),
    [
        ("22001", Fate.REFUSED),
        ("23505", Fate.REFUSED),
        ("08006", Fate.RETRY),
        ("40P01", Fate.RETRY),
        ("53100", Fate.RETRY),
        ("57P01", Fate.RETRY),
        ("58030", Fate.RETRY),
        ("42P01", Fate.STOP),
        ("XX000", Fate.STOP),
        ("", Fate.STOP),
    ],
)
def test_only_errors_about_the_data_can_be_poison(sqlstate: str, fate: Fate) -> None:
    assert fate_of_sqlstate(sqlstate) is fate


def drive(rows: list[int], poison: set[int], most: int, away: list[bool]) -> tuple[list[int], list[int]]:
    """Write what `isolate` asks for into a sink that refuses poison and too many rows, and may be away."""
    written: list[int] = []
    core = isolate(rows)
    try:
        some: Sequence[int] = next(core)
        while True:
            if away and away.pop():
                fate = Fate.RETRY
            elif len(some) > most or poison & set(some):
                fate = Fate.REFUSED
            else:
                fate = Fate.WRITTEN
                written += some
            some = core.send(fate)
    except StopIteration as end:
        return written, end.value


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.integers(1, 5), st.lists(st.booleans()))
def test_poison_is_exactly_what_is_refused_alone_and_order_is_kept(
    rows: set[int], poison: set[int], most: int, away: list[bool]
) -> None:
    ordered = sorted(rows)
    written, dead = drive(ordered, poison, most, away)
    assert dead == [row for row in ordered if row in poison]
    assert written == [row for row in ordered if row not in poison]
