"""A Spark session that can read Kafka: jars by the lock file, Java found, workers with the driver's own Python."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kept.errors import FixConfiguration, FixMachine
from kept.guarantees import Guarantee, merge, spark_session_settings
from kept.local.jars import fetch, spark_jars
from kept.local.java import find_java
from kept.local.places import cache_directory
from kept.spark import class_archive, jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_FAILURES = 4
PYTHON_OF_WORKERS = "PYSPARK_PYTHON"
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Where spark-submit tells the driver's Python of the JVM that it has started already."""
JVM_OPTIONS = "spark.driver.extraJavaOptions"
CONNECTOR_PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
TOLD_BY_PIPELINES = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
"""It logs why a query has ended, as pages of Java, even when a pipeline was only asked to end: we tell it, shorter."""
CONNECTOR = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


def session(name: str = "kept", *, master: str | None = None, **settings: object) -> SparkSession:
    """The session of this process, made if there is none; settings of Spark are passed by their own names.

    Without a `master` Spark runs in this process, with one task slot above the cores: while one task waits for a
    broker or a database, another works. Under spark-submit the master and the jars are those that it was given. On a
    cluster, `kept` has to be installed for the workers' Python, too (docs/pipelines.md).
    """
    refuse_without_pyspark()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - told above when it is missing

    there = SparkSession.getActiveSession()
    if there is not None:
        return usable(there)
    os.environ.setdefault(PYTHON_OF_WORKERS, sys.executable)  # else the first python3 on the PATH, whatever that is
    if SUBMITTED in os.environ:
        ours: dict[str, object] = {"spark.master": master} if master else {}
    else:
        java = find_java()
        # Spark takes JAVA_HOME, however old it is, and else what is on the PATH; one in our cache is on neither.
        os.environ["JAVA_HOME"] = str(java.executable.resolve().parents[1])
        jars = fetch(spark_jars(), cache_directory() / "jars")
        ours = {"spark.master": master or _this_machine(), **({} if master else _for_this_machine())}
        settings = {
            **settings,
            "spark.jars": _joined(jars, settings.get("spark.jars")),
            JVM_OPTIONS: f"{class_archive.options(java)} {settings.get(JVM_OPTIONS, '')}".strip(),
        }
    builder = SparkSession.builder.appName(name)
    for setting, value in {**_derived(), **ours, **settings}.items():
        builder = builder.config(setting, str(value))
    spark = usable(builder.getOrCreate())
    _silence(spark, TOLD_BY_PIPELINES)
    if SUBMITTED not in os.environ:  # there the JVM is our parent, and alone is sent the signal
        jvm.leave_sigterm_to_python(spark)
    return spark


def end(spark: SparkSession) -> None:
    """Stop the session; nothing is left to stop where its JVM was killed."""
    with jvm.unless_gone():
        spark.stop()


def usable(spark: SparkSession) -> SparkSession:
    """The session, if a pipeline can run on it."""
    if not hasattr(spark, "_jvm"):
        raise FixConfiguration(
            "this is a Spark Connect session: which offsets a task has been given cannot be seen from it",
            way_out="run the driver on the cluster (spark-submit), or use kept.spark.session()",
        )
    if not _has_connector(spark):
        raise FixConfiguration(
            "this Spark session lacks the Kafka connector",
            way_out="make it with kept.spark.session(), or add the jars of src/kept/local/spark.lock to spark.jars; "
            f"to spark-submit, say --packages {CONNECTOR_PACKAGE}",
        )
    return spark


def refuse_weakened(spark: SparkSession, guarantee: Guarantee) -> None:
    """Settings of a session that somebody else made, against the promise."""
    rows = spark_session_settings(guarantee)
    found: dict[str, object] = {}
    for row in rows:
        value = spark.conf.get(row.name, row.value)
        if value is not None:
            found[row.name] = value
    merge(rows, found)


def refuse_without_pyspark() -> None:
    missing = [name for name in ("pyspark", "pyarrow", "pgpq") if find_spec(name) is None]
    if missing:
        raise FixMachine(f"{' and '.join(missing)} cannot be imported", way_out="pip install 'kept[spark]'")


def _this_machine() -> str:
    """Two tasks more than cores: of a transaction, a third of the time is waiting for brokers or for a disk."""
    return f"local[{(os.cpu_count() or 1) + 2},{TASK_FAILURES}]"


def _derived() -> dict[str, str]:
    return {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.pollingDelay": "50ms",  # an idle pipeline would ask its brokers a hundred times a second
    }


def _for_this_machine() -> dict[str, str]:
    """Spark's 200 tasks after every shuffle are meant for a cluster: here most of them would be empty."""
    return {"spark.sql.shuffle.partitions": str((os.cpu_count() or 1) + 1)}


def _joined(jars: list[Any], more: object) -> str:
    return ",".join([*(str(jar) for jar in jars), *([str(more)] if more else [])])


def _silence(spark: SparkSession, logger: str) -> None:
    log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setLevel(logger, log4j.Level.OFF)


def _has_connector(spark: SparkSession) -> bool:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark

    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(CONNECTOR)
    except Py4JJavaError:
        return False
    return True
