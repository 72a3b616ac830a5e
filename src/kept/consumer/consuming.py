"""The consumer: one guarantee, records to loop over, and progress recorded before or after the body of the loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType

from kept.consumer.at_least_once import AtLeastOnceLoop
from kept.consumer.at_most_once import AtMostOnceLoop
from kept.consumer.batch import Batch
from kept.consumer.beginning import Beginning, From
from kept.consumer.membership import Membership, Next
from kept.consumer.policies import AfterBatch, Every, Policy
from kept.consumer.reading import Start
from kept.consumer.records import Place, Record
from kept.consumer.signals import stopped_by_signals
from kept.errors import FixConfiguration
from kept.guarantees import AtLeastOnce, AtMostOnce, Guarantee, consumer_settings, merge


class Consumer:
    """A member of a group, under a guarantee; settings that weaken it are refused.

    for record in Consumer("localhost:9091", "payments", group="mailer", guarantee=AtLeastOnce()):
        send_mail(record)

    The body of the loop is the effect. Under at-least-once a record is done when the loop asks for the next one:
    a body that raises, or breaks, leaves its record to be done again. Under at-most-once it was done before it was
    handed out. `with` leaves the group at the end; without it the group waits until this member's session is over.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: str | Sequence[str],
        *,
        guarantee: Guarantee,
        group: str,
        commit: Policy | None = None,
        start: From = Start.BEGINNING,
        **overrides: object,
    ) -> None:
        self.guarantee = guarantee
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        self._member = Membership(
            {"log_level": 0, **merge(consumer_settings(guarantee, group), overrides), "bootstrap.servers": bootstrap},
            self._topics,
        )
        repeating = isinstance(guarantee, AtLeastOnce) and start is Start.BEGINNING
        beginning = Beginning(self._member, start, repeating_is_allowed=repeating)
        self._loop: AtLeastOnceLoop | AtMostOnceLoop
        match guarantee:
            case AtLeastOnce():
                self._loop = AtLeastOnceLoop(self._member, commit or Every(), beginning)
            case AtMostOnce():
                self._loop = AtMostOnceLoop(self._member, _at_most_once(commit or AfterBatch()), beginning)
            case _:
                raise FixConfiguration("not yet", way_out="")
        self._joined = False
        self._closed = False

    def __iter__(self) -> Iterator[Record]:
        """Records, one after the other, until `stop()`."""
        self._join()
        return self._loop.records()

    def batches(self, most: int = 500) -> Iterator[Batch]:
        """Records, up to so many at once, as they are there; see `Batch` for what is done when."""
        self._join()
        return self._loop.batches(most)

    def stop(self) -> None:
        """End the loop where it asks for the next record. May be called from a signal handler or another thread."""
        self._loop.stop()

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the loop after the record in hand; a second one interrupts at once."""
        with stopped_by_signals(self.stop):
            yield

    @property
    def partitions(self) -> frozenset[Place]:
        """The partitions that are ours at the moment."""
        return frozenset(self._member.owned)

    def pause(self, *places: Place) -> None:
        """Hand out nothing of these partitions, of none when none is named, until `resume`."""
        self._loop.set_aside(self._chosen(places))
        self._member.pause(self._chosen(places))

    def resume(self, *places: Place) -> None:
        self._member.resume(self._chosen(places))

    def replay(self, positions: Mapping[Place, int]) -> None:
        """Go on from these offsets, back or forth, and record that as the progress. At least once only."""
        self._loop.reposition({place: Next(offset) for place, offset in positions.items()})

    def close(self) -> None:
        """Record what is done, and leave the group."""
        if not self._closed:
            self._closed = True
            self._loop.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _join(self) -> None:
        if not self._joined:
            self._member.join(self._loop)
            self._joined = True

    def _chosen(self, places: Sequence[Place]) -> list[Place]:
        return list(places) or sorted(self._member.owned)


def _at_most_once(policy: Policy) -> Policy:
    if isinstance(policy, Every):
        raise FixConfiguration(
            "at-most-once records progress before each record or batch, not by the clock",
            way_out="choose AfterEach(), AfterBatch(records) or Asynchronously()",
        )
    return policy
