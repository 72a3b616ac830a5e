"""A pipeline from its file: what can be checked without Spark first, then a session, then the pipeline."""

from __future__ import annotations

import importlib
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from traceback import walk_tb
from types import ModuleType
from typing import TYPE_CHECKING

from kept.consumer import Start
from kept.errors import FixConfiguration
from kept.guarantees import merge, spark_session_settings
from kept.pipelines.files import KafkaTopic, PipelineFile
from kept.pipelines.lines import Path
from kept.pipelines.references import is_reference, names_a_secret, plain
from kept.pipelines.telling import BatchDone
from kept.spark.dead_letters import DeadLetterPlace, DeadLetterTable, DeadLetterTopic
from kept.spark.kafka_sink import KafkaSink
from kept.spark.pipeline import Pipeline
from kept.spark.postgres_sink import PostgresSink
from kept.spark.sessions import session
from kept.spark.source import KafkaSource
from kept.spark.tasks import Limits
from kept.spark.transforms import ReadFirst, Transform, as_records, from_sql, in_order, with_values
from kept.spark.triggers import Emit, Every, UntilEnd

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUIET = {"spark.log.level": "ERROR"}


@dataclass(frozen=True)
class FromFile:
    """A pipeline as its file describes it."""

    said: PipelineFile
    until_end: bool = False
    """End at the end of what is there, whatever the file says."""
    master: str | None = None

    def checked(self) -> FromFile:
        """Itself, once everything was looked at that needs neither Spark nor a network."""
        self.pipeline()
        self._conf()
        return self

    @property
    def will_end(self) -> bool:
        return self.until_end or self.said.every is None

    def session(self) -> SparkSession:
        """Modules beside the file can be imported by workers too."""
        paths = [str(self.said.directory), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        master = self.master or self.said.values.get(("spark", "master"))
        return session(f"kept {self.said.name}", master=master, **{**QUIET, **self._conf()})

    def pipeline(
        self, spark: SparkSession | None = None, on_batch: Callable[[BatchDone], None] | None = None
    ) -> Pipeline:
        said = self.said
        with self._about("source"):
            source = self.source()
        with self._about("sink"):
            sink = self.sink()
        with self._about("limits"):
            limits = Limits(**said.part("limits"))
        with self._about("source"):  # an option that weakens the promise
            return Pipeline(
                source=source,
                sink=sink,
                guarantee=said.guarantee,
                transform=self._transform(),
                name=said.name,
                trigger=UntilEnd() if self.will_end else Every(said.every or 0.0),
                checkpoint=said.checkpoint,
                limits=limits,
                spark=spark,
                emit=Emit[said.emit.upper()] if said.emit else None,
                dead_letters=self.dead_letters(),
                on_batch=on_batch,
            )

    def source(self) -> KafkaSource:
        said, start = self.said.part("source"), self.said.start
        return KafkaSource(
            self._plain(("source", "bootstrap"), said["bootstrap"]),
            said.get("topics", ()),
            pattern=said.get("pattern"),
            start=Start(start) if isinstance(start, str) else start,
            max_per_batch=said.get("max_per_batch"),
            client=self._settings(("source", "client")),
            **self._settings(("source", "options")),
        )

    def sink(self) -> PostgresSink | KafkaSink:
        said = self.said.sink
        if isinstance(said, KafkaTopic):
            sink = KafkaSink(
                self._plain(("sink", "kafka"), said.bootstrap),
                said.topic,
                **self._settings(("sink", "producer")),
            )
            sink.producer_settings(self.said.guarantee)  # refuses now what would weaken it
            return sink
        return PostgresSink(self._plain(("sink", "postgres"), said.dsn), said.table, said.key, said.upsert)

    def dead_letters(self) -> DeadLetterPlace | None:
        said = self.said.part("dead_letters")
        if "topic" in said:
            return DeadLetterTopic(said["topic"])
        return DeadLetterTable() if said else None

    def _transform(self) -> Transform:
        said, sink = self.said, self.said.sink
        schema, sql = said.values.get(("source", "schema")), said.values.get(("transform", "sql"))
        steps: list[Transform] = []
        if sql is not None:
            steps.append(from_sql(sql, lambda what: said.wrong(("transform", "sql"), what, "mend the statement")))
        elif ("transform", "function") in said.values:
            steps.append(self._function())
        elif schema is not None:
            steps.append(lambda frame: frame.select("value.*", "_kept_topic", "_kept_partition", "_kept_offset"))
        if isinstance(sink, KafkaTopic):
            steps.append(as_records(sink, partial(said.wrong, ("sink",))))
        if schema is None:
            return in_order(steps)
        unreadable = lambda what: said.wrong(("source", "schema"), what, "mend the columns")  # noqa: E731
        return ReadFirst(with_values(schema, unreadable, buries=said.buries), in_order(steps))

    def _function(self) -> Transform:
        """A module may need a session at its top, for a column or a pandas_udf: then it is looked at with one."""
        try:
            self._imported()
        except FixConfiguration as error:
            if not _raised_by_spark(error.__cause__):
                raise

        def with_session(frame: DataFrame) -> DataFrame:
            function = self._imported()
            module = self.said.values[("transform", "function")].partition(":")[0]
            _send_along(sys.modules[module], self.said.directory)
            return function(frame)

        return with_session

    def _imported(self) -> Transform:
        path: Path = ("transform", "function")
        module, _, name = self.said.values[path].partition(":")
        if str(self.said.directory) not in sys.path:
            sys.path.insert(0, str(self.said.directory))
        try:
            found = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            way_out = f"put {module}.py beside the file, or install what it needs"
            raise self.said.wrong(path, str(error), way_out) from error
        except AttributeError as error:
            raise self.said.wrong(path, str(error), f"write {name} in {module}, or name another function") from error
        except Exception as error:  # the user's own module fails as it likes
            what = f"importing {module} fails: {type(error).__name__}: {error}"
            raise self.said.wrong(path, what, "mend the module") from error
        if not callable(found) or not _takes_one(found):
            what = f"{name} is no function of one DataFrame"
            raise self.said.wrong(path, what, f"def {name}(frame: DataFrame) -> DataFrame: ...")
        function: Transform = found
        return function

    def _conf(self) -> dict[str, str]:
        path: Path = ("spark", "conf")
        conf = {
            name: self._plain((*path, name), value) if value.startswith("env:") or names_a_secret(name) else value
            for name, value in self.said.values.get(path, {}).items()
        }
        with self._about("spark"):
            rows = spark_session_settings(self.said.guarantee)
            merge(rows, {row.name: conf[row.name] for row in rows if row.name in conf})
        return conf

    def _settings(self, path: Path) -> dict[str, object]:
        return {name: self._plain((*path, name), value) for name, value in self.said.values.get(path, {}).items()}

    def _plain(self, path: Path, given: str) -> str:
        if not is_reference(given):
            return given
        try:
            return plain(given, self.said.directory)
        except FixConfiguration as error:
            raise self.said.wrong(path, error.what, error.way_out) from error

    @contextmanager
    def _about(self, table: str) -> Iterator[None]:
        """What is refused inside is told with the place in the file that it is about."""
        try:
            yield
        except FixConfiguration as error:
            if not error.what.startswith(str(self.said.file)):
                error.what = self.said.wrong(self._closest(table, error.what), error.what, error.way_out).what
                error.args = (error.what,)
            raise

    def _closest(self, table: str, what: str) -> Path:
        """The key of a table that an error speaks of, else the table."""
        for name, value in self.said.part(table).items():
            inner: Mapping[str, str] = value if isinstance(value, dict) else {}
            for setting in inner:
                if setting in what:
                    return (table, name, setting)
        named = [name for name in self.said.part(table) if name in what.split()]
        return (table, named[0]) if named else (table,)


def _raised_by_spark(error: BaseException | None) -> bool:
    """Whether it comes from inside Spark, which says in several ways that there is no session yet."""
    frames = [] if error is None else list(walk_tb(error.__traceback__))
    return bool(frames) and str(frames[-1][0].f_globals.get("__name__")).partition(".")[0] == "pyspark"


def _send_along(module: ModuleType, directory: pathlib.Path) -> None:
    """What stands beside the file goes to the workers by value: they have no session, and elsewhere not the file."""
    from pyspark import cloudpickle  # noqa: PLC0415 - heavy, and only needed when a pipeline runs

    file = getattr(module, "__file__", None)
    if file is not None and pathlib.Path(file).resolve().parent == directory.resolve():
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _takes_one(function: Callable[..., object]) -> bool:
    try:
        signature(function).bind("frame")
    except TypeError:
        return False
    except ValueError:  # it tells no signature
        return True
    return not any(each.kind is Parameter.KEYWORD_ONLY and each.default is Parameter.empty
                   for each in signature(function).parameters.values())  # fmt: skip
