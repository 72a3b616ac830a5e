"""The decisions about positions that are moved by hand: what was typed, where it leads, what it costs."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.admin.backlog import Bounds, Place, Position
from kept.admin.moves import Kind, Move, Spot, Target, plan, read_target
from kept.errors import FixConfiguration

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)
LOG = Bounds(10, 30, 30)


def spot(offset: int | None, bounds: Bounds = LOG, at_moment: int | None = None, partition: int = 0) -> Spot:
    return Spot(Position(Place("orders", partition), offset), bounds, at_moment)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("beginning", Target(Kind.BEGINNING)),
        ("end", Target(Kind.END)),
        ("0", Target(Kind.OFFSET, 0)),
        ("42", Target(Kind.OFFSET, 42)),
        ("+7", Target(Kind.SHIFT, 7)),
        ("-7", Target(Kind.SHIFT, -7)),
        ("1970-01-01T00:00:01Z", Target(Kind.MOMENT, 1000)),
        ("1970-01-01T01:00:01+01:00", Target(Kind.MOMENT, 1000)),
        ("1970-01-01T00:00:00.000001+00:00", Target(Kind.MOMENT, 1)),  # up: never to a record before it
        ("1970-01-01T00:00:00.002000+00:00", Target(Kind.MOMENT, 2)),
    ],
)
def test_what_can_be_typed(text: str, target: Target) -> None:
    assert read_target(text, NOW) == target


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("", "beginning, end"),
        ("start", "beginning, end"),
        ("4.5", "beginning, end"),
        ("+", "beginning, end"),
        ("9" * 20, "beginning, end"),
        ("2026-13-01T00:00:00Z", "beginning, end"),
        ("2026-01-31T08:00:00", "zone"),
        ("2026-01-31", "zone"),
        ("2026-06-01T00:00:01Z", "--to end"),
        ("1969-12-31T23:59:59Z", "--to beginning"),
    ],
)
def test_what_cannot_be_typed_gets_the_way_out(text: str, way_out: str) -> None:
    with pytest.raises(FixConfiguration) as caught:
        read_target(text, NOW)
    assert way_out in caught.value.way_out


@pytest.mark.parametrize(
    ("target", "new", "again", "skipped"),
    [
        (Target(Kind.BEGINNING), 10, 10, 0),
        (Target(Kind.END), 30, 0, 10),
        (Target(Kind.OFFSET, 25), 25, 0, 5),
        (Target(Kind.SHIFT, -3), 17, 3, 0),
        (Target(Kind.SHIFT, 0), 20, 0, 0),
    ],
)
def test_where_a_position_goes_and_what_that_costs(target: Target, new: int, again: int, skipped: int) -> None:
    (move,) = plan(target, [spot(20)])
    assert (move.new, move.read_again, move.skipped, move.note) == (new, again, skipped, "")


def test_a_moment_leads_to_its_record_and_one_after_the_last_record_to_the_end() -> None:
    found, late = plan(Target(Kind.MOMENT, 1), [spot(20, at_moment=12), spot(20, partition=1)])
    assert (found.new, found.note) == (12, "")
    assert (late.new, late.note) == (30, "every record is older: the end")


def test_skipping_a_transaction_that_is_open_is_said() -> None:
    (move,) = plan(Target(Kind.END), [spot(20, Bounds(10, 25, 30))])
    assert "still open at offset 25" in move.note


@pytest.mark.parametrize(
    ("target", "offset"),
    [
        (Target(Kind.OFFSET, 9), 20),
        (Target(Kind.OFFSET, 31), 20),
        (Target(Kind.SHIFT, 11), 20),
        (Target(Kind.SHIFT, -11), 20),
        (Target(Kind.SHIFT, 1), None),
    ],
)
def test_one_that_would_leave_its_log_stops_all(target: Target, offset: int | None) -> None:
    with pytest.raises(FixConfiguration, match=r"nothing is moved: .*orders\[1\]") as caught:
        plan(target, [spot(20, Bounds(0, 99, 99)), spot(offset, partition=1)])
    assert "orders[0]" not in caught.value.what


def test_a_first_position_costs_what_nobody_can_say() -> None:
    (move,) = plan(Target(Kind.OFFSET, 15), [spot(None)])
    assert (move.read_again, move.skipped) == (None, None)


@given(*[st.integers(0, 1000)] * 4)
def test_costs_count_only_what_the_log_holds(old: int, new: int, one: int, other: int) -> None:
    """An old position outside the log costs no more than the log holds, and never both ways at once."""
    start, end = sorted((one, other))
    if not start <= new <= end:
        return
    move = Move(Place("t", 0), old, new, Bounds(start, end, end))
    again, skipped = move.read_again or 0, move.skipped or 0
    assert 0 <= again <= end - new
    assert 0 <= skipped <= new - start
    assert again == 0 or skipped == 0
