"""The public door: `__all__` is what is there, and importing it brings nothing heavy along."""

from __future__ import annotations

import subprocess
import sys

import kept


def test_all_names_exist_and_nothing_public_is_missing() -> None:
    for name in kept.__all__:
        assert getattr(kept, name) is not None
    public = {name for name in vars(kept) if not name.startswith("_")}
    modules = {name for name in public if type(getattr(kept, name)).__name__ == "module"}
    assert public - modules - {"annotations", "TYPE_CHECKING"} <= set(kept.__all__)


def test_the_door_is_small_and_sorted() -> None:
    assert len(kept.__all__) <= 31
    assert kept.__all__ == sorted(kept.__all__)


def test_every_error_of_the_door_is_a_kept_error() -> None:
    errors = [getattr(kept, name) for name in kept.__all__ if isinstance(getattr(kept, name), type)]
    assert [error for error in errors if issubclass(error, Exception) and not issubclass(error, kept.KeptError)] == []


def loaded_by(statement: str) -> set[str]:
    """The top-level packages that a statement imports, in a process of its own."""
    program = f"import sys; sys.argv = ['kept', '--help']\n{statement}\nprint('LOADED', *sorted(sys.modules))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return {name.partition(".")[0] for name in output.splitlines()[-1].split()[1:]}


def test_importing_kept_brings_no_client_and_no_engine() -> None:
    heavy = {"confluent_kafka", "psycopg", "pyspark", "pyarrow", "pandas", "rich", "psutil", "click"}
    assert loaded_by("import kept") & heavy == set()


def test_help_brings_no_client_and_no_engine() -> None:
    heavy = {"confluent_kafka", "psycopg", "pyspark", "pyarrow", "pandas", "rich", "psutil"}
    statement = "import kept.cli.main\ntry: kept.cli.main.main()\nexcept SystemExit: pass"
    assert loaded_by(statement) & heavy == set()
