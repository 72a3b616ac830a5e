"""What the scenes of a producer share: a client that the proxy can tell from others, and what the proxy saw of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kept.errors import TryAgain
from kept.guarantees import AtLeastOnce
from kept.producer import Producer
from kept.verify.proxy import Api, Direction, KafkaProxy

IDEMPOTENCE = "enable.idempotence"
SEEN_WITHIN = 30.0


@contextmanager
def producer_through(proxy: KafkaProxy, client: str, word: str) -> Iterator[Producer]:
    """A producer under at-least-once, with idempotence as the word says: `enable.idempotence=false`, or true."""
    name, _, value = word.partition("=")
    settings = {name: value, "client.id": client, "linger.ms": 0, "reconnect.backoff.max.ms": 200}
    with Producer(proxy.bootstrap, AtLeastOnce(), **settings) as producer:
        try:
            yield producer
        except BaseException:
            break_connections(proxy)  # to wait for what the proxy keeps would keep the producer from closing
            raise


def seen(proxy: KafkaProxy, client: str, direction: Direction) -> int:
    """How many Produce requests of this client, or answers to it, have come to the proxy."""
    return len(
        [line for line in proxy.log if (line.kind, line.client, line.direction) == (Api.PRODUCE, client, direction)]
    )


def wait_until(condition: Callable[[], bool], awaited: str) -> None:
    deadline = time.monotonic() + SEEN_WITHIN
    while not condition():
        if time.monotonic() > deadline:
            raise TryAgain(f"not within {SEEN_WITHIN:.0f} s: {awaited}", way_out="play the scene again")
        time.sleep(0.01)


def break_connections(proxy: KafkaProxy) -> None:
    """Every connection through the proxy is reset; what was on its way is lost. New ones are taken."""
    proxy.cut()
    proxy.mend()
