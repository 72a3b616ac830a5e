"""Drivers in processes of their own: started, given orders line by line, killed, and gone with the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import kept
from kept.guarantees import Guarantee, parse
from kept.local.jars import fetch, spark_jars
from kept.local.places import cache_directory
from kept.pipelines.telling import BatchDone
from kept.spark import Limits, Ran, UntilEnd
from kept.spark.sinks import Sink
from tests.spark import fates
from tests.spark.conftest import QUIET, ROOT
from tests.spark.standalone import SPARK_HOME
from tests.spark.things import Faulty, Out, OutKafka, OutPostgres, dealt_anew, records, values
from tests.spark.verdicts import PARTITION

# Chunks are made of whole Arrow batches: small ones make several of them even of few rows.
SMALL_BATCHES = {"spark.sql.execution.arrow.maxRecordsPerBatch": "200"}
# As whoever looks after a pipeline starts it again: not at once, and not for ever.
MOST_STARTS, BETWEEN_STARTS = 10, 2.0
FATES: Mapping[str, fates.Act] = {
    "dies": fates.die_there,
    "waits for its copy": fates.wait_for_copy,
    "waits to be killed": fates.wait_to_be_killed,
}


@dataclass(frozen=True)
class Fate:
    """What becomes of a task, and where."""

    what: str
    at: str
    marker: str
    beyond: int = 0


@dataclass(frozen=True)
class Order:
    """A pipeline to be run until the end of what is there."""

    bootstrap: str
    topic: str
    name: str
    dsn: str | None = None
    """A Postgres; None: Kafka, and the topic there."""
    out_topic: str = ""
    word: str = "exactly-once"
    fate: Fate | None = None
    checkpoint: str | None = None
    per_batch: int | None = None
    chunk: int = 50_000
    patience: float = 30.0
    mode: str = PARTITION

    @property
    def kind(self) -> str:
        return "postgres" if self.dsn else "kafka"

    @property
    def guarantee(self) -> Guarantee:
        return parse(self.word, self.name if self.word == "exactly-once" else None)

    @property
    def out(self) -> Out:
        return OutPostgres(self.dsn) if self.dsn else OutKafka(self.bootstrap, self.out_topic, self.name)

    def pipeline(self, spark: SparkSession, on_batch: Callable[[BatchDone], None] | None = None) -> kept.Pipeline:
        sink: Sink = self.out.sink
        plain = values if self.dsn else records
        if self.fate is not None:
            sink = Faulty(sink, self.fate.at, Path(self.fate.marker), FATES[self.fate.what], self.fate.beyond)
        return kept.Pipeline(
            source=kept.KafkaSource(self.bootstrap, self.topic, max_per_batch=self.per_batch),
            transform=plain if self.mode == PARTITION else dealt_anew(plain),
            sink=sink,
            guarantee=self.guarantee,
            name=None if self.word == "exactly-once" else self.name,
            trigger=UntilEnd(),
            checkpoint=self.checkpoint,
            limits=Limits(rows=self.chunk, patience=self.patience),
            spark=spark,
            on_batch=on_batch,
        )

    def line(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of(line: str) -> Order:
        given = json.loads(line)
        return Order(**{**given, "fate": given["fate"] and Fate(**given["fate"])})


def gone_on(
    order: Order, spark: SparkSession, on_batch: Callable[[BatchDone], None] | None = None
) -> list[kept.KeptError]:
    """To the end, here: started again when it has stopped, as a person would; returns what stopped it."""
    stopped: list[kept.KeptError] = []
    while True:
        try:
            order.pipeline(spark, on_batch).run()
        except kept.KeptError as error:
            stopped.append(error)
            if len(stopped) > MOST_STARTS:
                raise
            time.sleep(BETWEEN_STARTS)
        else:
            return stopped


@contextmanager
def driver(said: Path, *arguments: str, program: str = "driver") -> Iterator[subprocess.Popen[bytes]]:
    """In a process group of its own: whatever is left of it ends with the test."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    with said.open("wb") as out, said.with_suffix(".errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", f"tests.spark.programs.{program}", *arguments],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=errors,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def under_spark_submit(order: Order) -> tuple[list[str], dict[str, str]]:
    """The command that runs an order under spark-submit in client mode, and its environment."""
    jars = ",".join(str(jar) for jar in fetch(spark_jars(), cache_directory() / "jars"))
    quiet = [part for name, value in QUIET.items() for part in ("--conf", f"{name}={value}")]
    script = str(ROOT / "tests" / "spark" / "programs" / "submitted.py")
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[1]", "--jars", jars]
    environment = {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
    }
    return [*submit, *quiet, script, order.line()], environment


class Obedient:
    """A driver that waits for orders, and says how each has ended."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self.process = process
        self._said = said
        self._given = 0
        self._batches_before = 0

    def ready(self, within: float = 90.0) -> Obedient:
        self._wait("ready", 1, within)
        return self

    def give(self, order: Order) -> None:
        assert self.process.stdin is not None
        self._given += 1
        self._batches_before = len(self._lines("batch"))
        self.process.stdin.write(order.line().encode() + b"\n")
        self.process.stdin.flush()

    def batches(self) -> int:
        """Of the last order, that are done."""
        return len(self._lines("batch")) - self._batches_before

    def ended(self) -> bool:
        return len(self._lines("ended")) == self._given

    def outcome(self, within: float = 300.0) -> Ran | str:
        """Of the last order: what was done, or the error that stopped it."""
        told = json.loads(self._wait("ended", self._given, within))
        return told if isinstance(told, str) else Ran(**told)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _lines(self, word: str) -> list[str]:
        whole = self._said.read_text().split("\n")[:-1]
        return [line.partition(" ")[2] for line in whole if line.partition(" ")[0] == word]

    def _wait(self, word: str, count: int, within: float) -> str:
        deadline = time.monotonic() + within
        while len(self._lines(word)) < count:
            if self.process.poll() is not None or time.monotonic() > deadline:
                errors = self._said.with_suffix(".errors").read_text()[-3000:]
                raise AssertionError(f"the driver has not said {word!r} within {within:.0f} s: {errors}")
            time.sleep(0.05)
        return self._lines(word)[count - 1]


@contextmanager
def obedient(said: Path, master: str | None = None, **settings: str) -> Iterator[Obedient]:
    """A driver with a Spark of its own: in its process, or on a cluster. It is not waited for."""
    with driver(said, master or "", json.dumps({**SMALL_BATCHES, **settings}), program="obedient") as process:
        yield Obedient(process, said)
