"""Where a trial is played: topics, tables, proxies and processes of its own, gone afterwards; and its history."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from kept.admin.topics import Topics
from kept.errors import FixConfiguration, KeptError, TryAgain
from kept.guarantees import CARRIER, ExactlyOnce, Guarantee
from kept.local import Cluster
from kept.producer import Receipt
from kept.verify.history import Begun, Fate, Fault, Recorder, Settled, Unfinished
from kept.verify.proxy import KafkaProxyBeside, Rule, beside
from kept.verify.proxy.service import FrameProxy
from kept.verify.scenes.ledger import create_database, drop_database
from kept.verify.trials.elsewhere import Elsewhere
from kept.verify.trials.heard import heard_by_all
from kept.verify.trials.lives import STARTS_WITHIN, WITHIN, Life
from kept.verify.trials.scenario import Volume
from kept.verify.trials.things import Setting, Task, Thing
from kept.verify.trials.worker import DONE
from kept.verify.workload import Value, Workload

Used = TypeVar("Used")
PREFIX = "kept-verify-"
"""Of all topics and groups that a trial makes."""
PATIENCE = 300.0
"""With nothing done: what is given up after it is violated, and a slow machine must not be taken for that."""
ENDS_WITHIN = 30.0
STEPS = 0.1
LOOKS_AGAIN = 0.02
SOUND = ExactlyOnce("verify")
APPENDED = {"message.timestamp.type": "LogAppendTime"}
"""When the broker appended a record, not when somebody says to have made it: that is what a timeline is of."""


class Sink(Protocol):
    """Where a processor's effects go, as the runner watches it."""

    def complete(self) -> bool:
        """Has the end of every source partition come through?"""

    def how_much(self) -> int:
        """It grows while anything goes on."""


def effects_in(sink: Sink) -> int:
    """How many are there now."""
    sink.complete()  # a sink of records has read them then
    return sink.how_much()


class Arena:
    """Everything a scenario plays with. `with` ends what is still running, and mends the cluster."""

    def __init__(
        self,
        cluster: Cluster | Elsewhere,
        folder: Path,
        volume: Volume,
        seed: int,
        *,
        lasting: bool = True,
        prefix: str = PREFIX,
    ) -> None:
        """`lasting=False`: the cluster goes down after the run, and need not be left as it was."""
        self.lasting = lasting
        self.cluster = cluster
        self.folder = folder
        self.volume = volume
        self.seed = seed
        self.dice = random.Random(seed)  # noqa: S311 - to be repeatable is the point
        self.name = f"{prefix}{uuid.uuid4().hex[:8]}"
        self.recorder = Recorder(folder / "runner.jsonl")
        self.topics = Topics(cluster.bootstrap)
        self.doubts: list[str] = []
        """Why this trial may show less than it seems to; it is audited all the same."""
        self._lives: list[Life] = []
        self._names: list[str] = []
        self._undo = ExitStack()
        self._interrupted = False

    def topic(self, partitions: int = 3, guarantee: Guarantee = SOUND, **overrides: object) -> str:
        """A new topic; only a control has one that is not fit for every guarantee."""
        name = f"{self.name}-{len(self._names)}"
        self._names.append(name)
        self._undo.callback(self._delete_topic, name)  # before: who is interrupted here has it all the same
        self.topics.create(name, partitions, guarantee, {**APPENDED, **overrides})
        self.wait(lambda: heard_by_all(self.cluster.bootstrap, name), f"every broker has heard of {name}")
        return name

    @property
    def groups(self) -> tuple[str, str]:
        """The groups that a trial may leave behind."""
        return self.name, ExactlyOnce(self.name).group

    def database(self) -> str:
        """A database of the trial's own; its DSN."""
        server, name = self.cluster.dsn, self.name.replace("-", "_")
        self._undo.callback(drop_database, server, name)
        return create_database(server, name)

    def proxy(self) -> KafkaProxyBeside:
        """A proxy for those who begin at it, until the trial is over."""
        if isinstance(self.cluster, Elsewhere):
            return self.use(KafkaProxyBeside(self.cluster.brokers()))
        return self.use(beside(self.cluster))

    def use(self, thing: AbstractContextManager[Used]) -> Used:
        """Have something until the trial is over."""
        return self._undo.enter_context(thing)

    def start(
        self,
        thing: Thing,
        topic: str,
        *,
        bootstrap: str | None = None,
        settings: Mapping[str, Setting] | None = None,
        options: Mapping[str, Any] | None = None,
        **told: Any,
    ) -> Life:
        """A life of this thing; several lives of one trial are numbered, and each has its own file of the history."""
        number = len(self._lives)
        task = Task(
            role=thing.role,
            guarantee=thing.guarantee,
            settings={**thing.settings, **(settings or {})},
            options={**thing.options, **(options or {})},
            bootstrap=bootstrap or self.cluster.bootstrap,
            topic=topic,
            name=self.name,
            history=str(self.folder / f"life-{number}.jsonl"),
            records=self.volume.records,
            seed=self.seed,
            life=number,
            **told,
        )
        life = Life(task)
        self._lives.append(life)
        return life

    def finish(self, life: Life, within: float = PATIENCE, *, may_end: Collection[int] = (DONE,)) -> None:
        """Wait until a life ends by itself; one that does nothing more for so long has stalled, and is killed.

        One that ends in another way than it may leaves a doubt: it may not have done all its work.
        """
        if not self._goes_on(lambda: life.end(LOOKS_AGAIN) is not None, lambda: life.begun, within):
            self.recorder.write(
                Unfinished(f"{life.task.role}, {within:.0f} s after its last step", self.recorder.now())
            )
            life.kill()
        elif (code := life.end(0)) not in may_end:
            self.doubts.append(f"{life.task.role} ended with code {code}: {life.last_words}")

    def finish_when_complete(self, sink: Sink, life: Life, *, may_end: Collection[int] = (DONE,)) -> None:
        """Ask a life that does not end by itself to end, once all is in its sink; one that has ended does no more."""
        if not self._goes_on(lambda: life.end(0) is not None or sink.complete(), sink.how_much, PATIENCE):
            what = f"{life.task.role}: nothing more was in its sink for {PATIENCE:.0f} s"
            self.recorder.write(Unfinished(what, self.recorder.now()))
        life.ask_to_end()
        self.finish(life, ENDS_WITHIN, may_end=may_end)

    def _goes_on(self, done: Callable[[], bool], how_far: Callable[[], int], patience: float) -> bool:
        """Wait until it is done, for as long as it gets further; False when it does not."""
        far, deadline = -1, 0.0
        while not done():
            if (now := how_far()) != far:
                far, deadline = now, time.monotonic() + patience
            elif time.monotonic() > deadline:
                return False
            time.sleep(STEPS)
        return True

    def wait(self, condition: Callable[[], bool], awaited: str, within: float = WITHIN) -> None:
        """Wait for something that the trial needs; without it the trial shows nothing."""
        if not self.linger(condition, within):
            raise TryAgain(f"not within {within:.0f} s: {awaited}", way_out="run it again on a quieter machine")

    def wait_effects(self, life: Life, sink: Sink, effects: int) -> None:
        """Until so many are in its sink, for as long as more and more are."""
        life.wait(lambda: effects_in(sink) >= effects, f"{effects} effects", STARTS_WITHIN, lambda: effects_in(sink))

    def linger(self, condition: Callable[[], bool], within: float) -> bool:
        """Wait for something that may not come; whether it did."""
        deadline = time.monotonic() + within
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOKS_AGAIN)
        return True

    def struck(self, what: str, at: float | None = None) -> None:
        """A fault of no length has struck."""
        self.recorder.write(Fault(what, self.recorder.now() if at is None else at))

    def strike(self, proxy: FrameProxy, rule: Rule, life: Life, what: str) -> None:
        """Let a rule act once, from now on, and write down when it has."""
        armed = proxy.add(rule)
        life.wait(lambda: armed.caught > 0, what)
        proxy.remove(armed)
        self.struck(what)

    @contextmanager
    def fault(self, what: str) -> Iterator[None]:
        """A fault that lasts as long as the block; written down when it is over."""
        began = self.recorder.now()
        yield
        self.recorder.write(Fault(what, began, self.recorder.now()))

    def fed(self, values: Mapping[Value, Receipt]) -> None:
        """These are in the source for sure, at these places: the thing under test owes each of them an effect."""
        now = self.recorder.now()
        self.recorder.write_all(Begun(str(value), now) for value in values)
        self.recorder.write_all(
            Settled(str(value), Fate.PERSISTED, now, None, at.topic, at.partition, at.offset)
            for value, at in values.items()
        )

    def values(self, sender: str = "s1", keys: int = 20) -> list[Value]:
        return list(Workload(sender, self.volume.records, keys, self.seed).values())

    def moments(self, faults: int | None = None) -> list[int]:
        """Numbers of records at which faults strike: one in each stretch of the workload, where the seed says."""
        count = self.volume.faults if faults is None else faults
        stretch = self.volume.records * 8 // 10 // count
        return [
            self.volume.records // 10 + stretch * n + self.dice.randrange(max(1, stretch // 2)) for n in range(count)
        ]

    def moments_of(self, life: Life) -> Iterator[int]:
        """The same, each when a life has begun so many. One that has done all its work before the last of them was
        struck often enough by half of them: how many did strike is in the report, and bounds what they may cost.
        """
        moments = self.moments()
        for number, moment in enumerate(moments):
            if 0 < number >= len(moments) // 2 and life.end(0) == DONE:
                return
            life.wait_begun(moment)
            yield moment

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Processes first: they use what is taken away then."""
        self._interrupted = kind is not None and not issubclass(kind, Exception)
        try:
            with self.recorder:
                for life in self._lives:
                    life.kill()
                if self.lasting or not self._interrupted:
                    self.cluster.up()
        finally:
            self._undo.__exit__(kind, error, trace)

    def _delete_topic(self, name: str) -> None:
        """And what a pipeline has made beside it. In a cluster that goes, too: brokers that have gathered hundreds of
        partitions start ever slower. But there one that is left is no doubt about a trial, and nobody waits for it.
        """
        if self._interrupted and not self.lasting:
            return
        for each in (name, f"{CARRIER}.{name}"):
            with suppress(FixConfiguration if self.lasting else KeptError):  # it was never made, or stays
                self.topics.delete(each)
