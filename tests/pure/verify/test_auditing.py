"""The audit shares nothing with what it audits, and knows an end from a place where an open transaction holds it up."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kept.verify.trials import auditing, plain_reading
from kept.verify.trials.plain_reading import without_ended


@pytest.mark.parametrize("module", [auditing, plain_reading], ids=lambda module: str(module.__name__))
def test_what_audits_reads_with_nothing_of_the_product(module: object) -> None:
    """What topics and tables hold is read by other people's clients; kept lends its words for errors, and no more."""
    tree = ast.parse(Path(str(getattr(module, "__file__"))).read_text())  # noqa: B009 - a module, by whatever name
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    ours = [name for name in names if name.partition(".")[0] == "kept"]
    assert [name for name in ours if name != "kept.errors" and not name.startswith("kept.verify.")] == []


def test_an_end_below_the_end_of_the_log_is_none() -> None:
    """A reader of what is committed is told of an end where the first open transaction begins."""
    behind = {0: 10, 1: 7}
    assert without_ended(behind, 0, 9) == behind
    assert without_ended(behind, 0, 10) == {1: 7}
    assert without_ended({1: 7}, 1, 8) == {}
    assert without_ended(behind, 2, 5) == behind
