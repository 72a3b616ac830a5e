"""What the Kafka servers run on: Java, found; the jars, fetched and verified; an archive of loaded classes, if made."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from kept.local.jars import Progress, broker_jars, fetch
from kept.local.java import Java, find_java
from kept.local.kafka import Runtime
from kept.local.places import cache_directory

Say = Callable[[str], None]


def prepared(say: Say = lambda _text: None, progress: Progress | None = None) -> Runtime:
    """Java, found; the jars, fetched and verified; the archive where it has been made."""
    java = find_java()
    jars = fetch(broker_jars(), cache_directory() / "jars", progress or _in_words(say))
    archive = archive_path(java)
    return Runtime(java, jars, archive if archive.exists() else None)


def _in_words(say: Say) -> Progress:
    """Progress for those without a progress bar: one line a quarter."""
    told = -1

    def progress(done: int, whole: int) -> None:
        nonlocal told
        quarter = 4 * done // whole
        if quarter > told:
            told = quarter
            say(f"downloading the broker's jars: {done / 1e6:.0f} of {whole / 1e6:.0f} MB")

    return progress


def archive_path(java: Java) -> Path:
    """One archive for each Java and set of jars: the JVM itself refuses one that does not fit."""
    sums = "".join(jar.sha256 for jar in broker_jars())
    program = java.executable.resolve()
    identity = f"{program} {program.stat().st_mtime_ns} {sums} {cache_directory()}"  # an upgrade keeps the path
    return cache_directory() / "classes" / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"
