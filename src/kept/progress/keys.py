"""Idempotency keys: the stamp that makes a repeated record recognisable, wherever it is read.

A key is a uuid. It travels in a header; in a JSON object also as a field, for readers that see values only. A
fresh key tells two sendings apart; a key derived from content makes the same content the same record.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable

NAME = "idempotency_key"
"""The header's name and the JSON field's."""
_DECODER = json.JSONDecoder()
_OURS = uuid.UUID("5f0f2f2e-3d0b-5a52-9a56-6b65707421aa")


def fresh() -> uuid.UUID:
    """A key that no other record has."""
    return uuid.uuid4()


def derived(*content: bytes | str) -> uuid.UUID:
    """The key that the same content always has; the parts are told apart, so ("ab", "c") is not ("a", "bc")."""
    parts = [_bytes(part) for part in content]
    return uuid.uuid5(_OURS, b"".join(len(part).to_bytes(8, "big") + part for part in parts).hex())


def of_content(topic: str, key: bytes | str | None, value: bytes | str | None) -> uuid.UUID:
    """The key that a record of the same topic, key and value always has; none at all is told from an empty one."""
    return derived("content", topic, *(b"0" if part is None else b"1" + _bytes(part) for part in (key, value)))


def of_position(topic_id: str, partition: int, offset: int) -> uuid.UUID:
    """The key of a record that bears none: where it stands in its log."""
    return derived("position", topic_id, str(partition), str(offset))


def stamped_headers(
    headers: Iterable[tuple[str, str | bytes | None]], key: uuid.UUID
) -> list[tuple[str, str | bytes | None]]:
    """The headers with the stamp, in place of an earlier one."""
    return [(name, value) for name, value in headers if name != NAME] + [(NAME, str(key))]


def stamped_value(value: bytes | str | None, key: uuid.UUID) -> bytes | str | None:
    """A JSON object with the stamp as a field; anything else as it is.

    The other fields are not written anew: numbers keep their digits, and fields that are there twice stay so.
    """
    document = _json_object(value)
    if document is None or value is None:
        return value
    text = value if isinstance(value, str) else value.decode()
    fields = _fields_but_the_stamp(text) if NAME in document else text.strip()[1:-1].strip()
    stamp = json.dumps({NAME: str(key)}, separators=(",", ":"))[1:-1]
    text = f"{{{fields},{stamp}}}" if fields else f"{{{stamp}}}"
    return text if isinstance(value, str) else text.encode()


def read(headers: Iterable[tuple[str, bytes | None]], value: bytes | None) -> uuid.UUID | None:
    """The stamp of a record: its header's, else its JSON field's, else none. A header that is no uuid is none."""
    for name, stamp in headers:
        if name == NAME and stamp is not None:
            return _uuid(stamp.decode(errors="replace"))
    if value is None or NAME.encode() not in value:
        return None  # most records have a header, or no stamp at all: they are not parsed
    document = _json_object(value)
    stamp_field = None if document is None else document.get(NAME)
    return _uuid(stamp_field) if isinstance(stamp_field, str) else None


def _bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _json_object(value: bytes | str | None) -> dict[str, object] | None:
    if value is None or value.lstrip()[:1] not in (b"{", "{"):
        return None
    try:
        document = json.loads(value if isinstance(value, str) else value.decode())
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _fields_but_the_stamp(text: str) -> str:
    """The fields of a JSON object as they are written, without any stamp."""
    fields, at = [], text.index("{") + 1
    while text[(start := _behind_spaces(text, at))] != "}":
        name, behind = _DECODER.raw_decode(text, start)
        colon = _behind_spaces(text, behind)
        _, end = _DECODER.raw_decode(text, _behind_spaces(text, colon + 1))
        if name != NAME:
            fields.append(text[start:end])
        at = _behind_spaces(text, end)
        at += text[at] == ","
    return ",".join(fields)


def _behind_spaces(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
