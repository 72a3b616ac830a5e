"""Dead letters in Postgres sent back to Kafka: each exactly once, by an outbox of their own in the same database.

1. In one transaction of the database: the letters are marked as redriven, and their records enqueued.
2. A relay carries them into Kafka, records and position in one transaction there.

A crash before 1 is committed leaves the letters waiting; a crash after it leaves records in the outbox, which the next
redrive carries on. The outbox has a schema of its own, so that a relay of the user's own outbox is not disturbed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaException
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from kept.errors import Busy, FixConfiguration, Refused, TryAgain
from kept.guarantees import only_asks
from kept.outbox.postgres import PostgresOutbox
from kept.outbox.postgres_backlog import PostgresBacklog
from kept.outbox.postgres_schema import make_outbox
from kept.outbox.relay import Relay
from kept.producer.clients import make_client
from kept.stores import DeadLetters, Session
from kept.stores.sessions import open_session, transaction
from kept.stores.sql_errors import told_as

SCHEMA = "kept_redrive"
ONE_AT_A_TIME = 0x6B657074_00000001
ANSWER_WITHIN = 30.0
LEFT = f"""
    SELECT topic FROM {SCHEMA}.kept_outbox JOIN {SCHEMA}.kept_outbox_order USING (id)
    WHERE position > (SELECT confirmed FROM {SCHEMA}.kept_outbox_standing)
"""  # noqa: S608 - the name of the schema is ours
BOTH_SCHEMAS = f"SELECT set_config('search_path', '{SCHEMA}, ' || current_setting('search_path'), true)"


class TableRedrive:
    """Sends the letters of one pipeline back to the topic and partition that each came from, or all `to` one topic."""

    def __init__(self, dsn: str, pipeline: str, bootstrap: str, to: str | None = None) -> None:
        self._dsn = dsn
        self._letters = DeadLetters(pipeline)
        self._bootstrap = bootstrap
        self._to = to

    def pending(self) -> Counter[str]:
        """How many records go to which topic, those included that an earlier redrive enqueued and did not send."""
        with self._session() as session, told_as("looking at the dead letters"):
            with transaction(session, "looking at the dead letters"):
                waiting = Counter(self._to or buried.letter.topic for buried in self._letters.waiting(session))
            there = session.execute("SELECT to_regclass(%s)", (f"{SCHEMA}.kept_outbox_standing",)).fetchall()
            left = [] if there == [(None,)] else session.execute(LEFT).fetchall()
            return waiting + Counter(topic for (topic,) in left)

    def carry_out(self) -> int:
        """Send them, and return how many were, when every one of them is committed."""
        self._require_topics(self.pending())
        with self._session() as session:
            _alone(session)
            with told_as("making the outbox of redriven letters"):
                session.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}".encode())
            outbox_dsn = _in_schema(self._dsn)
            maker = open_session(outbox_dsn, "kept:redrive", 5.0, 60.0)
            try:
                make_outbox(maker)
            finally:
                maker.close()
            self._enqueue(session)
            return self._relay(outbox_dsn)

    def _enqueue(self, session: Session) -> None:
        """The letters' end and their records' beginning: both or neither."""
        outbox = PostgresOutbox()
        with transaction(session, "redriving dead letters"):
            session.execute(BOTH_SCHEMAS.encode())
            waiting = self._letters.waiting(session)
            for buried in waiting:
                letter = buried.letter
                partition = None if self._to else letter.partition
                headers = list(letter.headers)
                topic = self._to or letter.topic
                outbox.enqueue(session, topic, letter.value, letter.key, headers=[*headers], partition=partition)
            self._letters.mark_all_redriven(session, [buried.id for buried in waiting])

    def _relay(self, outbox_dsn: str) -> int:
        backlog = PostgresBacklog(outbox_dsn)
        try:
            relay = Relay(backlog, self._bootstrap)
            relay.run(until_empty=True)
        finally:
            backlog.close()
        if relay.refused:
            raise Refused(
                f"{relay.refused} letters were refused by the brokers, {relay.relayed} were sent",
                way_out=f"the table {SCHEMA}.kept_outbox_refused holds them whole, each with its reason",
            )
        return relay.relayed

    def _require_topics(self, pending: Counter[str]) -> None:
        """A topic that is not there is told before anything is marked."""
        client = make_client(only_asks({"bootstrap.servers": self._bootstrap}))
        for topic in pending:
            try:
                error = client.list_topics(topic, timeout=ANSWER_WITHIN).topics[topic].error
            except KafkaException as failure:
                raise TryAgain(f"no broker answers: {failure.args[0].str()}", way_out="see that they run") from failure
            if error is not None:
                raise FixConfiguration(
                    f"{topic} cannot be written: {error.str()}",
                    way_out=f"`kept topics create {topic}` makes it, or name another one with --to",
                )

    @contextmanager
    def _session(self) -> Iterator[Session]:
        session = open_session(self._dsn, "kept:redrive", 5.0, 60.0)
        try:
            yield session
        finally:
            session.close()


def _alone(session: Session) -> None:
    """A second one would fence the first one's relay; the lock ends with the connection, however that ends."""
    with told_as("asking whose turn it is"):
        ours = session.execute("SELECT pg_try_advisory_lock(%s)", (ONE_AT_A_TIME,)).fetchall() == [(True,)]
    if not ours:
        raise Busy(
            "another redrive is at work in this database",
            way_out="wait for its end; what it leaves undone, the next one does",
        )


def _in_schema(dsn: str) -> str:
    options = conninfo_to_dict(dsn).get("options") or ""
    return make_conninfo(dsn, options=f"{options} -c search_path={SCHEMA}".strip())
