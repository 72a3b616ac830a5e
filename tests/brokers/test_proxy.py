"""The fault proxy before real brokers and a real Postgres: harmless by itself, and each fault does what it says."""

from __future__ import annotations

import hashlib
import struct
import time
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.errors import OutcomeUnknown
from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.local import Cluster
from kept.local.tether import tethered
from kept.producer import Producer as KeptProducer
from kept.verify.proxy import (
    Api,
    Armed,
    Command,
    Did,
    Direction,
    HoldAndReset,
    KafkaProxy,
    Nth,
    PostgresProxy,
    Reset,
    Rule,
    in_front_of,
)
from tests.conftest import Eventually

REQUEST, RESPONSE = Direction.REQUEST, Direction.RESPONSE


class Behind(NamedTuple):
    """A cluster and the proxy in front of it."""

    cluster: Cluster
    proxy: KafkaProxy


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    """A cluster of these tests' own, whose brokers tell clients the proxy's addresses; started once."""
    with tethered(Cluster(tmp_path_factory.mktemp("proxied") / "cluster")) as cluster, in_front_of(cluster) as proxy:
        yield Behind(cluster, proxy)


@pytest.fixture
def proxy(behind: Behind) -> KafkaProxy:
    return behind.proxy


@pytest.fixture
def topic(proxy: KafkaProxy) -> str:
    """A topic of the test's own, with one partition; its name serves as client and transactional id too."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    Topics(proxy.bootstrap).create(name, 1, ExactlyOnce("tests"))
    return name


Settings = dict[str, str | int | float | bool]


def raw(proxy: KafkaProxy, client: str, settings: Settings) -> Producer:
    """librdkafka as it comes."""
    base: Settings = {
        "bootstrap.servers": proxy.bootstrap,
        "client.id": client,
        "log_level": 0,
        "reconnect.backoff.max.ms": 500,
    }
    return Producer({**base, **settings})


def values(proxy: KafkaProxy, topic: str, *, committed: bool = True) -> list[bytes | None]:
    with Reader(proxy.bootstrap, topic, start=Start.BEGINNING, committed=committed) as reader:
        return [record.value for record in reader.to_end()]


def sent(proxy: KafkaProxy, client: str, api: Api) -> int:
    """How many requests of this kind a client has sent so far."""
    return len([line for line in proxy.log if (line.client, line.kind, line.direction) == (client, api, REQUEST)])


def test_megabytes_pass_unharmed(proxy: KafkaProxy, topic: str) -> None:
    payloads = [hashlib.sha256(str(number).encode()).digest() * 300 for number in range(3000)]
    start = time.monotonic()
    with KeptProducer(proxy.bootstrap, AtLeastOnce(), **{"client.id": topic}) as producer:
        for payload in payloads:
            producer.send(topic, payload)
    middle = time.monotonic()
    assert values(proxy, topic) == payloads
    size = sum(len(payload) for payload in payloads) / 1e6
    print(f"{size:.0f} MB: produced in {middle - start:.1f} s, read in {time.monotonic() - middle:.1f} s")
    assert sent(proxy, topic, Api.PRODUCE) >= 10
    assert proxy.counts()[Api.FETCH] > 0
    assert {line.client for line in proxy.log if line.kind == Api.PRODUCE} >= {topic}


@pytest.mark.parametrize(("idempotent", "copies"), [(False, 2), (True, 1)])
def test_a_lost_produce_response_doubles_without_idempotence_only(
    proxy: KafkaProxy, topic: str, idempotent: bool, copies: int
) -> None:
    lost = proxy.add(Rule(Api.PRODUCE, RESPONSE, Reset(), Nth(1), client=topic))
    producer = raw(proxy, topic, {"enable.idempotence": idempotent, "acks": "all", "retries": 5})
    reports: list[KafkaError | None] = []
    producer.produce(topic, b"once", on_delivery=lambda error, _message: reports.append(error))
    assert producer.flush(60) == 0
    proxy.remove(lost)
    assert reports == [None], "the client noticed nothing"
    assert lost.caught == 1
    assert sent(proxy, topic, Api.PRODUCE) >= 2
    assert values(proxy, topic) == [b"once"] * copies


def commit_one_whose_end_is_held(proxy: KafkaProxy, topic: str) -> tuple[Producer, Armed]:
    """Transaction 1: its EndTxn is caught, the client reset; librdkafka sends another one and is content."""
    producer = raw(proxy, topic, {"transactional.id": topic})
    producer.init_transactions(60)
    late = proxy.add(Rule(Api.END_TXN, REQUEST, HoldAndReset(), Nth(1), client=topic))
    producer.begin_transaction()
    producer.produce(topic, b"1")
    producer.commit_transaction(60)
    late.wait_caught(0)
    proxy.remove(late)
    assert sent(proxy, topic, Api.END_TXN) >= 2, "sent again by itself, on another connection"
    return producer, late


def error_code(end_txn_response: bytes) -> int:
    """Length, correlation id, throttle time, error code: the old form, which librdkafka speaks."""
    code: int = struct.unpack(">iiih", end_txn_response)[3]
    return code


def test_a_late_end_tears_the_next_transaction_of_the_same_epoch(
    proxy: KafkaProxy, topic: str, eventually: Eventually
) -> None:
    """Rule 1, without the rule: one producer instance for two transactions."""
    producer, late = commit_one_whose_end_is_held(proxy, topic)
    producer.begin_transaction()
    producer.produce(topic, b"2, first half")
    assert producer.flush(60) == 0

    late.release()
    assert [error_code(answer) for answer in late.wait_answered()] == [0], "the coordinator takes it for the end of 2"
    eventually(lambda: values(proxy, topic) == [b"1", b"2, first half"], "half of 2 is visible, and nobody ended it")

    producer.produce(topic, b"2, second half")
    producer.flush(60)
    with pytest.raises(KafkaException) as failed:
        producer.commit_transaction(60)
    error = failed.value.args[0]
    assert (error.code(), error.txn_requires_abort()) == (KafkaError.INVALID_TXN_STATE, True)
    with pytest.raises(KafkaException) as stuck:
        producer.abort_transaction(60)
    assert stuck.value.args[0].fatal(), "what is visible cannot be aborted any more"

    again = raw(proxy, topic, {"transactional.id": topic})
    again.init_transactions(60)
    again.begin_transaction()
    again.produce(topic, b"2, first half")
    again.produce(topic, b"2, second half")
    again.commit_transaction(60)
    torn = [b"1", b"2, first half", b"2, first half", b"2, second half"]
    eventually(lambda: values(proxy, topic) == torn, "the retry doubles the first half")


def test_a_late_end_leaves_half_of_an_aborted_transaction_visible_without_any_error(
    proxy: KafkaProxy, topic: str, eventually: Eventually
) -> None:
    """Rule 1, without the rule, at its worst: the next record goes to a partition that is new to the transaction."""
    other = f"{topic}-other"
    Topics(proxy.bootstrap).create(other, 1, ExactlyOnce("tests"))
    producer, late = commit_one_whose_end_is_held(proxy, topic)
    producer.begin_transaction()
    producer.produce(topic, b"2, first half")
    assert producer.flush(60) == 0
    late.release()
    assert [error_code(answer) for answer in late.wait_answered()] == [0]

    producer.produce(other, b"2, second half")  # adding its partition opens a transaction that nobody asked for
    assert producer.flush(60) == 0
    producer.abort_transaction(60)
    eventually(lambda: values(proxy, other) == [], "the second half is aborted")
    assert values(proxy, other, committed=False) == [b"2, second half"], "though it had arrived"
    assert values(proxy, topic) == [b"1", b"2, first half"], "the first half is not"


def test_a_late_end_cannot_touch_the_transaction_of_a_fresh_epoch(
    proxy: KafkaProxy, topic: str, eventually: Eventually
) -> None:
    """Rule 1, with the rule: a fresh producer instance for transaction 2."""
    _first, late = commit_one_whose_end_is_held(proxy, topic)
    producer = raw(proxy, topic, {"transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"2, first half")
    assert producer.flush(60) == 0

    late.release()
    assert [error_code(answer) for answer in late.wait_answered()] == [KafkaError.INVALID_PRODUCER_EPOCH]
    producer.produce(topic, b"2, second half")
    producer.commit_transaction(60)
    eventually(lambda: values(proxy, topic) == [b"1", b"2, first half", b"2, second half"], "2 is whole")


def test_the_log_tells_the_story(proxy: KafkaProxy, topic: str) -> None:
    _producer, late = commit_one_whose_end_is_held(proxy, topic)
    late.release()
    late.wait_answered()
    story = [line for line in proxy.log if (line.client, line.kind) == (topic, Api.END_TXN)]
    assert [(line.direction, line.did) for line in story] == [
        (REQUEST, Did.HELD_AND_RESET),
        (REQUEST, Did.PASSED),
        (RESPONSE, Did.PASSED),
        (REQUEST, Did.RELEASED),
        (RESPONSE, Did.DISCARDED),
    ]
    first, second, _, released, discarded = story
    assert {line.version for line in story} == {first.version}, "one dialect"
    assert first.connection == released.connection == discarded.connection != second.connection
    assert first.number == released.number == discarded.number
    assert [line.at for line in story] == sorted(line.at for line in story)


def test_a_producer_rides_out_a_cut_and_a_pause(proxy: KafkaProxy, topic: str) -> None:
    with KeptProducer(proxy.bootstrap, AtLeastOnce(), **{"client.id": topic}) as producer:
        producer.send(topic, b"before").result(60)
        proxy.cut()
        during = producer.send(topic, b"cut")
        with pytest.raises(OutcomeUnknown):
            during.result(0.5)
        proxy.mend()
        during.result(60)
        proxy.pause()
        during = producer.send(topic, b"paused")
        with pytest.raises(OutcomeUnknown):
            during.result(0.5)
        proxy.resume()
        during.result(60)
    assert values(proxy, topic) == [b"before", b"cut", b"paused"]


def test_the_other_brokers_are_reached_while_one_is_cut(proxy: KafkaProxy, topic: str) -> None:
    (partition,) = Topics(proxy.bootstrap).describe(topic).partitions
    others = [broker for broker in proxy.addresses if broker != partition.leader]
    producer = raw(proxy, topic, {})
    producer.produce(topic, b"before")
    assert producer.flush(60) == 0
    proxy.cut(*others)
    try:
        producer.produce(topic, b"after")
        assert producer.flush(60) == 0
    finally:
        proxy.mend(*others)
    assert values(proxy, topic) == [b"before", b"after"]


@pytest.fixture
def database(behind: Behind) -> Iterator[PostgresProxy]:
    with psycopg.connect(behind.cluster.dsn) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS news (text text)")
        connection.execute("TRUNCATE news")
    with PostgresProxy(behind.cluster.layout.listens("postgres")) as proxy:
        yield proxy


def rows(cluster: Cluster) -> list[str]:
    with psycopg.connect(cluster.dsn) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM news ORDER BY text").fetchall()]


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_swallowed_commit_reply_leaves_the_client_ignorant_of_a_row_that_is_there(
    behind: Behind, database: PostgresProxy, pipelined: bool
) -> None:
    address = database.dsn(behind.cluster.dsn)
    swallowed = database.swallow_commit_reply(2)
    with psycopg.connect(address) as connection:
        connection.execute("INSERT INTO news VALUES (%s)", ("first",))
    connection = psycopg.connect(address)
    with pytest.raises(psycopg.OperationalError):
        if pipelined:
            with connection.pipeline():
                connection.execute("INSERT INTO news VALUES (%s)", ("second",))
                connection.commit()
                connection.execute("INSERT INTO news VALUES (%s)", ("third",))
        else:
            connection.execute("INSERT INTO news VALUES (%s)", ("second",))
            connection.commit()
    connection.close()
    assert swallowed.caught == 1
    assert rows(behind.cluster) == ["first", "second"]


def test_a_commit_that_never_arrives_leaves_no_row(behind: Behind, database: PostgresProxy) -> None:
    database.add(Rule(Command.COMMIT, REQUEST, Reset(), Nth(1)))
    connection = psycopg.connect(database.dsn(behind.cluster.dsn))
    connection.execute("INSERT INTO news VALUES ('first')")
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    connection.close()
    assert rows(behind.cluster) == []


def test_postgres_passes_unharmed_and_encryption_is_asked_and_refused(behind: Behind, database: PostgresProxy) -> None:
    """The default asks for encryption first; the local server has none, and says so through the proxy."""
    plain = database.dsn(behind.cluster.dsn).partition("?")[0]
    with psycopg.connect(plain) as connection:
        with connection.cursor().copy("COPY news FROM STDIN") as copy:
            for number in range(50_000):
                copy.write_row((f"{number:05}" * 20,))
        found = connection.execute("SELECT text FROM news ORDER BY text").fetchall()
    assert found == [(f"{number:05}" * 20,) for number in range(50_000)]
    assert database.counts(RESPONSE)[Command.COPY] == 1


def test_postgres_cut_and_mended(behind: Behind, database: PostgresProxy) -> None:
    address = database.dsn(behind.cluster.dsn)
    connection = psycopg.connect(address)
    database.cut()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address, connect_timeout=10)
    database.mend()
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
