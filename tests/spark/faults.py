"""Faults for pipelines, each one function: it lets a world run to its end, and says how often it has struck."""

from __future__ import annotations

import random
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Lock, RLock
from typing import TypeAlias, TypeVar, cast

from pyspark.sql import SparkSession

import kept
from kept.admin.topics import Topics
from kept.local import Cluster
from kept.pipelines.telling import BatchDone
from kept.spark import Ran
from tests.spark.batches import lose_last_batch
from tests.spark.drivers import Fate, Obedient, Order, gone_on, obedient
from tests.spark.standalone import SESSION, Standalone, standalone
from tests.spark.things import fill
from tests.spark.verdicts import PARTITION

T = TypeVar("T")

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.efficiency.enabled": "false",
}
COMES_WITHIN = 90.0
STEPS_OF_ELDER = 5
"""In which it does what is a batch for others: a newer driver takes a while to begin, and must find it at work."""
EVERYTHING = "everything"
BATCHES = 6
"""In which a world is read; a fault comes in the first half of them, so that something is left to be harmed."""


def wait_for(condition: Callable[[], object], awaited: str, within: float = COMES_WITHIN) -> None:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:.0f} s: {awaited}")
        time.sleep(0.02)


class Means:
    """What worlds share, each started when the first of them asks for it. Several worlds may ask at once."""

    def __init__(
        self, cluster: Cluster, spark: Callable[[], SparkSession], folder: Path, settings: Mapping[str, str]
    ) -> None:
        self.cluster = cluster
        self.settings = settings
        self._start_spark = spark
        self._folder = folder
        self._stack = ExitStack()
        self._one_at_a_time = RLock()
        self._making: dict[str, Lock] = {}
        self._made: dict[str, object] = {}
        self._spare: list[Obedient] = []
        self._drivers = 0

    def __enter__(self) -> Means:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    @property
    def spark(self) -> SparkSession:
        """In this process."""
        return self._once("spark", self._start_spark)

    @property
    def workers(self) -> Standalone:
        return self._once("workers", lambda: self._stack.enter_context(standalone(self._folder / "standalone")))

    @property
    def on_workers(self) -> Obedient:
        """A driver on the standalone cluster, where tasks that take long are run twice."""
        settings = {**self.settings, **SESSION, **SPECULATION}
        return self._once("on workers", lambda: self._driver(self.workers.url, settings)).ready()

    @property
    def elder(self) -> Obedient:
        """A driver in another process, beside this one."""
        return self._once("elder", lambda: self._driver(None, self.settings)).ready()

    def filled(self, records: int) -> str:
        """A topic with so many records, for all worlds whose fault leaves the source alone."""
        return self._once(f"topic of {records}", lambda: filled_topic(self.cluster, records))

    def drivers_to_kill(self, count: int) -> list[Obedient]:
        """They were started when the last ones were taken, if there were any: most of a driver's life is its start."""
        with self._one_at_a_time:
            self.more_drivers(count)
            taken, self._spare = self._spare[:count], self._spare[count:]
        return [each.ready() for each in taken]

    def more_drivers(self, count: int) -> None:
        """Have so many of them start; nobody waits."""
        with self._one_at_a_time:
            while len(self._spare) < count:
                self._spare.append(self._driver(None, self.settings))

    def _driver(self, master: str | None, settings: Mapping[str, str]) -> Obedient:
        self._drivers += 1
        return self._stack.enter_context(obedient(self._folder / f"driver-{self._drivers}", master, **settings))

    def _once(self, name: str, make: Callable[[], T]) -> T:
        """Whoever wants something else does not wait for it."""
        with self._one_at_a_time:
            making = self._making.setdefault(name, Lock())
        with making:
            if name not in self._made:
                self._made[name] = make()
            return cast("T", self._made[name])


def filled_topic(cluster: Cluster, records: int) -> str:
    """A new one with three partitions."""
    topic = f"proof-{uuid.uuid4().hex[:8]}"
    Topics(cluster.bootstrap).create(topic, 3, kept.ExactlyOnce("tests"))
    fill(cluster, topic, records)
    return topic


@dataclass
class World:
    """A topic that is full, a sink that is empty, and a pipeline between them."""

    means: Means
    order: Order
    dice: random.Random
    folder: Path
    records: int
    stopped: list[str] = field(default_factory=list)

    def go_on(self, on_batch: Callable[[BatchDone], None] | None = None) -> None:
        """To the end, in this process."""
        self.stopped += [type(error).__name__ for error in gone_on(self.order, self.means.spark, on_batch)]

    def carried_out(self, outcome: Ran | str) -> None:
        """By another driver, to the end; or to the error that stopped it, and on from there."""
        if isinstance(outcome, str):
            self.stopped.append(outcome.partition(":")[0])
            self.go_on()

    def early(self) -> int:
        """A number of batches after which something is left to do."""
        return self.dice.randint(0, BATCHES // 2)

    def a_moment(self, longest: float = 0.5) -> None:
        time.sleep(self.dice.uniform(0, longest))

    def fate(self, what: str, at: str) -> Fate:
        """Of a task, in a chunk of the first half of its partition; in batch mode, in one of the first batches."""
        beyond = self.records // 6 if self.order.mode == PARTITION else BATCHES // 2
        return Fate(what, at, str(self.folder / "marker"), self.dice.randint(0, beyond))

    def a_point(self) -> str:
        between = [self.order.out.between[self.order.word]] if self.order.mode == PARTITION else []
        return self.dice.choice(["before", *between, "after"])


Fault: TypeAlias = Callable[[World], int]


def driver_killed(world: World) -> int:
    """Two drivers, one after the other, each at a moment of its own; a third goes to the end."""
    struck = 0
    for driver in world.means.drivers_to_kill(2):
        driver.give(world.order)
        batches = world.dice.randint(0, BATCHES // 3)
        wait_for(lambda: driver.batches() >= batches or driver.ended(), "batches")  # noqa: B023
        world.a_moment(0.5 if batches else 6.0)  # its first seconds are births and workers that start
        struck += not driver.ended()
        driver.kill()
    world.means.more_drivers(2)  # for the world after this one
    world.go_on()
    return struck


def task_killed(world: World, at: str) -> int:
    """The Python worker of a task, once."""
    fate = world.fate("dies", world.order.out.between[world.order.word] if at == "between" else at)
    world.order = replace(world.order, fate=fate)
    world.go_on()
    return int(Path(fate.marker).exists())


def speculation(world: World, at: str | None = None) -> int:
    """The first attempt at a task waits until its copy has begun; then both go on."""
    driver = world.means.on_workers
    fate = world.fate("waits for its copy", at or world.a_point())
    driver.give(replace(world.order, fate=fate))
    world.carried_out(driver.outcome())
    return int(Path(f"{fate.marker}.met").exists())


def worker_killed(world: World, at: str | None = None) -> int:
    """A worker of the cluster, with all that runs on it, while a task of it stands at a point."""
    driver, workers = world.means.on_workers, world.means.workers
    fate = world.fate("waits to be killed", at or world.a_point())
    workers.wait_for_workers()
    driver.give(replace(world.order, fate=fate))
    wait_for(lambda: [*world.folder.glob("*.here")], "a task is at the point")
    here = next(world.folder.glob("*.here"))
    lost = workers.home_of(here.read_text())
    at_work = int(here.suffixes[-2].removeprefix("."))
    was_there = at_work in workers.alive(lost)
    workers.kill(lost)
    is_gone = at_work not in workers.alive(lost)
    Path(f"{fate.marker}.go").touch()
    workers.start(lost)
    world.carried_out(driver.outcome())
    return int(was_there and is_gone and Path(f"{fate.marker}.again").exists())


def notes_deleted(world: World, delete: Callable[[Path], None], shows: Callable[[BatchDone, BatchDone], bool]) -> int:
    """Twice: some batches, an end in good order, and Spark's notes are not what they were.

    `shows` says of the last batch before and the first one after if Spark has noticed.
    """
    checkpoint = world.folder / "checkpoint"
    world.order = replace(world.order, checkpoint=str(checkpoint))
    lives: list[list[BatchDone]] = []
    for _ in range(2):
        lives.append(_some_batches(world, world.dice.randint(1, BATCHES // 3)))
        delete(checkpoint)
    lives.append([])
    world.go_on(lives[-1].append)
    return sum(shows(before[-1], after[0]) for before, after in pairwise(lives) if after)


def is_replayed(before: BatchDone, after: BatchDone) -> bool:
    """The same batch again, and nothing was written: all its rows were there."""
    return after.batch == before.batch and after.rows == 0 < before.rows + before.dropped


def begins_anew(_before: BatchDone, after: BatchDone) -> bool:
    """Spark counts from the first batch again, and is given what is not done yet."""
    return after.batch == 0 and after.dropped == 0


def _some_batches(world: World, count: int) -> list[BatchDone]:
    done: list[BatchDone] = []

    def hear(batch: BatchDone) -> None:
        done.append(batch)
        if len(done) >= count:
            running.stop()

    running = world.order.pipeline(world.means.spark, hear)
    running.run()
    return done


def two_drivers(world: World) -> int:
    """A newer driver begins while the elder is at work: the elder stops for good, and says why."""
    elder, _ready_to_follow = world.means.elder, world.means.spark
    elder.give(replace(world.order, per_batch=-(-(world.order.per_batch or world.records) // STEPS_OF_ELDER)))
    batches = world.early() * STEPS_OF_ELDER
    wait_for(lambda: elder.batches() >= batches or elder.ended(), "batches")
    world.a_moment()
    world.go_on()
    outcome = elder.outcome()
    return int(isinstance(outcome, str) and outcome.startswith(kept.Fenced.__name__))


def broker_killed(world: World) -> int:
    """The leader of a partition of the source, or of the sink."""
    cluster, order = world.means.cluster, world.order
    led = world.dice.choice([order.topic, order.out_topic or order.topic])
    try:
        return _disturbed(
            world,
            lambda: cluster.broker(world.dice.choice(Topics(cluster.bootstrap).describe(led).partitions).leader).kill(),
        )
    finally:
        cluster.up()


def postgres_restarted(world: World) -> int:
    """In good order, or by SIGKILL."""
    postgres = world.means.cluster.postgres

    def crash() -> None:
        postgres.kill()
        postgres.start()

    return _disturbed(world, world.dice.choice([postgres.restart, crash]))


def _disturbed(world: World, disturb: Callable[[], None]) -> int:
    """Something happens to the servers after some batches, while the pipeline is at work."""
    batches: list[BatchDone] = []
    early = world.early()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(world.go_on, batches.append)
        wait_for(lambda: len(batches) >= early or running.done(), "batches")
        world.a_moment()
        disturb()
        struck = not running.done()  # it had to go on with what was left of the servers
        running.result()
    return int(struck)


FAULTS: Mapping[str, Fault] = {
    "driver-killed": driver_killed,
    "task-killed-before": partial(task_killed, at="before"),
    "task-killed-between": partial(task_killed, at="between"),
    "task-killed-after": partial(task_killed, at="after"),
    "speculation": speculation,
    "worker-killed": worker_killed,
    "commits-deleted": partial(notes_deleted, delete=lose_last_batch, shows=is_replayed),
    "checkpoint-deleted": partial(notes_deleted, delete=shutil.rmtree, shows=begins_anew),
    "two-drivers": two_drivers,
    "broker-killed": broker_killed,
    "postgres-restarted": postgres_restarted,
}
TOUCH_THE_SOURCE = {"broker-killed"}
NEEDS: Mapping[str, str] = {
    "speculation": "the workers",
    "worker-killed": "the workers",
    "two-drivers": "the elder",
    "broker-killed": EVERYTHING,
    "postgres-restarted": EVERYTHING,
}
"""What only one world at a time can use."""
