"""The reports of a stored run: they say what the judge says, in three forms, and need nothing beside themselves."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kept.errors import FixConfiguration
from kept.verify.cells import Cell
from kept.verify.history import Side
from kept.verify.report import write_reports
from kept.verify.report.document import SHOWN, Report
from kept.verify.report.page import as_page
from kept.verify.run_directory import Plan, RunDirectory
from kept.verify.stretches import covered
from kept.verify.timeline import timeline
from kept.verify.verdict import Verdict
from tests.pure.verify.histories import bare, found, trial, whole
from tests.pure.verify.runs import EITHER, cell, make_run, play

VERDICTS = ["holds", "holds", "violated", "unknown", "unknown"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    made = make_run(tmp_path_factory.mktemp("verify") / "run")
    write_reports(made)
    return made


@pytest.fixture
def page(run: RunDirectory) -> str:
    return (run.path / "report.html").read_text()


def test_the_json_says_what_the_judge_says(run: RunDirectory) -> None:
    document = json.loads((run.path / "report.json").read_text())
    assert document["verdict"] == "violated"
    assert document["cells_by_verdict"] == {"holds": 2, "violated": 1, "unknown": 2}
    assert (document["seed"], document["versions"]["kafka"]) == (7, "4.3.1")
    assert [each["verdict"] for each in document["cells"]] == VERDICTS
    violated = document["cells"][2]
    assert violated["subject"]["counts"]["lost"] == 2
    assert violated["subject"]["counts"]["duplicated"] == 30
    assert violated["control"]["broke"] is True
    assert violated["subject"]["reported"] == ["OutcomeUnknown: it may or may not have happened"]
    of = Counter(evidence["anomaly"] for evidence in violated["subject"]["evidence"])
    assert of == {"lost": 2, "duplicated": SHOWN}
    place = violated["subject"]["evidence"][0]["places"][0]
    assert place == {"topic": "payments", "partition": 0, "offset": 300}
    line = violated["subject"]["timeline"]
    assert sum(line["arrived"]) == violated["subject"]["counts"]["found"]
    assert [fault["what"] for fault in line["faults"]] == [
        "killed broker 2, leader of payments[0]",
        "followers cut off",
    ]
    assert document["cells"][4]["control"]["missing"] == "the control was not run"


def test_junit_has_a_case_for_each_cell_and_none_is_green_that_is_not_shown(run: RunDirectory) -> None:
    suite = ET.parse(run.path / "report.xml").getroot()
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("5", "1")
    assert suite.attrib["errors"] == "2"
    outcomes = ["failure", "error"]
    seen = [next((each.tag for each in case if each.tag in outcomes), "passed") for case in suite.iter("testcase")]
    assert seen == ["passed", "passed", "failure", "error", "error"]
    failure = suite.find(".//failure")
    assert failure is not None
    assert "2 lost, and exactly-once allows none" in failure.attrib["message"]
    assert "s1/k0/300 was said to be at payments[0]@300, and is nowhere" in (failure.text or "")


def test_the_proof_has_a_row_for_each_cell_and_says_what_is_not_shown(run: RunDirectory) -> None:
    text = (run.path / "report.md").read_text()
    assert "with full volume (controls: little): **violated** (2 holds, 1 violated, 2 unknown)" in text
    assert "- seed: 7\n" in text
    assert "- kafka: 4.3.1\n" in text
    rows = [
        [part.strip() for part in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    assert [row[2] for row in rows[1:]] == VERDICTS
    assert rows[3][:7] == ["lost-acknowledgement", "exactly-once", "violated", "600", "2", "2", "30"]
    assert rows[3][-1] == "0 lost, 9 duplicated (idempotence off & hope)"
    assert rows[5][-1] == "not run"
    assert len({len(row) for row in rows}) == 1
    assert "- lost-acknowledgement.exactly-once: 2 lost, and exactly-once allows none" in text


def test_a_small_run_is_not_told_as_a_full_one(tmp_path: Path) -> None:
    small = RunDirectory(tmp_path / "run")
    small.begin(Plan(7, "today", {"kept": "a|b"}, [], smoke=True))
    write_reports(small)
    text = (small.path / "report.md").read_text()
    assert "with little volume (`--smoke`): **unknown** (nothing was run)" in text
    assert "- kept: a\\|b\n" in text
    assert json.loads((small.path / "report.json").read_text())["smoke"] is True


def test_the_page_needs_nothing_beside_itself(page: str) -> None:
    assert not re.search(r"<script|<link|<img|@import|url\(|https?://", page)
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


class _Balance(HTMLParser):
    """Every element that is opened is closed, in order; every id is there once."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta",):
            self.open.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name == "href" and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass


def test_the_page_is_sound(page: str) -> None:
    balance = _Balance()
    balance.feed(page)
    assert balance.open == []
    assert len(set(balance.ids)) == len(balance.ids) == 5
    assert sorted(balance.links) == sorted(f"#{each}" for each in balance.ids)


def test_the_page_says_it_in_words_and_shapes(page: str) -> None:
    assert "A guarantee was violated." in page
    squares = re.findall(r'<td class="(\w+)"><a [^>]*>.*?</svg>(\w+)</span>', page)
    assert squares == [(verdict, verdict) for verdict in VERDICTS]
    shapes = {re.search(rf'verdict {verdict.value}"><svg[^>]*>(.*?)</svg>', page)[1] for verdict in Verdict}  # type: ignore[index]
    assert len(shapes) == 3
    assert "4 lost, 0 duplicated" in page
    assert "something goes wrong &lt;in the middle&gt;" in page
    assert "idempotence off &amp; hope" in page
    assert page.count('<svg class="chart"') == 9
    assert "(32, the first 20 of each)" in page
    assert "s1/k0/300 was said to be at payments[0]@300, and is nowhere" in page


def test_what_is_missing_though_it_applies_was_not_tested(tmp_path: Path) -> None:
    """Row 7 says nothing about at-most-once; what it says about at-least-once nobody has tried here."""
    run = RunDirectory(tmp_path / "run")
    run.begin(Plan(7, "today", {}, [replace(cell("coordinator-killed", "exactly-once"), row=7)]))
    report = write_reports(run)
    squares = re.findall(r'<td class="none"><span class="of">(.*?)</span>(.*?)</td>', as_page(report))
    assert squares == [
        ("at most once", '<span aria-label="does not apply">&ndash;</span>'),
        ("at least once", '<span class="small">not tested</span>'),
    ]
    assert json.loads((run.path / "report.json").read_text())["not_tested"] == [
        {"scenario": "coordinator-killed", "guarantee": "at-least-once"}
    ]
    proof = (run.path / "report.md").read_text()
    assert "though the fault applies: coordinator-killed.at-least-once." in proof
    assert "- coordinator-killed.at-most-once: its commit stands alone" in proof
    assert "<b>coordinator-killed, at most once</b>: its commit stands alone" in as_page(report)


def test_what_has_no_control_says_why(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.begin(Plan(7, "today", {}, [replace(cell("disk-full", "exactly-once"), control=None, breaks=frozenset())]))
    report = write_reports(run)
    (why,) = json.loads((run.path / "report.json").read_text())["without_control"]
    assert why["why"].startswith("no weaker setting")
    for text in (as_page(report), (run.path / "report.md").read_text()):
        assert "disk-full, no control" in text


def test_what_is_violated_comes_first_and_is_open(page: str) -> None:
    first = page.index('<section class="cell')
    assert page[first:].startswith('<section class="cell violated" id="lost-acknowledgement.exactly-once">')
    assert page.count("<details open>") == 1


def test_nothing_run_is_nothing_shown() -> None:
    report = Report(Plan(1, "now", {}, []), [])
    assert report.verdict is Verdict.UNKNOWN
    assert "Nothing was run." in as_page(report)


def test_a_run_comes_back_as_it_was_planned(tmp_path: Path) -> None:
    tells = Cell("two", 3, "t", "at-least-once", "x", None, frozenset(), "Fenced")
    plan = Plan(11, "then", {"kept": "1"}, [cell("one", "exactly-once"), tells], volumes={"one": (100, 3)})
    run = RunDirectory(tmp_path / "run")
    run.begin(plan)
    assert RunDirectory(tmp_path / "run").plan == plan
    assert [outcome.verdict for outcome in run.outcomes()] == [Verdict.UNKNOWN, Verdict.UNKNOWN]
    with pytest.raises(FixConfiguration, match="holds a run already"):
        run.begin(plan)


def test_a_control_may_be_the_subject_of_another_cell(tmp_path: Path) -> None:
    ours = Cell("one", 3, "t", "exactly-once", "ours", "theirs", EITHER, control_is="at-least-once")
    theirs = Cell("one", 3, "t", "at-least-once", "theirs", None, frozenset())
    run = RunDirectory(tmp_path)
    run.begin(Plan(1, "then", {}, [ours, theirs]))
    play(run, ours, Side.SUBJECT)
    play(run, theirs, Side.SUBJECT, twice=3)
    assert [outcome.verdict.value for outcome in run.outcomes()] == ["holds", "holds"]
    assert run.outcomes()[0].control_broke


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seed": 1, "started": "", "versions": {}, "cells": [{"a": 1}]}'])
def test_a_plan_that_cannot_be_read_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(FixConfiguration, match="cannot be read"):
        _ = RunDirectory(tmp_path).plan
    with pytest.raises(FixConfiguration, match="holds no run"):
        _ = RunDirectory(tmp_path / "none").plan


def test_damage_to_one_history_is_that_cells_doubt_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    damaged, exchanged = run.plan.cells[:2]
    with (run.folder(damaged, Side.SUBJECT) / "sender.jsonl").open("a") as file:
        file.write("{}\n")
    (run.folder(exchanged, Side.SUBJECT) / "runner.jsonl").rename(tmp_path / "away")
    play(run, cell("another", exchanged.guarantee), Side.SUBJECT)
    there = run.folder(cell("another", exchanged.guarantee), Side.SUBJECT) / "runner.jsonl"
    there.rename(run.folder(exchanged, Side.SUBJECT) / "runner.jsonl")
    outcomes = run.outcomes()
    assert [outcome.verdict.value for outcome in outcomes] == ["unknown", "unknown", *VERDICTS[2:]]
    assert "line 1201, is damaged" in outcomes[0].reasons[0]
    assert "holds the history of another cell: another" in outcomes[1].reasons[0]


def test_a_timeline_holds_every_arrival() -> None:
    assert timeline(bare(trial())) is None
    line = timeline(whole([found("s/k/1", 0, at=100.0), found("s/k/2", 1, at=100.0), found("s/k/3", 2, at=160.0)]))
    assert line is not None
    assert line.seconds == 60
    assert sum(line.arrived) == 3
    assert (line.arrived[0], line.arrived[-1]) == (2, 1)
    assert [(strike.at, strike.until) for strike in line.strikes] == [(2.5, 2.5)]


def test_a_run_goes_on_with_what_has_no_end(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    plan = run.plan
    cut_off, unplayed = (plan.cells[4], Side.SUBJECT), (plan.cells[4], Side.CONTROL)
    assert run.left() == [cut_off, unplayed]
    others = {
        "kept was 0.1.0, and is not noted": replace(plan, versions={"kafka": "4.3.1"}),
        "code was not noted, and is commit 12": replace(plan, versions={**plan.versions, "code": "commit 12"}),
        "leader-killed had .* not noted, and has .20000, 10.": replace(plan, volumes={"leader-killed": (20_000, 10)}),
        "there were 5 cells, and there are 4": replace(plan, cells=plan.cells[1:]),
    }
    for told, other in others.items():
        with pytest.raises(FixConfiguration, match=f"is of other things: {told}"):
            run.refuse_other(other)
    run.refuse_other(replace(plan, started="later"))
    assert any(run.folder(*cut_off).iterdir())
    assert not any(run.new_folder(*cut_off).iterdir())
    run.folder(*cut_off).rmdir()
    for each, side in run.left():
        play(run, each, side, twice=1 if side is Side.CONTROL else 0)
    assert run.left() == []
    assert [outcome.verdict.value for outcome in run.outcomes()] == [*VERDICTS[:4], "holds"]


def test_trials_that_cells_share_are_counted_once(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    report = write_reports(run)
    played = [outcome.subject.judgement for outcome in report.outcomes[:4]]
    controls = [outcome.control.judgement for outcome in report.outcomes[2:4] if outcome.control is not None]
    assert report.seconds == pytest.approx(sum(each.seconds for each in [*played, *controls] if each is not None))
    took = f"- took: {report.at_work / 60:.0f} min; its trials one after the other: {report.seconds / 60:.0f} min"
    assert took in (run.path / "report.md").read_text()
    assert report.at_work < report.seconds, "all of these were played at the same time"


@pytest.mark.parametrize(
    ("stretches", "seconds"),
    [([], 0), ([(1, 3), (10, 12)], 4), ([(2, 5), (1, 3)], 4), ([(0, 9), (3, 4)], 9), ([(5, 4), (1, 2)], 1)],
)
def test_time_that_is_shared_counts_once(stretches: list[tuple[float, float]], seconds: float) -> None:
    assert covered(stretches) == seconds


def test_a_scenario_is_played_by_one_process_at_a_time(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with run.claimed("zombie") as ours, run.claimed("zombie") as theirs, run.claimed("poison") as another:
        assert (ours, theirs, another) == (True, False, True)
    with run.claimed("zombie") as again:
        assert again
