"""Faults of Spark as decisions: what shows that one struck, and at which records they strike."""

from __future__ import annotations

import pytest

from kept.verify.trials.driving import one_of_each, why_not_failed_at
from kept.verify.trials.roles.perils import mark_of, refusal_of, through_perils

VALUE = "s1/k3/120"


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
