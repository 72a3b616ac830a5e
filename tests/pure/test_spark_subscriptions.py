"""Which topics a pattern finds, which must not be gone, and which a pipeline may not read."""

from __future__ import annotations

import re

import pytest

from kept.errors import FixConfiguration, SourceChanged
from kept.spark.subscriptions import Pattern, refuse_feeding_itself


def pattern(said: str) -> Pattern:
    return Pattern(said, lambda topic: re.fullmatch(said, topic) is not None)


def test_what_a_pattern_finds() -> None:
    assert pattern("pay-.*").topics("p", ["other", "pay-b", "pay-a"], ["pay-a"]) == ["pay-a", "pay-b"]
    with pytest.raises(FixConfiguration, match="no topic matches pay-"):
        pattern("pay-.*").topics("p", ["other"], [])


def test_a_topic_that_was_read_and_is_gone_stops_and_the_way_out_leaves_it_out() -> None:
    there, born = ["pay-c"], ["pay-a.1", "pay-b", "pay-c", "other"]
    with pytest.raises(SourceChanged, match=re.escape("pay-a.1, pay-b was read by 'p'")) as stopped:
        pattern("pay-.*").topics("p", there, born)
    assert "kept pipelines show p" in stopped.value.way_out
    narrower = stopped.value.way_out.rpartition("the pattern: ")[2]
    assert pattern(narrower).topics("p", there, born) == ["pay-c"]
    assert pattern(narrower).topics("p", [*there, "pay-bb"], born) == ["pay-bb", "pay-c"]
    with pytest.raises(SourceChanged):
        pattern("pay-.*").topics("p", [], born)


def test_a_topic_that_was_read_and_is_not_meant_any_more_may_be_gone() -> None:
    assert pattern("pay-.*").topics("p", ["pay-a"], ["old-a", "pay-a"]) == ["pay-a"]


def test_what_is_written_may_not_be_read() -> None:
    with pytest.raises(FixConfiguration, match=r"reads b\.1, and writes to it"):
        refuse_feeding_itself("b.1", ["a", "b.1"])
    refuse_feeding_itself("c", ["a", "b"])
    refuse_feeding_itself(None, ["a", "b"])
