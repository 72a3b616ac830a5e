"""A thing under test seen from outside: a fault strikes who is at work, or the trial has shown nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from kept.errors import TryAgain
from kept.verify.scenarios import (
    brokers_away,
    coordinator_killed,
    disk_full,
    followers_away,
    leader_killed,
    stranger_joins,
)
from kept.verify.trials.arena import Arena
from kept.verify.trials.elsewhere import Elsewhere
from kept.verify.trials.lives import Life
from kept.verify.trials.roles.processor import TOGETHER
from kept.verify.trials.scenario import Volume
from kept.verify.trials.telling import say_sent
from kept.verify.trials.things import Thing
from kept.verify.workload import Value
from tests.pure.verify import short_life

NOWHERE = Elsewhere("127.0.0.1:1")
Start = Callable[[float], Life]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with Arena(NOWHERE, tmp_path, Volume(30, 1), 7) as arena:
        thing = Thing("it begins thirty records", short_life.ROLE, "at-least-once")
        yield lambda stays: arena.start(thing, "nowhere", options={"stays": stays})


def test_a_fault_waits_for_who_is_at_work(start: Start) -> None:
    life = start(60.0)
    life.wait_begun(30)
    assert life.end(0) is None


def test_a_fault_that_would_strike_the_dead_is_refused(start: Start) -> None:
    life = start(0.0)
    assert life.end(60.0) == 0
    assert life.begun == 30
    with pytest.raises(TryAgain, match="ended with code 0 before: the fault that was to come after 20 records"):
        life.wait_begun(20)
    with pytest.raises(TryAgain, match="ended with code 0 before: 31 records begun"):
        life.wait_begun(31)


def test_who_has_done_all_is_struck_no_more_when_half_of_the_faults_have_struck(tmp_path: Path) -> None:
    thing, over = Thing("it begins thirty records", short_life.ROLE, "at-least-once"), tmp_path / "over"
    for struck in (1, 2):
        folder = tmp_path / str(struck)
        folder.mkdir()
        over.unlink(missing_ok=True)
        with Arena(NOWHERE, folder, Volume(30, 5), 7) as arena:
            life = arena.start(thing, "nowhere", options={"until": str(over)})
            moments = arena.moments_of(life)
            assert len([next(moments) for _ in range(struck)]) == struck
            over.touch()
            assert life.end(60.0) == 0
            if struck < 2:
                with pytest.raises(TryAgain, match="ended with code 0 before"):
                    next(moments)
            else:
                assert [*moments] == []


def test_who_gets_further_is_given_the_time_again(start: Start) -> None:
    """How long all of it takes is the machine's; who stands still is given up."""
    life, steps, looks = start(60.0), count(), count()
    life.wait(lambda: next(looks) > 20, "many looks", 0.05, lambda: next(steps))
    assert next(steps) > 2
    with pytest.raises(TryAgain, match="not within 0 s: what never comes"):
        life.wait(lambda: False, "what never comes", 0.05, lambda: 7)
    with pytest.raises(TryAgain, match="not within 0 s: many more looks"):
        life.wait(lambda: next(looks) > 1000, "many more looks", 0.05)


def test_who_gets_further_is_not_yet_to_have_ended(start: Start) -> None:
    life, far = start(60.0), iter([1, 2, 3, 4, 4])
    assert life.end(0.05, lambda: next(far)) is None
    assert [*far] == [], "it was given the time again for each step"
    life.kill()
    assert life.end(60.0) == -9


@pytest.mark.parametrize("volume", [brokers_away.SCENARIO.full, brokers_away.SCENARIO.smoke], ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_an_outage_leaves_records_for_the_next_one(tmp_path: Path, seed: int, volume: Volume) -> None:
    """What a program begins while no broker is there is not to be counted for the life after it."""
    outage = round((brokers_away.AWAY + 2.0) * brokers_away.PER_SECOND)
    with Arena(NOWHERE, tmp_path, volume, seed) as arena:
        moments = arena.moments()
    for moment, following in zip(moments, [*moments[1:], volume.records], strict=True):
        assert moment + outage < following


@pytest.mark.parametrize("volume", [coordinator_killed.SCENARIO.full, coordinator_killed.SCENARIO.smoke], ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_each_death_of_a_coordinator_has_commits_of_its_own(tmp_path: Path, seed: int, volume: Volume) -> None:
    """Whatever the faults before it took, or lost: some batches are left to be committed."""
    with Arena(NOWHERE, tmp_path, volume, seed) as arena:
        moments = coordinator_killed.moments(arena)
    assert len(moments) == volume.faults
    cost = coordinator_killed.SCENARIO.at_risk
    assert cost is not None
    for number, (moment, fed) in enumerate(moments):
        before = moments[number - 1][1] if number else 0
        assert before < moment
        assert moment + number * cost + 2 * TOGETHER < fed <= volume.records


@pytest.mark.parametrize("volume", [stranger_joins.SCENARIO.full, stranger_joins.SCENARIO.smoke], ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_a_stranger_comes_before_the_second_half_of_the_records(tmp_path: Path, seed: int, volume: Volume) -> None:
    """Else it would be waited for by who waits for records that come with it."""
    with Arena(NOWHERE, tmp_path, volume, seed) as arena:
        assert arena.moments(1)[0] < volume.records // 2
    assert volume.records // 2 // 20 > stranger_joins.FEWEST, "a partition that has one key of twenty has as many"


@pytest.mark.parametrize(("module", "seconds"), [(leader_killed, 25.0), (followers_away, 50.0), (disk_full, 30.0)])
def test_a_workload_lasts_as_long_as_its_faults(module: object, seconds: float) -> None:
    volume = getattr(module, "SCENARIO").full  # noqa: B009 - modules of one kind, which has no type
    assert volume.records / getattr(module, "PER_SECOND") >= volume.faults * seconds  # noqa: B009


def test_who_is_inside_a_transaction_says_so_as_a_life_is_read(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    life = start(60.0)
    assert life.done == -1
    values = [Value("s1", "k", number) for number in range(30)]
    for part in (values[:15], values[15:], []):
        say_sent(part)
    with life.log.open("a") as log:
        log.write(capsys.readouterr().out)
    assert life.done == 30
