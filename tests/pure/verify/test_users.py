"""A user's pipeline on trial: what is owed is told from copies and strangers, and its file stands on our feet."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kept.errors import FixConfiguration
from kept.pipelines.files import understood
from kept.verify.scenarios import OF_SPARK, scenario
from kept.verify.trials.roles.user_pipeline import standing_in
from kept.verify.trials.scenario import Volume
from kept.verify.trials.things import Task
from kept.verify.trials.users import lines_of, matched, numbered, put_on_trial, refuse_incomparable

FILE = """
name = "mine"
guarantee = "at-least-once"
checkpoint = "here"
[source]
bootstrap = "far:9092"
pattern = "pay.*"
start = "end"
client = { "security.protocol" = "SSL" }
[sink]
kafka = "far:9092"
topic = "out"
[spark]
master = "yarn"
"""


def test_rows_that_are_alike_are_told_apart_and_one_too_many_is_a_copy() -> None:
    owed = Counter({"a": 2, "b": 1})
    assert [*numbered(owed.elements())] == ["a", "a #2", "b"]
    assert [*matched(["a", "b", "a"], owed)] == ["a", "b", "a #2"]
    assert [*matched(["a", "a", "a", "b", "b", "c"], owed)] == ["a", "a #2", "a #2", "b", "b", "c"]


def test_a_file_on_trial_says_the_same_but_for_where_and_how_much() -> None:
    overrides = {"source.bootstrap": "near:1", "source.topics": ["t"], "sink.kafka": "near:1", "sink.topic": "s"}
    task = Task("r", "w", {}, {"overrides": overrides}, "near:1", "t", "trial", "/runs/life-0.jsonl", 1000, 1)
    said: Any = standing_in(understood(Path("mine.toml"), FILE).values, task)
    assert (said["name",], said["guarantee",], said["checkpoint",]) == ("trial", "at-least-once", "/runs/checkpoint")
    assert (said["source", "topics"], said["source", "start"], said["source", "max_per_batch"]) == (
        ["t"],
        "beginning",
        100,
    )
    assert said["sink", "topic"] == "s"
    assert not {("source", "pattern"), ("source", "client"), ("spark", "master")} & said.keys()


def test_a_scenario_takes_a_users_pipeline_under_the_guarantee_that_it_has_chosen(tmp_path: Path) -> None:
    file, records = tmp_path / "mine.toml", tmp_path / "records"
    file.write_text(FILE)
    records.write_text("\n".join(map(str, range(600))))
    for name in OF_SPARK:
        ours, theirs = scenario(name), put_on_trial(scenario(name), file, records, tmp_path / "reference")
        assert list(theirs.things) == ["at-least-once"]
        assert theirs.controls == {"at-least-once": ours.controls["at-least-once"]}
        assert theirs.full == theirs.smoke == Volume(600, ours.full.faults)
        assert theirs.may_cost("at-least-once", theirs.full) == 60, "one of the batches in which the records are read"


def test_too_few_records_or_none_are_told(tmp_path: Path) -> None:
    few = tmp_path / "few"
    few.write_text("one\ntwo\n")
    with pytest.raises(FixConfiguration, match="2 lines"):
        lines_of(few)
    with pytest.raises(FixConfiguration, match="cannot be read"):
        lines_of(tmp_path / "none")


def test_what_differs_by_itself_or_is_nothing_cannot_be_compared() -> None:
    refuse_incomparable(Counter("aab"), Counter("aba"))
    with pytest.raises(FixConfiguration, match="something else of the same records each time, such as a"):
        refuse_incomparable(Counter("aab"), Counter("ab"))
    with pytest.raises(FixConfiguration, match="makes nothing of these records"):
        refuse_incomparable(Counter(), Counter())
