"""Where a relay begins: every combination of Kafka's position and the journal's own copy of it."""

from __future__ import annotations

import pytest

from kept.errors import FixConfiguration, KeptError, ProgressLost, ProgressMoved, SourceChanged
from kept.outbox.backlog import Standing
from kept.outbox.beginning import NO_TAG, Found, where_to_begin
from kept.producer.marks import Mark, Reached, claimed_by, read_mark

ME, OTHER = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
TAG = 77


def begin(mark: Mark | None, standing: Standing, end: int = 100) -> int:
    return where_to_begin(mark, Found("outbox.db", ME, standing, end, lambda position, tag: tag == TAG))


def mark(position: int, generation: int = 3, identity: str = ME, tag: int = TAG) -> Mark:
    return Mark(OTHER, generation, 5, 0, Reached(identity, position, tag))


@pytest.mark.parametrize(
    ("found", "standing", "expected"),
    [
        (None, Standing(0, 0, 0), 0),  # born
        (None, Standing(3, 40, 40), 40),  # Kafka forgot, and nothing was in doubt
        (mark(50), Standing(3, 40, 60), 50),  # died after the commit, before it noted it
        (mark(40), Standing(3, 40, 60), 40),  # died before the commit
        (mark(50), Standing(2, 40, 60), 50),  # died after its claim, before it noted that
        (mark(0, tag=NO_TAG), Standing(1, 0, 10), 0),  # died before its first commit
        (mark(50), Standing(1_000_003, 70, 70), 70),  # somebody went on at least once
        (mark(50, tag=1), Standing(1_000_003, 70, 70), 70),  # and trimmed what would be compared
        (mark(50), Standing(1_000_003, 40, 40), 50),  # somebody took over, and sent nothing
    ],
)
def test_it_begins_where_the_last_one_ended(found: Mark | None, standing: Standing, expected: int) -> None:
    assert begin(found, standing) == expected


@pytest.mark.parametrize(
    ("found", "standing", "error"),
    [
        (None, Standing(3, 40, 60), ProgressLost),  # Kafka forgot, and something was in doubt
        (mark(50), Standing(1_000_003, 60, 70), ProgressLost),  # at least once, and did not come to its end
        (mark(50), Standing(3, 60, 60), ProgressMoved),  # the cluster was set back
        (mark(50, identity=OTHER), Standing(3, 40, 60), SourceChanged),  # another journal
        (mark(101), Standing(3, 40, 60), SourceChanged),  # restored from an older copy
        (mark(50, tag=1), Standing(3, 40, 60), SourceChanged),  # and written to since
        (Mark(OTHER, 3, 5, 0), Standing(3, 40, 60), FixConfiguration),  # a producer's name
    ],
)
def test_a_doubt_stops_it(found: Mark | None, standing: Standing, error: type[KeptError]) -> None:
    with pytest.raises(error) as caught:
        begin(found, standing)
    assert caught.value.way_out


def test_a_position_survives_its_text_and_a_claim() -> None:
    for reached in (Reached(ME, 0, NO_TAG), Reached(OTHER, 2**62, 2**63 - 1)):
        one = Mark(ME, 1, 2, 3, reached)
        assert read_mark(str(one)) == one
        assert claimed_by(OTHER, one, 1000).reached == reached
        assert one.numbered(4).reached == reached
    assert claimed_by(ME, None, 1000, 9, Reached(ME, 5, NO_TAG)) == Mark(ME, 9, 0, 0, Reached(ME, 5, NO_TAG))
    assert claimed_by(ME, Mark(OTHER, 3, 4, 0), 1000, 9).generation == 9
    assert claimed_by(ME, Mark(OTHER, 30, 4, 0), 1000, 9).generation == 31


def test_an_idle_relay_behind_a_purge_leaves_its_place_to_the_next() -> None:
    """It carries nothing, so its claim alone says where it began: the older position locked every successor out."""
    purged = Standing(1_000_003, 70, 70)
    idle = claimed_by(ME, mark(50), 1000, purged.generation + 1, Reached(ME, begin(mark(50), purged), NO_TAG))
    assert idle.reached == Reached(ME, 70, NO_TAG)
    assert begin(idle, Standing(idle.generation, 70, 70)) == 70
    further = claimed_by(ME, mark(50), 1000, 4, Reached(ME, 50, NO_TAG))
    assert further.reached == Reached(ME, 50, TAG), "the same place keeps the tag by which its record is known"
