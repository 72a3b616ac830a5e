"""One guarantee from the first payment to the audit: a pipeline that is killed twice and started again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psycopg
from psycopg.sql import SQL, Identifier

from kept.demo.audit import Audit, audit
from kept.demo.crashes import Crash, Scene, moments
from kept.demo.drivers import Driver
from kept.demo.payments import Payment
from kept.demo.place import Place
from kept.demo.watching import Watch
from kept.errors import TryAgain
from kept.stores.sql_errors import told_as

BATCHES = 12
"""In so many micro-batches the payments are read: a crash costs at most one of them."""
ENDS_WITHIN = 300.0
DSN = "KEPT_DEMO_DSN"
FILE = """\
name = "{pipeline}"
guarantee = "{guarantee}"
checkpoint = "checkpoint-{guarantee}"

[source]
bootstrap = "{bootstrap}"
topics = "{topic}"
max_per_batch = {together}
schema = "id STRING, account STRING, cents BIGINT"

[sink]
postgres = "env:{dsn}"
table = "{table}"

[spark.conf]
"spark.ui.enabled" = false
"spark.local.dir" = "{directory}"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={directory}"
"""
"""The JVM's options: a driver lives for seconds here, and would be gone before the best code were compiled."""


class Show(Protocol):
    """How a person is kept informed."""

    def say(self, text: str) -> None: ...

    def rows(self, guarantee: str, stored: int) -> None: ...


@dataclass(frozen=True)
class Died:
    """A crash as it happened: what kind, when, with how many rows in the table."""

    title: str
    seconds: float
    rows: int


@dataclass(frozen=True)
class Outcome:
    """What came of one guarantee, and the rows over time: (seconds, rows), with the crashes."""

    audit: Audit
    died: tuple[Died, ...]
    samples: tuple[tuple[float, int], ...]

    @property
    def seconds(self) -> float:
        return self.samples[-1][0]

    def document(self) -> dict[str, object]:
        return {
            **self.audit.document(),
            "crashes": [{**vars(each), "seconds": round(each.seconds, 1)} for each in self.died],
            "seconds": round(self.seconds, 1),
        }


@dataclass(frozen=True)
class Demo:
    """The payments that were sent, where they are, and how it is shown."""

    place: Place
    sent: Sequence[Payment]
    seed: int
    scratch: Path
    show: Show

    def under(self, guarantee: str) -> Outcome:
        """The whole story under one guarantee."""
        file = self._prepared(guarantee)
        here = self.place
        with Watch(
            here.dsn, here.table(guarantee), here.pipeline(guarantee), lambda rows: self.show.rows(guarantee, rows)
        ) as watch:
            died = [
                self._until_crash(guarantee, file, watch, at, crash) for at, crash in moments(len(self.sent), self.seed)
            ]
            self._until_end(guarantee, file, watch)
            result = audit(guarantee, self.sent, watch.stored())
            return Outcome(result, tuple(died), tuple(watch.samples))

    def _prepared(self, guarantee: str) -> Path:
        """The table, without a key that would hide duplicates, and the pipeline's file."""
        here = self.place
        create = SQL("CREATE TABLE {} (id text, account text, cents bigint)").format(Identifier(here.table(guarantee)))
        with told_as("making the demo's table"), psycopg.connect(here.dsn) as connection:
            connection.execute(create)
        file = self.scratch / f"{guarantee}.toml"
        text = FILE.format(
            pipeline=here.pipeline(guarantee),
            guarantee=guarantee,
            bootstrap=here.bootstrap,
            topic=here.topic,
            together=-(-len(self.sent) // BATCHES),
            dsn=DSN,
            table=here.table(guarantee),
            directory=self.scratch,
        )
        file.write_text(text)
        return file

    def _driver(self, file: Path) -> Driver:
        return Driver(file, {DSN: self.place.dsn, "TMPDIR": str(self.scratch)})

    def _until_crash(self, guarantee: str, file: Path, watch: Watch, at: int, crash: Crash) -> Died:
        with self._driver(file) as driver:
            watch.until(lambda: watch.rows() >= at, f"{at:,} rows were stored", driver)
            crash.strike(Scene(self.place.dsn, self.place.pipeline(guarantee), watch, driver))
        died = Died(crash.title, watch.seconds(), watch.rows())
        self.show.say(f"{guarantee}: killed {crash.title}, at {died.rows:,} rows; starting it again")
        return died

    def _until_end(self, guarantee: str, file: Path, watch: Watch) -> None:
        with self._driver(file) as driver:
            watch.give_time(lambda: watch.rows() >= 0 and driver.ended, ENDS_WITHIN)
            ended = driver.ended
            code = driver.kill()
        if not ended or code != 0:
            raise TryAgain(
                f"the pipeline under {guarantee} did not end well ({code}); it said\n    {driver.last_words()}",
                way_out="its last words say why",
            )
        watch.rows()
