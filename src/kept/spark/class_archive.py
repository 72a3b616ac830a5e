"""An archive of Spark's loaded classes (class data sharing): with it a driver starts with about half the work.

It is made once a machine, by a small program that does what pipelines do. Nothing depends on it: where it is missing,
or does not fit the JVM, Spark starts more slowly.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from kept.errors import FixMachine
from kept.local.archives import Archive, archive_path, make_once
from kept.local.java import Java, find_java

TRAINED_WITHIN = 600.0
TRAINING = Path(__file__).with_name("training.py")
SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""An archive that does not fit is left aside by the JVM, which would say so among a pipeline's own lines."""


def spark_archive(java: Java) -> Path:
    """One archive for each Java and Spark."""
    return archive_path(java, f"{_home()} {version('pyspark')}", prefix="spark-")


def options(java: Java) -> str:
    """What the driver's JVM is told: nothing where there is no archive."""
    path = spark_archive(java)
    return f"-XX:SharedArchiveFile={path} {SILENT}" if path.exists() and " " not in str(path) else ""


def make_archive(say: Callable[[str], None]) -> None:
    """Make the archive unless it is there."""
    java = find_java()
    archive = Archive("Spark's class archive", "pipelines", spark_archive(java), TRAINED_WITHIN)
    make_once(archive, partial(_make, java), say)


def _make(java: Java, path: Path) -> None:
    """Under spark-submit the JVM is what ends last; it writes the archive at its end."""
    with tempfile.TemporaryDirectory(prefix="kept-classes-", dir=path.parent) as scratch:
        made = Path(scratch, "spark.jsa")
        learning = f"-XX:ArchiveClassesAtExit={made} {SILENT} -Djava.io.tmpdir={scratch}"
        submit = [str(_home() / "bin" / "spark-submit"), "--driver-java-options", learning, str(TRAINING)]
        known = {
            "JAVA_HOME": str(java.executable.resolve().parents[1]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(_home()),
        }
        ended = subprocess.run(
            submit,
            cwd=scratch,
            env={**os.environ, **known},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TRAINED_WITHIN,
            check=False,
        )
        if ended.returncode != 0 or not made.exists():
            words = (ended.stderr.strip() or "it did not say why").splitlines()[-1]
            raise FixMachine(f"the training ended with {ended.returncode}: {words}", way_out="see that Spark runs here")
        made.replace(path)


def _home() -> Path:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise FixMachine("pyspark cannot be imported", way_out="pip install 'kept[spark]'")
    return Path(found.origin).parent
