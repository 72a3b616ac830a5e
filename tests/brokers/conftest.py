"""What tests on real services share."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from kept.local import Cluster
from tests.brokers.store_things import a_database


@pytest.fixture
def dsn(cluster: Cluster) -> Iterator[str]:
    """A database of the test's own, with an empty table `effects`."""
    address = a_database(cluster.dsn)
    with psycopg.connect(address) as connection:
        connection.execute("CREATE TABLE effects (partition int, at bigint)")
    yield address
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {address.rpartition('/')[2]} WITH (FORCE)".encode())
