"""Transactions that are open on a topic: who keeps its readers waiting, since when, and how that ends.

Whoever reads only what is committed stops where the first open transaction of a partition begins. The leader of the
partition knows the producers that have one open, by number; their coordinators know by which name, and since when.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kept.admin.topics import Topics
from kept.admin.wire import Answer, Question, Unanswered, asked, compact, several
from kept.errors import FixConfiguration, KeptError, TryAgain

NOT_ENDED = ("Ongoing", "PrepareCommit", "PrepareAbort")
NO_TAGS = b"\0"
_FORBIDDEN = {29: "topic", 31: "cluster", 53: "transactional id"}
"""Errors of Kafka's for who has no right to something."""


@dataclass(frozen=True)
class Known:
    """A transaction as its coordinator knows it: the producer's name, and seconds."""

    name: str
    began: float
    times_out: float


@dataclass(frozen=True)
class OpenTransaction:
    """What holds readers of a partition up, and from which offset on.

    Seconds: how long it has been open, and how long it may be. Where no coordinator names it, there is neither a name
    nor a time: whoever asks may not see it, or its coordinator has forgotten it, and nothing ends it by itself.
    """

    partition: int
    first_offset: int
    producer_id: int
    transactional_id: str | None = None
    open_for: float | None = None
    times_out: float | None = None

    def way_out(self, topic: str) -> str:
        """How it ends, for a person."""
        if self.transactional_id is None or self.times_out is None:
            return (
                "no coordinator names it: you may not see it, or it was forgotten, and does not end by itself; then "
                f"Kafka's own `kafka-transactions.sh abort --topic {topic} --partition {self.partition} "
                f"--start-offset {self.first_offset}` ends it"
            )
        return (
            f"it is aborted by its time-out when it is {self.times_out:.0f} s old; whoever uses the id "
            f"{self.transactional_id} again, as its program does when it is started anew, ends it at once, by fencing"
        )


class OpenTransactions:
    """Those of one cluster, asked for in plain text."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def on(self, topic: str) -> list[OpenTransaction]:
        """What is open on each partition of a topic, in the order of the log."""
        brokers = self._brokers()
        opened = self._opened(topic, brokers)
        if not opened:
            return []
        known = known_transactions(brokers.values())
        if any(producer not in known for _, _, producer in opened):
            # One that ended between the two questions is nobody's any more; so the first is asked again.
            still = self._opened(topic, brokers)
            opened = [each for each in opened if each[2] in known or each in still]
        return named(opened, known, time.time())

    def _brokers(self) -> dict[int, str]:
        """Where each broker says that it is, by its number; from the first address that answers."""
        failure: KeptError | None = None
        for address in self._bootstrap.split(","):
            try:
                return _brokers_of(asked(address.strip(), Question.DESCRIBE_CLUSTER, b"\0" + NO_TAGS))
            except Unanswered as error:
                failure = FixConfiguration(
                    f"{address} takes no question in plain text ({error.what}): a port for TLS or SASL does just that, "
                    "and this is asked in plain text only",
                    way_out="name a port of the brokers that takes plain text (a PLAINTEXT listener), or ask there "
                    "with Kafka's own kafka-transactions.sh",
                )
            except TryAgain as error:
                failure = failure or error
        raise failure or FixConfiguration("no address was given", way_out="give HOST:PORT of a broker")

    def _opened(self, topic: str, brokers: Mapping[int, str]) -> list[tuple[int, int, int]]:
        """Partition, first offset and producer's number of each."""
        by_leader: dict[int, list[int]] = {}
        for partition in Topics(self._bootstrap).describe(topic).partitions:
            if partition.leader not in brokers:
                raise TryAgain(
                    f"{topic}[{partition.number}] has no leader just now", way_out="ask again when the brokers are back"
                )
            by_leader.setdefault(partition.leader, []).append(partition.number)
        asking = [_opened_at(brokers[leader], topic, numbers) for leader, numbers in by_leader.items()]
        return sorted(each for found in asking for each in found)


def named(opened: Iterable[tuple[int, int, int]], known: Mapping[int, Known], now: float) -> list[OpenTransaction]:
    """What the leaders told, with what the coordinators know of it."""
    found = []
    for partition, first, producer in opened:
        who = known.get(producer)
        told = (None, None, None) if who is None else (who.name, max(0.0, now - who.began), who.times_out)
        found.append(OpenTransaction(partition, first, producer, *told))
    return found


def known_transactions(brokers: Collection[str]) -> dict[int, Known]:
    """Every transaction that has not ended, by its producer's number; each broker knows those that it coordinates."""
    found: dict[int, Known] = {}
    for broker in brokers:
        if names := _listed(broker):
            found.update(_described(broker, names))
    return found


def _listed(broker: str) -> list[str]:
    body = several([compact(each) for each in NOT_ENDED]) + several([]) + NO_TAGS
    answer = asked(broker, Question.LIST_TRANSACTIONS, body)
    answer.whole()
    _refuse_error(answer.short(), f"{broker} does not list its transactions")
    answer.several(answer.text)

    def transaction() -> str:
        name = answer.text()
        answer.long()
        answer.text()
        answer.tags()
        return name

    return answer.several(transaction)


def _described(broker: str, names: Collection[str]) -> dict[int, Known]:
    """Those of these that have not ended, and are still coordinated by this broker."""
    answer = asked(broker, Question.DESCRIBE_TRANSACTIONS, several([compact(each) for each in names]) + NO_TAGS)

    def partitions() -> None:
        answer.text()
        answer.several(answer.whole)
        answer.tags()

    def transaction() -> tuple[int, Known] | None:
        error, name, state = answer.short(), answer.text(), answer.text()
        times_out, began, producer = answer.whole() / 1000, answer.long() / 1000, answer.long()
        answer.short()
        answer.several(partitions)
        answer.tags()
        return None if error or state not in NOT_ENDED else (producer, Known(name, began, times_out))

    answer.whole()
    return dict(each for each in answer.several(transaction) if each is not None)


def _opened_at(leader: str, topic: str, partitions: Collection[int]) -> list[tuple[int, int, int]]:
    """Partition, first offset and producer's number of each transaction that is open on these."""
    wanted = compact(topic) + several([struct.pack(">i", each) for each in partitions]) + NO_TAGS
    answer = asked(leader, Question.DESCRIBE_PRODUCERS, several([wanted]) + NO_TAGS)

    def producer() -> tuple[int, int]:
        number = answer.long()
        answer.whole()
        answer.whole()
        answer.long()
        answer.whole()
        first = answer.long()
        answer.tags()
        return first, number

    def partition() -> list[tuple[int, int, int]]:
        place = answer.whole()
        _refuse_error(answer.short(), f"{leader} does not tell who writes to {topic}[{place}]")
        answer.text()
        found = answer.several(producer)
        answer.tags()
        return [(place, first, number) for first, number in found if first >= 0]

    def each_topic() -> list[tuple[int, int, int]]:
        answer.text()
        found = [one for parts in answer.several(partition) for one in parts]
        answer.tags()
        return found

    answer.whole()
    return [one for found in answer.several(each_topic) for one in found]


def _brokers_of(answer: Answer) -> dict[int, str]:
    def broker() -> tuple[int, str]:
        number, host, port = answer.whole(), answer.text(), answer.whole()
        answer.text()
        answer.tags()
        return number, f"{host}:{port}"

    answer.whole()
    _refuse_error(answer.short(), "the brokers cannot be listed")
    answer.text()
    answer.text()
    answer.whole()
    return dict(answer.several(broker))


def _refuse_error(code: int, what: str) -> None:
    if code in _FORBIDDEN:
        raise FixConfiguration(
            f"{what}: it is forbidden", way_out=f"ask for the right to describe this {_FORBIDDEN[code]}"
        )
    if code:
        raise TryAgain(f"{what}: error {code} of Kafka's", way_out="ask again: a leader or a coordinator may be moving")
