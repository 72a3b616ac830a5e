"""What a guarantee permits, and when a history says holds, violated or unknown."""

from __future__ import annotations

import pytest

from kept.errors import FixConfiguration
from kept.guarantees.levels import WORDS
from kept.verify.allowed import allowed_anomalies
from kept.verify.cells import Cell, Outcome, Trace
from kept.verify.checkers import CHECKERS, Anomaly, Evidence
from kept.verify.history import Ended, Event, Fault, History, Read, Stopped, Told, Unfinished
from kept.verify.verdict import Judgement, Verdict, judge
from tests.pure.verify.histories import (
    NOT_PERSISTED,
    TOPIC,
    UNKNOWN,
    bare,
    fed,
    found,
    log,
    sent,
    together,
    trial,
    whole,
)

A, B, C = "s/k/1", "s/k/2", "s/k/3"
AT_MOST, AT_LEAST, EXACTLY = WORDS


def test_what_each_guarantee_allows() -> None:
    assert allowed_anomalies(AT_MOST) == {Anomaly.LOST, Anomaly.REORDERED}
    assert allowed_anomalies(AT_LEAST) == {Anomaly.DUPLICATED, Anomaly.REORDERED}
    assert allowed_anomalies(EXACTLY) == set()
    with pytest.raises(FixConfiguration, match="'perhaps' is not a guarantee"):
        allowed_anomalies("perhaps")


@pytest.mark.parametrize(
    ("anomaly", "parts", "holding"),
    [
        (Anomaly.LOST, (sent(A), sent(B), log(A)), {AT_MOST}),
        (Anomaly.DUPLICATED, (sent(A), log(A, A)), {AT_LEAST}),
        (Anomaly.REORDERED, (sent(A), sent(B), log(B, A)), {AT_MOST, AT_LEAST}),
        (Anomaly.PHANTOM, (sent(A), log(A, B)), set()),
        (Anomaly.TORN, (sent(C), found(C, 9), together("t1", UNKNOWN, A, B), found(A, 0, 0, "t1")), set()),
        (Anomaly.STALLED, (sent(A), log(A), Unfinished("the reader", 200.0)), set()),
    ],
    ids=lambda each: each.value if isinstance(each, Anomaly) else "",
)
@pytest.mark.parametrize("word", WORDS)
def test_an_anomaly_violates_what_does_not_allow_it(
    word: str, anomaly: Anomaly, parts: tuple[object, ...], holding: set[str]
) -> None:
    judgement = judge(whole(*parts, of=trial(word)))  # type: ignore[arg-type]
    assert judgement.verdict is (Verdict.HOLDS if word in holding else Verdict.VIOLATED)
    assert judgement.shows(anomaly) == 1, "counted, whether it is allowed or not"
    assert bool(judgement.reasons) == (word not in holding)


@pytest.mark.parametrize(("at_risk", "verdict"), [(None, "holds"), (2, "holds"), (1, "violated")])
def test_what_is_allowed_has_a_bound(at_risk: int | None, verdict: str) -> None:
    history = whole(sent(A), sent(B), sent(C), log(C), of=trial(AT_MOST, at_risk=at_risk))
    judgement = judge(history)
    assert judgement.verdict.value == verdict
    if verdict == "violated":
        assert judgement.reasons == ("2 lost, and 1 faults may cost 1",)
    two = whole(sent(A), sent(B), sent(C), log(C), Fault("another", 103.0), of=trial(AT_MOST, at_risk=1))
    assert judge(two).verdict is Verdict.HOLDS, "each fault may cost as much"


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        (whole(), "nothing was sent"),
        (whole(sent(A, NOT_PERSISTED), sent(B, UNKNOWN), log(B)), "nothing was said to be persisted"),
        (bare(trial(), sent(A), log(A), Read(TOPIC, 1.0, True), Ended(2.0)), "no fault struck"),
        (bare(trial(), sent(A), log(A), Fault("x", 1.0), Ended(2.0)), "nobody read what is there"),
        (whole(sent(A), of=trial(AT_MOST)), "nothing was found"),
        (whole(sent(A), log(A), Read("audit", 1.0, False, "it hangs")), "audit was not read to its end: it hangs"),
        (bare(trial(), sent(A), log(A), Fault("x", 1.0), Read(TOPIC, 1.0, True)), "did not come to its end"),
        (whole(sent(A), log(A), Ended(200.0, "no broker to kill")), "the run was cut short: no broker to kill"),
    ],
)
def test_a_run_without_evidence_is_unknown(history: History, reason: str) -> None:
    judgement = judge(history)
    assert judgement.verdict is Verdict.UNKNOWN
    assert any(reason in each for each in judgement.reasons), judgement.reasons


def test_a_run_without_an_audit_has_lost_nothing() -> None:
    judgement = judge(bare(trial(), sent(A), Fault("x", 1.0), Ended(2.0, "the fault missed")))
    assert judgement.verdict is Verdict.UNKNOWN
    assert judgement.counts.document()["lost"] == 0
    assert not cell(GOOD, judgement).control_broke


def test_a_checker_that_crashes_is_unknown_and_hides_no_violation() -> None:
    def crashes(_: History) -> list[Evidence]:
        raise RuntimeError("a fault of its own")

    good = judge(whole(sent(A), log(A)), {**CHECKERS, Anomaly.TORN: crashes})
    assert good.verdict is Verdict.UNKNOWN
    assert good.reasons == ("the checker for torn crashed: RuntimeError('a fault of its own')",)
    assert "torn" not in good.counts.document(), "not counted is not zero"
    assert judge(whole(sent(A), sent(B), log(B)), {**CHECKERS, Anomaly.TORN: crashes}).verdict is Verdict.VIOLATED


def test_violated_wins_over_doubt() -> None:
    judgement = judge(bare(trial(), sent(A), log(A, A)))
    assert judgement.verdict is Verdict.VIOLATED
    assert judgement.reasons[0].startswith(
        "1 duplicated, and exactly-once allows none; first: s/k/1 is at payments[0]@0"
    )
    assert "no fault struck" in judgement.reasons


def test_the_run_in_numbers() -> None:
    history = whole(
        sent(A), sent(B, NOT_PERSISTED), sent(B, UNKNOWN), sent(C, NOT_PERSISTED), log(A), Told("Fenced: stop", 1.0)
    )
    judgement = judge(history)
    assert judgement.counts.document() == {
        "sent": 3, "persisted": 1, "refused": 1, "unknown": 1, "found": 1, "faults": 1, "lost": 0, "duplicated": 0,
        "phantom": 0, "torn": 0, "reordered": 0, "stalled": 0, "silent": 0,
        "recovery_s": 0.5,
    }  # fmt: skip
    assert judgement.told == ("Fenced: stop",)


CELL = Cell("a-scenario", 1, "a title", EXACTLY, "ours", "theirs", frozenset({Anomaly.LOST, Anomaly.DUPLICATED}))
GOOD, BAD = judge(whole(sent(A), log(A))), judge(whole(sent(A), log(A, A)))
LAME = judge(bare(trial(), sent(A), log(A)))


def cell(subject: Judgement | None, control: Judgement | None) -> Outcome:
    return Outcome(CELL, Trace(subject, missing="not run"), Trace(control, missing="not run"))


@pytest.mark.parametrize(
    ("subject", "control", "verdict", "reason"),
    [
        (GOOD, BAD, Verdict.HOLDS, ""),
        (GOOD, GOOD, Verdict.UNKNOWN, "the control did not break (theirs: nothing duplicated or lost)"),
        (GOOD, LAME, Verdict.UNKNOWN, "the control shows nothing (theirs): no fault struck it"),
        (GOOD, None, Verdict.UNKNOWN, "the control shows nothing: not run"),
        (BAD, BAD, Verdict.VIOLATED, "1 duplicated"),
        (BAD, GOOD, Verdict.VIOLATED, "1 duplicated"),
        (LAME, BAD, Verdict.UNKNOWN, "no fault struck"),
        (None, BAD, Verdict.UNKNOWN, "not run"),
    ],
)
def test_a_cell_holds_only_beside_a_control_that_broke(
    subject: Judgement | None, control: Judgement | None, verdict: Verdict, reason: str
) -> None:
    outcome = cell(subject, control)
    assert outcome.verdict is verdict
    assert any(reason in each for each in outcome.reasons) if reason else outcome.reasons == ()


FAULT, AUDIT, END = Fault("killed broker 2", 102.5), Read(TOPIC, 104.0, True), Ended(105.0)
HALF_READ = Read("graveyard", 104.0, False, "it hangs")
CUT_SHORT = Ended(106.0, "it ended with code 1")
GIVEN_UP = Unfinished("processor, 120 s after its last step", 200.0)
LOSES, REPEATS = [*sent(A), *sent(B), *log(A)], [*sent(A), *log(A, A)]


@pytest.mark.parametrize(
    ("control", "doubt"),
    [
        ((LOSES, FAULT, AUDIT, END), None),
        ((REPEATS, FAULT, AUDIT, END), None),
        ((LOSES, AUDIT, END), "the control shows nothing (theirs): no fault struck it"),
        ((REPEATS, AUDIT, END), "the control shows nothing (theirs): no fault struck it"),
        ((LOSES, FAULT, END), "the control shows nothing (theirs): nobody read what is there"),
        ((REPEATS, FAULT, AUDIT, HALF_READ, END), "graveyard was not read to its end: it hangs"),
        ((LOSES, FAULT, AUDIT, CUT_SHORT), "may only be undone, not lost: the run was cut short: it ended with code 1"),
        ((LOSES, FAULT, AUDIT), "may only be undone, not lost: the run did not come to its end"),
        ((LOSES, FAULT, AUDIT, END, GIVEN_UP), "may only be undone, not lost: it was given up: processor, 120 s"),
        ((LOSES, FAULT, AUDIT, END, Stopped("Gap", "x", 104.0)), "not lost: it stopped with Gap: x"),
        ((REPEATS, FAULT, AUDIT, CUT_SHORT), None),
        ((REPEATS, FAULT, AUDIT, END, GIVEN_UP), None),
        ((REPEATS, sent(B), FAULT, AUDIT, CUT_SHORT), None),
    ],
)
def test_a_control_that_only_died_has_not_broken(control: tuple[Event | list[Event], ...], doubt: str | None) -> None:
    """What is there twice is there twice, however it ended; what is missing may only not have been done."""
    outcome = cell(GOOD, judge(bare(trial(AT_LEAST), *control)))
    assert outcome.control_broke == (doubt is None)
    assert outcome.verdict is (Verdict.HOLDS if doubt is None else Verdict.UNKNOWN)
    assert outcome.reasons == () if doubt is None else doubt in outcome.reasons[0]


def test_a_control_must_break_in_the_way_that_was_said() -> None:
    reordering = judge(whole(sent(A), sent(B), log(B, A), of=trial(AT_LEAST)))
    assert cell(GOOD, reordering).verdict is Verdict.UNKNOWN


def test_a_scenario_without_a_control_is_judged_by_itself() -> None:
    plan = Cell(**{**vars(CELL), "control": None})
    assert Outcome(plan, Trace(GOOD), None).verdict is Verdict.HOLDS


def test_silence_where_an_error_was_owed_is_a_violation() -> None:
    fenced = trial(tells="Fenced")
    told = judge(whole(sent(A), log(A), Told("Fenced: another owner took over", 1.0), of=fenced))
    assert cell(told, BAD).verdict is Verdict.HOLDS
    silent = cell(judge(whole(sent(A), log(A), of=fenced)), BAD)
    assert silent.verdict is Verdict.VIOLATED
    (reason,) = silent.reasons
    assert reason.startswith(
        "1 silent, and exactly-once allows none; first: the product owed its user the error Fenced"
    )


@pytest.mark.parametrize("word", WORDS)
def test_a_loud_stop_holds_under_every_guarantee(word: str) -> None:
    stopped = Stopped("Gap", "records of source[0] were deleted", 104.0)
    parts = [*fed(A, 0), *fed(B, 1), *fed(C, 2), *log(A)]
    loud = judge(whole(parts, stopped, of=trial(word, at_risk=0, tells="Gap")))
    assert (loud.verdict, loud.shows(Anomaly.LOST), loud.told) == (
        Verdict.HOLDS,
        0,
        ("Gap: records of source[0] were deleted",),
    )
    quiet = judge(whole(parts, of=trial(word, at_risk=2, tells="Gap")))
    assert (quiet.verdict, quiet.shows(Anomaly.LOST), quiet.shows(Anomaly.SILENT)) == (Verdict.VIOLATED, 2, 1)
