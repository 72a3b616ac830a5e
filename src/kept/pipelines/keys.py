"""What a pipeline file may say: every key, what is expected there, and how it is read. Errors come from here, too."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kept.errors import FixConfiguration
from kept.guarantees import ExactlyOnce
from kept.guarantees.levels import WORDS
from kept.pipelines.lines import Path

AVAILABLE_NOW = "available-now"
_EVERY = re.compile(r"every (\d+(?:\.\d+)?) ?s(?:econds?)?")
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class Unexpected(ValueError):
    """The value is of the right type, and wrong all the same; the text says how."""


@dataclass(frozen=True)
class Key:
    """One key: where it stands, what is expected, and how the value is read (ValueError: it is not that)."""

    path: Path
    expected: str
    read: Callable[[Any], Any]
    about: str
    required: bool = False

    @property
    def name(self) -> str:
        return ".".join(self.path)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_text(value),)
    if not isinstance(value, list) or not value:
        raise ValueError
    return tuple(_text(each) for each in value)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError
    return float(value)


def _name(value: object) -> str:
    try:
        return ExactlyOnce(_text(value)).name
    except FixConfiguration as error:
        raise Unexpected(error.way_out.partition(", for example")[0]) from None


def _one_of(*words: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in words:
            raise ValueError
        return str(value)

    return read


def _start(value: object) -> str | datetime:
    if value in ("beginning", "end"):
        return str(value)
    if isinstance(value, str):
        value = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", value))
    if not isinstance(value, datetime):
        raise ValueError  # noqa: TRY004 - told as what was expected
    if value.tzinfo is None:
        raise Unexpected("the time does not say its zone")
    return value


def _trigger(value: object) -> float | None:
    """The seconds between batches; None: what is there now, then the end."""
    if value == AVAILABLE_NOW:
        return None
    found = _EVERY.fullmatch(_text(value))
    if found is None:
        raise ValueError
    return float(found[1])


def _function(value: object) -> str:
    if not _FUNCTION.fullmatch(_text(value)):
        raise ValueError
    return str(value)


def _settings(value: object) -> dict[str, str]:
    """Names of another program's settings and their values; dots in unquoted names make tables, which are undone."""
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004 - told as what was expected
    found: dict[str, str] = {}
    for name, each in value.items():
        if isinstance(each, dict):
            found |= {f"{name}.{rest}": inner for rest, inner in _settings(each).items()}
        elif isinstance(each, bool):
            found[name] = str(each).lower()
        elif isinstance(each, str | int | float):
            found[name] = str(each)
        else:
            raise Unexpected(f"{name} is neither text nor a number nor true or false")
    return found


LETTERS = "kept_dead_letters"
SETTINGS = "a table of settings, name = value"
KEYS = (
    Key(("name",), "a name", _name, "whose progress it is; the same from start to start", required=True),
    Key(("guarantee",), f"one of {', '.join(WORDS)}", _one_of(*WORDS), "the promise, in one word", required=True),
    Key(
        ("trigger",),
        f'"{AVAILABLE_NOW}" or "every 10 s"',
        _trigger,
        "when the next batch begins; left out: as soon as the last has ended",
    ),
    Key(("checkpoint",), "a directory", _text, "where Spark keeps its own notes; may be left out, and lost"),
    Key(
        ("emit",),
        '"changes" or "final"',
        _one_of("changes", "final"),
        "what a transform with state lets out: each result that has changed, or each once, when it is final",
    ),
    Key(("source", "bootstrap"), "host:port, ...", _text, "the Kafka that is read", required=True),
    Key(("source", "topics"), "a topic, or a list of topics", _texts, "what is read"),
    Key(("source", "pattern"), "a regular expression", _text, "or: every topic whose name matches"),
    Key(("source", "start"), '"beginning", "end" or a time with its zone', _start, "where a new pipeline begins"),
    Key(("source", "max_per_batch"), "a number of records, 1 or more", _count, "bounds a batch"),
    Key(
        ("source", "schema"),
        'columns as Spark writes them, such as "id STRING, amount DECIMAL(12,2)"',
        _text,
        "values are JSON: `value` has these columns; left out: `value` is the bytes as they are",
    ),
    Key(("source", "client"), SETTINGS, _settings, "librdkafka's settings for a connection that needs more"),
    Key(("source", "options"), SETTINGS, _settings, "options of Spark's own Kafka source"),
    Key(
        ("transform", "function"),
        '"package.module:function"',
        _function,
        "a Python function from DataFrame to DataFrame; modules beside the file are found",
    ),
    Key(("transform", "sql"), "a SELECT over the table source", _text, "or: SQL; the place of each row comes along"),
    Key(
        ("sink", "postgres"),
        "a DSN without a password, env:NAME or file:PATH",
        _text,
        "the Postgres that is written",
    ),
    Key(("sink", "table"), "a table, or schema.table", _text, "made when it is missing"),
    Key(
        ("sink", "key"),
        "a column, or a list of columns",
        _texts,
        "Postgres: what tells rows apart; Kafka: the column that becomes the record's key",
    ),
    Key(
        ("sink", "mode"),
        '"append" or "upsert"',
        _one_of("append", "upsert"),
        "a row whose key is there: left out, or put in its place",
    ),
    Key(("sink", "kafka"), "host:port, ...", _text, "or: the Kafka that is written"),
    Key(("sink", "topic"), "a topic", _text, "where records go; left out: where the column topic says"),
    Key(
        ("sink", "value"),
        "a column",
        _text,
        "the record's value; left out: the column value, else all columns as JSON",
    ),
    Key(("sink", "headers"), "a table, header = column", _settings, "the record's headers"),
    Key(("sink", "producer"), SETTINGS, _settings, "librdkafka's settings for producers, and for the connection"),
    Key(
        ("dead_letters", "table"),
        f'"{LETTERS}"',
        _one_of(LETTERS),
        "Postgres: records that cannot be read, or are refused, go there, in the transaction of the good rows",
    ),
    Key(
        ("dead_letters", "topic"),
        "a topic",
        _text,
        "Kafka: the same, in a topic of the sink's cluster; left out both: such a record stops the pipeline",
    ),
    Key(("limits", "rows"), "a number, 1 or more", _count, "rows of one transaction"),
    Key(("limits", "bytes"), "a number, 1 or more", _count, "bytes of one transaction"),
    Key(("limits", "seconds"), "a number of seconds", _number, "how long a transaction gathers rows"),
    Key(("limits", "patience"), "a number of seconds", _number, "how long a task waits for a sink that is away"),
    Key(("spark", "master"), 'a master of Spark, such as "local[4]"', _text, "left out: this machine"),
    Key(("spark", "conf"), SETTINGS, _settings, "settings of Spark"),
)
BY_PATH: Mapping[Path, Key] = {key.path: key for key in KEYS}
TABLES = {key.path[:1] for key in KEYS if len(key.path) > 1}
