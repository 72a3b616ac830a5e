"""A handler for each record: tried again when it raises, and the record buried at last."""

from __future__ import annotations

from collections.abc import Callable

from kept.consumer.at_least_once import AtLeastOnceLoop
from kept.consumer.at_most_once import AtMostOnceLoop
from kept.consumer.graveyard import Graveyard
from kept.consumer.records import Record
from kept.consumer.retrying import NoLongerOurs, Retry, insist
from kept.errors import FixConfiguration, KeptError

Handler = Callable[[Record], object]


def handle_all(
    loop: AtLeastOnceLoop | AtMostOnceLoop, handler: Handler, retry: Retry | None, graveyard: Graveyard | None
) -> None:
    """Until the loop ends. At-most-once tries nothing twice: what raised may have had half its effect."""
    if isinstance(loop, AtMostOnceLoop):
        if retry is not None and retry.times:
            raise FixConfiguration(
                "at-most-once tries nothing twice", way_out="leave `retry` out, or choose at-least-once"
            )
        retry = Retry(times=0)
    for record in loop.records():
        try:
            handler(record)
        except KeptError:
            raise
        except Exception as failed:  # noqa: BLE001 - whatever the handler raises is about the record
            if not _done_at_last(loop, record, handler, failed, retry or Retry(), graveyard):
                return  # stopped before it was given up: it is not done, and comes again


def _done_at_last(
    loop: AtLeastOnceLoop | AtMostOnceLoop,
    record: Record,
    handler: Handler,
    failed: Exception,
    retry: Retry,
    graveyard: Graveyard | None,
) -> bool:
    """Try again, then bury; False when the loop was stopped meanwhile."""

    try:
        insist(lambda: handler(record), failed, retry, lambda delay: loop.wait(delay, record))
    except NoLongerOurs:
        return not loop.stopping  # where another member owns it now, that one does it
    except KeptError:
        raise
    except Exception as last:
        if graveyard is None:
            raise
        graveyard.bury(record, last)
    return True
