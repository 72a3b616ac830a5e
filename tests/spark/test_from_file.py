"""Pipelines from files: the examples as they are, and what only Spark can find wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

import kept
from kept.admin.topics import Topics
from kept.errors import FixConfiguration, UnsoundInput, WeakensGuarantee
from kept.local import Cluster
from kept.pipelines.files import read, understood
from kept.pipelines.telling import BatchDone
from kept.spark.from_file import FromFile
from tests.conftest import KEPT, Eventually
from tests.spark.conftest import ROOT
from tests.spark.things import OutKafka, fill

EXAMPLES = ROOT / "examples"
TO_POSTGRES = """
name = "to-TOPIC"
guarantee = "exactly-once"
[source]
bootstrap = "env:KEPT_BOOTSTRAP"
topics = "TOPIC"
"""
SINK = '[sink]\npostgres = "env:SHOP_DSN"\ntable = "out"\n'


@pytest.fixture
def said(cluster: Cluster, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the files refer to."""
    monkeypatch.setenv("KEPT_BOOTSTRAP", cluster.bootstrap)
    monkeypatch.setenv("SHOP_DSN", dsn)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


def of(topic: str, more: str, where: Path = Path("pay.toml")) -> FromFile:
    return FromFile(understood(where, TO_POSTGRES.replace("TOPIC", topic) + more), until_end=True).checked()


def rows(dsn: str, statement: bytes) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(statement).fetchall()


def pay(cluster: Cluster, topic: str, count: int) -> None:
    with kept.Producer(cluster.bootstrap, kept.AtLeastOnce()) as producer:
        for number in range(count):
            payment = {"id": f"p{number}", "account": f"a{number % 5}", "amount": number - 10.5,
                       "at": "2026-01-31T08:00:00Z"}  # fmt: skip
            producer.send(topic, json.dumps(payment), key=f"p{number}", partition=number % 3)


@pytest.mark.usefixtures("said")
def test_the_examples_do_what_they_say(cluster: Cluster, dsn: str, spark: SparkSession) -> None:
    for topic in ("shop.payments", "shop.ledger"):
        Topics(cluster.bootstrap).create(topic, 3, kept.ExactlyOnce("tests"))
    pay(cluster, "shop.payments", 60)
    heard: list[BatchDone] = []
    for name in ("payments-to-postgres", "payments-to-ledger", "raw-to-postgres"):
        ready = FromFile(read(EXAMPLES / f"{name}.toml"), until_end=True).checked()
        ran = ready.pipeline(spark, heard.append).run()
        assert (ran.rows, ran.dropped) == (60, 0), name
    assert rows(dsn, b"SELECT count(*), sum(amount), count(DISTINCT id) FROM payments") == [
        (60, sum(Decimal(number) - Decimal("10.5") for number in range(60)), 60)
    ]
    assert rows(dsn, b"SELECT count(*), min(timestamp) IS NULL FROM archive") == [(60, False)]
    with kept.consumer.Reader(cluster.bootstrap, "shop.ledger", start=kept.consumer.Start.BEGINNING) as reader:
        entries = list(reader.to_end())
    first = next(entry for entry in entries if entry.headers == (("payment", b"p0"),))
    assert first.key == b"a0"
    assert json.loads(first.value or b"") == {"id": "p0", "account": "a0", "side": "debit", "amount": 10.5}
    assert Counter(json.loads(entry.value or b"")["side"] for entry in entries) == {"debit": 11, "credit": 49}
    assert sum(done.rows for done in heard) == 180
    assert {(each.partition, each.start, each.next_offset, each.log_end, each.lag) for each in heard[0].partitions} == {
        (partition, 0, 20, 20, 0) for partition in range(3)
    }


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize("value", ["no json", '{"id": 1, "n": "x"}', "", "[1]", "null"])
def test_a_record_that_does_not_fit_the_schema_is_named(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession, value: str
) -> None:
    with kept.Producer(cluster.bootstrap, kept.AtLeastOnce()) as producer:
        producer.send(topic, '{"id": "a", "n": 1}', partition=1)
        producer.send(topic, value, partition=1)
    ready = of(topic, 'schema = "id STRING, n INT"\n' + SINK)
    with pytest.raises(UnsoundInput, match=rf"the record {topic}\[1\]@1 does not fit the schema"):
        ready.pipeline(spark).run()
    assert rows(dsn, b"SELECT * FROM out") == []


@pytest.mark.usefixtures("said")
def test_a_record_without_a_value_has_no_columns_and_a_missing_field_is_null(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession
) -> None:
    with kept.Producer(cluster.bootstrap, kept.AtLeastOnce()) as producer:
        for value in (None, '{"id": "a"}'):
            producer.send(topic, value, partition=1)
    of(topic, 'schema = "id STRING, n INT"\n' + SINK).pipeline(spark).run()
    assert sorted(rows(dsn, b"SELECT * FROM out"), key=str) == [("a", None), (None, None)]


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize(
    ("more", "what"),
    [
        ('schema = "id STRNG"\n', r"pay.toml:7: source.schema: Spark cannot read these columns: .*STRNG"),
        ('[transform]\nsql = "SELEKT 1"\n', r"pay.toml:8: transform.sql: Spark does not take this statement: "),
        ('[transform]\nsql = "SELECT valu FROM source"\n', r"pay.toml:8: transform.sql: .*valu"),
        (
            '[transform]\nsql = "SELECT key FROM (SELECT key FROM source)"\n',
            r"the transform drops _kept_topic",
        ),
    ],
)
def test_what_only_spark_can_find_wrong_has_its_line_too(topic: str, spark: SparkSession, more: str, what: str) -> None:
    ready = of(topic, more + SINK)
    with pytest.raises(FixConfiguration, match=what):
        ready.pipeline(spark).run()


@pytest.mark.usefixtures("said")
def test_a_statement_may_begin_with_with(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(cluster, topic, 30)
    inner = "SELECT cast(value AS string) AS v, _kept_topic, _kept_partition, _kept_offset FROM source"
    sql = f"WITH named AS ({inner}) SELECT * FROM named WHERE v <> 'v0'"
    of(topic, f'[transform]\nsql = "{sql}"\n' + SINK).pipeline(spark).run()
    assert "exactly-once, partition mode" in capsys.readouterr().out
    assert rows(dsn, b"SELECT count(*), count(DISTINCT v), min(v) FROM out") == [(29, 29, "v1")]


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize(
    ("more", "kind", "what"),
    [
        ('options.failOnDataLoss = false\n' + SINK, WeakensGuarantee, r"pay.toml:7: source.options.failOnDataLoss: "),
        ('[transform]\nfunction = "no_such:f"\n' + SINK, FixConfiguration, r"pay.toml:8: transform.function: No mod"),
        ('[transform]\nfunction = "json:f"\n' + SINK, FixConfiguration, r"pay.toml:8: transform.function: .*no attr"),
        ('[transform]\nfunction = "json:decoder"\n' + SINK, FixConfiguration, r"decoder is no function of one"),
        ('[transform]\nfunction = "broken:f"\n' + SINK, FixConfiguration, r"importing broken fails: Zero"),
        (SINK.replace("SHOP_DSN", "NOT_SET"), FixConfiguration, r"pay.toml:8: sink.postgres: the environment.*NOT_"),
        (SINK + '[spark]\nconf."spark.sql.streaming.unsupportedOperationCheck" = false\n', WeakensGuarantee,
         r"pay.toml:11: spark.conf.spark.sql"),
        ('[sink]\nkafka = "localhost:1"\ntopic = "x"\nproducer.acks = 1\n', WeakensGuarantee, r":10: sink.producer.ac"),
    ],
)  # fmt: skip
def test_what_can_be_checked_without_spark_is(
    topic: str, tmp_path: Path, more: str, kind: type[FixConfiguration], what: str
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(kind, match=what):
        of(topic, more, tmp_path / "pay.toml")


@pytest.mark.usefixtures("said")
def test_the_command_tells_batches_and_ends_well_when_told_to(
    cluster: Cluster, topic: str, dsn: str, tmp_path: Path, eventually: Eventually
) -> None:
    fill(cluster, topic, 300)
    file, told = tmp_path / "pay.toml", tmp_path / "told"
    select = '[transform]\nsql = "SELECT cast(value as string) AS v FROM source"\n'
    text = TO_POSTGRES.replace("TOPIC", topic) + "max_per_batch = 120\n" + select + SINK
    file.write_text(text + '[spark.conf]\n"spark.ui.enabled" = false\n')
    with told.open("wb") as out:
        running = subprocess.Popen([KEPT, "run", str(file), "--json"], stdout=out, stderr=subprocess.PIPE)
    try:
        eventually(lambda: told.read_bytes().count(b"\n") >= 3, "three batches are told", within=90)
        running.send_signal(signal.SIGINT)
        said = running.communicate(timeout=60)[1].decode()
        assert running.returncode == 0, said
    finally:
        running.kill()
        running.wait()
    batches = [json.loads(line) for line in told.read_text().splitlines()]
    assert [each["rows"] for each in batches] == [120, 120, 60]
    assert batches[-1]["rows_in_all"] == 300
    assert [each["lag_at_most"] for each in batches] == [180, 60, 0]
    assert f"to-{topic}: {topic} to table out of Postgres, exactly-once" in said
    assert rows(dsn, b"SELECT count(*), count(DISTINCT v) FROM out") == [(300, 300)]


@pytest.mark.usefixtures("said")
def test_no_column_is_lost_beside_one_named_value(
    cluster: Cluster, topic: str, into_kafka: OutKafka, spark: SparkSession
) -> None:
    """A field of that name would be sent alone. Kafka's own columns beside a value that was read are nobody's loss."""
    with kept.Producer(cluster.bootstrap, kept.AtLeastOnce()) as producer:
        producer.send(topic, '{"id": "a", "value": "7", "timestamp": "now"}', partition=0)
    schema = 'schema = "id STRING, value STRING, timestamp STRING"\n'
    sink = f'[sink]\nkafka = "env:KEPT_BOOTSTRAP"\ntopic = "{into_kafka.topic}"\n'
    for more, lost in (("", "id, timestamp"), ('key = "id"\n', "timestamp")):
        told = rf"pay.toml:8: sink: the column value would become the record's value, and {lost} be lost"
        with pytest.raises(FixConfiguration, match=told) as caught:
            of(topic, schema + sink + more).pipeline(spark).run()
        assert 'sink.value = "value"' in caught.value.way_out
    of(topic, schema + sink + 'value = "value"\n').pipeline(spark).run()
    assert into_kafka.held() == {"7": 1}
    copied = TO_POSTGRES.replace("to-TOPIC", f"copy-{topic}").replace("TOPIC", topic) + sink
    FromFile(understood(Path("copy.toml"), copied), until_end=True).checked().pipeline(spark).run()
    assert into_kafka.held() == {"7": 1, '{"id": "a", "value": "7", "timestamp": "now"}': 1}


NEEDS_A_SESSION = """
from pyspark.sql import functions as f

EVEN = f.col("number") % 2 == 0

@f.pandas_udf("long")
def number_of(values):
    return after(values.str[1:].astype(int))

def after(numbers):
    return numbers + 1

def even(frame):
    numbers = frame.select(number_of(frame.value.cast("string")).alias("number"), *OURS)
    return numbers.where(EVEN)

OURS = ("_kept_topic", "_kept_partition", "_kept_offset")
"""


@pytest.mark.usefixtures("said")
def test_the_module_of_a_transform_may_need_a_session_at_its_top(
    cluster: Cluster, topic: str, dsn: str, tmp_path: Path
) -> None:
    """The file is checked before there is one; the workers find the module too."""
    fill(cluster, topic, 30)
    (tmp_path / "numbers_of_values.py").write_text(NEEDS_A_SESSION)
    file = tmp_path / "pay.toml"
    function = '[transform]\nfunction = "numbers_of_values:even"\n'
    file.write_text(TO_POSTGRES.replace("TOPIC", topic) + function + SINK)
    command = [str(KEPT), "run", str(file), "--available-now"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert ran.returncode == 0, ran.stderr
    assert rows(dsn, b"SELECT count(*), min(number), max(number) FROM out") == [(15, 2, 30)]
    (tmp_path / "numbers_of_values.py").write_text(NEEDS_A_SESSION.replace("def even", "def odd"))
    wrong = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert wrong.returncode == 1
    assert "pay.toml:8: transform.function: " in wrong.stderr, wrong.stderr
    assert "write even in numbers_of_values" in wrong.stderr


@pytest.mark.usefixtures("said")
def test_references_in_settings_of_spark(topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `file:` is an address to Spark, unless the name says that a secret is meant. None is in the open."""
    monkeypatch.setenv("CORES", "4")
    (tmp_path / "hush").write_text("a secret\n")
    conf = {"spark.cores.max": "env:CORES", "spark.eventLog.dir": "file:/tmp/x", "spark.ssl.keyPassword": "file:hush"}
    lines = "".join(f'"{name}" = "{value}"\n' for name, value in conf.items())
    ready = of(topic, f"{SINK}[spark.conf]\n{lines}", tmp_path / "pay.toml")
    assert ready._conf() == {**conf, "spark.cores.max": "4", "spark.ssl.keyPassword": "a secret"}
    for name in ("spark.ssl.keyPassword", "spark.authenticate.secret", "spark.hadoop.fs.s3a.secret.key"):
        with pytest.raises(FixConfiguration, match=rf"pay.toml:11: spark.conf.{name}: this is a secret"):
            of(topic, f'{SINK}[spark.conf]\n"{name}" = "plain"\n', tmp_path / "pay.toml")


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize(
    ("emit", "held"),
    [
        ('emit = "changes"\n', {"0 10": 1, "10 10": 1, "20 5": 1}),
        ('emit = "final"\n', {"0 10": 1, "10 10": 1}),
        ("", {"0 10": 1, "10 10": 1}),
    ],
)
def test_a_file_says_whether_changes_or_final_results_of_windows_are_let_out(
    cluster: Cluster, topic: str, into_kafka: OutKafka, spark: SparkSession, tmp_path: Path, emit: str, held: object
) -> None:
    """A window is ten records long: of 25 records the last one is open. What is final suits a topic."""
    fill(cluster, topic, 25)
    said = '[transform]\nfunction = "tests.spark.test_windows:told"\n'
    sink = f'[sink]\nkafka = "env:KEPT_BOOTSTRAP"\ntopic = "{into_kafka.topic}"\n'
    text = f'{emit}checkpoint = "checkpoint"' + TO_POSTGRES.replace("TOPIC", topic) + said + sink
    FromFile(understood(tmp_path / "windows.toml", text), until_end=True).checked().pipeline(spark).run()
    assert into_kafka.held() == held
