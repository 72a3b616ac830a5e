"""Dead letters of pipelines: which rows are given up, the record that each was, and how a refused chunk is halved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest

from kept.consumer.dead_letters import LONGEST_REASON, DeadLetter, headers_of
from kept.errors import FixConfiguration
from kept.progress import Range
from kept.spark import DeadLetterTable, DeadLetterTopic, KafkaSink, KafkaSource, Pipeline, PostgresSink
from kept.spark.dead_letters import Letters, refuse_going_round, stored
from kept.spark.kafka_records import Shape
from kept.spark.kafka_tasks import halving, share
from kept.spark.position import MISFIT, ORIGINAL, REFUSED
from kept.spark.sinks import Rows, Written

WANTED = Range("t", 1, 10, 100, 3)
LETTERS = Letters(("t", 1), "pay")


def rows(
    offsets: list[int], reasons: Mapping[str, Sequence[str | None]] | None = None, *, in_batches: int = 100
) -> Rows:
    """Rows v10, v12, ... with their records; in as many pieces of memory as come from Spark."""
    originals = [
        {"key": b"k", "value": f"{{{offset}".encode(), "headers": None, "timestamp": offset * 1000}
        for offset in offsets
    ]
    kind = pa.struct(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ("timestamp", pa.int64()),
        ]
    )
    columns = {
        ORIGINAL: pa.array(originals, kind),
        **{name: pa.array(each, pa.string()) for name, each in (reasons or {}).items()},
    }
    return Rows(
        np.array(offsets, np.int64),
        _pieces(pa.table({"v": [f"v{offset}" for offset in offsets]}), in_batches),
        _pieces(pa.table(columns), in_batches),
    )


def _pieces(table: pa.Table, size: int) -> pa.Table:
    return pa.Table.from_batches(table.to_batches(max_chunksize=size))


def values(some: Rows) -> list[str]:
    assert some.origin is not None
    assert some.origin.num_rows == some.table.num_rows == len(some)
    found: list[str] = some.table.column("v").to_pylist()
    assert found == [f"v{offset}" for offset in some.offsets.tolist()], "columns, offsets and records stay together"
    assert [each["timestamp"] for each in some.origin.column(ORIGINAL).to_pylist()] == (some.offsets * 1000).tolist()
    return found


def test_parts_of_rows_keep_their_records() -> None:
    all_rows = rows([10, 12, 13, 17], in_batches=2)
    assert values(all_rows.at_or_above(12)) == ["v12", "v13", "v17"]
    assert values(all_rows.some(range(1, 3))) == ["v12", "v13"]
    assert values(all_rows.some(range(2, 2))) == []
    assert values(all_rows.where(pa.chunked_array([[True, False], [False, True]]))) == ["v10", "v17"]


@pytest.mark.parametrize("in_batches", [1, 2, 100])
def test_rows_that_were_given_up_become_letters_and_the_others_stay(in_batches: int) -> None:
    given = rows(
        [10, 12, 13, 17],
        {MISFIT: [None, "unreadable", None, "unreadable"], REFUSED: [None, None, "negative", "negative"]},
        in_batches=in_batches,
    )
    good, letters = LETTERS.parted(given)
    assert values(good) == ["v10"]
    assert [(each.offset, each.reason) for each in letters] == [
        (12, "unreadable"),
        (13, "negative"),
        (17, "unreadable"),
    ]


def test_without_a_reason_nothing_is_given_up() -> None:
    given = rows([10, 12])
    assert LETTERS.parted(given) == (given, [])
    nobody = rows([10, 12], {REFUSED: [None, None]})
    assert LETTERS.parted(nobody) == (nobody, [])
    plain = Rows(given.offsets, given.table)
    assert LETTERS.parted(plain) == (plain, [])


def test_a_reason_may_quote_bytes_that_are_no_text() -> None:
    quoted = pa.array([None, b"bad \xff"], pa.binary()).view(pa.string())
    given = rows([10, 12])
    assert given.origin is not None
    origin = given.origin.append_column(REFUSED, quoted)
    _, letters = LETTERS.parted(Rows(given.offsets, given.table, origin))
    assert [each.reason for each in letters] == ["bad \ufffd"]


def test_text_that_is_no_text_goes_to_kafka_as_it_is() -> None:
    value = pa.array([b"\xff", None, b"a"], pa.binary()).view(pa.string())
    table = pa.table({"value": value, "topic": ["t", "t", "u"]})
    made = list(Shape(("value", "topic"), None).records(table))
    assert [(each.topic, each.value) for each in made] == [("t", b"\xff"), ("t", None), ("u", b"a")]


def test_values_and_keys_alone_are_sent_without_more() -> None:
    value = pa.chunked_array([pa.array([b"\xff", None], pa.binary()).view(pa.string()), pa.array(["", "a"])])
    table = pa.table({"value": value, "key": pa.array([None, b"k", b"", b"\x00"], pa.binary())})
    found = Shape(("value", "key"), "t").values_and_keys(table)
    assert found is not None
    assert [*map(list, found)] == [[b"\xff", None, b"", b"a"], [None, b"k", b"", b"\x00"]]
    only = Shape(("value",), "t").values_and_keys(table.select(["value"]))
    assert only is not None
    assert next(iter(only[1])) is None
    partitions = table.append_column("partition", pa.array([0, 1, 0, 1]))
    assert Shape(("value", "key", "partition"), "t").values_and_keys(partitions) is None


def test_everything_may_be_given_up() -> None:
    good, letters = LETTERS.parted(rows([10, 12], {REFUSED: ["no", "no"]}))
    assert len(good) == 0
    assert len(letters) == 2


def test_a_letter_is_the_whole_record_with_its_place_and_the_reason() -> None:
    record = {
        "key": None,
        "value": b"\x00\xff",
        "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        "timestamp": -1,
    }
    of_one = Rows(np.array([7]), pa.table({"v": ["x"]}), pa.table({ORIGINAL: [record]}))
    letter = LETTERS.letter(of_one, 0, "r" * 2000)
    headers = (("a", b"1"), ("a", None))
    assert letter == DeadLetter("t", 1, 7, -1, "r" * LONGEST_REASON, "kept.pay", None, b"\x00\xff", headers)
    assert headers_of(letter)[:2] == list(headers)
    kept_in_table = stored(letter)
    assert (kept_in_table.topic, kept_in_table.partition, kept_in_table.offset) == ("t", 1, 7)
    assert (kept_in_table.key, kept_in_table.value, kept_in_table.headers) == (None, b"\x00\xff", headers)


def test_shares_of_a_range_touch_and_cover_it_with_its_holes() -> None:
    given = rows([12, 15, 16, 20])
    parts = [share(given, WANTED, numbers) for numbers in (range(1), range(1, 3), range(3, 4))]
    assert [(part.start, part.end) for part in parts] == [(10, 13), (13, 17), (17, 21)]


class Log:
    """What became of rows: all that go together are written unless one of them is poison; one alone is buried."""

    def __init__(self, poison: set[int], *, dies_after: int = 1000) -> None:
        self.poison = poison
        self.held: list[int] = []
        self.buried: list[int] = []
        self.progress = WANTED.start
        self.tries = 0
        self.left = dies_after

    def tried(self, some: Rows, wanted: Range) -> Written | None:
        offsets = [each for each in some.offsets.tolist() if each >= self.progress]
        assert wanted.start <= self.progress, "a gap"
        self.tries += 1
        bad = self.poison.intersection(offsets)
        if bad and len(some) > 1:
            return None
        if self.left == 0:
            raise ConnectionError("died before the commit")
        self.left -= 1
        (self.buried if bad else self.held).extend(offsets)
        self.progress = max(self.progress, wanted.end)
        return Written(self.progress, len(offsets) - len(bad), len(some) - len(offsets), len(bad))


@pytest.mark.parametrize("poison", [set(), {10}, {73}, {41}, {10, 11, 73}, set(range(10, 74))], ids=str)
def test_a_refused_chunk_is_halved_and_every_row_is_written_or_buried_in_its_order(poison: set[int]) -> None:
    log = Log(poison)
    all_offsets = list(range(10, 74))
    done = halving(rows(all_offsets), WANTED, log.tried)
    assert log.held == [each for each in all_offsets if each not in poison]
    assert log.buried == sorted(poison)
    assert done == Written(74, 64 - len(poison), 0, len(poison))
    assert log.tries <= 1 + 2 * 6 * max(1, len(poison)), "halves, and not one row at a time"


def test_whoever_dies_while_halving_loses_neither_a_row_nor_a_letter() -> None:
    all_offsets = list(range(10, 42))
    for dies_after in range(12):
        log = Log({13, 14, 40}, dies_after=dies_after)
        try:
            halving(rows(all_offsets), WANTED, log.tried)
        except ConnectionError:
            log.left = 1000
            done = halving(rows(all_offsets), WANTED, log.tried)
            assert done.reached == 42
        assert log.held == [each for each in all_offsets if each not in {13, 14, 40}]
        assert log.buried == [13, 14, 40]


@pytest.mark.parametrize(
    ("sink", "letters"),
    [
        (PostgresSink("postgresql://localhost/shop", "t"), DeadLetterTopic("t.dead")),
        (KafkaSink("localhost:1", "t"), DeadLetterTable()),
    ],
    ids=["rows in Postgres", "rows in Kafka"],
)
def test_letters_elsewhere_than_the_rows_are_refused_at_once(
    sink: PostgresSink | KafkaSink, letters: DeadLetterTable | DeadLetterTopic
) -> None:
    from kept.guarantees import ExactlyOnce

    with pytest.raises(FixConfiguration, match="would not be one transaction"):
        Pipeline(source=KafkaSource("localhost:1", "a"), sink=sink, guarantee=ExactlyOnce("pay"), dead_letters=letters)


@pytest.mark.parametrize(("topic", "told"), [("a", "reads"), ("out", "writes")])
def test_letters_do_not_go_round(topic: str, told: str) -> None:
    with pytest.raises(FixConfiguration, match=f"the pipeline {told} it"):
        refuse_going_round(DeadLetterTopic(topic), ["a", "b"], "out")
    refuse_going_round(DeadLetterTopic("a.dead"), ["a", "b"], "out")
    refuse_going_round(DeadLetterTable(), ["a"], None)


def test_a_dead_letter_topic_has_a_name() -> None:
    with pytest.raises(FixConfiguration, match="no name"):
        DeadLetterTopic("")
