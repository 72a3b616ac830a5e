"""Where a trial is played, as far as it needs no brokers: what becomes of its topics when it is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from kept.errors import FixConfiguration, TryAgain
from kept.verify.trials import arena
from kept.verify.trials.arena import Arena
from kept.verify.trials.elsewhere import Elsewhere
from kept.verify.trials.scenario import Volume

NOWHERE = Elsewhere("127.0.0.1:1")


class Brokers:
    """Topics, of which some cannot be deleted."""

    def __init__(self, away: bool = False) -> None:
        self.there: set[str] = set()
        self._away = away

    def create(self, name: str, *_told: object) -> None:
        self.there.add(name)

    def delete(self, name: str) -> None:
        if self._away:
            raise TryAgain("nobody answers", way_out="wait")
        if name not in self.there:
            raise FixConfiguration("there is no such topic", way_out="look")
        self.there.remove(name)


def left_by(folder: Path, brokers: Brokers, error: BaseException | None, *, lasting: bool) -> set[str]:
    """What there is of a trial that made a topic, and a pipeline that made another one beside it."""

    def play() -> None:
        with Arena(NOWHERE, folder, Volume(30, 1), 7, lasting=lasting) as where:
            where.topics = brokers  # type: ignore[assignment]
            brokers.create(f"kept.progress.{where.topic()}")
            if error is not None:
                raise error

    if error is None:
        play()
    else:
        with pytest.raises(type(error)):
            play()
    return brokers.there


@pytest.fixture(autouse=True)
def everybody_has_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "heard_by_all", lambda *_: True)


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("error", [None, ZeroDivisionError()], ids=str)
def test_the_topics_of_a_trial_go_with_it(tmp_path: Path, error: Exception | None, lasting: bool) -> None:
    """In a cluster that goes, too: there are hundreds of partitions in the end, and brokers start ever slower."""
    assert left_by(tmp_path, Brokers(), error, lasting=lasting) == set()


def test_who_interrupts_a_run_does_not_wait_for_topics_that_go_anyway(tmp_path: Path) -> None:
    assert len(left_by(tmp_path, Brokers(), KeyboardInterrupt(), lasting=False)) == 2
    (tmp_path / "lasting").mkdir()
    assert left_by(tmp_path / "lasting", Brokers(), KeyboardInterrupt(), lasting=True) == set()


def test_a_topic_that_stays_is_a_doubt_only_where_somebody_else_finds_it(tmp_path: Path) -> None:
    assert len(left_by(tmp_path, Brokers(away=True), None, lasting=False)) == 2
    (tmp_path / "lasting").mkdir()
    with pytest.raises(TryAgain, match="nobody answers"):
        left_by(tmp_path / "lasting", Brokers(away=True), None, lasting=True)
