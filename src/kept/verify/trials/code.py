"""Which code is under test: pieces of a proof that were made by different code are no proof of either."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import kept

PACKAGE = Path(kept.__file__).parent
LENGTH = 12
ANSWERS_WITHIN = 10.0
_NOT_SOURCE = frozenset({".pyc", ".pyo"})


def code(package: Path = PACKAGE) -> str:
    """The commit that last changed the package, where there is one; with what was changed since, or without one: a
    hash of its files. A commit that changes only what stands beside the package is the same code.
    """
    commit = _asked("log", "-1", "--format=%H", "--", ".", at=package)
    if not commit:
        return f"files {hash_of(package)}"
    changed = _asked("status", "--porcelain", "--", ".", at=package)
    return f"commit {commit[:LENGTH]}" + (f", changed: files {hash_of(package)}" if changed != "" else "")


def hash_of(package: Path) -> str:
    """Of every file's name and bytes."""
    found = hashlib.sha256()
    for file in sorted(package.rglob("*")):
        if file.is_file() and file.suffix not in _NOT_SOURCE:
            data = file.read_bytes()
            found.update(f"{file.relative_to(package).as_posix()} {len(data)}\n".encode() + data)
    return found.hexdigest()[:LENGTH]


def _asked(*question: str, at: Path) -> str | None:
    """What git says; None where there is none, or no repository."""
    try:
        done = subprocess.run(
            ["git", *question], cwd=at, capture_output=True, text=True, check=False, timeout=ANSWERS_WITHIN
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
