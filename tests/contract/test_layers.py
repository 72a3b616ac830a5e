"""The shape that ARCHITECTURE.md promises: imports point down, pure packages do no I/O, modules stay small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "kept"
MODULES = sorted(SOURCE.rglob("*.py"))
ANY = {
    "aio", "cli", "demo", "pipelines", "spark", "verify", "local", "outbox", "producer", "consumer", "admin", "stores",
    "progress", "guarantees", "errors", "coordinator", "_version",
}  # fmt: skip
MAY_IMPORT = {
    "cli": ANY,
    "aio": {"aio", "outbox", "producer", "consumer", "guarantees", "errors"},
    "verify": {
        "verify",
        "spark",
        "pipelines",
        "outbox",
        "producer",
        "consumer",
        "admin",
        "local",
        "stores",
        "progress",
        "guarantees",
        "errors",
        "_version",
    },
    "demo": {"demo", "producer", "admin", "stores", "local", "guarantees", "errors", "_version"},
    "pipelines": {"pipelines", "admin", "progress", "guarantees", "errors"},
    "spark": {"spark", "pipelines", "consumer", "producer", "stores", "local", "progress", "guarantees", "errors"},
    "local": {"local", "coordinator", "guarantees", "errors"},
    "outbox": {"outbox", "producer", "stores", "progress", "guarantees", "errors"},
    "producer": {"producer", "coordinator", "progress", "guarantees", "errors"},
    "consumer": {"consumer", "producer", "stores", "coordinator", "progress", "guarantees", "errors"},
    "admin": {"admin", "coordinator", "guarantees", "errors"},
    "stores": {"stores", "progress", "guarantees", "errors"},
    "progress": {"progress", "guarantees", "errors"},
    "guarantees": {"guarantees", "errors"},
    "errors": set(),
    "coordinator": {"guarantees"},
    "_version": set(),
    "__init__": ANY,
    "__main__": {"cli"},
}
PURE = {"guarantees", "progress", "errors"}
# What judges must not be able to look anywhere but into the history.
PURE_IN_VERIFY = (
    "verify/checkers/", "verify/allowed.py", "verify/applicable.py", "verify/cells.py", "verify/stretches.py",
    "verify/timeline.py",
    "verify/verdict.py", "verify/workload.py", "verify/history/events.py", "verify/history/view.py",
)  # fmt: skip
STDLIB_WITHOUT_IO = {
    "__future__", "abc", "collections", "dataclasses", "enum", "functools", "hashlib", "itertools", "json", "math",
    "operator", "random", "re", "types", "typing", "uuid",
}  # fmt: skip
# The command that tells a schedule again is a shell: it prints.
SHELLS = {"progress/model/__main__.py"}


def layer(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides its layer"
            yield from (
                [f"kept.{alias.name}" for alias in node.names] if node.module == "kept" else [node.module or ""]
            )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("kept.")}
    known = {name for name in ours if (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").exists()}
    assert known - MAY_IMPORT[layer(path)] == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_pure_packages_do_no_io(path: Path) -> None:
    name = str(path.relative_to(SOURCE))
    if (layer(path) not in PURE and not name.startswith(PURE_IN_VERIFY)) or name in SHELLS:
        return
    others = {name.partition(".")[0] for name in imports(path)} - {"kept"}
    assert others - STDLIB_WITHOUT_IO == set()
    calls = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
    assert calls & {"open", "print", "input"} == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_say_their_job_and_stay_small(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "no sentence says what this module is for"
    assert text.count("\n") <= 400


def test_every_layer_is_on_the_map() -> None:
    assert {layer(path) for path in MODULES} == set(MAY_IMPORT)
    page = (SOURCE.parents[1] / "ARCHITECTURE.md").read_text()
    assert [name for name in MAY_IMPORT if (SOURCE / name).is_dir() and f"{name}/" not in page] == []
    assert page.count("\n") <= 60, "ARCHITECTURE.md fits one screen"


def test_only_the_pipeline_imports_spark() -> None:
    users = {layer(path) for path in MODULES for name in imports(path) if name.partition(".")[0] in ("pyspark", "py4j")}
    assert users == {"spark"}
