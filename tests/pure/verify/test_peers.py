"""A peer stands where kept stood: under the same fault, with its own defaults, judged by its records."""

from __future__ import annotations

import pytest

from kept.errors import FixConfiguration
from kept.verify.scenarios import NAMES, scenario
from kept.verify.trials.peers import PEERS, all_instead, instead

PEER = "confluent-kafka"


def test_it_has_its_defaults_and_the_same_fault_and_control() -> None:
    ours, theirs = scenario("lost-acknowledgement"), instead(scenario("lost-acknowledgement"), PEER)
    assert theirs is not None
    assert [thing.role for thing in theirs.things.values()] == ["raw_producer", "raw_producer", "one_for_all"]
    assert not any(thing.settings for thing in theirs.things.values())
    assert [cell.guarantee for cell in theirs.cells()] == [cell.guarantee for cell in ours.cells()]
    assert (theirs.play, theirs.controls) == (ours.play, ours.controls)


def test_it_owes_no_error_of_kepts() -> None:
    theirs = instead(scenario("zombie"), PEER)
    assert theirs is not None
    assert (scenario("zombie").tells, theirs.tells) == ({"exactly-once": "Fenced"}, {})
    assert theirs.things["exactly-once"].options == scenario("zombie").things["exactly-once"].options


def test_where_it_cannot_be_it_is_left_out_or_told() -> None:
    every = [scenario(name) for name in NAMES]
    possible = [each.name for each in all_instead(every, PEER, named=False)]
    assert "lost-acknowledgement" in possible
    assert "poison" not in possible
    assert "delivery-timed-out" not in possible, "its time-out is part of the fault"
    with pytest.raises(FixConfiguration, match="nothing to put in the place of kept in poison"):
        all_instead([scenario("poison"), scenario("zombie")], PEER, named=True)
    with pytest.raises(FixConfiguration, match="poison"):
        all_instead([scenario("poison")], PEER, named=False)


@pytest.mark.parametrize("peer", PEERS)
def test_each_peer_has_something_to_show(peer: str) -> None:
    found = [theirs for name in NAMES if (theirs := instead(scenario(name), peer)) is not None]
    assert len(found) >= 6
    assert all(theirs.controls.keys() <= theirs.things.keys() for theirs in found)
