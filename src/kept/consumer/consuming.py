"""The consumer: one guarantee, records to loop over, and progress recorded before, after or with the effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING

from kept.consumer.asking import require
from kept.consumer.at_least_once import AtLeastOnceLoop
from kept.consumer.at_most_once import AtMostOnceLoop
from kept.consumer.batch import Batch, refuse_none
from kept.consumer.beginning import Beginning, From, Starts
from kept.consumer.births import Births
from kept.consumer.graveyard import Graveyard
from kept.consumer.handling import handle_all
from kept.consumer.identities import Identities
from kept.consumer.into_kafka import IntoKafkaLoop, Transform
from kept.consumer.membership import Membership
from kept.consumer.outgoing import Outgoing
from kept.consumer.policies import AfterBatch, Every, Policy
from kept.consumer.positions import Next, to_client
from kept.consumer.reading import Start
from kept.consumer.records import Place, Record
from kept.consumer.retrying import Giving, Retry
from kept.consumer.signals import stopped_by_signals
from kept.consumer.sources import Sources, signed
from kept.errors import FixConfiguration
from kept.guarantees import (
    AtLeastOnce,
    AtMostOnce,
    ExactlyOnce,
    Guarantee,
    connection,
    consumer_settings,
    merge,
    producer_settings,
)

if TYPE_CHECKING:
    from kept.consumer.into_postgres import Connection, IntoPostgresLoop

    Loop = AtLeastOnceLoop | AtMostOnceLoop | IntoKafkaLoop | IntoPostgresLoop
Plain = AtLeastOnceLoop | AtMostOnceLoop
ENDED_BY_BROKER_AFTER = 10.0
"""A member that dies leaves its transaction open for so many seconds, and the next one waits for its end."""
FETCHED_AGAIN = 50
"""Milliseconds. The client's own is a second, in which a quick loop runs out of records that it could have had."""
LINGERS = 0.1
"""Nobody sees a record before its transaction ends, which sends what waits: larger batches cost the brokers less."""


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
        self._start = _checked_start(start)
        self._connection = connection(overrides)
        self._plain_settings = {"log_level": 0, **self._connection, "bootstrap.servers": bootstrap}
        settings = merge(consumer_settings(guarantee, self.group), overrides)
        self._member = Membership(
            {"log_level": 0, "fetch.queue.backoff.ms": FETCHED_AGAIN, **settings, "bootstrap.servers": bootstrap},
            _names(topics),
        )
        self._loop: Loop | None = self._plain_loop(commit)
        self._joined = False
        self._stopped = False
        self._closed = False

    def __iter__(self) -> Iterator[Record]:
        """Records, one after the other, until `stop()`."""
        return self.joined_loop().records()

    def batches(self, most: int = 500) -> Iterator[Batch]:
        """Records, up to so many at once, as soon as there are any; see `Batch` for what is done when."""
        refuse_none(most)
        return self.joined_loop().batches(most)

    def run(
        self, handler: Callable[[Record], object], *, retry: Retry | None = None, dead_letters: str | None = None
    ) -> None:
        """Call the handler with each record, until `stop()`, SIGTERM or SIGINT.

        One that raises is tried again by `retry` (never under at-most-once), then buried in the topic
        `dead_letters` with the reason; without such a topic its error ends the loop, and the record is not done.
        """
        with self.stopped_by_signals(), self._graveyard(dead_letters) as graveyard:
            handle_all(self.joined_loop(), handler, retry, graveyard)

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
            raise _no_transactions(self.guarantee)
        if self._loop is None:
            self._loop = self._into_kafka_loop(self.guarantee, seconds, producer_overrides)
        if not isinstance(self._loop, IntoKafkaLoop):
            raise FixConfiguration(
                "this consumer is in use for another sink", way_out="make another one, with a new name"
            )
        self._join(self._loop)
        with self.stopped_by_signals():
            self._loop.run(transform, seconds, Giving(retry or Retry(), dead_letters), until or {})

    def into_postgres(
        self,
        dsn: str,
        *,
        each: Callable[[Connection, Record], object] | None = None,
        together: Callable[[Connection, Sequence[Record]], object] | None = None,
        table: str = "messages",
        retry: Retry | None = None,
    ) -> None:
        """Apply each record to Postgres, exactly once, until `stop()`, SIGTERM or SIGINT.

        `each(connection, record)` or, quicker, `together(connection, records)` is the effect, on the connection whose
        transaction also records the progress. With neither, records go to `table` (id, idempotency_key, message),
        which is made when missing; a key that is there already is a no-op. A record that keeps raising, or that
        Postgres refuses, is buried in the table kept_dead_letters within the same transaction.
        """
        from kept.consumer.into_postgres import Effect, open_loop  # noqa: PLC0415 - psycopg only where it is used

        if not isinstance(self.guarantee, ExactlyOnce):
            raise _no_transactions(self.guarantee)
        effect = Effect(each, together, table)
        if self._loop is not None:
            raise _in_use()
        sources = Sources(self._plain_settings)
        loop = open_loop(self._member, sources, Beginning(self._member, self._start, None), self.group, dsn)
        self._loop = loop
        with self.stopped_by_signals():
            loop.prepare(effect)
            self._join(loop)
            loop.run(retry or Retry())

    def stop(self) -> None:
        """End the loop where it asks for the next record. May be called from a signal handler or another thread."""
        self._stopped = True  # before the look at the loop: one that is only being made ends where it joins
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

    @property
    def idle_for(self) -> float:
        """For so many seconds no record came, though the loop had nothing else to do. From any thread."""
        return self._member.idle_for

    def pause(self, *places: Place) -> None:
        """Hand out nothing of these partitions, of any when none is named, until `resume`.

        Inside the body of a loop, the record in hand is done as ever, and the rest comes again later.
        """
        loop = self._plain()
        self._member.pause(places)
        loop.set_aside()

    def resume(self, *places: Place) -> None:
        """Hand out records of these partitions again, of all when none is named."""
        self._plain()
        self._member.resume(places)

    def replay(self, positions: Mapping[Place, int] | datetime) -> None:
        """Go on from these offsets, back or forth, and record that as the progress. At-least-once only.

        A time, with its zone, means the first record that is not older, in every partition that is ours.
        """
        loop = self.joined_loop()
        if isinstance(positions, datetime):
            positions = self._member.logs.offsets_since(positions, sorted(self._member.owned))
        for place, offset in positions.items():
            self._refuse_position(place, offset)
        loop.reposition({place: Next(offset) for place, offset in positions.items()})

    def joined_loop(self) -> Plain:
        """The loop beneath, for `kept.aio`, which gets and leaves batches in one thread, and runs bodies in another."""
        loop = self._plain()
        self._join(loop)
        return loop

    def close(self) -> None:
        """Record what is done, and leave the group; a loop that is still running ends."""
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
        self._refuse_closed()
        loop = self._loop
        if not isinstance(loop, (AtLeastOnceLoop, AtMostOnceLoop)):
            raise FixConfiguration(
                "under exactly-once the effect shares a transaction with the progress, and the body of a loop has none",
                way_out="use into_kafka(...) or into_postgres(...), or choose at-least-once and an idempotent effect",
            )
        return loop

    def _refuse_position(self, place: Place, offset: int) -> None:
        """Kafka would take any position of any partition, another member's too."""
        if place not in self._member.owned:
            raise FixConfiguration(
                f"{place} is not ours at the moment: {sorted(self._member.owned)} are",
                way_out="replay a partition of `partitions`, inside the loop",
            )
        first, end = self._member.logs.first_offsets([place])[place], self._member.logs.end_offsets([place])[place]
        if not first <= offset <= end:
            raise FixConfiguration(
                f"{place} has no offset {offset}", way_out=f"its records are {first} to {end - 1}; {end} is its end"
            )

    def _refuse_closed(self) -> None:
        if self._closed:
            raise FixConfiguration("this consumer is closed", way_out="make another one")

    def _join(self, loop: Loop) -> None:
        self._refuse_closed()
        if self._stopped:
            loop.stop()
        if not self._joined:
            self._member.join(loop)
            self._joined = True

    def _plain_loop(self, policy: Policy | None) -> Plain | None:
        checked = _checked_policy(self.guarantee, policy)
        if isinstance(self.guarantee, ExactlyOnce):
            return None
        sources = Sources(self._plain_settings, self._member.logs.asking)
        kind = AtLeastOnceLoop if isinstance(self.guarantee, AtLeastOnce) else AtMostOnceLoop
        return kind(self._member, checked, self._beginning(sources), Identities(sources, self.group))

    def _beginning(self, sources: Sources) -> Beginning:
        if isinstance(self.guarantee, AtLeastOnce) and self._start is Start.BEGINNING:
            return Beginning(self._member, self._start, None)
        return Beginning(self._member, self._start, Births(self._plain_settings, self.group, sources))

    def _into_kafka_loop(
        self, guarantee: ExactlyOnce, seconds: float, overrides: Mapping[str, object]
    ) -> IntoKafkaLoop:
        sources = Sources(self._plain_settings)
        births = Births(self._plain_settings, self.group, sources)
        patience = {
            "transaction.timeout.ms": int(1000 * max(ENDED_BY_BROKER_AFTER, 2 * seconds)),
            "linger.ms": 1000 * seconds * LINGERS,
        }
        settings = merge(producer_settings(guarantee), {**patience, **self._connection, **overrides})
        outgoing = Outgoing({"log_level": 0, **settings, "bootstrap.servers": self._bootstrap}, self.group)

        def record(starts: Starts) -> Starts:
            ids = sources.topic_ids(sorted({topic for topic, _ in starts}))
            found = {place: signed(start, ids[place[0]]) for place, start in starts.items()}
            outgoing.record([to_client(*each) for each in found.items()], self._member.credentials())
            return found

        beginning = Beginning(self._member, self._start, births, record)
        return IntoKafkaLoop(self._member, beginning, sources, outgoing, self.group)

    def _graveyard(self, topic: str | None) -> Graveyard | nullcontext[None]:
        if topic is None:
            return nullcontext()
        require(self._member.client, topic)  # told now, not when the first record is given up
        return Graveyard(self._bootstrap, topic, self.guarantee, self.group, self._connection)


def _no_transactions(guarantee: Guarantee) -> FixConfiguration:
    return FixConfiguration(
        f"{guarantee.word} has no transactions", way_out="choose guarantee=kept.ExactlyOnce('a-name')"
    )


def _in_use() -> FixConfiguration:
    return FixConfiguration(
        "this consumer is in use already", way_out="make another one; another sink wants a new name"
    )


def _checked_policy(guarantee: Guarantee, policy: Policy | None) -> Policy:
    if policy is not None and not isinstance(policy, Policy):
        raise FixConfiguration(
            f"{policy!r} is no policy", way_out="choose Every(), AfterEach(), AfterBatch() or Asynchronously()"
        )
    if isinstance(guarantee, AtMostOnce) and isinstance(policy, Every):
        raise FixConfiguration(
            "at-most-once records progress before each record or batch, not by the clock",
            way_out="choose AfterEach(), AfterBatch(records) or Asynchronously()",
        )
    if isinstance(guarantee, ExactlyOnce) and policy is not None:
        raise FixConfiguration(
            "exactly-once commits progress with the effect: there is no policy to choose",
            way_out="leave `commit` out",
        )
    return policy or (AfterBatch() if isinstance(guarantee, AtMostOnce) else Every())


def _names(topics: str | Sequence[str]) -> list[str]:
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise FixConfiguration("no topic is named", way_out="name the topic, or several, to be read")
    return names


def _checked_start(start: object) -> From:
    if not isinstance(start, (Start, datetime)):
        raise FixConfiguration(
            f"a group cannot begin at {start!r}", way_out="say Start.BEGINNING, Start.END or a datetime"
        )
    return start


def _group(guarantee: Guarantee, group: str | None) -> str:
    if not isinstance(guarantee, (AtMostOnce, AtLeastOnce, ExactlyOnce)):
        raise FixConfiguration(
            f"{guarantee!r} is no guarantee", way_out="say AtMostOnce(), AtLeastOnce() or ExactlyOnce('a-name')"
        )
    if isinstance(guarantee, ExactlyOnce):
        if group is not None:
            raise FixConfiguration(
                "under exactly-once the name of the guarantee is the group's", way_out="leave `group` out"
            )
        return guarantee.group
    if not group:
        raise FixConfiguration("progress is recorded under a group, and none is named", way_out="say group='a-name'")
    return group
