"""Where the demo plays: a topic and a schema of its own on a Kafka and a Postgres, gone afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier

from kept.admin.groups import Groups
from kept.admin.topics import Topics
from kept.errors import FixConfiguration
from kept.guarantees import ExactlyOnce
from kept.guarantees.levels import WORDS
from kept.stores.sql_errors import told_as

PARTITIONS = 3
DOING = "making room for the demo in Postgres"


@dataclass(frozen=True)
class Place:
    """Two servers, and names that nobody else has. Connections by `dsn` see the schema and nothing else."""

    bootstrap: str
    dsn: str = field(repr=False)
    name: str

    @property
    def topic(self) -> str:
        return self.name

    def pipeline(self, guarantee: str) -> str:
        return f"{self.name}-{guarantee}"

    def table(self, guarantee: str) -> str:
        return f"payments_{guarantee.replace('-', '_')}"


@contextmanager
def place(bootstrap: str, dsn: str) -> Iterator[Place]:
    """Make what the demo needs, and take it away at the end, whatever happened."""
    name = f"kept-demo-{uuid.uuid4().hex[:8]}"
    schema = name.replace("-", "_")
    here = Place(bootstrap, _inside(dsn, schema), name)
    topics = Topics(bootstrap)
    topics.list()  # a Kafka that does not answer is told before anything is made
    with ExitStack() as undo:
        # Each way back before the way: who is interrupted in between has made it all the same.
        undo.callback(_drop, dsn, schema)
        with told_as(DOING), psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(SQL("CREATE SCHEMA {}").format(Identifier(schema)))
        undo.callback(_forget_groups, here)
        undo.callback(_delete_topic, here)
        topics.create(here.topic, PARTITIONS, ExactlyOnce(name))
        yield here


def _inside(dsn: str, schema: str) -> str:
    """The tables of kept are made in the schema too: those of a user's own pipelines are not touched."""
    try:
        said = conninfo_to_dict(dsn).get("options") or ""
    except psycopg.ProgrammingError as error:
        raise FixConfiguration(
            f"the DSN cannot be read: {error}", way_out="write postgresql://user@host/database"
        ) from None
    return make_conninfo(dsn, options=f"{said} -csearch_path={schema}".strip())


def _drop(dsn: str, schema: str) -> None:
    with told_as("removing the demo's tables"), psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(schema)))


def _delete_topic(here: Place) -> None:
    with suppress(FixConfiguration):  # it was never made
        Topics(here.bootstrap).delete(here.topic)


def _forget_groups(here: Place) -> None:
    """The producer's mark, and what each pipeline showed to lag tools."""
    groups = Groups(here.bootstrap)
    for name in (here.name, *(here.pipeline(word) for word in WORDS)):
        groups.delete(ExactlyOnce(name).group)
