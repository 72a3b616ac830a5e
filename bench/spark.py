"""Pipelines on Spark, exactly once, beside Spark's own sinks, which are at least once.

    python bench/spark.py [--records 1500000] [--rounds 3] [--only kafka|postgres] [--json]

- into Kafka: kept; Spark's own sink with the fetch wait that kept sets; Spark's own sink as it comes;
- into Postgres: kept into a table with a key; Spark's JDBC append into one without, as it comes and with everything
  that makes it quicker (rewritten inserts, batches of 10,000).

All in one session, in turn, in batches of 250,000 records of 150 bytes. The time is Spark's own figure for each batch
that is full; the first of each query does not count: it starts workers and connections. Every run is audited.
"""

from __future__ import annotations

import argparse
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

import psycopg
from cluster import Run, filled, in_turn, new_topic, report
from kafka_to_kafka import audit
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kept import ExactlyOnce, KafkaSink, KafkaSource, Pipeline, PostgresSink
from kept.guarantees import AtLeastOnce
from kept.local import Cluster
from kept.local.jars import Jar, fetch
from kept.local.places import cache_directory
from kept.local.ports import ANY_FREE
from kept.local.tether import tethered
from kept.spark import POSITION, UntilEnd, session

PER_BATCH = 250_000
JDBC = Jar(
    "org.postgresql:postgresql:42.7.8", 1116727, "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7"
)
INTO_KAFKA, SPARKS_OWN, AS_IT_COMES = "kept into Kafka", "Spark's Kafka sink", "Spark's Kafka sink as it comes"
INTO_POSTGRES, APPEND = "kept into Postgres, key", "Spark's JDBC append, no key"
TUNED = "Spark's JDBC append, no key, tuned"
COLUMNS = ("cast(left(cast(value as string), 12) as bigint) as id", "cast(value as string) as v")


class Batches(StreamingQueryListener):
    """Seconds of every full batch, by the query's run."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self.over = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: ARG002, N802 - Spark's name
        self.taken.clear()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        if event.progress.numInputRows == PER_BATCH:
            self.taken.append(event.progress.batchDuration / 1000)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: ARG002, N802
        self.over += 1


class Bench:
    """One session, one source, and a run for each way."""

    def __init__(self, cluster: Cluster, spark: SparkSession, records: int) -> None:
        self.bootstrap, self.dsn, self.spark, self.records = cluster.bootstrap, cluster.dsn, spark, records
        self.topic = filled(cluster.bootstrap, records)
        self._batches = Batches()
        spark.streams.addListener(self._batches)

    def rate(self, work: Callable[[], None], audited: Callable[[], None]) -> float:
        """Records a second in warm, full batches."""
        over = self._batches.over
        work()
        while self._batches.over == over:
            self.spark.sparkContext._jvm.java.lang.Thread.sleep(50)  # type: ignore[union-attr]  # its news is on its way
        audited()
        warm = self._batches.taken[1:]
        print("      batches:", " ".join(f"{seconds:.2f}" for seconds in self._batches.taken), flush=True)
        return len(warm) * PER_BATCH / sum(warm)

    def into_topic(self, work: Callable[[str], None]) -> Run:
        def run() -> float:
            sink = new_topic(self.bootstrap)
            return self.rate(lambda: work(sink), lambda: audit(self.bootstrap, sink, self.records))

        return run

    def into_table(self, work: Callable[[str], None], key: str) -> Run:
        def run() -> float:
            table = f"bench_{uuid.uuid4().hex[:12]}"
            with psycopg.connect(self.dsn) as connection:
                connection.execute(f"CREATE TABLE {table} (id bigint {key}, v text)".encode())
            return self.rate(lambda: work(table), lambda: self.counted(table))

        return run

    def counted(self, table: str) -> None:
        with psycopg.connect(self.dsn) as connection:
            asked = f"SELECT count(*), count(DISTINCT id) FROM {table}"  # noqa: S608 - our own name
            ((rows, different),) = connection.execute(asked.encode()).fetchall()
            connection.execute(f"DROP TABLE {table}".encode())
        if (rows, different) != (self.records, self.records):
            raise SystemExit(f"{self.records - different} lost, {rows - different} repeated")

    def source(self, **options: str) -> DataFrame:
        settings = KafkaSource(self.bootstrap, self.topic, max_per_batch=PER_BATCH).settings(AtLeastOnce())
        return self.spark.readStream.format("kafka").options(**{**settings, **options}).load()

    def own_kafka(self, frame: DataFrame, sink: str) -> None:
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = frame.select("key", "value").writeStream.format("kafka")
            writer.option("kafka.bootstrap.servers", self.bootstrap).option("topic", sink).option(
                "checkpointLocation", checkpoint
            ).trigger(availableNow=True).start().awaitTermination()

    def own_jdbc(self, table: str, *, tuned: bool) -> None:
        found = psycopg.conninfo.conninfo_to_dict(self.dsn)
        address = f"jdbc:postgresql://{found['host']}:{found['port']}/{found['dbname']}"
        options = {"user": str(found["user"]), "password": str(found.get("password", ""))}
        if tuned:
            options |= {"reWriteBatchedInserts": "true", "batchsize": "10000"}

        def append(batch: DataFrame, _number: int) -> None:
            batch.write.jdbc(address, table, "append", {**options, "driver": "org.postgresql.Driver"})

        with tempfile.TemporaryDirectory() as checkpoint:
            frame = self.source().selectExpr(*COLUMNS)
            frame.writeStream.foreachBatch(append).option("checkpointLocation", checkpoint).trigger(
                availableNow=True
            ).start().awaitTermination()

    def ours(self, sink: KafkaSink | PostgresSink) -> None:
        columns = ("key", "value") if isinstance(sink, KafkaSink) else COLUMNS
        Pipeline(
            source=KafkaSource(self.bootstrap, self.topic, max_per_batch=PER_BATCH),
            transform=lambda frame: frame.selectExpr(*columns, *POSITION),
            sink=sink,
            guarantee=ExactlyOnce(f"bench-{uuid.uuid4().hex[:8]}"),
            trigger=UntilEnd(),
            spark=self.spark,
        ).run()

    def runs(self, only: str | None) -> dict[str, Run]:
        default = {"kafka.fetch.max.wait.ms": "500"}
        kafka = {
            SPARKS_OWN: self.into_topic(lambda sink: self.own_kafka(self.source(), sink)),
            INTO_KAFKA: self.into_topic(lambda sink: self.ours(KafkaSink(self.bootstrap, sink))),
            AS_IT_COMES: self.into_topic(lambda sink: self.own_kafka(self.source(**default), sink)),
        }
        postgres = {
            APPEND: self.into_table(lambda table: self.own_jdbc(table, tuned=False), ""),
            INTO_POSTGRES: self.into_table(
                lambda table: self.ours(PostgresSink(self.dsn, table, key="id")), "PRIMARY KEY"
            ),
            TUNED: self.into_table(lambda table: self.own_jdbc(table, tuned=True), ""),
        }
        return {"kafka": kafka, "postgres": postgres}.get(only or "", {**kafka, **postgres})


def main() -> None:
    parser = argparse.ArgumentParser(description="kept's Spark sinks beside Spark's own")
    parser.add_argument("--records", type=int, default=1_500_000, help="whole batches of 250,000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("kafka", "postgres"))
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args()
    driver = fetch([JDBC], cache_directory() / "jars")[0]
    with tempfile.TemporaryDirectory() as directory, tethered(Cluster(Path(directory) / "cluster")) as cluster:
        cluster.up(ports=ANY_FREE)
        spark = session("bench", **{"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.jars": str(driver)})
        runs = Bench(cluster, spark, chosen.records).runs(chosen.only)
        rates = in_turn(runs, chosen.rounds)
        spark.stop()
    pairs, also = {INTO_KAFKA: SPARKS_OWN, INTO_POSTGRES: APPEND}, {INTO_KAFKA: AS_IT_COMES, INTO_POSTGRES: TUNED}
    there = [{ours: peer for ours, peer in each.items() if ours in rates} for each in (pairs, also)]
    report(rates, *there, as_json=chosen.json)


if __name__ == "__main__":
    main()
