"""The decisions about marks: who owns a name, and whether a transaction took place."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.errors import Fenced, ProgressMoved
from kept.producer.marks import Mark, claimed_by, read_mark, refuse_if_succeeded, was_committed

ME, OTHER = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
numbers = st.integers(min_value=0, max_value=2**40)


@given(st.uuids().map(str), numbers, numbers, numbers)
def test_a_mark_survives_its_text(owner: str, generation: int, sequence: int, before: int) -> None:
    mark = Mark(owner, generation, sequence, before)
    assert read_mark(str(mark)) == mark


@pytest.mark.parametrize("text", ["", "42", "kept mark 2 x", "kept mark 1 " + ME + " 1 2"])
def test_what_is_not_a_mark_was_written_by_a_stranger(text: str) -> None:
    with pytest.raises(ProgressMoved, match="stranger"):
        read_mark(text)


def test_a_claim_is_one_generation_on_and_remembers_where_the_last_one_stood() -> None:
    assert claimed_by(ME, None, 1000) == Mark(ME, 1000, 0, 0)
    assert claimed_by(ME, Mark(OTHER, 7, 31, 2), 1000) == Mark(ME, 8, 0, 31)


def test_who_begins_when_the_mark_has_expired_is_above_whoever_sleeps() -> None:
    asleep = claimed_by(ME, Mark(OTHER, 1_000, 31, 2), 2_000)
    with pytest.raises(Fenced):
        refuse_if_succeeded(claimed_by(OTHER, None, 2_000 + 7 * 86_400), asleep)


def test_only_a_higher_generation_ends_an_owner() -> None:
    mine = Mark(ME, 3, 10, 0)
    refuse_if_succeeded(None, mine)
    refuse_if_succeeded(Mark(ME, 3, 9, 0), mine)
    refuse_if_succeeded(Mark(OTHER, 2, 9, 0), mine)  # our claim is committed, but not yet to be seen
    with pytest.raises(Fenced, match="generation 4, this is 3"):
        refuse_if_succeeded(Mark(OTHER, 4, 0, 10), mine)


@given(st.integers(1, 50), st.integers(1, 50), st.booleans(), st.integers(0, 3))
def test_the_mark_tells_what_happened_to_the_last_attempt(
    done_before: int, attempt: int, committed: bool, successors: int
) -> None:
    """The world: some attempts were committed, then one more was or was not; then successors came."""
    attempt += done_before
    stands_at = attempt if committed else done_before
    found = Mark(ME, 5, stands_at, 0)
    for number in range(successors):
        found = claimed_by(str(uuid.UUID(int=10 + number)), found, 1000)
    told = was_committed(found, Mark(ME, 5, attempt, 0))
    assert told is (committed if successors <= 1 else None)


def test_an_expired_mark_tells_nothing() -> None:
    assert was_committed(None, Mark(ME, 1, 1, 0)) is None
