"""No client of ours has a broker make what it asks about: an own carrier made so would be emptied after a week.

librdkafka's producers ask so unless they are told otherwise, and its admin clients are producers. Its consumers do not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.test_layers import MODULES, SOURCE, layer

MADE_OF_A_GUARANTEE = "producer/clients.py"
"""The clients that send a person's records: their settings are rows, each with its reason."""


def made(path: Path) -> Iterator[ast.Call]:
    """Where a module makes an admin client or a producer of librdkafka's, under whatever name."""
    tree = ast.parse(path.read_text())
    asks = {"AdminClient"} if layer(path) == "verify" else {"AdminClient", "Producer"}  # its strangers are as they come
    names = {
        each.asname or each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "confluent_kafka"
        for each in node.names
        if each.name in asks
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_client_that_could_make_a_topic_only_asks(path: Path) -> None:
    if str(path.relative_to(SOURCE)) == MADE_OF_A_GUARANTEE:
        return
    loose = [node.lineno for node in made(path) if not ast.unparse(node.args[0]).startswith("only_asks(")]
    assert loose == [], "give it only_asks(settings)"


def test_they_are_found() -> None:
    """Were none looked at, none would be wrong."""
    assert {"coordinator", "admin", "consumer", "producer", "outbox", "local", "spark", "verify"} <= {
        layer(path) for path in MODULES for _ in made(path)
    }
