"""A member of a pipeline from Kafka to Kafka in a process of its own, to be killed, stopped and gone on with.

The hooks are here, not in the product: each wraps the method that does the next step, and tells or kills at its turn.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from kept.consumer.consuming import Consumer
from kept.consumer.outgoing import Output, Transaction
from kept.consumer.records import Record
from kept.guarantees import ExactlyOnce

QUICK: dict[str, Any] = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
PATIENCE: dict[str, Any] = {"transaction.timeout.ms": 3000}
POINTS = ("in transform", "before offsets", "before commit", "after commit")


class Turn:
    """Acts at the nth passing of a named point."""

    def __init__(self, point: str, nth: int, act: Callable[[], object]) -> None:
        self._point, self._left, self._act = point, nth, act

    def passing(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                self._act()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def tell_and_stop() -> None:
    print("stopped", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def hooked(turn: Turn, *, apart: bool) -> None:
    """Let the points of a commit be passed aloud. `apart` is the control: positions are not in the transaction."""

    class Spied:
        """A client whose steps are passed aloud: librdkafka's own object takes no attributes."""

        def __init__(self, client: Any) -> None:
            self._client = client

        def __getattr__(self, name: str) -> Any:
            return getattr(self._client, name)

        def __len__(self) -> int:
            return len(self._client)

        def send_offsets_to_transaction(self, *arguments: Any) -> None:
            self._client.flush(30)
            turn.passing("before offsets")
            if not apart:
                self._client.send_offsets_to_transaction(*arguments)

        def commit_transaction(self, *arguments: Any) -> None:
            turn.passing("before commit")
            self._client.commit_transaction(*arguments)
            turn.passing("after commit")

    begin = Transaction.begin

    def spied_begin(self: Transaction) -> None:
        begin(self)
        self._client = Spied(self._client)  # type: ignore[assignment]

    Transaction.begin = spied_begin  # type: ignore[method-assign]


def main(arguments: dict[str, Any]) -> None:
    act = tell_and_stop if arguments.get("act") == "stop" else die
    turn = Turn(arguments.get("point", ""), arguments.get("nth", 0), act)
    hooked(turn, apart=arguments.get("apart", False))

    def transform(record: Record) -> list[Output]:
        turn.passing("in transform")
        return [Output(topic, record.value, record.key) for topic in arguments["outputs"]]

    with Consumer(
        arguments["bootstrap"],
        arguments["source"],
        guarantee=ExactlyOnce(arguments["name"]),
        **QUICK,
    ) as consumer:
        until = {(arguments["source"], int(number)): offset for number, offset in arguments["until"].items()}
        print("started", flush=True)
        consumer.into_kafka(transform, seconds=0.1, until=until, **PATIENCE)
    print("finished", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
