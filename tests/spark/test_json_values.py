"""JSON as it is read: what Spark would alter without a word is found out, and what it holds exactly passes."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import pytest
from pyspark.sql import Row, SparkSession

from kept.errors import FixConfiguration
from kept.spark.position import MISFIT
from kept.spark.transforms import with_values

SCHEMA = (
    "id STRING NOT NULL, n INT, a DECIMAL(12,2), w DECIMAL(28,18), l ARRAY<DECIMAL(12,2)>, "
    "m MAP<STRING,DECIMAL(12,2)>, s STRUCT<x: DECIMAL(4,1), `y.z`: STRING>, ls ARRAY<STRUCT<x: DECIMAL(12,2)>>"
)


def wrong(what: str) -> FixConfiguration:
    return FixConfiguration(what, way_out="mend it")


def read(spark: SparkSession, texts: Sequence[str | bytes | None], schema: str = SCHEMA) -> list[Row]:
    """Each text as a pipeline with dead letters reads it: its value, and why it has none."""
    rows = [(text.encode() if isinstance(text, str) else text,) for text in texts]
    return with_values(schema, wrong, buries=True)(spark.createDataFrame(rows, "value BINARY")).collect()


def test_what_would_be_altered_does_not_fit(spark: SparkSession) -> None:
    texts: list[str | bytes | None] = [
        '{"id":"a","n":1}{"id":"b","n":2}',
        '{"id":"a"} {"id":"b"}',
        '{"id":"a"},{"id":"b"}',
        '{"id":"a"} and more',
        '{"id":"a"}]',
        '{"id":"a"}}',
        '{"id":"a"}],"x":[{"id":"b"}',
        '{"id":"a"},{"_kept_end":true}]}',
        '[{"id":"a"}]',
        "",
        "  ",
        "null",
        "5",
        '{"id":"a"',
        b'{"id":"\xff"}',
        '{"n":1.5}',
        '{"a":1.005}',
        '{"a":"1.005"}',
        '{"a":"1,50"}',
        '{"a":"1,500.00"}',
        '{"a":9999999999.999}',
        '{"a":12345678901}',
        '{"a":1e-12}',
        '{"w":0.0000000000000000001}',
        '{"l":[1.25,1.005]}',
        '{"m":{"k":1.005}}',
        '{"s":{"x":1.25}}',
        '{"ls":[{"x":1},{"x":0.001}]}',
    ]
    passed = [text for text, row in zip(texts, read(spark, texts), strict=True) if row[MISFIT] is None]
    assert passed == []


def test_what_is_held_exactly_passes(spark: SparkSession) -> None:
    held: dict[str, tuple[str, object]] = {
        ' {"id":"a","n":1} \n': ("id", "a"),
        '{"id":"\\u00e9 ]}, {","more":{"x":[1,2]}}': ("id", "é ]}, {"),
        '{"id":"é"}': ("id", "é"),
        '{"a":1.5}': ("a", Decimal("1.50")),
        '{"a":1.50000}': ("a", Decimal("1.50")),
        '{"a":-9999999999.99}': ("a", Decimal("-9999999999.99")),
        '{"a":"12.50"}': ("a", Decimal("12.50")),
        '{"a":"-3"}': ("a", Decimal(-3)),
        '{"a":1.0E7}': ("a", Decimal(10000000)),
        '{"w":1234567890.123456789012345678}': ("w", Decimal("1234567890.123456789012345678")),
        '{"l":[1.25,null]}': ("l", [Decimal("1.25"), None]),
        '{"m":{"k":1.25}}': ("m", {"k": Decimal("1.25")}),
        '{"s":{"x":1.2,"y.z":"q"}}': ("s", Row(**{"x": Decimal("1.2"), "y.z": "q"})),
        '{"ls":[{"x":1.25},null]}': ("ls", [Row(x=Decimal("1.25")), None]),
        '{"a":null}': ("a", None),
        "{}": ("id", None),
    }
    for row, (text, (name, value)) in zip(read(spark, list(held)), held.items(), strict=True):
        assert row[MISFIT] is None, text
        assert row["value"][name] == value, text
    (tombstone,) = read(spark, [None])
    assert (tombstone["value"], tombstone[MISFIT]) == (None, None)


def test_the_columns_are_those_of_the_schema(spark: SparkSession) -> None:
    frame = with_values(SCHEMA, wrong)(spark.sql("SELECT CAST(NULL AS BINARY) AS value, 't' AS _kept_topic, 0 AS "
                                                 "_kept_partition, 0L AS _kept_offset"))  # fmt: skip
    assert frame.schema["value"].dataType.simpleString() == (
        "struct<id:string,n:int,a:decimal(12,2),w:decimal(28,18),l:array<decimal(12,2)>,m:map<string,decimal(12,2)>,"
        "s:struct<x:decimal(4,1),y.z:string>,ls:array<struct<x:decimal(12,2)>>>"
    )


@pytest.mark.parametrize("schema", ["a DECIMAL(29,2)", "s STRUCT<l: ARRAY<DECIMAL(38,18)>>"])
def test_a_decimal_in_which_a_rounding_could_not_be_seen_is_refused(spark: SparkSession, schema: str) -> None:
    with pytest.raises(FixConfiguration, match="more than 28 digits"):
        read(spark, ["{}"], schema)


@pytest.mark.parametrize("schema", ["id STRNG", "STRING", "ARRAY<INT>"])
def test_what_is_no_list_of_columns_is_refused_in_sparks_words(spark: SparkSession, schema: str) -> None:
    with pytest.raises(FixConfiguration, match=r"Spark cannot read these columns: \S+"):
        read(spark, ["{}"], schema)
