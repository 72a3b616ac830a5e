"""Archives of the classes that a JVM has loaded (class data sharing): where they are, and that each is made once."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kept.errors import KeptError
from kept.local.java import Java
from kept.local.places import cache_directory, only_one


class Archive(NamedTuple):
    """What it is called, and who starts in half the time with it."""

    name: str
    who: str
    path: Path
    made_within: float


def archive_path(java: Java, of: str, prefix: str = "") -> Path:
    """One archive for each Java and what is run on it: the JVM itself refuses one that does not fit."""
    program = java.executable.resolve()
    identity = f"{program} {program.stat().st_mtime_ns} {of}"  # an upgrade keeps the path
    return cache_directory() / "classes" / f"{prefix}{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"


def make_once(archive: Archive, make: Callable[[Path], None], say: Callable[[str], None]) -> None:
    """Make it unless it is there. Nothing depends on it: where it cannot be made, that is said."""
    name, who, path, within = archive
    try:
        with only_one(path.with_suffix(".lock"), f"preparing {name}", wait_seconds=within):
            if not path.exists():
                say(f"preparing {name} (once; {who} then start in half the time)")
                make(path)
    except (KeptError, OSError, subprocess.SubprocessError) as error:
        say(f"{name} could not be made, {who} will start more slowly ({error})")
