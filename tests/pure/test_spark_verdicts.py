"""The judge of the proof on Spark: what it counts, what it allows, and that the page says what the lines say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.spark.verdicts import BATCH, Verdict, counted, latest, of_code, page

DOCS = Path(__file__).resolve().parents[2] / "docs"
CLEAN = Verdict(
    "driver-killed", "kafka", "exactly-once", 3, 100, 100, 0, 0, 0, 2, 20, (), 1.5, "2026-01-31", {"a": "1"}
)


def test_records_are_counted_one_by_one() -> None:
    expected = Counter(["a", "b", "c"])
    assert counted(expected, Counter(["a", "b", "c"])) == (3, 0, 0, 0)
    assert counted(expected, Counter(["a", "a", "a", "c", "x"])) == (5, 1, 2, 1)
    assert counted(expected, Counter()) == (0, 3, 0, 0)


@pytest.mark.parametrize(
    ("word", "lost", "twice", "verdict"),
    [
        ("exactly-once", 0, 0, "holds"),
        ("exactly-once", 1, 0, "violated"),
        ("exactly-once", 0, 1, "violated"),
        ("at-least-once", 0, 20, "holds"),
        ("at-least-once", 0, 21, "violated"),
        ("at-least-once", 1, 0, "violated"),
        ("at-most-once", 20, 0, "holds"),
        ("at-most-once", 21, 0, "violated"),
        ("at-most-once", 0, 1, "violated"),
    ],
)
def test_each_guarantee_allows_its_own(word: str, lost: int, twice: int, verdict: str) -> None:
    assert replace(CLEAN, word=word, lost=lost, twice=twice).word_for_it == verdict
    assert replace(CLEAN, word=word, strange=1).word_for_it == "violated"


def test_a_fault_that_has_not_struck_shows_nothing_but_harm_counts() -> None:
    assert replace(CLEAN, struck=0).word_for_it == "unknown"
    assert replace(CLEAN, struck=0, lost=1).word_for_it == "violated"


def test_the_last_verdict_of_a_run_counts_and_harm_is_named() -> None:
    before = replace(CLEAN, lost=7)
    lines = [before.line(), CLEAN.line(), replace(CLEAN, seed=4, twice=5).line()]
    assert [each.lost for each in latest(lines, "").values()] == [0, 0]
    text = page(lines)
    assert "| driver-killed | kafka | 3, 4 | 100 | 0 | 5 | 0 | 0 | 4 | 0 | holds 1, violated 1 |" in text
    assert "- violated: driver-killed, kafka, exactly-once, partition mode, seed 4" in text
    assert "- before it was run again: violated: driver-killed, kafka, exactly-once, partition mode, seed 3" in text


def test_only_runs_of_one_code_are_counted_together() -> None:
    elder = replace(CLEAN, lost=1, code="older")
    lines = [elder.line(), replace(CLEAN, seed=5, code="newer").line()]
    assert [each.seed for each in latest(lines, "newer").values()] == [5]
    assert of_code(lines, "older") == lines[:1]
    text = page(lines)
    assert "Code: `newer`. **0 of 393" in text
    assert "and 1 with fewer records" in text
    assert "1 runs of other code do not count" in text
    assert "violated" not in text


def test_the_modes_are_told_apart() -> None:
    lines = [CLEAN.line(), replace(CLEAN, mode=BATCH, twice=1).line()]
    assert [each.word_for_it for each in latest(lines, "").values()] == ["holds", "violated"]
    text = page(lines)
    assert text.index("## exactly-once, partition mode") < text.index("## exactly-once, batch mode")
    assert "- violated: driver-killed, kafka, exactly-once, batch mode, seed 3" in text


def test_the_page_in_docs_is_that_of_the_lines() -> None:
    lines = DOCS / "spark-proof.jsonl"
    assert (DOCS / "spark-proof.md").read_text() == page(lines.read_text().splitlines())
