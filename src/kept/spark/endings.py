"""What ended a query, in words that say what to do about it: Spark passes on the text of an error, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from kept.errors import FixConfiguration, Gap, KeptError, TryAgain, UnsoundInput
from kept.progress import Stop
from kept.spark.transforms import NOT_FITTING

_TWO_DRIVERS = "[CONCURRENT_STREAM_LOG_UPDATE]"
_SHUT_DOWN = ("SparkContext was shut down", "stopped SparkContext")
_DATA_LOSS = ("Some data may have been lost", "failOnDataLoss")


def told(
    failure: BaseException | None, error: Exception, name: str, missing: Callable[[], Stop | None]
) -> BaseException:
    """The error of ours that ended the query; else Spark's, unless its text says what to do about it.

    `missing` asks the source whether anything is missing there that was not read.
    """
    if isinstance(failure, KeptError):
        return failure
    text = str(failure or error)
    if any(words in text for words in _DATA_LOSS):
        return _data_loss(text, name, missing)
    if _TWO_DRIVERS in text:
        return TryAgain(
            "another driver is at work on the same checkpoint, and was quicker to note its next batch",
            way_out="end the other one, and start this one again: it goes on where the sink stands",
        )
    unfitting = NOT_FITTING.search(text)
    if unfitting is not None:
        return UnsoundInput(
            unfitting[1],
            way_out="look at it: `kept receive --positions`; widen source.schema, read the raw bytes, or keep such "
            "records as [dead_letters]",
        )
    if "kept.errors." in text or "kept.spark.tasks." in text:
        return TryAgain(
            f"a task failed again and again: {_last_line(text)}",
            way_out="see that the sink and the brokers run, then start it again: it goes on where it was",
        )
    return cut_off(failure) if any(words in text for words in _SHUT_DOWN) else failure or error


def cut_off(failure: BaseException | None) -> KeptError:
    """Spark itself was ended, by a signal or for want of memory, and could not tell anything."""
    if isinstance(failure, KeptError):
        return failure
    return TryAgain(
        "Spark was ended under the pipeline, and the batch in hand with it",
        way_out="start it again: it goes on where the sink stands. If nobody has ended Spark, look at the memory of "
        "its machine; docs/pipelines.md says how to stop a driver after its batch",
    )


def _data_loss(text: str, name: str, missing: Callable[[], Stop | None]) -> KeptError:
    """Spark compares the source with its checkpoint; whether records are lost, progress in the sink says."""
    try:
        stop = missing()
    except KeptError as unknown:  # the topic is gone, or nobody answers
        return Gap(
            f"records were deleted before Spark read them: {_last_line(text)} ({unknown.what})",
            way_out=f"restore them from elsewhere, or accept the loss: `kept pipelines repair {name}`",
        )
    if stop is not None:
        return stop.error()
    return FixConfiguration(
        f"the checkpoint does not fit the source any more, and nothing is lost: what the source has deleted is done, "
        f"or was never this pipeline's. Spark says: {_last_line(text)}",
        way_out="move the checkpoint away, or name another: progress is in the sink, and it goes on from there. Where "
        "the transform keeps state, start anew under another name",
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "kept." in line or "lost" in line]
    return (lines or text.splitlines() or [""])[-1]
