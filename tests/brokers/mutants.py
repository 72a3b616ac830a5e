"""kept with one thing broken on purpose, as a role of `kept verify`; each must be caught."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from confluent_kafka import KafkaException
from confluent_kafka import Producer as Client

from kept.consumer import Output
from kept.consumer.at_least_once import AtLeastOnceLoop
from kept.consumer.hand import Hand
from kept.consumer.membership import Membership
from kept.consumer.records import last_of_each
from kept.producer.clients import make_client
from kept.producer.marks import Reached
from kept.producer.transactions import Transaction, Transactions
from kept.progress import Range, Source
from kept.stores.chunks import OpenChunk
from kept.stores.holders import Part
from kept.stores.postgres import PostgresProgress
from kept.verify.trials.roles import processor, producer
from kept.verify.trials.roles.processor import Processor
from kept.verify.trials.things import Task

ROLE = __name__


def one_producer_for_all_transactions() -> None:
    """Rule 1 taken out: no fresh client, no fresh epoch."""
    kept: dict[int, Client] = {}

    def reopened(self: Transactions, within: float, reached: Reached | None = None) -> Transaction:
        mine = self._mine or self.claim(within)
        client = kept.get(id(self)) or self.client(self._ids[0], within)
        try:
            client.begin_transaction()
        except KafkaException:
            client = self.client(self._ids[0], within)
            client.begin_transaction()
        kept[id(self)] = client
        self._attempts += 1
        return Transaction(self, client, self._ids[0], mine.numbered(self._attempts, reached))

    Transactions.open = reopened  # type: ignore[method-assign]


class Untransacted(Transaction):
    """What is left of a transaction: records that are sent, and waited for."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def commit(self, within: float) -> None:
        self.client.flush(within)

    def abort(self, within: float) -> bool:
        return self.client.flush(within) == 0

    @property
    def committed(self) -> bool:
        return True


def idempotence_off() -> None:
    """The numbers by which a broker knows a batch that it has; and transactions, which there are not without them."""
    clients: dict[int, Client] = {}

    def plain(self: Transactions, within: float, reached: Reached | None = None) -> Transaction:
        if id(self) not in clients:
            settings = {name: value for name, value in self._settings.items() if name != "transactional.id"}
            clients[id(self)] = make_client({**settings, "enable.idempotence": False})
        return Untransacted(clients[id(self)])

    Transactions.open = plain  # type: ignore[method-assign]


def no_fence() -> None:
    """Rule 7 taken out: every process has ids of its own, and looks at nobody's mark."""
    born = Transactions.__init__

    def with_own_ids(self: Transactions, settings: Mapping[str, object]) -> None:
        born(self, settings)
        self._ids = [f"{each}/{uuid.uuid4()}" for each in self._ids]

    Transactions.__init__ = with_own_ids  # type: ignore[method-assign]
    Transactions._refuse_if_succeeded = lambda *_, **__: None  # type: ignore[method-assign]


def progress_before_effect() -> None:
    """The one idea taken out: progress is committed, and the effect has a transaction of its own, behind it."""

    @contextmanager
    def chunk(
        self: PostgresProgress, ranges: Sequence[Range], sources: Mapping[Part, Source], *, may_repeat: bool = False
    ) -> Iterator[OpenChunk]:
        session, found = self._lock_for_chunk([(wanted.topic, wanted.partition) for wanted in ranges])
        accepted = self._accept(ranges, sources, found, may_repeat)
        self._record_and_commit(session, [(found[part], new) for part, (_, new) in accepted.items()])
        opened = OpenChunk(session, {part: drop_below for part, (drop_below, _) in accepted.items()})
        session.execute("BEGIN")
        yield opened
        session.execute("COMMIT")
        opened.recorded = {part: new for part, (_, new) in accepted.items()}

    PostgresProgress.chunk = chunk  # type: ignore[method-assign]


def no_gap_check() -> None:
    """Rule 2 taken out: where records are gone, it goes on behind them, as consumers do that nobody has told better."""
    born = Membership.__init__

    def going_on(self: Membership, settings: Mapping[str, object], topics: Sequence[str]) -> None:
        born(self, {**settings, "auto.offset.reset": "earliest"}, topics)

    Membership.__init__ = going_on  # type: ignore[method-assign]


def progress_to_the_end_of_what_was_taken() -> None:
    """Rule 8 taken out: progress moves to the end of the batch, whatever of it is done."""
    take = AtLeastOnceLoop._take

    def several_batches(self: AtLeastOnceLoop, most: int, wait: float) -> None:
        take(self, 4 * most, wait)

    AtLeastOnceLoop._take = several_batches  # type: ignore[method-assign]
    Hand.last_done = lambda self: last_of_each(self.records)  # type: ignore[method-assign]


def no_poison() -> None:
    """Everything is digested: what was to be poison is none."""
    Processor._carried = lambda self, record: Output(self._options["sink"], record.value, record.key)  # type: ignore[method-assign]


MUTATIONS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        one_producer_for_all_transactions,
        idempotence_off,
        no_fence,
        progress_before_effect,
        no_gap_check,
        progress_to_the_end_of_what_was_taken,
        no_poison,
    )
}


def play(task: Task) -> None:
    """kept.Producer or kept.Consumer, mutated."""
    MUTATIONS[task.options["mutation"]]()
    (processor if task.options.keys() & {"table", "sink"} else producer).play(task)
