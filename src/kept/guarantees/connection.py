"""Which settings say how a cluster is reached: every client needs them, whatever it does besides."""

from __future__ import annotations

from collections.abc import Mapping

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
