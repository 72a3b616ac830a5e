"""Idempotency keys on the way out: who decides which key a record bears, and how it gets there."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TypeAlias

from kept.errors import FixConfiguration
from kept.progress import keys

Text: TypeAlias = bytes | str | None
HeaderList: TypeAlias = list[tuple[str, str | bytes | None]]
Headers: TypeAlias = Mapping[str, str | bytes | None] | HeaderList
Stamp: TypeAlias = Callable[[str, Text, Text], uuid.UUID]
"""Chooses the idempotency key of a record by its topic, key and value."""


def fresh(_topic: str, _key: Text, _value: Text) -> uuid.UUID:
    """Tells two sendings apart, also of the same content."""
    return keys.fresh()


_BY_WORD: dict[str, Stamp] = {"uuid": fresh, "content": keys.of_content}


def chosen(stamp: object) -> Stamp | None:
    """The way to stamp that a person named: None, a word, or a function."""
    if stamp is None or callable(stamp):
        return stamp
    if isinstance(stamp, str) and stamp in _BY_WORD:
        return _BY_WORD[stamp]
    raise FixConfiguration(
        f"{stamp!r} is no way to stamp records",
        way_out="use stamp='uuid', stamp='content', or a function of topic, key and value that returns a uuid",
    )


def stamped(
    stamp: Stamp | None, key_given: uuid.UUID | str | None, topic: str, key: Text, value: Text, headers: HeaderList
) -> tuple[Text, HeaderList]:
    """Value and headers with the idempotency key: the one given, else the one it bears already, else a new one."""
    if key_given is not None:
        mark = _a_uuid(key_given)
    else:
        borne = keys.read([(name, _bytes(text)) for name, text in headers], _bytes(value))
        if stamp is None:
            return value, headers
        mark = borne or _a_uuid(stamp(topic, key, value))
    return keys.stamped_value(value, mark), keys.stamped_headers(headers, mark)


def _a_uuid(text: uuid.UUID | str) -> uuid.UUID:
    if isinstance(text, uuid.UUID):
        return text
    try:
        return uuid.UUID(text)
    except (ValueError, TypeError, AttributeError) as error:
        raise FixConfiguration(
            f"{text!r} is no idempotency key: it has to be a uuid",
            way_out="derive one from what identifies the record: kept.progress.keys.derived(text)",
        ) from error


def _bytes(text: Text) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
