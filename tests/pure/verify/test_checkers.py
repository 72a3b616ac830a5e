"""Each anomaly on tiny histories that have it, and on ones that come close and have not."""

from __future__ import annotations

import pytest

from kept.consumer.faults import deleted
from kept.progress import Identity, Owner, Position, Progress, Source
from kept.progress.positions import nothing_deleted
from kept.verify.checkers import CHECKERS, Anomaly, Place
from kept.verify.checkers.duplicated import duplicated
from kept.verify.checkers.lost import lost
from kept.verify.checkers.phantom import phantom
from kept.verify.checkers.reordered import reordered
from kept.verify.checkers.silent import silent
from kept.verify.checkers.stalled import longest_silence, stalled
from kept.verify.checkers.torn import torn
from kept.verify.history import Ended, Fault, History, Read, Shortened, Stopped, Told, Unfinished
from tests.pure.verify.histories import (
    NOT_PERSISTED,
    PERSISTED,
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

A, B, C, D = "s/k/1", "s/k/2", "s/k/3", "s/other/4"


def only(anomaly: Anomaly, history: History) -> None:
    """This one, and no other, is seen."""
    assert {each for each, check in CHECKERS.items() if check(history)} == {anomaly}


@pytest.mark.parametrize(
    "history",
    [
        whole(),
        whole(sent(A), sent(B), sent(D), log(A, B, D)),
        whole(sent(A, UNKNOWN), sent(B, None), sent(C), log(C)),
        whole(sent(A, UNKNOWN), sent(B, None), log(A, B)),
        whole(sent(A, NOT_PERSISTED), sent(A), log(A)),
        whole(sent(D), sent(A), log(A, D)),
        whole(together("t1", PERSISTED, A, B), [found(A, 0, 0, "t1"), found(B, 0, 1, "t1")]),
        whole(together("t1", NOT_PERSISTED, A, B), together("t2", PERSISTED, A), found(A, 2, 0, "t2")),
    ],
    ids=[
        "nothing at all",
        "all there",
        "unknown and missing",
        "unknown and there",
        "refused, then sent again",
        "two keys, in another order",
        "a transaction, whole",
        "aborted, and a part of it done again",
    ],
)
def test_nothing_is_wrong(history: History) -> None:
    assert [evidence for check in CHECKERS.values() for evidence in check(history)] == []


def test_lost() -> None:
    history = whole(sent(A), sent(B), log(A))
    only(Anomaly.LOST, history)
    (evidence,) = lost(history)
    assert (evidence.of, evidence.places) == (B, (Place(TOPIC, 0, 40),))
    assert evidence.what == "s/k/2 was said to be at payments[0]@40, and is nowhere"


@pytest.mark.parametrize("reads", [[], [Read("t", 1.0, True), Read("u", 1.0, False, "it hangs")]])
def test_nothing_is_missing_that_nobody_looked_for(reads: list[Read]) -> None:
    """Found by a run whose fault missed: it was cut short before the audit, and judged to have lost everything."""
    history = bare(trial(), sent(A), together("t1", PERSISTED, B, C), found(B, 0, 0, "t1"), list(reads))
    assert lost(history) == torn(history) == []
    assert len(lost(bare(trial(), sent(A), Read("t", 1.0, True)))) == 1


def test_lost_with_its_transaction() -> None:
    history = whole(together("t1", PERSISTED, A, B))
    only(Anomaly.LOST, history)
    assert [(evidence.of, evidence.places) for evidence in lost(history)] == [(A, ()), (B, ())]


def test_sent_again_after_a_loss_is_not_lost() -> None:
    assert lost(whole(together("t1", PERSISTED, A), together("t2", PERSISTED, A), found(A, 1, 0, "t2"))) == []


def test_duplicated() -> None:
    history = whole(sent(A), sent(B), log(A, A, B, A))
    only(Anomaly.DUPLICATED, history)
    assert [evidence.places for evidence in duplicated(history)] == [
        (Place(TOPIC, 0, 0), Place(TOPIC, 0, 1)),
        (Place(TOPIC, 0, 0), Place(TOPIC, 0, 3)),
    ]


def test_an_unknown_one_that_is_there_twice_is_duplicated() -> None:
    assert len(duplicated(whole(sent(A, UNKNOWN), log(A, A)))) == 1


def test_duplicated_across_partitions_and_transactions() -> None:
    assert len(duplicated(whole(sent(A), [found(A, 0, 0), found(A, 0, 1)]))) == 1
    redone = whole(
        together("t1", UNKNOWN, A), together("t2", PERSISTED, A), [found(A, 0, 0, "t1"), found(A, 3, 0, "t2")]
    )
    assert len(duplicated(redone)) == 1


def test_phantom_that_nobody_sent() -> None:
    history = whole(sent(A), log(A, "hello"))
    only(Anomaly.PHANTOM, history)
    (evidence,) = phantom(history)
    assert evidence.what == "hello was never sent, and is at payments[0]@1"


def test_phantom_that_was_said_not_to_be_there() -> None:
    only(Anomaly.PHANTOM, whole(sent(A), sent(B, NOT_PERSISTED), log(A, B)))
    aborted = whole(sent(B), log(B), together("t1", NOT_PERSISTED, A), found(A, 5, 0, "t1"))
    assert [evidence.what for evidence in phantom(aborted)] == [
        "s/k/1 was said not to be persisted in transaction t1, and is at payments[0]@5"
    ]


def test_a_record_of_an_aborted_transaction_is_a_phantom_though_it_was_done_again() -> None:
    history = whole(together("t1", NOT_PERSISTED, A), together("t2", PERSISTED, A), found(A, 0, 0, "t1"))
    assert len(phantom(history)) == 1
    assert phantom(whole(together("t1", PERSISTED, A), found(A, 0, 0, "t9")))[0].what.startswith("s/k/1 was never sent")


@pytest.mark.parametrize("fate", [PERSISTED, UNKNOWN, NOT_PERSISTED, None])
def test_torn_whatever_was_said_of_it(fate: None) -> None:
    history = whole(together("t1", fate, A, B, C), [found(A, 0, 0, "t1"), found(C, 0, 1, "t1")])
    (evidence,) = torn(history)
    assert evidence.of == "t1"
    assert evidence.what == "of transaction t1 2 records are there and 1 are not: s/k/2"
    assert evidence.places == (Place(TOPIC, 0, 0), Place(TOPIC, 1, 0))


def test_a_transaction_that_nobody_heard_of_is_whole_or_absent() -> None:
    assert torn(whole(together("t1", None, A, B))) == []
    assert torn(whole(together("t1", None, A, B), [found(A, 0, 0, "t1"), found(B, 1, 0, "t1")])) == []


def test_a_copy_of_another_transaction_does_not_make_one_whole() -> None:
    history = whole(
        together("t1", UNKNOWN, A, B), together("t2", PERSISTED, B), [found(A, 0, 0, "t1"), found(B, 1, 0, "t2")]
    )
    assert [evidence.of for evidence in torn(history)] == ["t1"]


def test_reordered() -> None:
    history = whole(sent(A), sent(B), sent(C), log(A, C, B))
    only(Anomaly.REORDERED, history)
    (evidence,) = reordered(history)
    assert evidence.of == B
    assert evidence.places == (Place(TOPIC, 0, 1), Place(TOPIC, 0, 2))


def test_one_behind_which_all_others_were_sent_counts_each_that_is_late() -> None:
    assert [evidence.of for evidence in reordered(whole(log(C, A, B)))] == [A, B]


def test_a_stretch_that_is_repeated_is_in_order() -> None:
    assert reordered(whole(log(A, B, A, B, C))) == []
    assert [evidence.of for evidence in reordered(whole(log(B, A, B)))] == [A]


def test_order_is_per_partition_key_and_sender() -> None:
    assert reordered(whole([found(B, 0, 0), found(A, 0, 1)])) == []
    assert reordered(whole(log("s/k/2", "s/j/1"))) == []
    assert reordered(whole(log("s/k/2", "z/k/1"))) == []
    assert reordered(whole(log("s/k/10", "s/k/9")))[0].of == "s/k/9", "numbers, not letters"
    assert reordered(whole(log("no value", "s/k/1"))) == []


def arriving(*times: float) -> list[object]:
    return [found(f"s/k/{number}", number, at=at) for number, at in enumerate(times)]


def test_stalled() -> None:
    history = bare(trial(patience=10), arriving(100, 105, 116), arriving(126))  # type: ignore[arg-type]
    (evidence,) = stalled(history)
    assert evidence.what == "nothing arrived for 11.0 s, and no fault was at work"


@pytest.mark.parametrize(
    ("faults", "stalls"),
    [
        ([], 1),
        ([Fault("an outage", 100, 105)], 1),
        ([Fault("an outage", 100, 111)], 0),
        ([Fault("one", 99, 106), Fault("another", 103, 110)], 0),
        ([Fault("one", 100, 105), Fault("the same stretch", 100, 105)], 1),
        ([Fault("long", 100, 112), Fault("within", 101, 102)], 0),
        ([Fault("a kill has no length", 101)], 1),
    ],
)
def test_the_time_of_a_fault_is_no_stall(faults: list[Fault], stalls: int) -> None:
    history = bare(trial(patience=10), arriving(100, 120), list(faults))  # type: ignore[arg-type]
    assert len(stalled(history)) == stalls


def test_what_was_given_up_has_stalled() -> None:
    (evidence,) = stalled(bare(trial(), Unfinished("the relay, after 60 s", 200.0)))
    assert evidence.what == "the relay, after 60 s: given up"


def test_recovery_is_the_longest_silence_from_the_first_fault_on() -> None:
    assert longest_silence(bare(trial(), arriving(1, 50))) is None  # type: ignore[arg-type]
    assert longest_silence(bare(trial(), arriving(1), Fault("x", 60))) is None  # type: ignore[arg-type]
    history = bare(trial(), arriving(1, 30, 31, 34, 34.5), Fault("x", 30.5), Fault("y", 34.2))  # type: ignore[arg-type]
    assert longest_silence(history) == pytest.approx(3)


OWED = trial(tells="Gap")
GAP = Stopped("Gap", "records of source[0] were deleted before they were read", 104.0)


def test_what_a_loud_stop_left_undone_is_not_lost() -> None:
    """Nor silent; the same records without the stop are both."""
    parts = [*fed(A, 0), *fed(B, 1), *fed(C, 2), *fed(D, 0, 1), *log(A)]
    assert [evidence for check in CHECKERS.values() for evidence in check(whole(parts, GAP, of=OWED))] == []
    unsaid = whole(parts, of=OWED)
    assert [evidence.of for evidence in lost(unsaid)] == [B, C, D]
    assert [evidence.what for evidence in silent(unsaid)] == [
        "the product owed its user the error Gap, and did not tell it"
    ]


def test_a_stop_excuses_only_what_lies_behind_it() -> None:
    """B was skipped before the stop; of the other partition nothing was read."""
    history = whole(fed(A, 0), fed(B, 1), fed(C, 2), fed(D, 0, 1), log(A, C), GAP, of=OWED)
    only(Anomaly.LOST, history)
    (evidence,) = lost(history)
    assert (evidence.of, evidence.places) == (B, (Place("source", 0, 1),))


def test_a_record_whose_place_nobody_knows_has_no_excuse() -> None:
    history = whole(fed(A, 0), together("t1", PERSISTED, B), log(A), GAP, of=OWED)
    assert [evidence.of for evidence in lost(history)] == [B]


@pytest.mark.parametrize(
    "stop",
    [Stopped("TryAgain", "not now", 104.0), Told("Gap: records were deleted", 104.0)],
    ids=["another error", "told, and went on"],
)
def test_no_other_end_excuses_anything(stop: Stopped | Told) -> None:
    assert len(lost(whole(fed(A, 0), fed(B, 1), log(A), stop, of=OWED))) == 1


def test_a_stop_that_nobody_asked_for_excuses_nothing() -> None:
    assert len(lost(whole(fed(A, 0), fed(B, 1), log(A), GAP))) == 1


def test_silent() -> None:
    only(Anomaly.SILENT, whole(sent(A), log(A), of=OWED))
    (evidence,) = silent(whole(sent(A), log(A), Stopped("TryAgain", "not now", 104.0), of=OWED))
    assert evidence.what.endswith("it told instead: TryAgain: not now")
    assert len(silent(whole(Told("Gaps: a word that only begins so", 104.0), of=OWED))) == 1


@pytest.mark.parametrize(
    "history",
    [
        whole(sent(A), log(A)),
        whole(sent(A), log(A), GAP, of=OWED),
        whole(sent(A), log(A), Told("Gap: 3 records are gone", 104.0), of=OWED),
        bare(OWED, sent(A), log(A), Read(TOPIC, 104.0, True), Ended(105.0)),
        bare(OWED, sent(A), log(A), Fault("x", 102.0)),
        whole(sent(A), log(A), Ended(200.0, "the fault came too early"), of=OWED),
    ],
    ids=["nothing was owed", "it stopped", "it told", "no fault struck", "it did not come to its end", "cut short"],
)
def test_not_silent(history: History) -> None:
    assert silent(history) == []


SHORT = Shortened("source", 0, 3, 102.4)
"""A was read, B and C were not, and D is in another partition: two are gone of this one."""
THREE_FED = [*fed(A, 0), *fed(B, 1), *fed(C, 2), *fed(D, 0, 1), *log(A)]


def test_records_that_are_gone_are_told_with_their_number() -> None:
    """In the product's own words: a consumer's, and a pipeline's."""
    identity = Identity("cluster", "id", 0)
    stop = nothing_deleted(Progress(Position("source", 0, 1), identity, Owner("p", 1)), Source(identity, 3, 9, 9))
    assert stop is not None
    for what in (deleted(("source", 0), 1, 3, "a command").what, stop.what):
        assert silent(whole(THREE_FED, SHORT, Stopped("Gap", what, 104.0), of=OWED)) == []


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("records of source[0] were deleted", "told it without the number of records that are gone: Gap: records of"),
        ("records of source[0] were deleted, 3 at most", "said that 3 records of source[0] are gone, where 2 are"),
        ("records of source[0] were deleted, 0 at most", "said that 0 records of source[0] are gone, where 2 are"),
        ("records of source[1] were deleted, 1 at most", "said that 1 records of source[1] are gone, where 0 are"),
    ],
    ids=["no number", "too many", "too few", "a partition that is whole"],
)
def test_a_number_that_is_missing_or_wrong_is_as_good_as_silence(what: str, wrong: str) -> None:
    for telling in (Stopped("Gap", what, 104.0), Told(f"Gap: {what}", 104.0)):
        (evidence,) = silent(whole(THREE_FED, SHORT, telling, of=OWED))
        assert evidence.what.startswith(f"the product owed its user the error Gap, and {wrong}")


def test_every_telling_is_counted() -> None:
    for said in ("source[0], {} at most", "{} offsets from source[0]@1 to 3 were deleted before they were read"):
        right, wrong = (Told(f"Gap: {said.format(count)}", 104.0) for count in (2, 4))
        assert silent(whole(THREE_FED, SHORT, right, of=OWED)) == []
        assert len(silent(whole(THREE_FED, SHORT, right, wrong, of=OWED))) == 1


def test_no_number_is_owed_where_nothing_was_cut_or_not_all_was_read() -> None:
    uncounted = Stopped("Gap", "the sink is behind its source", 104.0)
    assert silent(whole(THREE_FED, uncounted, of=OWED)) == []
    assert silent(whole(THREE_FED, SHORT, uncounted, Read("t", 1.0, False, "it hangs"), of=OWED)) == []
