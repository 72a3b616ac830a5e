"""What Spark's text of a data loss is told as: progress says whether anything is lost."""

from __future__ import annotations

import pytest

from kept.errors import FixConfiguration, Gap, KeptError, SourceChanged, TryAgain
from kept.progress import Stop
from kept.spark.endings import told

LOSS = RuntimeError("Some data may have been lost because they are not available in Kafka any more")


def nobody_asks() -> Stop | None:
    raise AssertionError("only a loss is looked at")


def test_nothing_is_lost_when_all_that_was_not_read_is_there() -> None:
    answer = told(LOSS, LOSS, "pay", lambda: None)
    assert isinstance(answer, FixConfiguration)
    assert "move the checkpoint away" in answer.way_out
    assert "repair" not in answer.way_out, "it would find nothing wrong"


def test_what_progress_says_is_missing_is_told_with_its_count_and_the_name() -> None:
    gap = Stop(Gap, "5 offsets were deleted", "accept the loss: `kept pipelines repair pay`")
    answer = told(None, LOSS, "pay", lambda: gap)
    assert (type(answer), str(answer)) == (Gap, str(gap.error()))


@pytest.mark.parametrize("unknown", [SourceChanged("it is gone", way_out="-"), TryAgain("nobody answers", way_out="-")])
def test_what_cannot_be_asked_may_be_lost(unknown: KeptError) -> None:
    def missing() -> Stop | None:
        raise unknown

    answer = told(None, LOSS, "pay", missing)
    assert isinstance(answer, Gap)
    assert unknown.what in answer.what
    assert "`kept pipelines repair pay`" in answer.way_out


def test_others_are_told_as_before() -> None:
    ours = Gap("mine", way_out="-")
    assert told(ours, LOSS, "pay", nobody_asks) is ours
    strange = ValueError("strange")
    assert told(None, strange, "pay", nobody_asks) is strange
    assert isinstance(told(None, RuntimeError("[CONCURRENT_STREAM_LOG_UPDATE]"), "pay", nobody_asks), TryAgain)
