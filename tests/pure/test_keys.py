"""Idempotency keys: the same content has the same key, and a stamp is found again wherever it was put."""

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.progress import keys


@given(st.lists(st.binary(), max_size=4), st.lists(st.binary(), max_size=4))
def test_a_derived_key_is_the_contents_and_only_the_contents(one: list[bytes], other: list[bytes]) -> None:
    assert (keys.derived(*one) == keys.derived(*other)) == (one == other)


def test_a_fresh_key_is_new() -> None:
    assert keys.fresh() != keys.fresh()


@pytest.mark.parametrize("value", [None, b"", b"plain", b"[1]", b"{broken", b'{"a": 1}', b'\n {"a": "\xc3\xa4"}'])
def test_a_stamp_is_read_back_from_the_header(value: bytes | None) -> None:
    key = keys.fresh()
    headers = [(name, None if data is None else str(data).encode()) for name, data in keys.stamped_headers([], key)]
    assert keys.read(headers, value) == key


@given(st.dictionaries(st.text(), st.integers() | st.text()))
def test_a_json_object_keeps_its_fields_and_gains_the_stamp(document: dict[str, object]) -> None:
    key = keys.fresh()
    text = json.dumps(document)
    for value in (text, text.encode()):
        stamped = keys.stamped_value(value, key)
        assert type(stamped) is type(value)
        assert json.loads(stamped or b"") == {**document, keys.NAME: str(key)}
        assert keys.read([], stamped.encode() if isinstance(stamped, str) else stamped) == key


@pytest.mark.parametrize(
    ("value", "stamped"),
    [
        ('{"sum": 12345678901234567.89, "far": 1e400}', '{"sum": 12345678901234567.89, "far": 1e400,STAMP}'),
        (' { "a" : 1 , "a" : 2 } ', '{"a" : 1 , "a" : 2,STAMP}'),
        ("{ }", "{STAMP}"),
        ('{"n": 0.10, "idempotency_key": "old"}', '{"n": 0.10,STAMP}'),
        ('{"idempotency_key" :"old", "in": {"idempotency_key": 1.0}}', '{"in": {"idempotency_key": 1.0},STAMP}'),
        ('{"idempotency\\u005fkey": "}\\""}', "{STAMP}"),
    ],
)
def test_fields_are_not_written_anew(value: str, stamped: str) -> None:
    """A number with many digits is money; who reads the record sees it as its sender wrote it."""
    key = keys.fresh()
    wanted = stamped.replace("STAMP", f'"{keys.NAME}":"{key}"')
    assert keys.stamped_value(value, key) == wanted
    assert keys.stamped_value(value.encode(), key) == wanted.encode()


@given(st.dictionaries(st.sampled_from(["a", keys.NAME]) | st.text(), st.none() | st.text() | st.lists(st.integers())))
def test_a_stamp_that_is_there_is_replaced(document: dict[str, object]) -> None:
    key = keys.fresh()
    stamped = keys.stamped_value(json.dumps({**document, keys.NAME: "old"}, indent=1), key)
    assert json.loads(str(stamped)) == {**document, keys.NAME: str(key)}


@pytest.mark.parametrize("value", [None, b"", "plain", b"[1]", b"{broken", "3", b'{"a": "\xff"}', '{"a": 1} x'])
def test_what_is_no_json_object_is_not_touched(value: bytes | str | None) -> None:
    assert keys.stamped_value(value, keys.fresh()) == value


def test_a_second_stamp_replaces_the_first_and_other_headers_stay() -> None:
    first, second = keys.fresh(), keys.fresh()
    twice = keys.stamped_headers(keys.stamped_headers([("trace", "1"), ("trace", "2")], first), second)
    assert twice == [("trace", "1"), ("trace", "2"), (keys.NAME, str(second))]


@pytest.mark.parametrize("stamp", [b"", b"no uuid", b"\xff", None])
def test_a_header_that_is_no_uuid_is_no_stamp(stamp: bytes | None) -> None:
    assert keys.read([(keys.NAME, stamp)], None) is None


@pytest.mark.parametrize("value", [b'{"idempotency_key": 3}', b'{"idempotency_key": "x"}', b"idempotency_key"])
def test_a_field_that_is_no_uuid_is_no_stamp(value: bytes) -> None:
    assert keys.read([], value) is None


def test_a_position_has_one_key() -> None:
    assert keys.of_position("id", 1, 23) != keys.of_position("id", 12, 3)
    assert isinstance(keys.of_position("id", 1, 23), uuid.UUID)
