"""The scenarios as values: each names what it is, every cell has a control, and the smoke tier covers every means."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from kept.admin.open_transactions import OpenTransaction
from kept.consumer.into_kafka import TAKEN_TOGETHER
from kept.errors import WeakensGuarantee
from kept.guarantees import AtLeastOnce, AtMostOnce, Guarantee, merge, producer_settings
from kept.guarantees.levels import WORDS, parse
from kept.outbox.carrying import OPENED_WITHIN
from kept.verify.allowed import allowed_anomalies
from kept.verify.applicable import NOT_ABOUT, NOT_UNDER, WITHOUT_CONTROL, why_not
from kept.verify.checkers import Anomaly
from kept.verify.history import Side
from kept.verify.proxy import Api, Did, Direction, Sighting
from kept.verify.scenarios import NAMES, SMOKE, TITLES, brokers_away, coordinator_killed, delivery_timed_out, scenario
from kept.verify.scenarios.late_commit import sent_since
from kept.verify.scenarios.partitions_added import senders
from kept.verify.scenarios.poison import why_not_all
from kept.verify.scenarios.transaction_hangs import NAMED, OPEN_FOR, telling
from kept.verify.scenarios.zombie_consumer import keyed
from kept.verify.trials import roles
from kept.verify.trials.dying import earliest_and_latest
from kept.verify.trials.feeding import Source, ends_of
from kept.verify.trials.roles import resender
from kept.verify.workload import Value


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_is_whole(name: str) -> None:
    found = scenario(name)
    assert (found.name, found.title) == (name, TITLES[name])
    assert 1 <= found.row <= 25
    assert set(found.things) <= set(WORDS)
    assert set(found.controls) == (set() if name in WITHOUT_CONTROL else set(found.things))
    for word, control in found.controls.items():
        thing = found.things[word]
        assert control.breaks
        assert control.breaks.isdisjoint({Anomaly.SILENT, Anomaly.STALLED}), (
            "what never tells, or dies, always shows it"
        )
        assert control.thing != thing
        for each in (thing, control.thing):
            assert callable(importlib.import_module(f"{roles.__name__}.{each.role}").play)
    assert found.smoke.records <= found.full.records
    assert found.smoke.faults <= found.full.faults


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_that_is_missing_has_a_reason(name: str) -> None:
    found = scenario(name)
    for word in WORDS:
        assert (why_not(name, found.row, word) is None) == (word in found.things), word


def test_reasons_are_of_scenarios_that_there_are() -> None:
    assert NOT_UNDER.keys() | WITHOUT_CONTROL.keys() <= set(NAMES)
    assert NOT_ABOUT.keys() <= {scenario(name).row for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_what_faults_may_cost_is_far_less_than_everything(name: str) -> None:
    """A bound that everything is within bounds nothing; nor does one that is not there."""
    found = scenario(name)
    for word in found.things:
        for volume in (found.full, found.smoke):
            cost = found.may_cost(word, volume)
            assert cost is not None or not allowed_anomalies(word)
            assert (cost or 0) * volume.faults <= 0.4 * volume.records, f"{word}, {volume}"


def test_every_file_is_a_scenario_with_a_title() -> None:
    from kept.verify import scenarios

    (folder,) = scenarios.__path__
    files = {path.stem.replace("_", "-") for path in Path(folder).glob("*.py")} - {"--init--"}
    assert files == set(NAMES)


def test_the_smoke_tier_covers_every_guarantee_and_most_anomalies() -> None:
    assert len(SMOKE) == 5
    assert {word for name in SMOKE for word in scenario(name).things} == set(WORDS)
    broken = {
        anomaly.value for name in SMOKE for control in scenario(name).controls.values() for anomaly in control.breaks
    }
    assert broken >= {"lost", "duplicated", "torn"}


@pytest.mark.parametrize(
    ("buried", "doubts"),
    [
        (["s1/k/1", "s1/k/2"], []),
        (["s1/k/2"], ["1 of 2 poisonous records are not buried, such as s1/k/1"]),
        (["s1/k/1", "s1/k/2", "s1/k/2"], ["1 dead letters are of no poison, or there again, such as s1/k/2"]),
        (["s1/k/1", "s1/k/7"], ["1 of 2 poisonous records are not", "1 dead letters are of no poison"]),
    ],
)
def test_the_graveyard_holds_the_poison_and_nothing_else(buried: list[str], doubts: list[str]) -> None:
    found = why_not_all(["s1/k/1", "s1/k/2"], buried)
    assert len(found) == len(doubts)
    assert all(doubt in each for doubt, each in zip(doubts, found, strict=True))


def test_a_control_that_is_a_subject_too_is_not_played_twice() -> None:
    at_most, at_least, exactly = scenario("processor-killed").cells()
    assert [cell.control_is for cell in (at_most, at_least, exactly)] == [
        "at-least-once",
        "at-most-once",
        "at-least-once",
    ]
    assert at_most.folder(Side.CONTROL) == at_least.folder(Side.SUBJECT) == "processor-killed.at-least-once"
    own, *others = scenario("lost-acknowledgement").cells()
    assert own.control_is is None
    assert {each.folder(Side.CONTROL) for each in others} == {own.folder(Side.CONTROL)}


def test_a_late_end_is_known_by_what_only_it_does() -> None:
    """A program that is told of an abort does it again, and then something is there twice, without any late end."""
    (control,) = scenario("late-commit").controls.values()
    assert control.breaks == {Anomaly.TORN, Anomaly.PHANTOM}


def test_another_sender_goes_on_when_there_are_more_partitions() -> None:
    first, second = ([Value(name, "k", number) for number in range(4)] for name in ("s1", "s2"))
    assert [*map(str, senders(first, second, 3))] == ["s1/k/0", "s1/k/1", "s1/k/2", "s2/k/3"]


def test_records_with_keys_of_their_own_are_the_same_records() -> None:
    values = [Value("s1", "k3", number) for number in range(3)]
    assert keyed(values, apart=False) == values
    assert [*map(str, keyed(values, apart=True))] == ["s1/k0/0", "s1/k1/1", "s1/k2/2"]


def test_the_culprit_is_named_for_every_partition_and_nobody_else() -> None:
    """What is told otherwise is not what the product owes, and the cell is violated."""
    source = Source("t", ends_of(2))
    right = [OpenTransaction(part, first, 7, "them", 3.0, OPEN_FOR) for part, first in ((0, 12), (1, 5))]
    assert telling("them", source, right) == f"{NAMED}: them has a transaction open in t, from offset 5 on"
    stranger = OpenTransaction(1, 5, 8, "others", 3.0, OPEN_FOR)
    nobody = OpenTransaction(1, 5, 8)
    for wrong in ([], right[:1], [*right, stranger], [right[0], stranger], [right[0], nobody], [right[0], right[0]]):
        assert telling("them", source, wrong).startswith("not named: ")
    assert scenario("transaction-hangs").tells == dict.fromkeys(scenario("transaction-hangs").things, NAMED)


def test_who_dies_with_an_open_transaction_has_sent_something_in_it() -> None:
    """A death among the first records that are taken together leaves nothing in the log, and the control whole."""
    found = scenario("transaction-left-open")
    for volume in (found.full, found.smoke):
        assert earliest_and_latest(volume)[0] > TAKEN_TOGETHER


def guarantee_of(word: str) -> Guarantee:
    return parse(word, "n" if word == "exactly-once" else None)


@pytest.mark.parametrize("word", WORDS)
def test_brokers_are_away_for_longer_than_every_time_out_that_may_be_lowered(word: str) -> None:
    """Whatever is left of its names for waiting is what the scenario says that it does not exceed."""
    waits = brokers_away.TIME_OUTS[word]
    settings = merge(producer_settings(guarantee_of(word)), waits)
    outlasted = {
        name for name, value in settings.items() if "timeout" in name and int(str(value)) < 1000 * brokers_away.AWAY
    }
    others = {name for name in settings if "timeout" in name} - outlasted
    assert others == ({"delivery.timeout.ms"} if word == AtLeastOnce.word else set())
    assert outlasted >= {"socket.timeout.ms"}
    assert brokers_away.AWAY > OPENED_WITHIN


def test_at_least_once_takes_no_shorter_delivery_time_out() -> None:
    """The reason why brokers-away does not exceed it."""
    with pytest.raises(WeakensGuarantee):
        merge(producer_settings(AtLeastOnce()), {"delivery.timeout.ms": 1000 * brokers_away.AWAY})


def test_the_commit_that_breaks_a_control_is_stopped_within_its_volume() -> None:
    """Who commits behind its effects repeats what nobody heard of; who commits before them loses what was heard."""
    found = coordinator_killed.SCENARIO
    breaking = {AtLeastOnce.word: (Direction.REQUEST, True), AtMostOnce.word: (Direction.RESPONSE, True)}
    for control in found.controls.values():
        word = control.thing.guarantee
        assert breaking[word] in {coordinator_killed.fault_of(number, word) for number in range(found.smoke.faults)}
    for word in found.things:
        assert len({coordinator_killed.fault_of(number, word) for number in range(found.full.faults)}) == 4


def test_whoever_gives_up_late_meets_what_breaks_its_control() -> None:
    """What is believed is lost where requests are dropped: so those of the subject are, too, not only answers."""
    found = delivery_timed_out.SCENARIO
    dropped = {}
    for word, thing in found.things.items():
        for each, volume in ((thing, found.full), (found.controls[word].thing, found.smoke)):
            away = delivery_timed_out.away_from(each)
            faults = 1 if away > delivery_timed_out.LONG else volume.faults
            dropped[each.words] = {
                way for number in range(faults) for way in delivery_timed_out.dropped_in(number, away)
            }
    assert all(ways == {Direction.REQUEST, Direction.RESPONSE} for ways in dropped.values()), dropped
    assert delivery_timed_out.away_from(delivery_timed_out.AT_LEAST) > delivery_timed_out.LONG


def test_an_end_is_late_once_the_next_transaction_has_sent_something() -> None:
    """Answers from before it was held are those of its own transaction, and others' do not count."""

    def line(client: str, api: Api, did: Did, direction: Direction = Direction.RESPONSE) -> Sighting:
        return Sighting(0.0, 1, 1, did, direction, api, 1, client)

    answer = line("it", Api.PRODUCE, Did.PASSED)
    held = line("it", Api.END_TXN, Did.HELD_AND_RESET, Direction.REQUEST)
    others = (line("you", Api.PRODUCE, Did.PASSED), line("it", Api.END_TXN, Did.PASSED))
    begins = line("it", Api.PRODUCE, Did.PASSED, Direction.REQUEST)
    assert not sent_since([answer, held, *others, begins], "it")
    assert sent_since([answer, held, *others, begins, answer, answer], "it")
    assert not sent_since([answer, held, answer, held, *others], "it"), "an earlier fault was another one"


def test_who_dies_once_has_sent_something_since_its_last_note() -> None:
    """A note at the moment of the only fault leaves nothing to be sent again, and the control whole."""
    assert brokers_away.SCENARIO.smoke.records < brokers_away.SELDOM * resender.TOGETHER
    assert brokers_away.RESENDS.thing.options["noted_every"] == brokers_away.SELDOM


def test_a_control_that_may_be_missed_once_is_struck_again() -> None:
    assert scenario("transaction-timed-out").smoke.faults > 1
