"""The lines of a history: one small tuple for each kind, and its form as JSON."""

from __future__ import annotations

import json
import types
from enum import Enum
from typing import NamedTuple, Union, get_args, get_origin, get_type_hints


class Fate(str, Enum):
    """What the product said of a record. Who begins to send and never hears of it has an unknown fate."""

    PERSISTED = "persisted"
    NOT_PERSISTED = "not persisted"
    UNKNOWN = "unknown"


class Side(str, Enum):
    """The thing under test, or the weaker thing that must break under the same fault."""

    SUBJECT = "subject"
    CONTROL = "control"


class Trial(NamedTuple):
    """What this history is of. `at_risk`: how many records each fault may cost where a guarantee allows a cost.

    `tells`: the error, by its class, that the product owes its user when the fault has struck.
    """

    scenario: str
    guarantee: str
    side: Side
    thing: str
    seed: int
    at: float
    at_risk: int | None = None
    patience: float = 30.0
    tells: str | None = None


class Begun(NamedTuple):
    """Written before a record is sent: from now on it may be there."""

    value: str
    at: float
    transaction: str | None = None


class Settled(NamedTuple):
    """What became of one record, as the product said; where it says to have put it."""

    value: str
    fate: Fate
    at: float
    transaction: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


class TransactionEnded(NamedTuple):
    """What became of all records of a transaction together."""

    transaction: str
    fate: Fate
    at: float


class Fault(NamedTuple):
    """A fault that did strike; `until` is when it was over, where it lasted."""

    what: str
    at: float
    until: float | None = None


class Shortened(NamedTuple):
    """A log that lost its beginning: it begins at `first` now, and what lay before it and was not read is gone.

    The product owes its user the number of that, with the error that it tells.
    """

    topic: str
    partition: int
    first: int
    at: float


class Found(NamedTuple):
    """What an independent reader met: a record in a topic, or a row in a table (partition 0, its id)."""

    value: str
    topic: str
    partition: int
    offset: int
    at: float
    transaction: str | None = None


class Read(NamedTuple):
    """The reader's word that it has read a topic or table up to its end; or why it has not."""

    topic: str
    at: float
    complete: bool
    why: str = ""


class Told(NamedTuple):
    """An error or a warning that the product gave its user, and went on; its class comes first."""

    what: str
    at: float


class Stopped(NamedTuple):
    """The product ended its work by itself and said why: the class of its error, and the text."""

    error: str
    what: str
    at: float


class Unfinished(NamedTuple):
    """Something that should have come to an end by itself was given up."""

    what: str
    at: float


class Ended(NamedTuple):
    """The last line of a run; `cut_short` says why it did not go to its end, where it did not."""

    at: float
    cut_short: str | None = None


Event = (
    Trial | Begun | Settled | TransactionEnded | Fault | Shortened | Found | Read | Told | Stopped | Unfinished | Ended
)
_KINDS: dict[str, type[Event]] = {
    "trial": Trial,
    "begun": Begun,
    "settled": Settled,
    "transaction": TransactionEnded,
    "fault": Fault,
    "shortened": Shortened,
    "found": Found,
    "read": Read,
    "told": Told,
    "stopped": Stopped,
    "unfinished": Unfinished,
    "ended": Ended,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def as_line(event: Event) -> str:
    """One line of JSON; what is None is left out."""
    fields = {name: value for name, value in event._asdict().items() if value is not None}
    return json.dumps({"is": _NAMES[type(event)], **fields}, ensure_ascii=False, separators=(",", ":")) + "\n"


def from_line(line: str) -> Event:
    """The event of a line; `ValueError` says what is wrong with it."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not an object")  # noqa: TRY004 - a wrong line, not a wrong call
    name = fields.pop("is", None)
    if not isinstance(name, str) or name not in _KINDS:
        raise ValueError(f"{name!r} is no kind of event")
    kind = _KINDS[name]
    wrong = [field for field, value in fields.items() if not _fits(kind, field, value)]
    if wrong:
        raise ValueError(f"{name} with a wrong {', '.join(wrong)}")
    for field, known in _ENUMS[kind].items():
        if field in fields:
            fields[field] = known(fields[field])
    try:
        return kind(**fields)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None


def _allowed(hint: object) -> tuple[type, ...]:
    """The types that JSON may hold for a field."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(each for part in get_args(hint) for each in _allowed(part))
    if isinstance(hint, type) and issubclass(hint, str):
        return (str,)
    return (float, int) if hint is float else (hint,) if isinstance(hint, type) else ()


def _fits(kind: type[Event], field: str, value: object) -> bool:
    allowed = _FIELDS[kind].get(field, ())
    return isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool))


_HINTS = {kind: get_type_hints(kind) for kind in _NAMES}
_FIELDS = {kind: {name: _allowed(hint) for name, hint in hints.items()} for kind, hints in _HINTS.items()}
_ENUMS = {
    kind: {name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Enum)}
    for kind, hints in _HINTS.items()
}
