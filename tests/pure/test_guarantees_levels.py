"""The three guarantees: their words, their names, and what cannot be one."""

from __future__ import annotations

import dataclasses
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.errors import FixConfiguration
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce, Guarantee, parse

SAFE = string.ascii_letters + string.digits + "._-"


@pytest.mark.parametrize(
    ("word", "name", "guarantee"),
    [
        ("at-most-once", None, AtMostOnce()),
        ("at-least-once", None, AtLeastOnce()),
        ("exactly-once", "payments", ExactlyOnce("payments")),
    ],
)
def test_a_word_becomes_a_guarantee_and_back(word: str, name: str | None, guarantee: Guarantee) -> None:
    assert parse(word, name) == guarantee
    assert guarantee.word == word


@pytest.mark.parametrize("word", ["", "exactly once", "EXACTLY-ONCE", "twice"])
def test_an_unknown_word_is_answered_with_the_known_ones(word: str) -> None:
    with pytest.raises(FixConfiguration) as caught:
        parse(word)
    for known in ("at-most-once", "at-least-once", "exactly-once"):
        assert known in caught.value.way_out


def test_exactly_once_needs_a_name_and_the_others_take_none() -> None:
    with pytest.raises(FixConfiguration, match="needs a name"):
        parse("exactly-once")
    with pytest.raises(FixConfiguration, match="takes no name"):
        parse("at-least-once", "payments")


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a/b", "a\n", "-a", ".a", "_a", "päyments", "a" * 101, "a:b", None, 7]
)
def test_a_name_that_kafka_cannot_carry_is_refused_with_a_way_out(name: object) -> None:
    with pytest.raises(FixConfiguration, match="cannot name") as caught:
        ExactlyOnce(name)  # type: ignore[arg-type]
    assert "payments-writer" in caught.value.way_out


@given(st.sampled_from(string.ascii_letters + string.digits), st.text(SAFE, max_size=99))
def test_every_other_name_is_taken_and_fits_into_a_topic_name(first: str, rest: str) -> None:
    guarantee = ExactlyOnce(first + rest)
    assert len(guarantee.group) <= 249
    assert set(guarantee.group) <= set(SAFE)


@given(st.lists(st.lists(st.text(SAFE, min_size=1), max_size=3), min_size=2, max_size=2, unique_by=tuple))
def test_different_parts_never_make_the_same_transactional_id(parts: list[list[str]]) -> None:
    one, other = (ExactlyOnce("payments").transactional_id(*each) for each in parts)
    assert one != other


@pytest.mark.parametrize("part", ["", "a/b"])
def test_a_part_that_would_blur_the_id_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match="transactional id"):
        ExactlyOnce("payments").transactional_id(part)


def test_a_guarantee_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ExactlyOnce("payments").name = "other"  # type: ignore[misc]
