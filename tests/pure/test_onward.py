"""Reading goes onward: a record that the client hands out twice is taken once."""

from __future__ import annotations

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from kept.consumer.onward import Onward
from kept.consumer.records import Place, Record

HERE, THERE = ("t", 0), ("t", 1)


def records(*found: tuple[Place, int]) -> list[Record]:
    return [Record(Message(topic=topic, partition=number, offset=offset)) for (topic, number), offset in found]


def onward(*, one_topic: bool = True) -> Onward:
    reading = Onward(one_topic=one_topic)
    for place in (HERE, THERE):
        reading.begin(place, 5)
    return reading


def test_everything_new_is_taken_gaps_and_all() -> None:
    reading = onward()
    some = records((HERE, 5), (THERE, 7), (HERE, 9))
    assert reading.first_time(some) == some
    more = records((HERE, 10), (THERE, 8))
    assert reading.first_time(more) == more


def test_what_came_before_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    reading = onward()
    reading.first_time(records((HERE, 5), (HERE, 6), (THERE, 5)))
    again = records((HERE, 5), (HERE, 6), (HERE, 7), (THERE, 6))
    assert reading.first_time(again) == again[2:]
    assert "2 records twice, from <Record t[0]@5> on" in caplog.text


def test_records_together_may_repeat_each_other() -> None:
    twice = records((HERE, 5), (HERE, 5), (HERE, 6))
    assert [record.offset for record in onward().first_time(twice)] == [5, 6]


def test_whoever_goes_back_reads_again() -> None:
    reading = onward()
    some = records((HERE, 5), (HERE, 6))
    reading.first_time(some)
    reading.begin(HERE, 5)
    assert reading.first_time(some) == some


def test_partitions_of_several_topics_are_told_apart() -> None:
    reading = onward(one_topic=False)
    some = records((HERE, 8), (("u", 0), 1))
    assert reading.first_time(some) == some
    assert reading.first_time(records((("u", 0), 1), (HERE, 7))) == []


@given(st.lists(st.lists(st.tuples(st.sampled_from([HERE, THERE, ("u", 0)]), st.integers(0, 9)))))
def test_as_one_that_remembers_everything(takes: list[list[tuple[Place, int]]]) -> None:
    reading, highest = Onward(one_topic=False), dict[Place, int]()
    for take in takes:
        wanted = []
        for place, offset in take:
            if offset > highest.get(place, -1):
                wanted.append((place, offset))
                highest[place] = offset
        assert [(record.place, record.offset) for record in reading.first_time(records(*take))] == wanted
