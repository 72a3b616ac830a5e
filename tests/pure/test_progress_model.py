"""The search over the model: with its rule in place each world is sound, without it the harm is found."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest

from kept.guarantees.levels import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.progress import ORDER, positions
from kept.progress.model import RULES, OrdinaryElections, TwoMoves, World
from kept.progress.model.gaps import Gaps
from kept.progress.model.perishable_progress import PerishableProgress
from kept.progress.model.search import Result, replay, search
from kept.progress.model.source_changed import SourceChanges
from kept.progress.model.truncated_input import TruncatedInput
from kept.progress.model.two_owners import TwoOwners
from kept.progress.model.world import Outcome, compare

FIRST_SEED = int(os.environ.get("KEPT_FIRST_SEED", "1"))
PER_RULE = 4_000
PER_GUARANTEE = 16_000
ALL_ANOMALIES = frozenset({"lost", "duplicated", "reordered", "stalled"})
MAY_SHOW = {AtMostOnce: {"lost"}, AtLeastOnce: {"duplicated"}, ExactlyOnce: set[str]()}

left_out = [
    pytest.param(world, switch, harm, id=f"{world.RULE:02}-{world.__name__}-{switch}-{harm}")
    for world in RULES
    for switch, harms in world.SWITCHES.items()
    for harm in harms
]


@pytest.fixture(scope="module")
def ran() -> list[Result]:
    """Every search of this file that found nothing, to be counted at its end."""
    return []


@pytest.mark.parametrize("level", MAY_SHOW, ids=lambda level: level.__name__)
def test_two_owners_crashes_and_lost_acknowledgements_keep_every_guarantee(level: type, ran: list[Result]) -> None:
    world = partial(TwoMoves, moves=ORDER[level])
    result = search(world, PER_GUARANTEE, allowed=frozenset(MAY_SHOW[level]), first_seed=FIRST_SEED)
    assert result.found is None, str(result)
    assert (result.schedules, result.stops) == (PER_GUARANTEE, 0)
    ran.append(result)


@pytest.mark.parametrize("world", RULES, ids=lambda world: f"{world.RULE:02}-{world.__name__}")
def test_with_its_rule_in_place_a_world_is_sound(world: type[World], ran: list[Result]) -> None:
    result = search(world, PER_RULE, allowed=world.ALLOWED, first_seed=FIRST_SEED)
    assert result.found is None, str(result)
    assert result.schedules == PER_RULE
    assert result.stops < PER_RULE, "a world that always stops proves nothing"
    ran.append(result)


@pytest.mark.parametrize(("world", "switch", "harm"), left_out)
def test_without_its_rule_the_harm_is_found(world: type[World], switch: str, harm: str) -> None:
    assert harm not in world.ALLOWED
    broken = partial(world, without=switch)
    result = search(broken, PER_RULE, allowed=ALL_ANOMALIES - {harm}, first_seed=FIRST_SEED)
    assert result.found is not None, f"{result}: leaving out {switch!r} did no harm"
    assert replay(broken, result.found.seed) == result.found, "a seed is a schedule"
    assert f"seed {result.found.seed}: " in str(result)


def without_question(question: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take one question out of the real decision, and only that."""
    for group in ("ABOUT_THE_OWNER", "ABOUT_THE_SOURCE"):
        kept = tuple(asked for asked in getattr(positions, group) if asked is not question)
        monkeypatch.setattr(positions, group, kept)


@pytest.mark.parametrize(
    ("question", "world"),
    [
        (positions.signed_by_us, PerishableProgress),
        (positions.same_source, SourceChanges),
        (positions.not_cut_short, SourceChanges),
        (positions.nothing_deleted, Gaps),
    ],
    ids=lambda part: part.__name__,
)
def test_each_question_of_the_real_decision_is_needed(
    question: object, world: type[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_question(question, monkeypatch)
    assert search(world, PER_RULE, first_seed=FIRST_SEED).found is not None


def test_an_older_generation_is_held_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    without_question(positions.not_succeeded, monkeypatch)
    with pytest.raises(ValueError, match="only moves forward"):
        search(TwoOwners, PER_RULE, first_seed=FIRST_SEED)


def test_an_ordinary_election_stops_nobody(ran: list[Result]) -> None:
    result = search(OrdinaryElections, PER_RULE // 4, first_seed=FIRST_SEED)
    assert result.found is None, str(result)
    assert result.stops == 0
    ran.append(result)


def test_every_rule_has_its_world_and_every_world_can_be_broken() -> None:
    assert [world.RULE for world in RULES] == list(range(1, 16))
    assert all(world.SWITCHES for world in RULES)


def test_a_rule_that_does_not_exist_cannot_be_left_out() -> None:
    with pytest.raises(ValueError, match="gravity"):
        replay(partial(RULES[0], without="gravity"), 1)


def test_the_oracle_compares_multisets_and_forgives_only_what_was_said() -> None:
    assert compare([1, 2, 2], [2, 2, 1]).anomalies == frozenset()
    assert compare([1, 2], [2, 2]) == Outcome(lost=(1,), duplicated=(2,))
    assert compare([1, 2], [2, 2], "said so") == Outcome(duplicated=(2,), stopped="said so")


def test_a_schedule_can_be_told_again_from_the_command_line() -> None:
    command = [sys.executable, "-m", "kept.progress.model", "TruncatedInput"]
    switch = "only an accepted range is closed"
    seed = search(partial(TruncatedInput, without=switch), PER_RULE).found
    assert seed is not None
    told = subprocess.run([*command, str(seed.seed), switch], capture_output=True, text=True, check=False)
    assert told.returncode == 1, told.stderr
    assert told.stdout == f"{seed}\n"
    assert subprocess.run([*command, "x"], capture_output=True, check=False).returncode == 2


def test_at_least_a_hundred_thousand_schedules_ran(ran: list[Result], capsys: pytest.CaptureFixture[str]) -> None:
    if len(ran) < len(MAY_SHOW) + len(RULES) + 1:
        pytest.skip("counts only when the whole file runs")
    total = sum(result.schedules for result in ran)
    with capsys.disabled():
        print(f"\nmodel: {total:,} schedules from seed {FIRST_SEED}, none did harm")
    assert total >= 100_000
