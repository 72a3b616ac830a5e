"""Delivery guarantees for Kafka, kept and proven.

import kept

with kept.Producer("localhost:9091", kept.ExactlyOnce("payments-writer")) as producer:
    with producer.transaction():
        producer.send("payments", "100 EUR", key="alice")

for record in kept.Consumer("localhost:9091", "payments", group="mailer", guarantee=kept.AtLeastOnce()):
    send_mail(record)
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
    from kept import aio
    from kept.consumer import Consumer, Output, Record, Retry
    from kept.consumer import policies as commit
    from kept.local import Cluster
    from kept.outbox import Outbox
    from kept.outbox.postgres import PostgresOutbox
    from kept.producer import Delivery, Producer, Receipt
    from kept.spark import KafkaSink, KafkaSource, Pipeline, PostgresSink
    from kept.stores import Claims

# Names that bring a Kafka client or server code along are imported when first used: `kept --help` stays quick.
_LATER = {
    "Claims": "kept.stores",
    "Cluster": "kept.local",
    "Consumer": "kept.consumer",
    "Delivery": "kept.producer",
    "KafkaSink": "kept.spark",
    "KafkaSource": "kept.spark",
    "Outbox": "kept.outbox",
    "Output": "kept.consumer",
    "Pipeline": "kept.spark",
    "PostgresOutbox": "kept.outbox.postgres",
    "PostgresSink": "kept.spark",
    "Producer": "kept.producer",
    "Receipt": "kept.producer",
    "Record": "kept.consumer",
    "Retry": "kept.consumer",
}

__all__ = [
    "AtLeastOnce",
    "AtMostOnce",
    "Claims",
    "Cluster",
    "Consumer",
    "Delivery",
    "ExactlyOnce",
    "Fenced",
    "FixConfiguration",
    "FixMachine",
    "Guarantee",
    "KafkaSink",
    "KafkaSource",
    "KeptError",
    "NotPersisted",
    "Outbox",
    "OutcomeUnknown",
    "Output",
    "Pipeline",
    "PostgresOutbox",
    "PostgresSink",
    "Producer",
    "Receipt",
    "Record",
    "Retry",
    "TransactionAborted",
    "TryAgain",
    "WeakensGuarantee",
    "__version__",
    "aio",
    "commit",
]


def __getattr__(name: str) -> object:
    from importlib import import_module  # noqa: PLC0415 - only here

    if name == "aio":  # kept.aio.Consumer: the same words for asyncio
        return import_module("kept.aio")
    if name == "commit":  # kept.commit.Every(seconds=5): when a consumer records its progress
        return import_module("kept.consumer.policies")
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'kept' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
