"""The decisions about lag: what offsets say, what is worth counting, and what a person is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.admin.backlog import (
    Backlog,
    Bounds,
    Place,
    Position,
    Tally,
    affordable,
    next_to_read,
    not_yet_counted,
    spans,
)

HERE = Place("orders", 0)
offsets = st.integers(min_value=0, max_value=10_000)


def at(offset: int | None, *, moving: bool = False) -> Position:
    return Position(HERE, offset, moving=moving)


@st.composite
def logs(draw: st.DrawFn) -> Bounds:
    start, stable, end = sorted(draw(st.tuples(offsets, offsets, offsets)))
    return Bounds(start, stable, end)


@pytest.mark.parametrize(
    ("committed", "following"), [(None, None), (0, 5), (5, 5), (7, 7), (20, 20), (21, None)], ids=str
)
def test_a_reader_goes_on_where_the_log_bears_it_out(committed: int | None, following: int | None) -> None:
    assert next_to_read(at(committed), Bounds(5, 15, 20)) == following


def test_offsets_alone_are_a_bound_and_say_so() -> None:
    backlog = not_yet_counted(at(7), Bounds(5, 15, 20))
    assert (backlog.lag, backlog.exact, backlog.held_back_at) == (8, False, 15)
    assert f"`kept transactions {at(7).place.topic}` shows whose it is" in backlog.notes[0]


def test_counted_records_are_exact_and_half_a_count_is_a_better_bound() -> None:
    bounds = Bounds(0, 100, 100)
    assert Backlog(at(0), bounds, Tally(30, 100)).lag == 30
    assert Backlog(at(0), bounds, Tally(30, 100)).exact
    half = Backlog(at(0), bounds, Tally(30, 60))
    assert (half.lag, half.exact) == (70, False)


def test_nothing_to_read_is_exact_without_counting() -> None:
    backlog = not_yet_counted(at(20), Bounds(0, 20, 20))
    assert (backlog.lag, backlog.exact, backlog.notes) == (0, True, ())
    assert spans([backlog], 1000) == {}


def test_a_position_behind_an_open_transaction_has_nothing_to_read_yet() -> None:
    """Committed by a read_uncommitted reader, beyond the last stable offset."""
    backlog = not_yet_counted(at(18), Bounds(0, 15, 20))
    assert (backlog.lag, backlog.exact) == (0, True)
    assert "open transaction at offset 15: up to 5 more" in backlog.notes[0]


@pytest.mark.parametrize(
    ("position", "bounds", "lag", "words"),
    [
        (at(None), Bounds(0, 9, 9), None, "no committed position"),
        (at(2), Bounds(5, 9, 9), 4, "2 is below the log's start 5"),
        (at(10), Bounds(5, 9, 9), None, "10 is above the log's end 9"),
        (at(9, moving=True), Bounds(5, 9, 9), 0, "open transaction carries another position"),
        (at(4), None, None, "not there any more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_odd_is_said_in_words(position: Position, bounds: Bounds | None, lag: int | None, words: str) -> None:
    backlog = not_yet_counted(position, bounds)
    assert backlog.lag == lag
    assert [words in note for note in backlog.notes] == [True]


@given(logs(), offsets, st.integers(min_value=0, max_value=100))
def test_a_bound_is_never_below_the_count(bounds: Bounds, committed: int, missing: int) -> None:
    """However many of the offsets turn out to be markers or aborted, the bound before counting held."""
    before = not_yet_counted(at(committed), bounds)
    if before.lag is None or before.tally is None:
        assert committed > bounds.end
        return
    records = max(0, before.lag - missing)
    after = Backlog(before.position, bounds, Tally(records, max(bounds.stable, before.tally.reached)))
    assert after.exact
    assert after.lag == records <= before.lag


def test_the_cheapest_are_counted_first_and_the_budget_is_for_all() -> None:
    distances = {Place("t", 0): 60, Place("t", 1): 10, Place("t", 2): 30, Place("t", 3): 500}
    assert affordable(distances, 100) == {Place("t", 0), Place("t", 1), Place("t", 2)}
    assert affordable(distances, 99) == {Place("t", 1), Place("t", 2)}
    assert affordable(distances, 5) == set()


@given(st.dictionaries(st.builds(Place, st.just("t"), st.integers(0, 20)), offsets), offsets)
def test_the_budget_is_kept(distances: dict[Place, int], budget: int) -> None:
    chosen = affordable(distances, budget)
    assert sum(distances[place] for place in chosen) <= budget
    left_out = [distances[place] for place in distances if place not in chosen]
    assert all(sum(distances[place] for place in chosen) + more > budget for more in left_out)


def test_what_is_read_begins_at_the_log_and_ends_where_it_is_stable() -> None:
    below, unknown = Position(Place("t", 0), 2), Position(Place("t", 1), None)
    known = {below.place: Bounds(5, 15, 20), unknown.place: Bounds(0, 9, 9)}
    found = spans([not_yet_counted(each, known[each.place]) for each in (below, unknown)], 1000)
    assert found == {below.place: (5, 15)}
