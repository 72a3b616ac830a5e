"""What a person sends, checked and made ready for the disk: what Kafka could never take is refused at once."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from kept.errors import FixConfiguration
from kept.outbox.rows import pack_headers, packed
from kept.producer.stamping import HeaderList, Headers, Stamp, Text, stamped

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_LARGEST_PARTITION = 2**31 - 1
_LARGEST_TIME = 2**63 - 1


class Sending(NamedTuple):
    """A record for `send_all`; a plain tuple in this order does as well."""

    topic: str
    value: bytes | str | None
    key: bytes | str | None = None
    headers: Headers | None = None
    partition: int | None = None
    timestamp: int | None = None
    idempotency_key: uuid.UUID | str | None = None


class Content(NamedTuple):
    """A record that Kafka could take, with its stamp."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: HeaderList
    partition: int | None
    timestamp: int


def made_ready(sending: Sending, stamp: Stamp | None) -> bytes:
    """The record in one piece, for the journal."""
    topic, key, value, headers, partition, timestamp = checked(sending, stamp)
    return packed(topic, key, value, pack_headers(headers) if headers else b"", partition, timestamp)


def checked(sending: Sending, stamp: Stamp | None) -> Content:
    """The record with its stamp; its time is that of the call."""
    topic, value, key, given, partition, timestamp, idempotency_key = sending
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise FixConfiguration(f"{topic!r} cannot be a topic", way_out="use 1 to 249 letters, digits, '.', '_' and '-'")
    headers = _list(given)
    if stamp is not None or idempotency_key is not None:
        value, headers = stamped(stamp, idempotency_key, topic, key, value, headers)
    return Content(
        topic,
        _bytes("the key", key),
        _bytes("the value", value),
        headers,
        _number("partition", partition, 0, _LARGEST_PARTITION),
        # 0 is how the client is told to take its own time.
        _number("timestamp", timestamp, 1, _LARGEST_TIME) or int(time.time() * 1000),
    )


def _list(headers: Headers | None) -> HeaderList:
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers or [])
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise FixConfiguration(
                f"{pair!r} is no header", way_out="give headers as a dict, or as (name, value) pairs"
            )
        _bytes(f"the header {pair[0]}", pair[1])
    return pairs


def _bytes(what: str, text: Text) -> bytes | None:
    if text is None or isinstance(text, bytes):
        return text
    if isinstance(text, str):
        return text.encode()
    raise FixConfiguration(f"{what} is {type(text).__name__}", way_out="give bytes, str or None")


def _number(what: str, number: int | None, least: int, largest: int) -> int | None:
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= largest:
        raise FixConfiguration(
            f"{what} is {number!r}", way_out=f"give a whole number from {least} to {largest}, or None"
        )
    return number
