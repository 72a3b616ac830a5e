"""A member of a group in a process of its own: it dies where it is told to.

Its effects are lines in a file, rows of the table `effects` of a database, or records of a topic.
Started with a `Life` as JSON. With `lives` it is a nursery: each life is a fork, and the next begins when one has
ended, until one has come to the end of the topic.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import psycopg
from confluent_kafka import KafkaError, Message, Producer

from kept.consumer.consuming import Consumer
from kept.consumer.membership import Membership
from kept.consumer.policies import AfterBatch, AfterEach, Asynchronously, Every, Policy
from kept.consumer.positions import Next
from kept.consumer.records import Place, Record
from kept.errors import Fenced, KeptError
from kept.guarantees import AtLeastOnce, AtMostOnce

POINTS = ("before the effect", "after the effect", "before a commit", "inside a commit", "after a commit", "taking")
POLICIES: dict[str, Policy] = {
    "every": Every(0.05),
    "each": AfterEach(),
    "ten": AfterBatch(10),
    "later": Asynchronously(0.02),
}
AT_THE_END, FENCED = 0, 7
Then = Callable[[KeptError | None], object]


@dataclass
class Life:
    """What a member does, and where each of its lives ends: a point and which time it is passed."""

    bootstrap: str
    topic: str
    group: str
    effects: str
    at_most_once: bool = False
    policy: str = "ten"
    seconds: float = 0.0
    slow: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    lives: list[tuple[str, int]] | None = None
    dsn: str = ""
    sink: str = ""

    def as_argument(self) -> str:
        return json.dumps(asdict(self))


class Member:
    """One life."""

    def __init__(self, life: Life, death: tuple[str, int] | None) -> None:
        self.life = life
        self.point, self.left = death or ("", 0)
        self.file = os.open(life.effects, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.apply = into_table(life.dsn) if life.dsn else into_topic(life) if life.sink else self.into_file
        self.consumer = Consumer(
            life.bootstrap,
            life.topic,
            group=life.group,
            guarantee=AtMostOnce() if life.at_most_once else AtLeastOnce(),
            commit=POLICIES[life.policy],
            **life.settings,
        )

    def say(self, *words: object) -> None:
        os.write(self.file, (" ".join(map(str, [os.getpid(), *words])) + "\n").encode())

    def effect(self, record: Record) -> None:
        self.passing("before the effect")
        self.apply(record)
        self.passing("after the effect")
        time.sleep(self.life.slow.get((record.value or b"").decode(), self.life.seconds))

    def into_file(self, record: Record) -> None:
        self.say("did", record.partition, record.offset, (record.value or b"").decode())

    def passing(self, point: str) -> None:
        if point == self.point:
            self.left -= 1
            if self.left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def wrap(self) -> None:
        """Stand around what this member does with Kafka, without its knowing."""
        member = self.consumer._member
        commit, later, take = member.commit, member.commit_later, member.take
        at_end: set[int] = set()

        def committing(progress: dict[Place, Next]) -> None:
            self.passing("before a commit")
            if self.point == "inside a commit":
                self.left -= 1
                if self.left == 0:
                    threading.Timer(0.001, os.kill, (os.getpid(), signal.SIGKILL)).start()
            commit(progress)
            self.passing("after a commit")

        def committing_later(progress: dict[Place, Next], then: Then) -> None:
            def told(error: KeptError | None) -> None:
                self.passing("after a commit")
                then(error)

            self.passing("before a commit")
            later(progress, told)
            self.passing("inside a commit")

        def taking(most: int, wait: float) -> list[Record]:
            self.passing("taking")
            records = take(most, wait)
            if not records and wait > 0 and len(at_end) == len(member.owned) > 0:
                self.consumer.stop()
            return records

        vars(member).update(commit=committing, commit_later=committing_later, take=taking)
        vars(member)["_sound"] = partial(self.sound, at_end)

    def sound(self, at_end: set[int], message: Message) -> bool:
        """Nothing is written any more: an end that was reached is the end, unless the member is about to seek."""
        error, member = message.error(), self.consumer._member
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            topic, partition = message.topic() or "", int(message.partition() or 0)
            if (topic, partition) not in member._unsure:
                at_end.add(partition)
        return Membership._sound(member, message)

    def live(self) -> int:
        """To the end of the topic where lives are counted, to a signal otherwise."""
        if self.life.lives is not None:
            self.wrap()
        try:
            with self.consumer:
                self.consumer.run(self.effect)
        except Fenced:
            self.say("fenced")
            return FENCED
        self.say("left")
        return AT_THE_END


def into_table(dsn: str) -> Callable[[Record], object]:
    connection = psycopg.connect(dsn, autocommit=True)
    return lambda record: connection.execute("INSERT INTO effects VALUES (%s)", ((record.value or b"").decode(),))


def into_topic(life: Life) -> Callable[[Record], object]:
    """Each is there when the next one comes; an acknowledgement that is lost makes no second one."""
    client = Producer({"bootstrap.servers": life.bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0})

    def send(record: Record) -> None:
        client.produce(life.sink, record.value)
        assert client.flush(60) == 0

    return send


def nursery(life: Life) -> None:
    """One life after the other; the last one has no death before it."""
    for death in [*(life.lives or []), None]:
        child = os.fork()
        if child == 0:
            os._exit(Member(life, death).live())
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) != AT_THE_END:
            sys.exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    told = Life(**json.loads(sys.argv[1]))
    if told.lives is None:
        sys.exit(Member(told, None).live())
    nursery(told)
