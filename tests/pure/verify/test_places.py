"""Where `kept verify` may run, and what it refuses on a cluster that is somebody else's."""

from __future__ import annotations

from operator import attrgetter, methodcaller
from typing import Any

import pytest

from kept.cli.verify_places import Place
from kept.errors import FixConfiguration
from kept.verify.scenarios import NAMES, scenario
from kept.verify.trials.elsewhere import Elsewhere, why_not
from kept.verify.trials.scenario import Need

NONE: dict[str, Any] = {"here": False, "bootstrap": None, "topic_prefix": None, "yes": False}
YOURS: dict[str, Any] = {**NONE, "bootstrap": "kafka:9092", "topic_prefix": "scratch-"}
NEAR, FAR = {1: "127.0.0.1:9092"}, {1: "127.0.0.1:9092", 2: "kafka-2.example:9092"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"here": True}, "two clusters"),
        ({"topic_prefix": None}, "need a name by which you know them"),
        ({"topic_prefix": ""}, "need a name by which you know them"),
        ({"topic_prefix": "my topics/"}, "need a name by which you know them"),
        ({"bootstrap": None}, "are for a cluster of yours"),
        ({"bootstrap": None, "topic_prefix": None, "yes": True}, "are for a cluster of yours"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(FixConfiguration, match=told):
        Place(**{**YOURS, **options})


def test_what_stays_is_cleaned_up() -> None:
    assert [Place(**{**NONE, "here": here}).lasts for here in (False, True)] == [False, True]
    assert (Place(**YOURS).lasts, Place(**YOURS).prefix) == (True, "scratch-")
    assert Place(**NONE).chosen([], ["zombie"]) == ["zombie"]


def test_nobody_to_ask_is_no_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe:
        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stdin", Pipe())
    with pytest.raises(FixConfiguration, match="nobody is there to ask"), Place(**YOURS).cluster():
        pytest.fail("it went on")
    with Place(**{**YOURS, "yes": True}).cluster() as cluster:
        assert isinstance(cluster, Elsewhere)


@pytest.mark.parametrize(
    ("needs", "brokers", "why"),
    [
        (set(), FAR, None),
        ({Need.PROXY}, NEAR, None),
        ({Need.PROXY}, FAR, "cannot stand in for kafka-2.example:9092"),
        ({Need.BROKERS}, NEAR, "kills, stops or fills brokers"),
        ({Need.BROKERS, Need.PROXY}, NEAR, "kills, stops or fills brokers"),
        ({Need.POSTGRES}, NEAR, "a Postgres of its own"),
    ],
)
def test_why_not_on_a_cluster_of_somebody_elses(needs: set[Need], brokers: dict[int, str], why: str | None) -> None:
    said = why_not(needs, brokers)
    assert said is None if why is None else why in (said or "")


def test_what_is_safe_everywhere() -> None:
    """Whoever adds a scenario says what it needs; a processor's death hurts nobody else."""
    assert {name for name in NAMES if why_not(scenario(name).needs, FAR) is None} == {
        "outbox-restarted",
        "transaction-left-open",
        "zombie",
        "transaction-timed-out",
        "poison",
        "poison-too-large",
        "driver-killed",
        "checkpoint-deleted",
        "two-drivers",
    }


def test_a_cluster_elsewhere_refuses_what_was_not_declared() -> None:
    elsewhere = Elsewhere("kafka:9092")
    for reach in (methodcaller("broker", 1), attrgetter("dsn"), attrgetter("postgres")):
        with pytest.raises(FixConfiguration, match="not on a cluster of somebody else's"):
            reach(elsewhere)
