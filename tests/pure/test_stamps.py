"""The keys of records: as the standard library reads them, however they are written; else by their place."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Message

from kept.consumer.records import Record
from kept.consumer.stamps import Stamped
from kept.progress import keys


def record(headers: list[tuple[str, str | bytes | None]], value: bytes | None = b"v", offset: int = 5) -> Record:
    return Record(Message(topic="t", partition=1, offset=offset, value=value, headers=headers))


def key_of(*headers: tuple[str, str | bytes | None], value: bytes | None = b"v") -> uuid.UUID:
    ((key, found),) = Stamped([record(list(headers), value)], {"t": "id"})
    assert found == value
    return key


@pytest.mark.parametrize(
    "stamp",
    [
        "12345678-1234-5678-1234-567812345678",
        "12345678123456781234567812345678",
        "ABCDEF78-1234-5678-1234-567812345678",
        "{12345678-1234-5678-1234-567812345678}",
        "urn:uuid:12345678-1234-5678-1234-567812345678",
    ],
)
def test_a_stamp_is_read_as_the_standard_library_reads_it(stamp: str) -> None:
    found, wanted = key_of(("other", b"x"), (keys.NAME, stamp.encode())), uuid.UUID(stamp)
    assert (found, hash(found), str(found), found.bytes) == (wanted, hash(wanted), str(wanted), wanted.bytes)


@pytest.mark.parametrize("stamp", [b"", b"x" * 32, b"12345678-1234-5678-1234-56781234567", b"\xff" * 36])
def test_what_is_no_uuid_is_no_stamp(stamp: bytes) -> None:
    json = b'{"idempotency_key": "12345678-1234-5678-1234-567812345678"}'
    assert key_of((keys.NAME, stamp), value=json) == keys.of_position("id", 1, 5)


def test_a_json_field_and_a_place_serve_where_there_is_no_header() -> None:
    json = b'{"idempotency_key": "12345678-1234-5678-1234-567812345678"}'
    assert key_of(value=json) == uuid.UUID("12345678-1234-5678-1234-567812345678")
    assert key_of((keys.NAME, None), value=None) == keys.of_position("id", 1, 5)


def test_pieces_are_the_whole() -> None:
    records = [record([(keys.NAME, str(keys.derived(str(at))).encode())], offset=at) for at in range(10)]
    pairs = Stamped(records, {"t": "id"})
    assert len(pairs) == 10
    assert [*pairs[:4], *pairs[4:]] == list(pairs) == [(keys.derived(str(at)), b"v") for at in range(10)]
