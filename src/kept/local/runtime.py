"""What the Kafka servers run on: Java, found; the jars, fetched and verified; an archive of loaded classes, if made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kept.local.archives import archive_path
from kept.local.jars import Progress, broker_jars, fetch
from kept.local.java import Java, find_java
from kept.local.kafka import Runtime
from kept.local.places import cache_directory

Say = Callable[[str], None]


def prepared(say: Say = lambda _text: None, progress: Progress | None = None) -> Runtime:
    """Java, found; the jars, fetched and verified; the archive where it has been made."""
    java = find_java()
    jars = fetch(broker_jars(), cache_directory() / "jars", progress or in_words(say, "the broker's jars"))
    archive = broker_archive(java)
    return Runtime(java, jars, archive if archive.exists() else None)


def in_words(say: Say, what: str) -> Progress:
    """Progress for those without a progress bar: one line a quarter."""
    told = -1

    def progress(done: int, whole: int) -> None:
        nonlocal told
        quarter = 4 * done // whole
        if quarter > told:
            told = quarter
            say(f"downloading {what}: {done / 1e6:.0f} of {whole / 1e6:.0f} MB")

    return progress


def broker_archive(java: Java) -> Path:
    """One archive for each Java and set of jars."""
    sums = "".join(jar.sha256 for jar in broker_jars())
    return archive_path(java, f"{sums} {cache_directory()}")
