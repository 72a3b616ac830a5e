"""The archive of Spark's classes: made once, used by every session after that, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kept.local.java import find_java
from kept.local.places import cache_directory
from kept.spark.class_archive import make_archive, options, spark_archive

SHARED = "org.apache.spark.SparkContext source: shared objects file (top)"
SESSION = """
import sys
import kept.spark
spark = kept.spark.session("archive", **{
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Xlog:class+load:file={sys.argv[1]}",
})
print(spark.range(3).count())
spark.stop()
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, with the jars that are there already."""
    jars, own = cache_directory() / "jars", tmp_path / "cache"
    own.mkdir()
    (own / "jars").symlink_to(jars)
    monkeypatch.setenv("KEPT_CACHE", str(own))
    return own


def loaded(log: Path) -> str:
    """The classes that a session of a process of its own has loaded, and where from."""
    ended = subprocess.run(
        [sys.executable, "-c", SESSION, str(log)],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["3"], "nothing is said about archives"
    return log.read_text()


@pytest.mark.slow
def test_a_session_takes_its_classes_from_the_archive_and_does_without_a_broken_one(
    cache: Path, tmp_path: Path
) -> None:
    java, told = find_java(), list[str]()
    assert options(java) == ""
    make_archive(told.append)
    path = spark_archive(java)
    assert path.parent.parent == cache
    assert path.exists(), told
    assert SHARED in loaded(tmp_path / "first")
    make_archive(told.append)
    assert len(told) == 1, "it is made once"
    path.unlink()
    path.write_bytes(b"no archive")
    assert SHARED not in loaded(tmp_path / "second")


def test_where_spark_does_not_run_the_archive_is_not_made_and_that_is_said(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("kept.spark.class_archive.TRAINING", cache / "nothing.py")
    make_archive(told.append)
    assert "pipelines will start more slowly" in told[-1]
    assert [each.suffix for each in (cache / "classes").iterdir()] == [".lock"], "no scratch is left"
