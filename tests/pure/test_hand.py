"""The hand and its batches: progress is never ahead of what is done, and what is not done comes again, in order."""

from __future__ import annotations

from collections import defaultdict
from typing import cast

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from kept.consumer.batch import Batch
from kept.consumer.hand import KEPT_BEHIND, Hand
from kept.consumer.records import Place, Record
from kept.errors import FixConfiguration

PLACES: list[Place] = [("numbers", 0), ("numbers", 1), ("letters", 0)]


def record(place: Place, offset: int) -> Record:
    topic, partition = place
    return Record(Message(topic=topic, partition=partition, offset=offset))


class World:
    """Logs with gaps, a hand that reads them, effects, and the progress that is recorded."""

    def __init__(self, logs: dict[Place, list[int]]) -> None:
        self.logs = logs
        self.hand = Hand()
        self.position = dict.fromkeys(logs, 0)
        self.recorded = dict.fromkeys(logs, 0)
        self.done: dict[Place, set[int]] = defaultdict(set)

    def take(self, places: list[Place]) -> None:
        taken = []
        for place in places:
            following = [offset for offset in self.logs[place] if offset >= self.position[place]]
            if following:
                self.position[place] = following[0] + 1
                taken.append(record(place, following[0]))
        self.hand.add(taken)

    def one(self) -> None:
        if not self.hand.empty():
            handed_out = self.hand.records[self.hand.at]
            self.effect(handed_out)
            assert self.hand.now_done(handed_out)

    def batch(self, most: int, acknowledged: set[int] | None, dropped: Place | None) -> None:
        """A batch of which some are acknowledged; perhaps its body drops a partition, as a replay does."""
        batch = Batch(self.hand.records[self.hand.at : self.hand.at + most])
        if not batch:
            return
        offsets: dict[Place, list[int]] = defaultdict(list)
        for each in batch:
            offsets[each.place].append(each.offset)
        assert all(row == sorted(set(row)) for row in offsets.values()), "out of order"
        chosen = [each for number, each in enumerate(batch) if acknowledged is None or number in acknowledged]
        if acknowledged is not None:
            batch.acknowledge_none()
            batch.acknowledge(*reversed(chosen))
        for each in chosen:
            self.effect(each)
        if dropped is not None:
            self.drop(dropped)
        done = self.hand.batch_done(batch)
        assert done == len([each for each in chosen if each.place != dropped])

    def effect(self, handed_out: Record) -> None:
        self.done[handed_out.place].add(handed_out.offset)

    def commit(self) -> None:
        progress = dict(self.hand.last_done())
        for place, last in progress.items():
            assert last.offset + 1 >= self.recorded[place], "progress moved backwards"
            self.recorded[place] = last.offset + 1
        self.hand.recorded(progress)
        self.check()

    def put_back(self, place: Place) -> None:
        first = self.hand.first_not_done().get(place)
        if first is not None:
            self.position[place] = first.offset
        self.hand.put_back([place])

    def drop(self, place: Place) -> None:
        """The partition goes, and comes back at what was recorded."""
        self.hand.drop([place])
        self.position[place] = self.recorded[place]

    def clear(self) -> None:
        done = {place: last.offset + 1 for place, last in self.hand.last_done().items()}
        self.hand.clear()
        self.position = {**self.recorded, **done}

    def check(self) -> None:
        for place, log in self.logs.items():
            skipped = {offset for offset in log if offset < self.recorded[place]} - self.done[place]
            assert not skipped, f"{place}: {skipped} would never be done"


places = st.sampled_from(PLACES)
steps = st.one_of(
    st.tuples(st.just("take"), st.lists(places, max_size=12)),
    st.tuples(st.just("one"), st.none()),
    st.tuples(
        st.just("batch"),
        st.tuples(
            st.integers(1, 8), st.one_of(st.none(), st.sets(st.integers(0, 7))), st.one_of(st.none(), st.none(), places)
        ),
    ),
    st.tuples(st.just("commit"), st.none()),
    st.tuples(st.just("put_back"), places),
    st.tuples(st.just("drop"), places),
    st.tuples(st.just("clear"), st.none()),
)
logs = st.fixed_dictionaries({place: st.sets(st.integers(0, 25), max_size=15).map(sorted) for place in PLACES})


@given(logs, st.lists(steps, max_size=25))
def test_nothing_is_ever_skipped_whatever_is_acknowledged_dropped_or_put_back(
    logs: dict[Place, list[int]], course: list[tuple[str, object]]
) -> None:
    world = World(logs)
    for name, argument in course:
        match name:
            case "batch":
                world.batch(*cast("tuple[int, set[int] | None, Place | None]", argument))
            case "one" | "commit" | "clear":
                getattr(world, name)()
            case _:
                getattr(world, name)(argument)
    for _ in range(30):  # then all is done
        world.take(PLACES)
        world.batch(8, None, None)
    world.commit()
    assert {place: world.done[place] for place in PLACES} == {place: set(log) for place, log in logs.items()}
    assert world.recorded == {place: log[-1] + 1 if log else 0 for place, log in logs.items()}


@given(st.integers(1, 12), st.sets(st.integers(0, 11)))
def test_progress_follows_the_unbroken_row_of_acknowledged_records(count: int, acknowledged: set[int]) -> None:
    place = PLACES[0]
    hand = Hand()
    hand.add([record(place, offset) for offset in range(count)])
    batch = Batch(list(hand.records))
    batch.acknowledge_none()
    batch.acknowledge(*[each for each in batch if each.offset in acknowledged])
    hand.batch_done(batch)
    row = next(number for number in range(count + 1) if number not in acknowledged or number == count)
    progress = {found.offset + 1 for found in hand.last_done().values()}
    assert progress == ({row} if row else set())
    again = [each.offset for each in hand.records[hand.at :]]
    assert again == [offset for offset in range(count) if offset not in acknowledged]


def test_a_hand_that_never_runs_empty_does_not_grow() -> None:
    hand = Hand()
    hand.add([record(PLACES[0], offset) for offset in range(500)])
    for offset in range(500, 20_000):
        hand.now_done(hand.records[hand.at])
        hand.add([record(PLACES[0], offset)])
    assert len(hand.records) <= 500 + KEPT_BEHIND + 1
    assert hand.last_done()[PLACES[0]].offset == 20_000 - 500 - 1


def test_a_record_that_was_taken_out_of_the_hand_meanwhile_is_not_done() -> None:
    hand = Hand()
    hand.add([record(PLACES[0], 0), record(PLACES[1], 0)])
    handed_out = hand.records[hand.at]
    hand.drop([PLACES[0]])
    assert not hand.now_done(handed_out)
    assert hand.last_done() == {}
    assert hand.records[hand.at].place == PLACES[1]


def test_a_commit_that_ends_late_does_not_hide_what_was_done_since() -> None:
    hand = Hand()
    hand.add([record(PLACES[0], offset) for offset in range(3)])
    hand.now_done(hand.records[hand.at])
    under_way = dict(hand.last_done())
    hand.now_done(hand.records[hand.at])
    hand.recorded(under_way)
    assert [last.offset for last in hand.last_done().values()] == [1]


def test_only_records_of_the_batch_can_be_acknowledged() -> None:
    batch = Batch([record(PLACES[0], 0)])
    with pytest.raises(FixConfiguration, match="is not in this batch"):
        batch.acknowledge(record(PLACES[0], 0))
    assert batch.left() == [batch[0]], "to have named one at all makes the batch partial"
    assert (len(batch), list(batch), batch[0:1]) == (1, [batch[0]], [batch[0]])
