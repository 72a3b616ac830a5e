"""The transactions of one exactly-once name: each behind a fence of its own, numbered, its outcome never guessed.

1. A fresh client fences every other with its id; what they had open is ended by then.
2. Behind the fence the mark is read: a higher generation than ours means that we were succeeded.
3. The records and the next mark are committed together. 2 and the mark go on while records are handed over.
4. An answer that was lost: fence again, read the mark, and know.

Three ids take turns: one works, one is made ready, and the one before has time to finish, because a fence that
comes while the coordinator still ends its last transaction waits half a second.

A successor fences all of them, reads the mark, and puts its own into a transaction of each, the first before the
others; then it commits the first. Somebody who fenced one of them again since then is noticed by that, before anything
is committed; somebody who does so later has to wait, with his look, for what becomes of the first.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import TypeAlias

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client

from kept.errors import Fenced, FixConfiguration, KeptError, OutcomeUnknown, TransactionAborted, TryAgain
from kept.producer.clients import FENCED, beside, fenced_client, put_offsets, wait_for
from kept.producer.marks import (
    FORBIDDEN,
    Mark,
    Marks,
    Reached,
    claimed_by,
    forbidden,
    refuse_if_succeeded,
    was_committed,
)

IDS = 3
CARRIED_WITHIN = 30.0
LOOKS_WITHIN = 10.0
"""A commit that has used up its time has a look all the same: to know what became of it is worth more than seconds."""
LONGEST_WAIT_AFTER_A_FENCED_CLAIM = 0.5
Agreed: TypeAlias = Callable[[Mark | None], Reached | None]


class Transactions:
    """Opens transactions one after the other; knows whether this process still owns the name."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        name = str(settings["transactional.id"])
        self.expects: frozenset[str] = frozenset()
        """Topics that the next transactions are likely to write to."""
        self._settings = settings
        self._ids = [f"{name}/{number}" for number in range(IDS)]
        self._marks = Marks(settings, name)
        self._owner = str(uuid.uuid4())
        self._mine: Mark | None = None
        self._attempts = 0  # never used twice: an attempt in doubt must not be taken for the one after it
        self._succeeded: Fenced | None = None
        self._background = ThreadPoolExecutor(1, thread_name_prefix="kept-fence")
        self._prepared: Future[Client] | None = None

    def look(self, within: float) -> Mark | None:
        """The mark, without disturbing whoever owns the name; perhaps not yet the one that was committed last."""
        return self._marks.glance(within)

    def open(self, within: float, reached: Reached | None = None) -> Transaction:
        """Begin a transaction on a client that is fenced and ours; with it, a relay's new position is committed."""
        if self._succeeded is not None:
            raise self._succeeded
        mine = self._mine or self.claim(within)
        client = self._next_client(within)
        try:
            client.begin_transaction()
        except KafkaException as failure:
            raise TryAgain(f"no transaction could be opened: {failure.args[0].str()}", way_out="try again") from failure
        used = self._ids[0]
        self._ids = [*self._ids[1:], used]
        self._prepared = self._background.submit(self._prepare, self._ids[0], within)
        self._attempts += 1
        return Transaction(self, client, used, mine.numbered(self._attempts, reached))

    def close(self) -> None:
        self._background.shutdown(wait=True, cancel_futures=True)
        self._prepared = None
        self._marks.close()

    def forget(self) -> None:
        """This name is never used again: leave no mark behind."""
        self._marks.forget()

    def client(self, transactional_id: str, within: float) -> Client:
        return fenced_client({**self._settings, "transactional.id": transactional_id}, within, self.expects)

    @property
    def last(self) -> Mark | None:
        """The mark that this process committed last."""
        return self._mine

    def ended(self, committed: Mark) -> None:
        """The transaction with this mark is visible."""
        self._mine = committed

    def look_after(self, transactional_id: str, attempted: Mark, within: float) -> bool:
        """Read whether a transaction whose end is not known was committed, behind a fence.

        A successor has fenced it already, and is not to be disturbed by another fence.
        """
        try:
            found = self._marks.glance(within)
            if found is None or found.generation <= attempted.generation:
                self.client(transactional_id, within)
                found = self._marks.read(within)
        except KeptError as error:
            raise OutcomeUnknown(
                f"whether the transaction was committed is not known: {error.what}",
                way_out="read what is there before you do it again",
            ) from error
        known = was_committed(found, attempted)
        if known is None:
            raise OutcomeUnknown(
                "whether the transaction was committed is not known: its mark has been replaced or has expired",
                way_out="read what is there before you do it again",
            )
        if known:
            self.ended(attempted)
        self._refuse_if_succeeded(found, attempted, committed=known)
        return known

    def refuse_if_succeeded(self, within: float) -> None:
        """Raise when a successor can be seen; nothing is said when the brokers do not answer."""
        with suppress(TryAgain, FixConfiguration):
            if self._mine is not None:
                self._refuse_if_succeeded(self._marks.glance(within), self._mine)

    def carry(self, client: Client, mark: Mark) -> Future[None]:
        """Beside whatever goes on: look behind the client's fence, and put the mark into its open transaction."""

        def look_and_put() -> None:
            try:
                found = self._marks.read(CARRIED_WITHIN)
            except TryAgain as error:
                again = KafkaError(KafkaError._TRANSPORT, error.what, retriable=True, txn_requires_abort=True)
                raise KafkaException(again) from error
            self._refuse_if_succeeded(found, mark, committed=False)
            position, group = self._marks.position(mark), self._marks.group_metadata
            client.send_offsets_to_transaction([position], group, CARRIED_WITHIN)

        return beside(look_and_put)

    def _next_client(self, within: float) -> Client:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            try:
                return prepared.result(within)
            except TryAgain:
                pass  # the brokers were away while it was prepared; they may be back
            except FutureTimeout:
                self._prepared = prepared  # still at it: another client beside it would only be fenced by it
                raise TryAgain(
                    f"no transaction could be opened within {within:.0f} s",
                    way_out="try again when the brokers are back",
                ) from None
        return self._prepare(self._ids[0], within)

    def _prepare(self, transactional_id: str, within: float) -> Client:
        """Glance, so that a successor is not disturbed, and fence; the look that counts comes with the mark."""
        if self._mine is not None:
            self._refuse_if_succeeded(self._marks.glance(within), self._mine)
        return self.client(transactional_id, within)

    def _refuse_if_succeeded(self, found: Mark | None, mine: Mark, *, committed: bool | None = None) -> None:
        try:
            refuse_if_succeeded(found, mine)
        except Fenced as error:
            fate = {None: "", True: "; its last transaction was committed", False: "; its last transaction was not"}
            self._succeeded = Fenced(error.what + fate[committed], way_out=error.way_out)
            raise self._succeeded from None

    def claim(self, within: float, at_least: int | None = None, agreed: Agreed = lambda _found: None) -> Mark:
        """Fence every id, then write our generation; who is fenced meanwhile waits a random moment and looks again.

        `agreed` is shown the mark as it stands behind the fence. It answers where a relay begins that finds no position
        there, or raises: then nothing is written.
        """
        deadline = time.monotonic() + within
        self._marks.make_carrier()
        while True:
            clients = [self.client(each, within) for each in self._ids]
            found = self._marks.read(within)
            if found is not None and found.owner == self._owner:
                self._mine = found  # the answer to our claim was lost, the claim was not
                return found
            claim = claimed_by(self._owner, found, int(time.time()), at_least, agreed(found))
            try:
                for client in clients:
                    client.begin_transaction()
                    put_offsets(client, [self._marks.position(claim)], self._marks.group_metadata, within)
                clients[0].commit_transaction(within)
            except KafkaException as failure:
                if failure.args[0].code() in FORBIDDEN:
                    raise forbidden(failure.args[0], self._marks.group) from failure
                if time.monotonic() > deadline:
                    raise TryAgain(
                        f"the name could not be claimed: {failure.args[0].str()}",
                        way_out="see that no other process starts under the same name, and try again",
                    ) from failure
                time.sleep(random.uniform(0, LONGEST_WAIT_AFTER_A_FENCED_CLAIM))  # noqa: S311 - not a secret
            else:
                for unused, client in zip(self._ids[1:], clients[1:], strict=True):
                    self._end(unused, client, within)
                self._mine = claim
                return claim

    def _end(self, transactional_id: str, client: Client, within: float) -> None:
        """Abort what is open, or have a fence do it: a mark that stays under way holds every look up."""
        try:
            client.abort_transaction(within)
        except KafkaException:
            self.client(transactional_id, within)


class Transaction:
    """One transaction: records go to its client; then it is committed or aborted, once."""

    def __init__(self, transactions: Transactions, client: Client, transactional_id: str, mark: Mark) -> None:
        self.client = client
        self._transactions = transactions
        self._id = transactional_id
        self._mark = mark
        self._carried = transactions.carry(client, mark)

    def commit(self, within: float) -> None:
        """Make it visible. `TransactionAborted`: it is certain that nothing is."""
        deadline = time.monotonic() + within
        while True:
            left = max(1.0, deadline - time.monotonic())
            try:
                wait_for(self._carried, left)
                self.client.commit_transaction(left)
            except (Fenced, FixConfiguration):
                self.abort(left)
                raise
            except KafkaException as failure:
                error = failure.args[0]
                if error.retriable() and error.code() not in FENCED and time.monotonic() < deadline:
                    self._carry_again()
                    continue
                if error.txn_requires_abort() and self.abort(left):
                    raise _aborted(error.str()) from failure
                if not self._transactions.look_after(self._id, self._mark, max(left, LOOKS_WITHIN)):
                    raise _aborted(error.str()) from failure
            else:
                self._transactions.ended(self._mark)
            return

    def _carry_again(self) -> None:
        """After a moment, and only when that is what failed."""
        time.sleep(0.1)
        if self._carried.done() and self._carried.exception() is not None:
            self._carried = self._transactions.carry(self.client, self._mark)

    def commit_and_know(self, within: float, ask_within: float, wait: Callable[[OutcomeUnknown], None]) -> None:
        """Commit; while nobody can be asked what became of it, ask again. `wait` takes a moment, or raises."""
        try:
            self.commit(within)
        except OutcomeUnknown as unknown:
            while isinstance(unknown.__cause__, TryAgain):
                wait(unknown)
                try:
                    if self._transactions.look_after(self._id, self._mark, ask_within):
                        return
                except OutcomeUnknown as still:
                    unknown = still
                else:
                    raise _aborted("its commit never arrived") from unknown
            raise unknown from unknown.__cause__

    @property
    def committed(self) -> bool:
        """Whether it is known to be visible; also when the commit was followed by the news of a successor."""
        return self._transactions.last == self._mark

    def abort(self, within: float) -> bool:
        """Leave nothing visible. False: not now; the next fence, or time, aborts it."""
        wait([self._carried], within)  # the client takes one call at a time
        try:
            self.client.abort_transaction(within)
        except KafkaException:
            return False
        return True


def _aborted(reason: str) -> KeptError:
    return TransactionAborted(
        f"the transaction was aborted: {reason}", way_out="run the block again: nothing of it is visible"
    )
