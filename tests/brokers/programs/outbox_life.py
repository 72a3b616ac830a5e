"""A sender and a relay of an outbox, in processes that kill themselves where they are told to.

Started with a `World` as JSON and the word `send` or `relay`. Each is a nursery: a life is a fork, the next begins when
one has ended. The sender writes down what it is about to send and what it was told is safe; that is what the audit
compares Kafka with.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kept.errors import Fenced
from kept.guarantees import AtLeastOnce
from kept.outbox import Outbox, Relay, carrying
from kept.outbox.appending import Appender
from kept.outbox.journal import Journal
from kept.producer.transactions import Transaction, Transactions
from tests.brokers.programs.impatient import lower_time_outs

RELAY_POINTS = {
    "taking over": (Transactions, "claim"),
    "noting the owner": (Journal, "own"),
    "reading": (Journal, "read"),
    "noting the plan": (Journal, "attempt"),
    "opening a transaction": (Transactions, "open"),
    "handing over": (carrying, "_hand_over"),
    "committing": (Transaction, "commit"),
    "trimming": (Journal, "trim"),
    "setting aside": (Journal, "refuse"),
    "carrying, at least once": (carrying.AtLeastOnceCarrier, "send"),
}
SENDER_POINTS = {"writing": (Appender, "_write"), "sending": (Outbox, "send")}
WHEN = ("before", "inside", "after")
THREADS = 4
FENCED = 7


@dataclass
class World:
    """One journal, its sender and its relay, and where each of their lives ends: when, at which point, which time."""

    bootstrap: str
    topic: str
    folder: str
    records: int = 150
    sender: list[tuple[str, str, int]] = field(default_factory=list)
    relay: list[tuple[str, str, int]] = field(default_factory=list)
    at_least_once: bool = False
    pause: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)

    def as_argument(self) -> str:
        return json.dumps(asdict(self))

    @property
    def path(self) -> Path:
        return Path(self.folder) / "outbox.db"

    @property
    def sent(self) -> Path:
        return Path(self.folder) / "sent"

    @property
    def deaths(self) -> Path:
        return Path(self.folder) / "deaths"

    @property
    def done(self) -> Path:
        return Path(self.folder) / "done"


def dies(points: dict[str, tuple[Any, str]], death: tuple[str, str, int] | None) -> None:
    """Stand around one function, without its knowing: the process ends at its n-th call."""
    if death is None:
        return
    when, point, left = death
    owner, name = points[point]
    original: Callable[..., Any] = getattr(owner, name)
    counted = [left]

    def watched(*arguments: Any, **named: Any) -> Any:
        counted[0] -= 1
        if counted[0] == 0 and when == "before":
            die()
        if counted[0] == 0 and when == "inside":
            threading.Timer(0.003, die).start()
        answer = original(*arguments, **named)
        if counted[0] == 0:
            die()
        return answer

    setattr(owner, name, watched)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def send(world: World, life: int) -> None:
    """Several threads, each with numbers of its own: `begun` before a record is sent, `safe` after."""
    log = os.open(world.sent, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def work(thread: int) -> None:
        for number in range(world.records):
            value = f"{life}.{thread}.{number}"
            os.write(log, f"begun {value}\n".encode())
            outbox.send(world.topic, value, key=f"{life}.{thread}")
            os.write(log, f"safe {value}\n".encode())
            time.sleep(world.pause)

    with Outbox(world.path) as outbox:
        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def relay(world: World) -> int:
    """Until the sender has ended and nothing waits."""
    lower_time_outs()
    journal = Journal(world.path)
    guarantee = AtLeastOnce() if world.at_least_once else None
    relay = Relay(journal, world.bootstrap, guarantee, patience=10, **world.settings)

    def watch() -> None:
        while not (world.done.exists() and journal.lag().records == 0):
            time.sleep(0.05)
        relay.stop()

    threading.Thread(target=watch, daemon=True).start()
    try:
        relay.run()
    except Fenced as error:
        print(error.what, file=sys.stderr)
        return FENCED
    return 0


def nursery(
    world: World, deaths: list[tuple[str, str, int]], points: dict[str, tuple[Any, str]], live: Callable[[int], int]
) -> int:
    """One life after the other; the last one has no death before it. Deaths that struck are written down."""
    for life, death in enumerate([*deaths, None]):
        child = os.fork()
        if child == 0:
            logging.basicConfig(level=logging.CRITICAL)
            dies(points, death)
            os._exit(live(life))
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and death is not None:
            with world.deaths.open("a") as file:
                file.write(" ".join(map(str, death)) + "\n")
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
            return os.WEXITSTATUS(status)
    return 0


def main(what: str, world: World) -> int:
    if what == "relay":
        return nursery(world, world.relay, RELAY_POINTS, lambda _: relay(world))

    def live(life: int) -> int:
        send(world, life)
        return 0

    ended = nursery(world, world.sender, SENDER_POINTS, live)
    world.done.touch()
    return ended


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    sys.exit(main(sys.argv[1], World(**json.loads(sys.argv[2]))))
