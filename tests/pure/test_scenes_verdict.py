"""A scene's verdict and exit code: only harm on one side and none on the other counts as shown."""

from __future__ import annotations

import pytest

from kept.cli.exit_codes import ExitCode
from kept.cli.scenes import exit_code_of
from kept.verify.scenes.telling import Scene, Side, Step, Story

LATE = Side("at-least-once", (), not_struck="the consumer did not say 'at' within 60 s")


def side(harm: int, lost: int = 0) -> Side:
    return Side("a-word", (), {"stored twice": harm, "lost": lost})


def scene(without: Side, fixed: Side) -> Scene:
    return Scene("name", "title", "deck", "why", "stored twice", without, fixed, 1.0)


@pytest.mark.parametrize(
    ("without", "fixed", "code", "words"),
    [
        (side(1), side(0), ExitCode.DONE, "1 without the fix, none with it"),
        (side(0), side(0), ExitCode.FAILED, "did no harm"),
        (LATE, side(0), ExitCode.FAILED, "the fault did not strike under at-least-once"),
        (side(1), LATE, ExitCode.FAILED, "the fault did not strike under at-least-once"),
        (side(1), side(2), ExitCode.ANSWER_IS_NO, "not prevented by a-word: stored twice: 2, lost: 0"),
        (side(1), side(0, lost=1), ExitCode.ANSWER_IS_NO, "not prevented by a-word: stored twice: 0, lost: 1"),
    ],
)
def test_only_harm_without_and_none_with_the_fix_is_shown(
    without: Side, fixed: Side, code: ExitCode, words: str
) -> None:
    played = scene(without, fixed)
    assert words in played.verdict
    assert played.as_promised == (code is ExitCode.DONE) == played.document()["as_promised"]
    assert exit_code_of([scene(side(1), side(0)), played]) is code


def test_a_step_names_the_records_that_came_to_harm() -> None:
    story = Story()
    story.tell("the log, in the end", "", ["M1", "M2", "M2"], {2})
    assert story.steps == [Step("the log, in the end", "", ("M1", "M2", "M2"), frozenset({2}))]
    assert story.steps[0].document()["harmed"] == ["M2"]
