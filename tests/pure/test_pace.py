"""How many records a transaction takes: few of a slow effect, many of a quick one, never too many bytes."""

from __future__ import annotations

from confluent_kafka import Message

from kept.consumer.pace import FIRST, MOST, MOST_BYTES, SECONDS, Pace
from kept.consumer.records import Record


def records(*sizes: int) -> list[Record]:
    return [Record(Message(topic="t", partition=0, offset=at, value=bytes(size))) for at, size in enumerate(sizes)]


def test_a_quick_effect_soon_gets_as_many_as_there_may_be() -> None:
    pace = Pace()
    for _ in range(6):
        pace.took(pace.most, pace.most * 10e-6, done=True)
    assert pace.most == MOST


def test_a_slow_effect_gets_what_it_can_do_in_time() -> None:
    pace = Pace()
    assert pace.most == FIRST
    pace.took(FIRST, FIRST * 10.0, done=True)
    assert pace.most == 1
    for _ in range(20):
        pace.took(pace.most, pace.most * 0.01, done=True)
    assert pace.most * 0.01 <= SECONDS
    assert pace.most >= 100


def test_a_few_records_say_nothing_about_many() -> None:
    pace = Pace()
    pace.took(1, 0.001, done=True)
    assert pace.most == FIRST


def test_what_failed_at_once_does_not_count_as_quick() -> None:
    pace = Pace()
    pace.took(FIRST, 0.001, done=False)
    assert pace.most == FIRST
    pace.took(FIRST, FIRST * SECONDS, done=False)
    assert pace.most == 1


def test_large_records_are_few() -> None:
    pace = Pace()
    half = MOST_BYTES // 2
    assert pace.share(records(1, 1, 1)) == 3
    assert pace.share(records(half, half, 1)) == 2
    assert pace.share(records(MOST_BYTES + 1, 1)) == 1
    assert pace.share(records(1, MOST_BYTES)) == 1
    assert pace.share([]) == 0
    assert pace.share(records(*[1] * (FIRST + 1))) == FIRST
