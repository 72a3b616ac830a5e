"""The JVM that Spark runs in, a process beside ours: a signal that is not for it, and whether it is still there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def leave_sigterm_to_python(spark: SparkSession) -> None:
    """SIGTERM for a whole group of processes (systemd, a shell, a container) must not end Spark in midst of a batch.

    pyspark sees to that for Ctrl-C only. Python hears the signal, finishes the batch and ends; the JVM ends with it,
    however Python ends. It is told from inside, not launched with the signal ignored: while Spark starts, SIGTERM goes
    on to end both at once.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark

    signals: Any = spark._jvm.sun.misc  # type: ignore[union-attr]
    with suppress(Py4JJavaError):  # with -Xrs a JVM hears no signals, by somebody's wish
        signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)


def gone(error: BaseException | None) -> bool:
    """Whether it says that the JVM does not answer, and not that something failed in it."""
    from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415 - comes with pyspark

    return isinstance(error, Py4JError | ConnectionError) and not isinstance(error, Py4JJavaError)


@contextmanager
def unless_gone() -> Iterator[None]:
    """For what is said to a JVM at the end: one that is gone need not hear it, and what ended it is told already."""
    try:
        yield
    except Exception as error:
        if not gone(error):
            raise
