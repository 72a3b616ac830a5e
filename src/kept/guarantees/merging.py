"""A person's own settings laid over the derived ones; those that weaken the promise are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kept.errors import WeakensGuarantee
from kept.guarantees.acceptable import NotSet
from kept.guarantees.rows import Row, Settings, Side

# confluent-kafka lays the dict under this name over all others: whatever it holds would win unseen.
_NESTED = "default.topic.config"


def merge(settings: Settings, overrides: Mapping[str, object]) -> dict[str, object]:
    """The derived settings with the overrides laid over them; raises `WeakensGuarantee` naming every bad one.

    An override by an alias takes the place of the derived value. What no row knows passes untouched.
    """
    merged: dict[str, object] = dict(settings.values())
    refused: list[WeakensGuarantee] = []
    for name, value in _flat(settings.side, overrides):
        row = settings.find(name)
        if row is None:
            if _hides_settings(settings.side, name):
                refused.append(_hidden(settings, name, value))
            merged[name] = value
        elif row.keeps.accepts(value):
            merged[row.name] = value
        else:
            refused.append(_weakens(settings, row, name, value))
    if refused:
        raise WeakensGuarantee.naming_all(refused)
    return merged


def _flat(side: Side, overrides: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Every override, those in a nested dict last, since the client lets them win."""
    nested: list[Mapping[str, object]] = []
    for name, value in overrides.items():
        if _hides_settings(side, str(name)) and isinstance(value, Mapping):
            nested.append(value)
        else:
            yield str(name), value
    for inner in nested:
        yield from _flat(side, inner)


def _hides_settings(side: Side, name: str) -> bool:
    plain = side.plain(name)
    return (side in (Side.PRODUCER, Side.CONSUMER) and plain == _NESTED) or (
        side is Side.SPARK_SINK and plain == f"kafka.{_NESTED}"
    )


def _hidden(settings: Settings, name: str, value: object) -> WeakensGuarantee:
    return WeakensGuarantee(
        name,
        value,
        settings.guarantee.word,
        "settings inside it win over all others, and these cannot be looked at",
        way_out="write its settings one by one, beside the others",
    )


def _weakens(settings: Settings, row: Row, name: str, value: object) -> WeakensGuarantee:
    way_out = f"leave {name} out" if isinstance(row.keeps, NotSet) else f"leave {name} out, or use {row.keeps}"
    return WeakensGuarantee(
        name, value, settings.guarantee.word, row.because, way_out=f"{way_out}; or choose another guarantee"
    )
