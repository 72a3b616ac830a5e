"""Scene: two records are under way, the first does not get through, and is sent again behind the second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from confluent_kafka import Producer as Client

from kept.guarantees import AtLeastOnce, merge, producer_settings
from kept.verify.proxy import Api, Direction, Drop, KafkaProxy, Nth, Rule
from kept.verify.scenes.performing import Script
from kept.verify.scenes.producing import IDEMPOTENCE, break_connections, seen, wait_until
from kept.verify.scenes.stage import Stage
from kept.verify.scenes.telling import LOST, Story

DECK = "The idempotent producer, per partition: exactly once, and in order."
WHY = "The idempotent producer numbers what it sends: the broker takes M3 only behind M2."


def overtaken(records: Sequence[str]) -> set[int]:
    """Where a record stands behind one that was sent later; M10 was sent after M9."""
    numbers = [int(record.removeprefix("M")) for record in records]
    return {position for position, number in enumerate(numbers) if max(numbers[: position + 1]) > number}


@contextmanager
def two_under_way(proxy: KafkaProxy, client: str, word: str) -> Iterator[Client]:
    """The bare client: `kept.Producer` has one batch under way, and could not show this (docs/decisions/0003)."""
    name, _, value = word.partition("=")
    producer = Client(
        {
            **merge(producer_settings(AtLeastOnce()), {}),
            "bootstrap.servers": proxy.bootstrap,
            name: value,
            "max.in.flight.requests.per.connection": 5,
            "client.id": client,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    try:
        yield producer
    finally:
        producer.purge()
        producer.flush(0)


def arrived(producer: Client) -> None:
    wait_until(lambda: producer.flush(0.1) == 0, "all that was sent is acknowledged")


def play(stage: Stage, word: str, story: Story) -> Mapping[str, int]:
    topic, client = stage.topic(), stage.name()
    with stage.proxy() as proxy, two_under_way(proxy, client, word) as producer:
        # One before those two: of a producer that it has not met yet, a broker takes whatever number comes first.
        producer.produce(topic, "M1", key="account")
        arrived(producer)
        story.tell("the producer sends M1, and it is acknowledged", "the log:", stage.log(topic))
        # The proxy takes this one request away; what the client sends behind it gets through.
        lost = proxy.add(Rule(Api.PRODUCE, Direction.REQUEST, Drop(), Nth(1), client=client))
        producer.produce(topic, "M2", key="account")
        lost.wait_caught()
        story.tell("it sends M2, which does not get through", f"{lost.caught} request lost on its way")
        answers = seen(proxy, client, Direction.RESPONSE)
        producer.produce(topic, "M3", key="account")
        wait_until(lambda: seen(proxy, client, Direction.RESPONSE) > answers, "an answer to M3")
        log = stage.log(topic)
        taken = "M3 is taken; the log:" if "M3" in log else "M3 is refused: M2 is missing; the log:"
        story.tell("it sends M3 without waiting for M2", taken, log)
        requests = seen(proxy, client, Direction.REQUEST)
        break_connections(proxy)
        arrived(producer)
        again = [record for record in ("M2", "M3") if record not in log]
        requests = seen(proxy, client, Direction.REQUEST) - requests
        story.tell("the connection breaks; it sends again what is missing", f"{requests} sent again:", again)
    log = stage.log(topic)
    story.tell("the log, in the end", "", log, overtaken(log))
    return {"out of order": len(overtaken(log)), LOST: len({"M1", "M2", "M3"} - set(log))}


SCRIPT = Script("order", DECK, WHY, f"{IDEMPOTENCE}=false", f"{IDEMPOTENCE}=true", "out of order", play)
