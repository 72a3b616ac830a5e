"""What a thing under test writes down: its attempts before they are made, their fates, and what it was told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kept.errors import KeptError, NotPersisted, TransactionAborted, TryAgain
from kept.producer import Receipt
from kept.verify.history import Begun, Fate, Fault, Recorder, Settled, Stopped, Told, TransactionEnded
from kept.verify.workload import Value

MOST_TOLD = 20
DONE_SO_FAR = "records done: "
"""Begins a line by which a process says how far it is."""


def say_at_work() -> None:
    """The first record is in hand: whoever watches may take it for a member of its group, and a deaf one no more."""
    print(f"{DONE_SO_FAR}1", flush=True)


def say_sent(values: Sequence[Value]) -> None:
    """These have arrived, in a transaction that is open and thinks: whoever watches may strike now."""
    for last in values[-1:]:
        print(f"{DONE_SO_FAR}{last.number + 1}", flush=True)


class Notes:
    """A process's own file of the history."""

    def __init__(self, path: str) -> None:
        self._recorder = Recorder(Path(path))
        self._told = 0

    def begin(self, values: Iterable[Value], transaction: str | None = None) -> None:
        """Before they are sent: whoever is killed behind this line has them on record."""
        now = self._recorder.now()
        self._recorder.write_all(Begun(str(value), now, transaction) for value in values)

    def persisted(self, value: Value, receipt: Receipt | None = None) -> None:
        place = (None, None, None) if receipt is None else (receipt.topic, receipt.partition, receipt.offset)
        self._recorder.write(Settled(str(value), Fate.PERSISTED, self._recorder.now(), None, *place))

    def not_known_persisted(self, value: Value, error: KeptError) -> None:
        self.tell(error)
        self._recorder.write(Settled(str(value), fate_of(error), self._recorder.now()))

    def ended(self, transaction: str, fate: Fate) -> None:
        self._recorder.write(TransactionEnded(transaction, fate, self._recorder.now()))

    def tell(self, error: KeptError) -> None:
        """What the product told its user; the first few are enough."""
        self._told += 1
        if self._told <= MOST_TOLD:
            self._recorder.write(Told(f"{type(error).__name__}: {error.what}", self._recorder.now()))

    def stop(self, error: KeptError) -> None:
        """The product ends its work with this error."""
        self._recorder.write(Stopped(type(error).__name__, error.what, self._recorder.now()))

    def struck(self, what: str) -> None:
        """A fault that only who meets it can see."""
        self._recorder.write(Fault(what, self._recorder.now()))

    def fate(self, value: Value, ask: Callable[[], Receipt]) -> bool:
        """Ask for the fate of a record, and write down the answer; whether it is persisted."""
        try:
            receipt = ask()
        except KeptError as error:
            self.not_known_persisted(value, error)
            return False
        self.persisted(value, receipt)
        return True


def fate_of(error: KeptError) -> Fate:
    """What an error says of a record: only these say for sure that it is not there."""
    certain = isinstance(error, (NotPersisted, TransactionAborted, TryAgain))
    return Fate.NOT_PERSISTED if certain else Fate.UNKNOWN
