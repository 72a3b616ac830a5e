"""Which settings say how a cluster is reached, and those of a client that only asks questions there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIXES = (
    "bootstrap.",
    "metadata.broker.list",
    "security.",
    "sasl.",
    "ssl.",
    "enable.ssl",
    "https.",
    "oauth",
    "client.",
    "broker.address.",
    "socket.",
    "reconnect.",
)


def connection(settings: Mapping[str, object]) -> dict[str, object]:
    """Those of the settings by which a cluster is reached."""
    return {name: value for name, value in settings.items() if name.startswith(_PREFIXES)}


def only_asks(settings: Mapping[str, object]) -> dict[str, Any]:
    """The settings of a client of our own: what it asks about does not come into being.

    Unless told otherwise librdkafka's producers, and its admin clients are such, have the broker make a topic that they
    ask about: with the broker's defaults, emptied after a week. Its consumers do not.
    """
    return {"log_level": 0, **settings, "allow.auto.create.topics": False}
