"""A table that is altered while a pipeline writes to it: the pipeline stops, and no row is taken for another or buried.

Driven without Spark. Binary COPY takes four bytes of text for a number, without a word.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

import kept
from kept.errors import FixConfiguration
from kept.guarantees import Guarantee
from kept.spark.dead_letters import DeadLetterTable
from kept.spark.postgres_sink import PostgresDriver
from kept.spark.postgres_table import Field, Fit
from kept.spark.postgres_target import Target
from kept.spark.sinks import Rows
from kept.spark.staging import Staged
from tests.spark.scenes import InPostgres

NAME = "altered"
BEFORE, AFTER = ["v000", "v001", "long ago"], ["v003", "v004", "and then some"]


@pytest.fixture
def scene(dsn: str) -> Iterator[InPostgres]:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE out (value text, amount numeric(12,2) DEFAULT 0)")
    with ExitStack() as stack:
        yield InPostgres(NAME, stack, dsn)


def a_driver(scene: InPostgres, guarantee: Guarantee, *, buries: bool = False) -> PostgresDriver:
    """One that was given a frame of one text."""
    sink = kept.PostgresSink(scene.dsn, "out")
    opened = sink.open(scene.name, guarantee, DeadLetterTable() if buries else None)
    opened.fitted([Field("value", "string")])
    scene.begun(opened)
    return opened


def some(texts: list[str], first: int) -> Rows:
    record = {"key": None, "value": b"a record", "headers": None, "timestamp": 0}
    origin = pa.table({"_kept_original": [record] * len(texts)})
    return Rows(np.arange(first, first + len(texts)), pa.table({"value": texts}), origin)


def write(scene: InPostgres, driver: PostgresDriver, texts: list[str], first: int) -> None:
    end = first + len(texts)
    part = driver.for_tasks().open(scene.assigned(first, end))
    try:
        part.write(some(texts, first), scene.range(first, end))
    finally:
        part.close()


def alter(scene: InPostgres, how: str) -> None:
    with psycopg.connect(scene.dsn) as person:
        person.execute(f"ALTER TABLE out {how}".encode())


def found(scene: InPostgres) -> tuple[list[str], int, int]:
    """The values, how many letters there are, and where progress stands."""
    with psycopg.connect(scene.dsn) as connection:
        rows = connection.execute("SELECT value::text FROM out ORDER BY value").fetchall()
        letters = "SELECT count(*) FROM kept_dead_letters"
        there = connection.execute("SELECT to_regclass('kept_dead_letters')").fetchall() != [(None,)]
        ((buried,),) = connection.execute(letters.encode()).fetchall() if there else [(0,)]
        ((upto,),) = connection.execute("SELECT next_offset FROM kept_progress").fetchall()
    return [value for (value,) in rows], buried, upto


ALTERED = {
    "no row fits": ("ALTER value TYPE bigint USING 7", "bigint"),
    "some rows are taken for numbers": ("ALTER value TYPE int USING 7", "integer"),
    "other bytes are expected": ("ALTER value TYPE jsonb USING '7'", "jsonb"),
    "a column that nobody fills": (
        "ADD seen_by text NOT NULL DEFAULT ''; ALTER TABLE out ALTER seen_by DROP DEFAULT",
        "seen_by",
    ),
    "the column is gone": ("RENAME value TO worth", "no column value"),
}


@pytest.mark.parametrize("buries", [True, False], ids=["dead letters", "none"])
@pytest.mark.parametrize(("how", "told"), ALTERED.values(), ids=ALTERED)
def test_a_table_that_does_not_fit_any_more_stops_a_task(scene: InPostgres, how: str, told: str, buries: bool) -> None:
    driver = a_driver(scene, kept.ExactlyOnce(NAME), buries=buries)
    write(scene, driver, BEFORE, 0)
    alter(scene, how)
    with pytest.raises(FixConfiguration, match=told):
        write(scene, driver, AFTER, 3)
    with psycopg.connect(scene.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM out").fetchall() == [(3,)]
        assert connection.execute("SELECT next_offset FROM kept_progress").fetchall() == [(3,)]
        if buries:
            assert connection.execute("SELECT count(*) FROM kept_dead_letters").fetchall() == [(0,)]


@pytest.mark.parametrize("looked_at", [True, False], ids=["looked at", "not looked at"])
def test_text_is_not_taken_for_numbers_of_the_same_length(
    scene: InPostgres, monkeypatch: pytest.MonkeyPatch, looked_at: bool
) -> None:
    if not looked_at:
        monkeypatch.setattr(Fit, "refuse_altered", lambda *_: None)
    driver = a_driver(scene, kept.ExactlyOnce(NAME))
    alter(scene, "ALTER value TYPE int USING 7")
    with pytest.raises(FixConfiguration) if looked_at else nullcontext():
        write(scene, driver, ["v000", "v001"], 0)
    numbers = [str(int.from_bytes(text, "big")) for text in (b"v000", b"v001")]
    assert found(scene) == (([], 0, 0) if looked_at else (numbers, 0, 2)), "and nobody was told"


def test_an_alteration_between_the_look_and_the_rows_is_seen(
    scene: InPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = a_driver(scene, kept.ExactlyOnce(NAME), buries=True)
    copy = Target._copy

    def late(self: Target, *given: Any) -> None:
        monkeypatch.setattr(Target, "_copy", copy)
        alter(scene, "ALTER value TYPE int USING 7")
        copy(self, *given)

    monkeypatch.setattr(Target, "_copy", late)
    with pytest.raises(FixConfiguration, match="integer"):
        write(scene, driver, AFTER, 0)
    assert found(scene) == ([], 0, 0)


@pytest.mark.parametrize("guarantee", [kept.AtLeastOnce(), kept.AtMostOnce()], ids=lambda each: each.word)
def test_under_the_other_guarantees_too(scene: InPostgres, guarantee: Guarantee) -> None:
    driver = a_driver(scene, guarantee, buries=True)
    write(scene, driver, BEFORE, 0)
    alter(scene, "ALTER value TYPE int USING 7")
    with pytest.raises(FixConfiguration, match="integer"):
        write(scene, driver, AFTER, 3)
    assert found(scene)[:2] == (["7"] * 3, 0)


def test_what_does_not_matter_to_the_rows_does_not_stop_it(scene: InPostgres) -> None:
    driver = a_driver(scene, kept.ExactlyOnce(NAME), buries=True)
    write(scene, driver, BEFORE, 0)
    alter(scene, "ADD note text, ADD CHECK (value <> 'v003'), ALTER value TYPE varchar(20)")
    write(scene, driver, AFTER, 3)
    assert found(scene) == (sorted([*BEFORE, *AFTER[1:]]), 1, 6)


@pytest.mark.parametrize("when", ["before rows are put aside", "after"])
def test_a_batch_is_not_moved_into_a_table_that_was_altered(scene: InPostgres, when: str) -> None:
    """Numbers that are put aside with their fraction would be rounded on the way, without a word."""
    driver = kept.PostgresSink(scene.dsn, "out").open(scene.name, kept.ExactlyOnce(NAME))
    driver.fitted([Field("amount", "decimal(12,2)")])
    scene.begun(driver)

    def moved() -> None:
        writer = driver.staging().open(0)
        name = str(uuid.uuid4())
        amounts = pa.table({"amount": pa.array(["1.50", "2.75"]).cast(pa.decimal128(12, 2))})
        writer.write(name, 0, amounts)
        writer.close()
        if when == "after":
            alter(scene, "ALTER amount TYPE numeric(12,0)")
        driver.move(scene.batch(0, 0, 5), [scene.assigned(0, 5)], [Staged(name, 2)])

    if when != "after":
        alter(scene, "ALTER amount TYPE numeric(12,0)")
    with pytest.raises(FixConfiguration, match="would round it"):
        moved()
    assert found(scene)[2] == 0
