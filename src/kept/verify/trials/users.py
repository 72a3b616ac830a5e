"""A user's own pipeline under test: its file, some records to read, and what it makes of them undisturbed.

What was fed is known, what should come out of it is not: a transform is the user's. So the pipeline is run once without
any fault, and what it leaves in its sink then is what it owes every other time, row by row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from kept.errors import FixConfiguration, KeptError
from kept.guarantees import AtLeastOnce
from kept.local import Cluster
from kept.pipelines.files import KafkaTopic, PipelineFile, read
from kept.producer import Producer
from kept.stores.sql_errors import told_as
from kept.verify.history import Begun, Fate, Found, Read, Settled
from kept.verify.trials.arena import Arena
from kept.verify.trials.elsewhere import Elsewhere
from kept.verify.trials.plain_reading import everything_in
from kept.verify.trials.scenario import Scenario, Volume
from kept.verify.trials.things import Thing

ROLE = "user_pipeline"
FEWEST = 500
ENDS_WITHIN = 600.0


class Contents(Protocol):
    """What is in a user's sink: where, and each row or record as text."""

    name: str

    @property
    def options(self) -> Mapping[str, Any]: ...

    @property
    def overrides(self) -> Mapping[str, Any]: ...

    def rows(self) -> Iterator[str]: ...


class TableContents:
    """A table in a database of the trial's own."""

    def __init__(self, arena: Arena, table: str) -> None:
        self.name = table
        self.options = {"dsn": arena.database()}
        self.overrides = {"sink.postgres": self.options["dsn"]}

    def rows(self) -> Iterator[str]:
        with told_as("the table cannot be read"), psycopg.connect(self.options["dsn"], row_factory=dict_row) as there:
            if there.execute("SELECT to_regclass(%s) IS NULL AS missing", (self.name,)).fetchone() == {"missing": True}:
                return
            for row in there.execute(SQL("SELECT * FROM {}").format(Identifier(*self.name.split(".")))):
                yield json.dumps(row, default=str, sort_keys=True)


class TopicContents:
    """A topic of the trial's own."""

    def __init__(self, arena: Arena) -> None:
        self._bootstrap = arena.cluster.bootstrap
        self.name = arena.topic()
        self.options: dict[str, Any] = {}
        self.overrides = {"sink.kafka": self._bootstrap, "sink.topic": self.name}

    def rows(self) -> Iterator[str]:
        for record in everything_in(self._bootstrap, self.name):
            key, value = ((each or b"").decode(errors="backslashreplace") for each in (record.key, record.value))
            yield json.dumps({"key": key, "value": value})


class UserSink:
    """The sink of a user's pipeline, and what is owed to it."""

    def __init__(self, arena: Arena, contents: Contents, owed: Counter[str], told: Mapping[str, Any]) -> None:
        self._arena = arena
        self._contents = contents
        self._owed = owed
        self._told = told

    def options(self) -> dict[str, Any]:
        return {**self._contents.options, "overrides": {**self._told, **self._contents.overrides}}

    def rows(self) -> Iterator[str]:
        return self._contents.rows()

    def complete(self) -> bool:
        """Is all there that is owed?"""
        return not self._owed - Counter(self.rows())

    def how_much(self) -> int:
        return sum(1 for _ in self.rows())

    def begin(self) -> None:
        """Each row that is owed."""
        now = self._arena.recorder.now()
        names = [*numbered(self._owed.elements())]
        self._arena.recorder.write_all(Begun(name, now) for name in names)
        self._arena.recorder.write_all(Settled(name, Fate.PERSISTED, now) for name in names)

    def audit(self) -> None:
        recorder = self._arena.recorder
        try:
            found = [*matched(self.rows(), self._owed)]
        except KeptError as error:
            recorder.write(Read(self._contents.name, recorder.now(), False, error.what))
            return
        now = recorder.now()
        recorder.write_all(Found(row, self._contents.name, 0, number, now) for number, row in enumerate(found))
        recorder.write(Read(self._contents.name, now, True))


def numbered(rows: Iterable[str]) -> Iterator[str]:
    """Rows that are alike are told apart by a number."""
    seen: Counter[str] = Counter()
    for row in rows:
        seen[row] += 1
        yield row if seen[row] == 1 else f"{row} #{seen[row]}"


def matched(rows: Iterable[str], owed: Mapping[str, int]) -> Iterator[str]:
    """What each row found is: one that is owed, a copy of one, or one that nobody owes."""
    seen: Counter[str] = Counter()
    for row in rows:
        seen[row] += 1
        number = min(seen[row], max(1, owed.get(row, 1)))
        yield row if number == 1 else f"{row} #{number}"


class UserWork:
    """Lines of a file, fed into a topic of the trial's own, which stands in for the file's."""

    def __init__(self, arena: Arena, thing: Thing) -> None:
        said = read(Path(thing.options["file"]))
        self._arena = arena
        self._lines = lines_of(Path(thing.options["input"]))
        self._fed = 0
        self.topic = arena.topic()
        contents = contents_of(arena, said)
        told: dict[str, Any] = {"source.bootstrap": arena.cluster.bootstrap, "source.topics": [self.topic]}
        if "topic" in said.part("dead_letters"):
            told["dead_letters.topic"] = arena.topic()
        reference = thing.options.get("reference")
        owed = Counter(json.loads(Path(reference).read_text())) if reference else Counter[str]()
        self.sink = UserSink(arena, contents, owed, told)

    def feed(self, records: int) -> None:
        if self._fed == 0:
            self.sink.begin()
        with Producer(self._arena.cluster.bootstrap, AtLeastOnce()) as producer:
            for number, line in enumerate(self._lines[self._fed : records], start=self._fed):
                producer.send(self.topic, line, partition=number % 3)
        self._fed = max(self._fed, records)

    def feed_rest(self) -> None:
        if self._fed < len(self._lines):
            self.feed(len(self._lines))

    def texts(self) -> Sequence[str]:
        return self._lines

    def undisturbed(self, thing: Thing) -> Counter[str]:
        """What is in the sink when nothing has happened to the pipeline."""
        self.feed_rest()
        life = self._arena.start(thing, self.topic, options={**self.sink.options(), "until_end": True})
        if (code := life.end(ENDS_WITHIN)) != 0:
            raise FixConfiguration(
                f"the pipeline does not come to its end without any fault: code {code}, {life.last_words}",
                way_out=f"run it by itself first; its log is {life.log}",
            )
        return Counter(self.sink.rows())


def contents_of(arena: Arena, said: PipelineFile) -> Contents:
    if isinstance(said.sink, KafkaTopic):
        return TopicContents(arena)
    return TableContents(arena, said.sink.table)


def lines_of(file: Path) -> list[str]:
    """The records of a user: one a line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FixConfiguration(
            f"{file} cannot be read: {error}", way_out="name a text file, a record a line"
        ) from error
    if len(lines) < FEWEST:
        raise FixConfiguration(
            f"{file} has {len(lines)} lines: a fault could not meet the pipeline in the middle of them",
            way_out=f"give it {FEWEST} records or more, a record a line",
        )
    return lines


def put_on_trial(scenario: Scenario, file: Path, records: Path, reference: Path) -> Scenario:
    """The scenario with a user's pipeline under test, under the guarantee that it has chosen. Controls stay ours."""
    word, count = read(file).guarantee.word, len(lines_of(records))
    named = {"file": str(file.resolve()), "input": str(records.resolve()), "reference": str(reference)}
    volume = Volume(count, scenario.full.faults)
    return replace(
        scenario,
        things={word: Thing(f"{file.name}, {word}", ROLE, word, {}, named)},
        controls={word: scenario.controls[word]},
        full=volume,
        smoke=volume,
    )


def write_reference(cluster: Cluster | Elsewhere, file: Path, records: Path, folder: Path) -> Path:
    """What the pipeline makes of these records undisturbed. Twice: what differs by itself cannot be compared."""
    first, second = (_undisturbed(cluster, file, records, folder / f"undisturbed-{number}") for number in (1, 2))
    refuse_incomparable(first, second)
    reference = folder / "reference.json"
    reference.write_text(json.dumps(first), encoding="utf-8")
    return reference


def refuse_incomparable(first: Counter[str], second: Counter[str]) -> None:
    """What was made of the same records, undisturbed."""
    if first != second:
        row = next(iter((first - second) + (second - first)))
        raise FixConfiguration(
            f"the pipeline makes something else of the same records each time, such as {row}",
            way_out="leave out what depends on the clock, on chance or on how records fall into batches",
        )
    if not first:
        raise FixConfiguration("the pipeline makes nothing of these records", way_out="give it records that it takes")


def _undisturbed(cluster: Cluster | Elsewhere, file: Path, records: Path, folder: Path) -> Counter[str]:
    folder.mkdir(parents=True)
    word, volume = read(file).guarantee.word, Volume(len(lines_of(records)), 1)
    thing = Thing(file.name, ROLE, word, {}, {"file": str(file.resolve()), "input": str(records.resolve())})
    with Arena(cluster, folder, volume, 0) as arena:
        return UserWork(arena, thing).undisturbed(thing)
