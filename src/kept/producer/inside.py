"""Records of the caller's own transaction: their fate is the transaction's, and is known when that has ended.

A delivery report inside a transaction is a promise: an abort takes it back. So the handle notes where the record is
and waits; nobody has to go through the handles at the end, for each looks at the transaction when it is asked.
"""

from __future__ import annotations

import time
from contextvars import ContextVar

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as Client

from kept.errors import KeptError, NotPersisted, OutcomeUnknown, TransactionAborted
from kept.producer.book import Book
from kept.producer.delivery import Delivery, without_place
from kept.producer.fates import error_of
from kept.producer.routes import ClientRoute

REPORTS_WITHIN = 5.0
_PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
"""Reports that an abort brings about: the end of the transaction tells it better."""


class End:
    """How a transaction ended, once it has: `fate` is none when it was committed."""

    __slots__ = ("fate", "over")

    def __init__(self) -> None:
        self.over = False
        self.fate: KeptError | None = None


INSIDE: ContextVar[tuple[End, ...]] = ContextVar("kept.inside", default=())
"""The transactions in whose block we are. Tasks that were started there are inside too, other threads are not."""


class TransactionRoute(ClientRoute):
    """The way of a transaction's records through its client, until it has ended."""

    __slots__ = ("end",)

    def __init__(self, client: Client, book: Book) -> None:
        super().__init__(client, book, may_be_resent=False, handle=InTransaction)  # a failure forbids the commit
        self.end = End()
        INSIDE.set((*(each for each in INSIDE.get() if not each.over), self.end))

    def ended(self, fate: KeptError | None) -> None:
        """The fate of every record that has none yet; none: committed."""
        deadline = time.monotonic() + REPORTS_WITHIN
        while fate is None and self.client is not None and len(self.client) and time.monotonic() < deadline:
            self.serve(0.01)  # where they are
        self.end.fate = fate
        self.end.over = True
        self.produce = _produce_too_late
        self.client = None  # handles that are kept do not keep a client


class InTransaction(Delivery):
    """One record of a transaction: it is there, or not, or nobody knows, when the transaction has ended."""

    __slots__ = ()
    _route: TransactionRoute | None

    @property
    def settled(self) -> bool:
        route = self._route
        if route is not None and route.end.over:
            self._conclude(route.end.fate)
        return self._route is None

    @property
    def under_way(self) -> bool:
        return self._route is not None and not hasattr(self, "_fate")

    def refuse_inside(self) -> None:
        if not self.settled and self._route is not None and self._route.end in INSIDE.get():
            raise OutcomeUnknown(
                f"the record for {self.topic} is in a transaction that is still open: nobody knows yet how that ends",
                way_out="leave the block first, then ask; inside it, flush() waits until the brokers have its records",
            )

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """What the client calls; a record that was refused is absent however the transaction ends."""
        if error is None:
            self._fate = message  # true if the transaction is committed
        elif error.code() not in _PURGED:
            failure = error_of(error, self.topic, may_have_been_resent=False)
            if isinstance(failure, NotPersisted):
                self.fail(failure)

    def _conclude(self, fate: KeptError | None) -> None:
        if fate is not None or not hasattr(self, "_fate"):
            self._fate = fate or self.without_place()
        self._book = None  # the end of the block has told it
        self._route = None

    def without_place(self) -> KeptError:
        return without_place(self.topic)


def fate_of(error: BaseException) -> KeptError:
    """What a commit that raised says about the records."""
    if isinstance(error, KeptError):
        return error
    return OutcomeUnknown(
        f"whether the transaction was committed is not known: its commit was interrupted by {error!r}",
        way_out="read what is there before you do it again",
    )


def left_by(error: BaseException) -> TransactionAborted:
    """A transaction whose block raised was never told to commit."""
    return TransactionAborted(
        f"the transaction was aborted: its block was left by {error!r}",
        way_out="run the block again: nothing of it is visible",
    )


def _produce_too_late(*_args: object, **_options: object) -> None:
    raise KafkaException(KafkaError(KafkaError._STATE, "it has ended"))
