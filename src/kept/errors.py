"""What can go wrong, named by what the caller may still do.

KeptError                     every error of this package; carries `way_out`, the next step
├── FixConfiguration          nothing was done: change what the message names, then start again
│   └── WeakensGuarantee      a setting contradicts the guarantee that was asked for
├── FixMachine                nothing was done: this machine lacks something
│   ├── JavaMissing           no Java 17 or later
│   ├── DownloadFailed        no network, or the server said no; what arrived is kept
│   ├── DownloadDamaged       the bytes are not the ones in the lock file; they were thrown away
│   ├── DiskFull              no room to write; nothing half-written is used
│   ├── PortTaken             somebody else listens there
│   ├── ServerNotStarted      a local server died or did not become ready in time
│   └── Busy                  another kept command is at work in the same place
├── TryAgain                  nothing was done: the same call may work later
│   └── JournalFull           too much waits in an outbox: nothing of the call was taken
├── NotPersisted              the record is not in Kafka; `retriable` says whether to try again
├── Refused                   nothing was written: the store takes no such record, now or later
├── OutcomeUnknown            it may or may not have happened; nobody can know from here
├── TransactionAborted        none of the transaction is visible; start it again
├── Fenced                    another owner took over: stop, do not try again
└── PersonMustLook            nothing was written: going on could lose or repeat records
    ├── ProgressLost          the record of progress is gone; gone is never zero
    ├── ProgressMoved         somebody else wrote our progress
    ├── SourceChanged         the source was recreated, cut short or replaced since
    ├── SinkChanged           the sink is another one than progress was recorded for
    ├── Gap                   records between progress and this input would be skipped
    └── UnsoundInput          the rows or their count are not what this mode can keep
"""

from __future__ import annotations

from collections.abc import Sequence


class KeptError(Exception):
    """Every error of this package: what happened, and the way out."""

    def __init__(self, what: str, *, way_out: str) -> None:
        super().__init__(what)
        self.what = what
        self.way_out = way_out

    def __str__(self) -> str:
        return f"{self.what}\n  way out: {self.way_out}"

    def __reduce__(self) -> tuple[object, ...]:
        """Errors travel between processes (Spark's workers): by what they carry, not by their constructor."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[KeptError], args: tuple[object, ...], carried: dict[str, object]) -> KeptError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(carried)
    return error


class FixConfiguration(KeptError):
    """Nothing was done: change what the message names, then start again."""


class WeakensGuarantee(FixConfiguration):
    """A setting contradicts the guarantee that was asked for."""

    def __init__(self, setting: str, value: object, guarantee: str, because: str, *, way_out: str) -> None:
        super().__init__(f"{setting}={value} weakens {guarantee}: {because}", way_out=way_out)
        self.setting = setting
        self.value = value
        self.guarantee = guarantee
        self.because = because
        self._all: tuple[WeakensGuarantee, ...] = ()

    @property
    def each(self) -> tuple[WeakensGuarantee, ...]:
        """One error for each setting that was refused; most often only this one."""
        return self._all or (self,)

    @classmethod
    def naming_all(cls, refused: Sequence[WeakensGuarantee]) -> WeakensGuarantee:
        """One error for all that were refused: the first one's attributes, the text and `each` of all."""
        first = refused[0]
        if len(refused) == 1:
            return first
        error = cls(first.setting, first.value, first.guarantee, first.because, way_out=first.way_out)
        error.what = "; ".join(one.what for one in refused)
        error.way_out = "; ".join(dict.fromkeys(one.way_out for one in refused))
        error.args = (error.what,)
        error._all = tuple(refused)
        return error


class FixMachine(KeptError):
    """Nothing was done: this machine lacks something."""


class JavaMissing(FixMachine):
    """No Java 17 or later was found."""


class DownloadFailed(FixMachine):
    """No network, or the server said no; what arrived is kept for the next try."""


class DownloadDamaged(FixMachine):
    """The bytes are not the ones the lock file names; they were thrown away."""


class DiskFull(FixMachine):
    """No room to write; nothing half-written is used afterwards."""


class PortTaken(FixMachine):
    """Somebody else listens on a port that was asked for."""


class ServerNotStarted(FixMachine):
    """A local server died or did not become ready in time."""


class Busy(FixMachine):
    """Another kept command is at work in the same place."""


class TryAgain(KeptError):
    """Nothing was done: the same call may work later."""


class JournalFull(TryAgain):
    """Too much waits in an outbox, or for too long: nothing of the call was taken."""


class NotPersisted(KeptError):
    """The record is not in Kafka and will not be; `retriable` says whether trying again may help."""

    def __init__(self, what: str, *, way_out: str, retriable: bool) -> None:
        super().__init__(what, way_out=way_out)
        self.retriable = retriable


class Refused(KeptError):
    """Nothing was written: the store takes no such record, now or later."""


class OutcomeUnknown(KeptError):
    """It may or may not have happened; nobody can know from here."""


class TransactionAborted(KeptError):
    """None of the transaction is visible to a read_committed reader; start it again."""


class Fenced(KeptError):
    """Another owner took over: stop, do not try again."""


class PersonMustLook(KeptError):
    """Nothing was written: going on by itself could lose or repeat records, so a person decides."""


class ProgressLost(PersonMustLook):
    """The record of progress is gone (expired, deleted, never seeded); gone is never taken for zero."""


class ProgressMoved(PersonMustLook):
    """Somebody else wrote our progress: it lacks our signature, or bears another pipeline's."""


class SourceChanged(PersonMustLook):
    """The source was recreated, cut short or replaced since progress was recorded."""


class SinkChanged(PersonMustLook):
    """The sink is another one than progress was recorded for: what lies before progress is not in it."""


class Gap(PersonMustLook):
    """Records between progress and this input were never seen here and would be skipped."""


class UnsoundInput(PersonMustLook):
    """The rows, their order or their count are not what this mode can keep."""
