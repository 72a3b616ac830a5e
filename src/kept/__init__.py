"""Delivery guarantees for Kafka, kept and proven.

import kept

with kept.Producer("localhost:9091", kept.ExactlyOnce("payments-writer")) as producer:
    with producer.transaction():
        producer.send("payments", "100 EUR", key="alice")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kept._version import __version__
from kept.errors import (
    Fenced,
    FixConfiguration,
    FixMachine,
    KeptError,
    NotPersisted,
    OutcomeUnknown,
    TransactionAborted,
    TryAgain,
    WeakensGuarantee,
)
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce, Guarantee

if TYPE_CHECKING:
    from kept.local import Cluster
    from kept.producer import Delivery, Producer, Receipt

# Names that bring a Kafka client or server code along are imported when first used: `kept --help` stays quick.
_LATER = {
    "Cluster": "kept.local",
    "Delivery": "kept.producer",
    "Producer": "kept.producer",
    "Receipt": "kept.producer",
}

__all__ = [
    "AtLeastOnce",
    "AtMostOnce",
    "Cluster",
    "Delivery",
    "ExactlyOnce",
    "Fenced",
    "FixConfiguration",
    "FixMachine",
    "Guarantee",
    "KeptError",
    "NotPersisted",
    "OutcomeUnknown",
    "Producer",
    "Receipt",
    "TransactionAborted",
    "TryAgain",
    "WeakensGuarantee",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name in _LATER:
        from importlib import import_module  # noqa: PLC0415 - only here

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'kept' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
