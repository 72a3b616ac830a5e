"""The order of the two moves: each guarantee as promised, and broken when its order is swapped."""

from __future__ import annotations

from functools import partial

import pytest

from kept.errors import Fenced, Gap, KeptError, UnsoundInput
from kept.guarantees.levels import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.progress import (
    ORDER,
    Chunk,
    Identity,
    Move,
    Owner,
    Position,
    Progress,
    Range,
    Seen,
    Source,
    Step,
    Steps,
    close_range,
    follow,
    one_chunk,
    seed,
    take_over,
)
from kept.progress.model.search import exhaust, replay, search
from kept.progress.model.two_moves import (
    EFFECT_FIRST,
    EFFECT_THEN_PROGRESS_TRANSACTION,
    PROGRESS_FIRST,
    PROGRESS_THEN_EFFECT_TRANSACTION,
    TwoMoves,
    TwoMovesAlone,
    TwoMovesUndisturbed,
)

GUARANTEES = (AtMostOnce(), AtLeastOnce(), ExactlyOnce("writer"))
MAY_SHOW = {
    AtMostOnce: frozenset({"lost"}),
    AtLeastOnce: frozenset({"duplicated"}),
    ExactlyOnce: frozenset[str](),
}

IDENTITY = Identity("cluster", "topic", 0)
BORN = seed(Position("payments", 0, 10), IDENTITY, "p")
SOURCE = Source(IDENTITY, 0, 100, 100)
OWNER = Owner("p", 1)


def chunk(*offsets: int, start: int = 10, end: int = 20) -> Chunk:
    return Chunk(Range("payments", 0, start, end, 0), offsets)


def run(steps: Steps, recorded: Progress = BORN) -> tuple[list[Step], Progress]:
    """Carry out nothing, answer what is asked, and keep what was asked for."""
    asked: list[Step] = []
    answer: Seen | None = None
    try:
        while True:
            asked.append(steps.send(answer))
            answer = Seen(recorded, SOURCE) if asked[-1].move is Move.READ_PROGRESS else None
    except StopIteration as end:
        return asked, end.value


def test_the_one_idea() -> None:
    def two_moves(guarantee: type) -> tuple[Move, ...]:
        return tuple(move for move in ORDER[guarantee] if move in PROGRESS_FIRST)

    assert two_moves(AtMostOnce) == PROGRESS_FIRST
    assert two_moves(AtLeastOnce) == EFFECT_FIRST
    inside = ORDER[ExactlyOnce]
    assert (inside[0], inside[-1]) == (Move.BEGIN, Move.COMMIT)
    assert inside.count(Move.COMMIT) == 1
    assert set(inside[1:-1]) == {Move.APPLY_EFFECT, Move.RECORD_PROGRESS}


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda level: type(level).__name__)
def test_every_guarantee_fences_before_it_reads_progress(
    guarantee: AtMostOnce | AtLeastOnce | ExactlyOnce,
) -> None:
    asked, progress = run(one_chunk(guarantee, chunk(10, 11, 14), OWNER))
    moves = [step.move for step in asked]
    assert moves == [Move.FENCE, Move.READ_PROGRESS, *ORDER[type(guarantee)]]
    assert progress.position.next_offset == 15, "past the last row in hand, not to the end of the range"
    assert progress.owner == OWNER
    assert {step.expected for step in asked[2:]} == {BORN}
    assert {step.new for step in asked[2:]} == {progress}


def test_rows_that_are_done_cause_no_move() -> None:
    asked, progress = run(one_chunk(ExactlyOnce("p"), chunk(4, 9, start=0), OWNER))
    assert [step.move for step in asked] == [Move.FENCE, Move.READ_PROGRESS]
    assert progress == BORN


def test_rows_below_progress_are_dropped_and_the_others_written() -> None:
    asked, progress = run(one_chunk(AtLeastOnce(), chunk(8, 9, 10, 12, start=8), OWNER))
    assert asked[-2].drop_below == 10
    assert progress.position.next_offset == 13


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        (one_chunk(ExactlyOnce("p"), chunk(12, start=12), OWNER), Gap),
        (one_chunk(ExactlyOnce("p"), chunk(12, 11), OWNER), UnsoundInput),
        (one_chunk(ExactlyOnce("p"), chunk(11), Owner("p", -1)), Fenced),
        (close_range(chunk().range, 15, OWNER), Gap),
    ],
    ids=["gap", "rows out of order", "older generation", "progress fell below what the task reached"],
)
def test_a_stop_is_raised_before_any_move(steps: Steps, kind: type[KeptError]) -> None:
    steps.send(None)
    steps.send(None)
    with pytest.raises(kind):
        steps.send(Seen(BORN, SOURCE))


def test_closing_a_range_goes_past_its_holes_and_never_back() -> None:
    _, closed = run(close_range(chunk().range, 10, OWNER))
    assert closed.position.next_offset == 20
    asked, same = run(close_range(chunk(start=0, end=5).range, 3, OWNER))
    assert same == BORN
    assert Move.RECORD_PROGRESS not in [step.move for step in asked]


def test_a_new_driver_takes_the_next_generation() -> None:
    _, first = run(take_over("p"))
    _, second = run(take_over("p"), first)
    _, joined = run(take_over("p", at_least=9), first)
    assert [progress.owner.generation for progress in (first, second, joined)] == [1, 2, 9]
    assert second.position == BORN.position


def test_the_rest_of_a_range_begins_after_the_rows_in_hand() -> None:
    assert chunk(10, 13).rest() == Range("payments", 0, 14, 20, 0)
    assert chunk().rest() == chunk().range


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda level: type(level).__name__)
def test_without_faults_every_guarantee_delivers_each_record_once(guarantee: object) -> None:
    result = search(partial(TwoMovesUndisturbed, moves=ORDER[type(guarantee)]), 500)
    assert result.found is None, str(result)


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda level: type(level).__name__)
def test_every_single_crash_and_lost_acknowledgement(guarantee: object) -> None:
    level = type(guarantee)
    result = exhaust(partial(TwoMovesAlone, moves=ORDER[level]), 20_000, allowed=MAY_SHOW[level])
    assert result.found is None, str(result)
    assert result.schedules > 250
    for anomaly in MAY_SHOW[level]:
        shown = exhaust(partial(TwoMovesAlone, moves=ORDER[level]), 20_000)
        assert shown.found is not None, f"the faults were too weak to show what {level.__name__} permits"
        assert anomaly in shown.found.outcome.anomalies


@pytest.mark.parametrize(
    ("promise", "moves", "anomaly"),
    [
        (AtMostOnce, EFFECT_FIRST, "duplicated"),
        (AtLeastOnce, PROGRESS_FIRST, "lost"),
        (ExactlyOnce, EFFECT_THEN_PROGRESS_TRANSACTION, "duplicated"),
        (ExactlyOnce, PROGRESS_THEN_EFFECT_TRANSACTION, "lost"),
    ],
    ids=["at most once", "at least once", "exactly once, effect first", "exactly once, progress first"],
)
def test_the_swapped_order_breaks_the_promise(promise: type, moves: tuple[Move, ...], anomaly: str) -> None:
    for world, look in (
        (TwoMoves, partial(search, schedules=2_000)),
        (TwoMovesAlone, partial(exhaust, limit=20_000)),
    ):
        result = look(partial(world, moves=moves), allowed=MAY_SHOW[promise])
        assert result.found is not None, str(result)
        assert anomaly in result.found.outcome.anomalies, str(result)
        again = replay(partial(world, moves=moves), result.found.seed)
        assert again == result.found, "a seed is a schedule"


def test_a_further_partition_is_claimed_with_the_generation_that_was_won_and_no_higher() -> None:
    owner = Owner("p", 3)
    assert run(follow(owner, tried=False))[1].owner == owner
    of_a_winner, alike = (Progress(BORN.position, IDENTITY, Owner("p", generation)) for generation in (4, 3))
    for tried in (False, True):
        with pytest.raises(Fenced, match="generation 4"):
            run(follow(owner, tried=tried), of_a_winner)
    with pytest.raises(Fenced, match="generation 3"):
        run(follow(owner, tried=False), alike)
    asked, reached = run(follow(owner, tried=True), alike)
    assert reached == alike, "the claim before this one got through"
    assert Move.RECORD_PROGRESS not in [step.move for step in asked]
