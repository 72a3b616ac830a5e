"""The payments of the demo: the same for the same seed, each sent once."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import NamedTuple

from kept.errors import TransactionAborted
from kept.guarantees import ExactlyOnce
from kept.producer import Producer

ACCOUNTS = 1_000
TOGETHER = 10_000
"""Payments of one transaction."""


class Payment(NamedTuple):
    """One payment; money is counted in cents, which are whole."""

    id: str
    account: str
    cents: int

    def value(self) -> str:
        return json.dumps(self._asdict())


def payments(count: int, seed: int) -> list[Payment]:
    """So many payments with different ids; most are small, some are large."""
    chance = random.Random(f"payments {seed}")  # noqa: S311 - not a secret
    return [
        Payment(
            f"payment-{number:06d}",
            f"account-{chance.randrange(ACCOUNTS):04d}",
            1 + int(chance.expovariate(1 / 5_000)),
        )
        for number in range(count)
    ]


def send(bootstrap: str, topic: str, sent: Sequence[Payment]) -> None:
    """All of them, exactly once; payments of an account stay in order."""
    with Producer(bootstrap, ExactlyOnce(topic)) as producer:
        for start in range(0, len(sent), TOGETHER):
            _send_together(producer, topic, sent[start : start + TOGETHER])


def _send_together(producer: Producer, topic: str, chunk: Sequence[Payment]) -> None:
    """One transaction; when it was aborted nothing of it is there, and it is begun again."""
    while True:
        try:
            with producer.transaction():
                for payment in chunk:
                    producer.send(topic, payment.value(), key=payment.account)
        except TransactionAborted:
            continue
        return
