"""A pipeline in a TOML file: read, compared with what a file may say, and turned into values. No Spark, no network.

Every problem is told at once, each with its line, its key and what was expected there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path as File
from typing import Any

from kept.errors import FixConfiguration
from kept.guarantees import ExactlyOnce, Guarantee, parse
from kept.pipelines.keys import BY_PATH, KEYS, TABLES, Key, Unexpected
from kept.pipelines.lines import NotToml, Path, lines, parsed
from kept.pipelines.references import is_reference, names_a_secret, without_password

MOST_BYTES = 1_000_000
DSN_IN_THE_OPEN = (
    "a password stands in the file, and files are shared: put the DSN elsewhere, and write "
    'postgres = "env:NAME" or "file:PATH"; or leave the password to ~/.pgpass'
)
IN_THE_OPEN = 'this is a secret, and files are shared: put it elsewhere, and write "env:NAME" or "file:PATH"'
KEYS_OF_A_SINK = {
    "postgres": {"postgres", "table", "key", "mode"},
    "kafka": {"kafka", "topic", "key", "value", "headers", "producer"},
}


@dataclass(frozen=True)
class PostgresTable:
    """The sink is a table."""

    dsn: str
    table: str
    key: tuple[str, ...]
    upsert: bool


@dataclass(frozen=True)
class KafkaTopic:
    """The sink is a topic; columns by name for what a record is made of."""

    bootstrap: str
    topic: str | None
    value: str | None
    key: str | None
    headers: Mapping[str, str]
    producer: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class PipelineFile:
    """What a file says. Secrets are still references."""

    file: File
    text: str = field(repr=False)
    values: Mapping[Path, Any] = field(repr=False)

    @property
    def name(self) -> str:
        return str(self.values["name",])

    @property
    def guarantee(self) -> Guarantee:
        word = self.values["guarantee",]
        return parse(word, self.name if word == ExactlyOnce.word else None)

    @property
    def every(self) -> float | None:
        """Seconds between batches; None: what is there now, then the end."""
        seconds: float | None = self.values.get(("trigger",), 0.0)
        return seconds

    @property
    def checkpoint(self) -> str | None:
        """A path is meant from where the file is; an address with a scheme stays as it is."""
        given = self.values.get(("checkpoint",))
        if given is None or ":" in given.partition("/")[0]:
            return given
        return str(self.directory / given)

    @property
    def emit(self) -> str | None:
        """What a transform with state lets out; None: what suits the sink."""
        return self.values.get(("emit",))

    @property
    def start(self) -> str | datetime:
        start: str | datetime = self.values.get(("source", "start"), "beginning")
        return start

    @property
    def sink(self) -> PostgresTable | KafkaTopic:
        said = self.part("sink")
        key = said.get("key", ())
        if "postgres" in said:
            return PostgresTable(said["postgres"], said["table"], key, said.get("mode") == "upsert")
        return KafkaTopic(
            said["kafka"],
            said.get("topic"),
            said.get("value"),
            key[0] if key else None,
            said.get("headers", {}),
            said.get("producer", {}),
        )

    @property
    def buries(self) -> bool:
        """Whether the file keeps dead letters."""
        return bool(self.part("dead_letters"))

    def part(self, table: str) -> dict[str, Any]:
        """What a table of the file says, by the names of its keys."""
        return {path[1]: value for path, value in self.values.items() if len(path) > 1 and path[0] == table}

    @property
    def directory(self) -> File:
        return self.file.absolute().parent

    def wrong(self, path: Path, what: str, way_out: str) -> FixConfiguration:
        """An error about one key, for whoever finds out later."""
        return FixConfiguration(f"{_place(self.file, self._lines, path)}: {what}", way_out=way_out)

    @cached_property
    def _lines(self) -> dict[Path, int]:
        return lines(self.text)


def read(file: File) -> PipelineFile:
    """What the file says, or everything that is wrong with it."""
    try:
        data = file.read_bytes()
        if len(data) > MOST_BYTES:
            raise FixConfiguration(f"{file} has {len(data)} bytes: no pipeline is that long", way_out="name another")
        text = data.decode().replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FixConfiguration(
            f"{file} cannot be read: {error}", way_out="name a TOML file; docs/pipelines.md shows one"
        ) from error
    return understood(file, text)


def understood(file: File, text: str) -> PipelineFile:
    """The file with this text."""
    try:
        said = parsed(text)
    except NotToml as error:
        raise FixConfiguration(
            f"{file}:{error.line}: this is not TOML: {error.what}", way_out='write key = "value", and text in quotes'
        ) from None
    values: dict[Path, Any] = {}
    problems = [*_unknown(said), *_unreadable(said, values), *_missing(said)]
    if not problems:
        problems = [*_contradictions(values), *_secrets(values)]
    if not problems:
        return PipelineFile(file, text, values)
    where = lines(text)
    told = sorted((where.get(path) or where.get(path[:-1]) or 1, path, what) for path, what in problems)
    words = [f"{_place(file, where, path)}: {what}" for _, path, what in told]
    raise FixConfiguration(
        words[0] if len(words) == 1 else f"{len(words)} things are wrong\n  " + "\n  ".join(words),
        way_out=f"mend {'this line' if len(words) == 1 else 'these lines'}; docs/pipelines.md shows every key",
    )


def _place(file: File, where: Mapping[Path, int], path: Path) -> str:
    line = where.get(path) or where.get(path[:-1]) or 1
    return f"{file}:{line}: {'.'.join(path)}"


def _found(said: Mapping[str, Any], path: Path) -> Any:
    here: Any = said
    for name in path:
        here = here.get(name) if isinstance(here, dict) else None
    return here


def _unknown(said: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    for name, value in said.items():
        if (name,) in TABLES:
            if isinstance(value, dict):
                yield from (((name, inner), _guess((name, inner))) for inner in value if (name, inner) not in BY_PATH)
            else:
                yield (name,), f"expected a table: [{name}] on a line of its own, and its keys below"
        elif (name,) not in BY_PATH:
            yield (name,), _guess((name,))


def _guess(path: Path) -> str:
    """The key that was probably meant: of a similar name beside it, or of the same name elsewhere."""
    siblings = [key.path[-1] for key in KEYS if key.path[:-1] == path[:-1]]
    siblings += [table[0] for table in TABLES if len(path) == 1]
    close = get_close_matches(path[-1], siblings, n=1)
    elsewhere = [key.name for key in KEYS if key.path[-1] == path[-1]]
    if close:
        hint = f"did you mean {close[0]}?"
    elif elsewhere:
        hint = f"did you mean {elsewhere[0]}?"
    else:
        hint = f"known here: {', '.join(siblings)}"
    return f"no such key; {hint}"


def _unreadable(said: Mapping[str, Any], values: dict[Path, Any]) -> Iterator[tuple[Path, str]]:
    for key in KEYS:
        value = _found(said, key.path)
        if value is None:
            continue
        try:
            values[key.path] = key.read(value)
        except Unexpected as error:
            yield key.path, str(error)
        except ValueError:
            yield key.path, f"expected {key.expected}, found {_shown(key, value)}"


def _shown(key: Key, value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    if key.path == ("sink", "postgres"):
        return "something else"  # it may hold a secret
    words = key.expected.replace('"', "").replace(",", "").split()
    close = get_close_matches(str(value), words, n=1)
    text = repr(value) if len(repr(value)) < 60 else f"{repr(value)[:60]}..."
    return text + (f"; did you mean {close[0]}?" if close else "")


def _missing(said: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    for key in KEYS:
        if key.required and _found(said, key.path) is None:
            yield key.path, f"missing: {key.expected} ({key.about})"
    if "sink" not in said:
        yield ("sink",), "missing: a table [sink] with postgres and table, or with kafka and topic"


def _contradictions(values: Mapping[Path, Any]) -> Iterator[tuple[Path, str]]:
    if (("source", "topics") in values) == (("source", "pattern") in values):
        yield ("source", "topics"), "expected either topics or pattern"
    if ("transform", "function") in values and ("transform", "sql") in values:
        yield ("transform", "sql"), "expected either function or sql"
    kinds = [kind for kind in KEYS_OF_A_SINK if ("sink", kind) in values]
    if len(kinds) != 1:
        yield ("sink",), "expected either postgres or kafka: where rows go"
        return
    strange = [path for path in values if path[0] == "sink" and path[1] not in KEYS_OF_A_SINK[kinds[0]]]
    yield from ((path, f"has no meaning for a sink in {kinds[0].capitalize()}") for path in strange)
    yield from _about_postgres(values) if kinds == ["postgres"] else _about_kafka(values)
    yield from _about_letters(values, kinds[0])


def _about_postgres(values: Mapping[Path, Any]) -> Iterator[tuple[Path, str]]:
    if ("sink", "table") not in values:
        yield ("sink", "table"), "missing: the table that rows go to"
    if values.get(("sink", "mode")) == "upsert" and ("sink", "key") not in values:
        yield ("sink", "mode"), "upsert needs a key: the column that tells rows apart"


def _about_kafka(values: Mapping[Path, Any]) -> Iterator[tuple[Path, str]]:
    if len(values.get(("sink", "key"), ())) > 1:
        yield ("sink", "key"), "expected one column: a record has one key"
    if ("sink", "topic") not in values and not any(path[0] == "transform" for path in values):
        yield ("sink", "topic"), "missing: without a transform records would go back to where they came from"


def _about_letters(values: Mapping[Path, Any], kind: str) -> Iterator[tuple[Path, str]]:
    """Letters elsewhere than the rows would not be in their transaction."""
    right, other = ("table", "topic") if kind == "postgres" else ("topic", "table")
    if ("dead_letters", other) in values:
        yield (
            ("dead_letters", other),
            f"rows go to {kind.capitalize()}, and letters must be in the same transaction: expected {right}",
        )
    topic = values.get(("dead_letters", "topic"))
    if topic is not None and topic in (*values.get(("source", "topics"), ()), values.get(("sink", "topic"))):
        yield ("dead_letters", "topic"), "the pipeline reads or writes this topic: letters need one of their own"


def _secrets(values: Mapping[Path, Any]) -> Iterator[tuple[Path, str]]:
    dsn = values.get(("sink", "postgres"), "env:")
    if not is_reference(dsn) and not without_password(dsn):
        yield ("sink", "postgres"), DSN_IN_THE_OPEN
    for path, value in values.items():
        if isinstance(value, dict):
            for name, each in value.items():
                if names_a_secret(name) and not is_reference(each):
                    yield (*path, name), IN_THE_OPEN
