"""The consumer: one guarantee, records to loop over, and progress recorded before, after or with the effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import TracebackType

from kept.consumer.at_least_once import AtLeastOnceLoop
from kept.consumer.at_most_once import AtMostOnceLoop
from kept.consumer.batch import Batch
from kept.consumer.beginning import Beginning, From
from kept.consumer.births import Births
from kept.consumer.graveyard import Graveyard
from kept.consumer.handling import handle_all
from kept.consumer.into_kafka import IntoKafkaLoop, Transform
from kept.consumer.membership import Membership, Next
from kept.consumer.outgoing import Outgoing
from kept.consumer.policies import AfterBatch, Every, Policy
from kept.consumer.reading import Start
from kept.consumer.records import Place, Record
from kept.consumer.retrying import Giving, Retry
from kept.consumer.signals import stopped_by_signals
from kept.consumer.sources import Sources, signed
from kept.errors import FixConfiguration
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce, Guarantee, consumer_settings, merge, producer_settings

Plain = AtLeastOnceLoop | AtMostOnceLoop
ENDED_BY_BROKER_AFTER = 10.0
"""A member that dies leaves its transaction open for so many seconds, and the next one waits for its end."""
_CONNECTION = ("security.", "sasl.", "ssl.", "client.", "broker.address.", "socket.", "enable.ssl", "https.", "oauth")


class Consumer:
    """A member of a group, under a guarantee; settings that weaken it are refused.

    for record in Consumer("localhost:9091", "payments", group="mailer", guarantee=AtLeastOnce()):
        send_mail(record)

    The body of the loop is the effect. Under at-least-once a record is done when the loop asks for the next one:
    a body that raises, or breaks, leaves its record to be done again. Under at-most-once it was done before it was
    handed out. Under exactly-once the effect must share a transaction with the progress: see `into_kafka`.
    `with` leaves the group at the end; without it the group waits until this member's session is over.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: str | Sequence[str],
        *,
        guarantee: Guarantee,
        group: str | None = None,
        commit: Policy | None = None,
        start: From = Start.BEGINNING,
        **overrides: object,
    ) -> None:
        self.guarantee = guarantee
        self.group = _group(guarantee, group)
        self._bootstrap = bootstrap
        self._start = start
        self._connection = {name: value for name, value in overrides.items() if name.startswith(_CONNECTION)}
        self._plain_settings = {"log_level": 0, **self._connection, "bootstrap.servers": bootstrap}
        settings = merge(consumer_settings(guarantee, self.group), overrides)
        self._member = Membership(
            {"log_level": 0, **settings, "bootstrap.servers": bootstrap},
            [topics] if isinstance(topics, str) else list(topics),
        )
        self._loop: Plain | IntoKafkaLoop | None = _plain_loop(self._member, guarantee, commit, self._beginning)
        self._joined = False
        self._closed = False

    def __iter__(self) -> Iterator[Record]:
        """Records, one after the other, until `stop()`."""
        return self._plain().records()

    def batches(self, most: int = 500) -> Iterator[Batch]:
        """Records, up to so many at once, as soon as there are any; see `Batch` for what is done when."""
        return self._plain().batches(most)

    def run(
        self, handler: Callable[[Record], object], *, retry: Retry | None = None, dead_letters: str | None = None
    ) -> None:
        """Call the handler with each record, until `stop()`, SIGTERM or SIGINT.

        One that raises is tried again by `retry` (never under at-most-once), then buried in the topic
        `dead_letters` with the reason; without such a topic its error ends the loop, and the record is not done.
        """
        with self.stopped_by_signals(), self._graveyard(dead_letters) as graveyard:
            handle_all(self._plain(), handler, retry, graveyard)

    def into_kafka(
        self,
        transform: Transform,
        *,
        seconds: float = 0.5,
        retry: Retry | None = None,
        dead_letters: str | None = None,
        until: Mapping[Place, int] | None = None,
        **producer_overrides: object,
    ) -> None:
        """Send what `transform` makes of each record, exactly once, until `stop()`, SIGTERM or SIGINT.

        It returns an `Output`, several, or None. The output and the source's positions are committed together every
        so many seconds; a read_committed reader sees all of a transaction or nothing. A record that keeps raising,
        or that the broker refuses, is buried in `dead_letters` within the same transaction. `until` names offsets
        by (topic, partition): nothing at or behind them is done, and all before them makes it return.
        """
        if not isinstance(self.guarantee, ExactlyOnce):
            raise FixConfiguration(
                f"{self.guarantee.word} has no transactions", way_out="choose guarantee=kept.ExactlyOnce('a-name')"
            )
        if self._loop is None:
            self._loop = self._into_kafka_loop(self.guarantee, seconds, producer_overrides)
        if not isinstance(self._loop, IntoKafkaLoop):
            raise FixConfiguration(
                "this consumer is in use for another sink", way_out="make another one, with a new name"
            )
        self._join(self._loop)
        with self.stopped_by_signals():
            self._loop.run(transform, seconds, Giving(retry or Retry(), dead_letters), until or {})

    def stop(self) -> None:
        """End the loop where it asks for the next record. May be called from a signal handler or another thread."""
        if self._loop is not None:
            self._loop.stop()

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the loop after the record in hand; a second one interrupts at once."""
        with stopped_by_signals(self.stop):
            yield

    @property
    def partitions(self) -> frozenset[Place]:
        """The partitions that are ours at the moment, as (topic, number)."""
        return frozenset(self._member.owned)

    def pause(self, *places: Place) -> None:
        """Hand out nothing of these partitions, of any when none is named, until `resume`."""
        chosen = list(places) or sorted(self._member.owned)
        self._plain().set_aside(chosen)
        self._member.pause(chosen)

    def resume(self, *places: Place) -> None:
        """Hand out records of these partitions again, of all when none is named."""
        self._member.resume(list(places) or sorted(self._member.owned))

    def replay(self, positions: Mapping[Place, int]) -> None:
        """Go on from these offsets, back or forth, and record that as the progress. At-least-once only."""
        self._plain().reposition({place: Next(offset) for place, offset in positions.items()})

    def close(self) -> None:
        """Record what is done, and leave the group."""
        if not self._closed:
            self._closed = True
            if self._loop is None:
                self._member.leave()
            else:
                self._loop.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _plain(self) -> Plain:
        loop = self._loop
        if loop is None or isinstance(loop, IntoKafkaLoop):
            raise FixConfiguration(
                "under exactly-once the effect shares a transaction with the progress, and the body of a loop has none",
                way_out="use into_kafka(...) or into_postgres(...), or choose at-least-once and an idempotent effect",
            )
        self._join(loop)
        return loop

    def _join(self, loop: Plain | IntoKafkaLoop) -> None:
        if not self._joined:
            self._member.join(loop)
            self._joined = True

    def _beginning(self) -> Beginning:
        if isinstance(self.guarantee, AtLeastOnce) and self._start is Start.BEGINNING:
            return Beginning(self._member, self._start, None)
        sources = Sources(self._plain_settings)
        return Beginning(self._member, self._start, Births(self._plain_settings, self.group, sources))

    def _into_kafka_loop(
        self, guarantee: ExactlyOnce, seconds: float, overrides: Mapping[str, object]
    ) -> IntoKafkaLoop:
        sources = Sources(self._plain_settings)
        births = Births(self._plain_settings, self.group, sources)
        beginning = Beginning(
            self._member,
            self._start,
            births,
            lambda place, position: signed(position, sources.topic_ids([place[0]])[place[0]]),
        )
        patience = {"transaction.timeout.ms": int(1000 * max(ENDED_BY_BROKER_AFTER, 2 * seconds))}
        settings = merge(producer_settings(guarantee), {**patience, **self._connection, **overrides})
        outgoing = Outgoing({"log_level": 0, **settings, "bootstrap.servers": self._bootstrap}, self.group)
        return IntoKafkaLoop(self._member, beginning, sources, outgoing, self.group)

    def _graveyard(self, topic: str | None) -> Graveyard | nullcontext[None]:
        if topic is None:
            return nullcontext()
        return Graveyard(self._bootstrap, topic, self.guarantee, self.group, self._connection)


def _plain_loop(
    member: Membership, guarantee: Guarantee, policy: Policy | None, beginning: Callable[[], Beginning]
) -> Plain | None:
    match guarantee:
        case AtLeastOnce():
            return AtLeastOnceLoop(member, policy or Every(), beginning())
        case AtMostOnce():
            if isinstance(policy, Every):
                raise FixConfiguration(
                    "at-most-once records progress before each record or batch, not by the clock",
                    way_out="choose AfterEach(), AfterBatch(records) or Asynchronously()",
                )
            return AtMostOnceLoop(member, policy or AfterBatch(), beginning())
        case ExactlyOnce():
            if policy is not None:
                raise FixConfiguration(
                    "exactly-once commits progress with the effect: there is no policy to choose",
                    way_out="leave `commit` out",
                )
            return None


def _group(guarantee: Guarantee, group: str | None) -> str:
    if isinstance(guarantee, ExactlyOnce):
        if group is not None:
            raise FixConfiguration(
                "under exactly-once the name of the guarantee is the group's", way_out="leave `group` out"
            )
        return guarantee.group
    if not group:
        raise FixConfiguration("progress is recorded under a group, and none is named", way_out="say group='a-name'")
    return group
