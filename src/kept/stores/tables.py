"""The tables that kept makes in the user's database when they are missing, safely when two processes do so at once."""

from __future__ import annotations

from collections.abc import Mapping

from kept.stores.sessions import Session, transaction
from kept.stores.sql_errors import told_as

MAKING_TABLES = 0x6B657074  # the advisory lock: "kept" in ASCII
PROGRESS_TABLES = {
    "kept_pipelines": """
        CREATE TABLE IF NOT EXISTS kept_pipelines (
            pipeline text NOT NULL,
            topic text NOT NULL,
            born_at timestamptz NOT NULL DEFAULT now(),
            topic_id text NOT NULL,
            partitions int NOT NULL,
            PRIMARY KEY (pipeline, topic))
    """,
    "kept_progress": """
        CREATE TABLE IF NOT EXISTS kept_progress (
            pipeline text NOT NULL,
            topic text NOT NULL,
            partition int NOT NULL,
            next_offset bigint NOT NULL CHECK (next_offset >= 0),
            cluster_id text NOT NULL,
            topic_id text NOT NULL,
            leader_epoch int NOT NULL,
            generation bigint NOT NULL,
            owner text NOT NULL,
            updated_at timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (pipeline, topic, partition))
    """,
    "kept_sinks": """
        CREATE TABLE IF NOT EXISTS kept_sinks (
            pipeline text PRIMARY KEY,
            sink text NOT NULL,
            table_oid bigint,
            beside bigint NOT NULL,
            noted_at timestamptz NOT NULL DEFAULT now())
    """,
}


def make_missing(session: Session, tables: Mapping[str, str]) -> None:
    """Make each table that is not there; who may not make tables may still use them.

    IF NOT EXISTS alone is not enough: two that make the same table at once collide in the catalog. The lock alone is
    not either: a table that was missing a moment ago is remembered as missing, without a look.
    """
    with told_as("looking for the tables of kept"):
        query = "SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NULL"
        missing = [name for (name,) in session.execute(query, (list(tables),)).fetchall()]
    if not missing:
        return
    with transaction(session, "making the tables of kept"):
        session.execute("SELECT pg_advisory_xact_lock(%s)", (MAKING_TABLES,))
        for name in missing:
            session.execute(tables[name].encode())
