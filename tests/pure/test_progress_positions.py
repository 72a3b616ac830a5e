"""The decisions about positions: what is accepted, what stops, and that each stop names its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.errors import Fenced, Gap, KeptError, ProgressLost, ProgressMoved, SinkChanged, SourceChanged, UnsoundInput
from kept.progress import (
    Accept,
    Identity,
    Owner,
    Position,
    Progress,
    Range,
    Recorded,
    Source,
    Stop,
    Unsigned,
    advance,
    check,
    check_rows,
    seed,
)

OWNER = Owner("payments-to-postgres", 4)
IDENTITY = Identity("cluster-1", "topic-1", 7)
PROGRESS = Progress(Position("payments", 0, 100), IDENTITY, OWNER)
SOURCE = Source(IDENTITY, log_start=0, log_end=200, epoch_end=200)
WANTED = Range("payments", 0, 90, 150, 7)

offsets = st.integers(min_value=0, max_value=12)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Range, Progress, Source, Owner]:
    """Any input, any progress, any source, any owner; small numbers, so that they meet."""
    few, ids = st.integers(0, 2), st.sampled_from("aaab")
    progress = Progress(
        Position("payments", 0, draw(offsets)),
        Identity(draw(ids), draw(ids), draw(few)),
        Owner(draw(ids), draw(few)),
    )
    start, end = draw(offsets), draw(offsets)
    source = Source(Identity(draw(ids), draw(ids), draw(few)), min(start, end), max(start, end), draw(offsets))
    first = draw(offsets)
    wanted = Range("payments", 0, first, first + draw(offsets), draw(few))
    return wanted, progress, source, Owner(draw(ids), draw(few))


def test_what_fits_is_accepted_and_says_what_is_done() -> None:
    assert check(WANTED, PROGRESS, SOURCE, OWNER) == Accept(100, PROGRESS)


@pytest.mark.parametrize(
    ("recorded", "source", "owner", "kind", "names"),
    [
        (None, SOURCE, OWNER, ProgressLost, "payments-to-postgres"),
        (Unsigned(Position("payments", 0, 100)), SOURCE, OWNER, ProgressMoved, "payments[0]@100"),
        (PROGRESS, SOURCE, Owner("another", 4), ProgressMoved, "another"),
        (PROGRESS, SOURCE, replace(OWNER, generation=3), Fenced, "generation 4"),
        (replace(PROGRESS, owner=replace(OWNER, sink="a@1")), SOURCE, replace(OWNER, sink="a@2"), SinkChanged, "a@1"),
        (
            PROGRESS,
            replace(SOURCE, identity=Identity("cluster-2", "topic-1", 7)),
            OWNER,
            SourceChanged,
            "cluster-2",
        ),
        (
            PROGRESS,
            replace(SOURCE, identity=Identity("cluster-1", "topic-2", 7)),
            OWNER,
            SourceChanged,
            "topic-2",
        ),
        (PROGRESS, replace(SOURCE, log_end=99, epoch_end=99), OWNER, SourceChanged, "ends at 99"),
        (PROGRESS, replace(SOURCE, epoch_end=60), OWNER, SourceChanged, "ends at 60"),
        (
            PROGRESS,
            replace(SOURCE, identity=replace(IDENTITY, leader_epoch=6)),
            OWNER,
            SourceChanged,
            "epoch 7",
        ),
        (PROGRESS, replace(SOURCE, log_start=103), OWNER, Gap, "3 offsets"),
    ],
)
def test_each_reason_to_stop_is_named(
    recorded: Recorded, source: Source, owner: Owner, kind: type[KeptError], names: str
) -> None:
    answer = check(WANTED, recorded, source, owner)
    assert isinstance(answer, Stop)
    error = answer.error()
    assert type(error) is kind
    assert names in error.what
    assert error.way_out


def test_a_sink_that_is_not_known_is_taken_for_the_same() -> None:
    bound = replace(PROGRESS, owner=replace(OWNER, sink="a@1"))
    assert check(WANTED, bound, SOURCE, OWNER) == Accept(100, bound)
    assert check(WANTED, PROGRESS, SOURCE, bound.owner) == Accept(100, PROGRESS)
    assert advance(PROGRESS, 110, 7, bound.owner).owner.sink == "a@1", "it is adopted"


@pytest.mark.parametrize("size", [1, 20])
def test_a_gap_is_named_with_its_size(size: int) -> None:
    answer = check(replace(WANTED, start=100 + size), PROGRESS, SOURCE, OWNER)
    assert isinstance(answer, Stop)
    assert answer.kind is Gap
    assert f" {size} offsets" in answer.what


def test_progress_at_the_very_end_and_a_range_that_starts_there_are_fine() -> None:
    at_end = advance(PROGRESS, 200, 7, OWNER)
    assert check(Range("payments", 0, 200, 200, 7), at_end, SOURCE, OWNER) == Accept(200, at_end)


def test_comparing_different_partitions_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match=r"payments\[0\]"):
        check(replace(WANTED, partition=1), PROGRESS, SOURCE, OWNER)


@given(situations())
def test_nothing_is_accepted_that_skips_or_trusts_too_much(
    situation: tuple[Range, Progress, Source, Owner],
) -> None:
    wanted, progress, source, owner = situation
    upto = progress.position.next_offset
    sound = (
        progress.owner.fingerprint == owner.fingerprint
        and progress.owner.generation <= owner.generation
        and progress.identity.cluster_id == source.identity.cluster_id
        and progress.identity.topic_id == source.identity.topic_id
        and progress.identity.leader_epoch <= source.identity.leader_epoch
        and source.log_start <= upto <= source.log_end
        and upto <= source.epoch_end
        and wanted.start <= upto
    )
    answer = check(wanted, progress, source, owner)
    assert isinstance(answer, Accept) == sound
    if isinstance(answer, Accept):
        assert answer.drop_below == upto


@given(st.lists(offsets, max_size=6), offsets, offsets)
def test_rows_are_sound_only_inside_their_range_and_rising(rows: list[int], start: int, length: int) -> None:
    wanted = Range("payments", 0, start, start + length, 0)
    sound = rows == sorted(set(rows)) and all(wanted.start <= row < wanted.end for row in rows)
    stop = check_rows(wanted, rows)
    assert (stop is None) == sound
    assert stop is None or stop.kind is UnsoundInput


@given(offsets, offsets, st.integers(0, 2), st.integers(0, 2), st.integers(0, 9))
def test_progress_only_moves_forward(here: int, to: int, then: int, now: int, epoch: int) -> None:
    before = replace(PROGRESS, position=Position("payments", 0, here), owner=Owner("p", then))
    if to < here or now < then:
        with pytest.raises(ValueError, match="only moves forward"):
            advance(before, to, epoch, Owner("p", now))
        return
    after = advance(before, to, epoch, Owner("p", now))
    assert after.position.next_offset == to
    assert after.identity.leader_epoch == max(before.identity.leader_epoch, epoch)
    assert after.owner.generation == now


def test_a_pipeline_is_born_with_generation_zero() -> None:
    born = seed(Position("payments", 0, 12), IDENTITY, "p")
    assert born == Progress(Position("payments", 0, 12), IDENTITY, Owner("p", 0))
