"""What `kept demo` does between up and down: send in transactions, kill the leader halfway, audit by reading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.errors import TransactionAborted
from kept.guarantees import ExactlyOnce
from kept.local import Cluster
from kept.producer import Producer

TOPIC = "payments"
PARTITIONS = 3
CHUNKS = 10
Say = Callable[[str], None]


@dataclass(frozen=True)
class Audit:
    """What was sent against what a reader finds: multisets, never sets."""

    sent: int
    read: int
    lost: int
    duplicated: int
    aborted: int

    @property
    def balanced(self) -> bool:
        return self.lost == 0 and self.duplicated == 0

    def document(self) -> dict[str, object]:
        return {"guarantee": "exactly-once", **vars(self)}

    def table(self) -> tuple[list[str], list[list[object]]]:
        headings = ["guarantee", "sent", "read", "lost", "duplicated", "transactions aborted and redone"]
        return headings, [["exactly-once", self.sent, self.read, self.lost, self.duplicated, self.aborted]]


def run(cluster: Cluster, records: int, say: Say) -> Audit:
    """Send `records` payments exactly once through the death of a leader, and count what is there."""
    topics = Topics(cluster.bootstrap)
    topics.create(TOPIC, PARTITIONS, ExactlyOnce("demo"))
    say(f"created topic {TOPIC}: {PARTITIONS} partitions, 3 copies of each, 2 must confirm every write")
    payments = [f"payment-{number}" for number in range(records)]
    size = -(-records // CHUNKS)
    chunks = [payments[start : start + size] for start in range(0, records, size)]
    aborted = 0
    with Producer(cluster.bootstrap, ExactlyOnce("demo")) as producer:
        for number, chunk in enumerate(chunks, start=1):
            killing = number == len(chunks) // 2
            aborted += _send(producer, chunk, lambda: _kill_leader(cluster, topics, say), killing=killing)
            say(f"transaction {number} of {len(chunks)}: {len(chunk)} payments committed")
    with Reader(cluster.bootstrap, TOPIC, start=Start.BEGINNING) as reader:
        found = [record.value.decode() for record in reader.to_end() if record.value is not None]
    say(f"read {len(found)} payments back, from two brokers")
    return _audit(payments, found, aborted)


def _send(producer: Producer, chunk: list[str], kill: Callable[[], None], *, killing: bool) -> int:
    """One chunk, one transaction; aborted, it is begun again. How often that was needed."""
    aborted = 0
    while True:
        try:
            with producer.transaction():
                for number, payment in enumerate(chunk):
                    producer.send(TOPIC, payment, key=payment)
                    if killing and number == len(chunk) // 2:
                        kill()
                        killing = False
        except TransactionAborted:
            aborted += 1
        else:
            return aborted


def _kill_leader(cluster: Cluster, topics: Topics, say: Say) -> None:
    leader = topics.describe(TOPIC).partitions[0].leader
    cluster.broker(leader).kill()
    say(f"killed broker {leader}, leader of partition 0, in the middle of a transaction (SIGKILL)")


def _audit(sent: Iterable[str], found: Iterable[str], aborted: int) -> Audit:
    wanted, there = Counter(sent), Counter(found)
    lost, extra = wanted - there, there - wanted
    return Audit(wanted.total(), there.total(), lost.total(), extra.total(), aborted)
