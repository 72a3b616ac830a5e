"""What is told of a running pipeline: sums, pace, lag, the time that is left."""

from __future__ import annotations

import pytest

from kept.pipelines.telling import BatchDone, PartitionDone, Telling, spoken


def batch(number: int, *reached: int, rows: int = 100, dropped: int = 0, end: int = 1000) -> BatchDone:
    parts = tuple(PartitionDone("t", each, offset - 50, offset, end) for each, offset in enumerate(reached))
    return BatchDone(number, rows, dropped, 2.0, parts)


def test_batches_are_added_up_and_the_pace_includes_the_time_between_them() -> None:
    telling = Telling("pay", will_end=True)
    telling.hear(batch(7, 50, 100), now=10.0)
    assert (telling.rate, telling.lag) == (50.0, 950 + 900)
    telling.hear(batch(8, 100, 150), now=18.0)
    assert (telling.batches, telling.rows) == (2, 200)
    assert telling.rate == 20.0, "200 rows in 2 + 8 seconds"
    assert telling.lag == 900 + 850
    assert telling.seconds_left == pytest.approx(1750 / 20)


def test_a_line_says_it_all() -> None:
    telling = Telling("pay", will_end=True)
    done = batch(7, 950, 1000, dropped=3)
    telling.hear(done, now=0.0)
    assert telling.line(done) == (
        "pay: batch 7, 100 rows in 2.0 s, 3 were there before, 100 in all, 50 a second, behind by at most 50 "
        "(t[0] 50), about 1 s left"
    )
    assert telling.summary() == "pay: 100 rows in 1 batches; 3 were there before, and dropped"


def test_what_was_buried_is_told_wherever_somebody_looks() -> None:
    telling = Telling("pay", will_end=False)
    done = BatchDone(7, 98, 0, 2.0, (), buried=2)
    telling.hear(done, now=0.0)
    assert "98 rows in 2.0 s, 2 buried, 98 in all" in telling.line(done)
    assert telling.document(done)["buried"] == 2
    assert telling.head().endswith("behind by at most 0   2 buried")
    assert telling.summary() == "pay: 98 rows in 1 batches; 2 were buried: `kept dead-letters list`"


def test_without_an_end_no_time_is_left_and_at_the_end_none_is_told() -> None:
    endless = Telling("pay", will_end=False)
    endless.hear(batch(0, 50), now=0.0)
    assert endless.seconds_left is None
    assert "left" not in endless.line(batch(0, 50)) + endless.head()
    ended = Telling("pay", will_end=True)
    ended.hear(batch(0, 1000), now=0.0)
    assert ended.seconds_left == 0
    assert "left" not in ended.line(batch(0, 1000))


def test_nothing_is_divided_by_nothing() -> None:
    telling = Telling("pay", will_end=True)
    assert (telling.rate, telling.lag, telling.seconds_left) == (0.0, 0, None)
    telling.hear(BatchDone(0, 0, 0, 0.0, ()), now=0.0)
    assert (telling.rate, telling.seconds_left) == (0.0, None)


def test_the_pace_is_that_of_the_last_batches() -> None:
    telling = Telling("pay", will_end=False)
    for number in range(30):
        telling.hear(batch(number, 50, rows=1000 if number < 20 else 10), now=number * 2.0)
    assert telling.rate == 5.0


def test_a_document_for_programs() -> None:
    telling = Telling("pay", will_end=False)
    done = batch(3, 50)
    telling.hear(done, now=0.0)
    assert telling.document(done) == {
        "pipeline": "pay", "batch": 3, "rows": 100, "dropped": 0, "buried": 0, "seconds": 2.0, "rows_in_all": 100,
        "rows_a_second": 50.0, "lag_at_most": 950, "seconds_left": None,
        "partitions": [{"topic": "t", "partition": 0, "from": 0, "next_offset": 50, "log_end": 1000,
                        "lag_at_most": 950}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (59, "59 s"), (61, "1 min 1 s"), (601, "10 min"), (3600, "1 h 0 min"), (7379, "2 h 2 min")],
)
def test_times_are_spoken(seconds: float, words: str) -> None:
    assert spoken(seconds) == words


def test_on_a_screen_each_partition_has_its_line_and_too_many_are_those_furthest_behind() -> None:
    from rich.console import Console

    from kept.cli.run import MOST_PARTITIONS, drawn

    telling = Telling("pay", will_end=True)
    parts = tuple(PartitionDone("t", each, 0, 1000 + each, 2000) for each in range(MOST_PARTITIONS + 5))
    telling.hear(BatchDone(0, 5000, 0, 1.0, parts), now=0.0)
    console = Console(width=100)
    with console.capture() as captured:
        console.print(drawn(telling))
    text = captured.get()
    assert "pay   batch 1   5,000 rows   5,000 a second   behind by at most 24,700   1 s left" in text
    assert "t[0]             1,000    2,000   1,000" in text
    assert "t[19]" in text
    assert "t[20]" not in text
