"""Java 17 or later: found where people keep it, or fetched when it is asked for."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kept.errors import JavaMissing
from kept.local.places import OUT_OF_ROOM, cache_directory, only_one, write_errors_told

OLDEST = 17
DEBIAN_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "openjdk-25-jre-headless")
BY_HAND = (
    "install Java 17 or later (`apt-get install default-jre-headless` or `brew install openjdk@17`) or set JAVA_HOME"
)


@dataclass(frozen=True)
class Java:
    """A Java that can be run, and its major version."""

    executable: Path
    version: int


def find_java() -> Java:
    """The first Java that is new enough: JAVA_HOME, PATH, then the cache."""
    too_old = []
    for candidate in _candidates():
        version = _version(candidate)
        if version is not None and version >= OLDEST:
            return Java(candidate, version)
        too_old.append(f"{candidate} is Java {version}" if version else f"{candidate} does not run")
    found = f" ({'; '.join(too_old)})" if too_old else ""
    raise JavaMissing(f"no Java {OLDEST} or later was found{found}", way_out=f"type `kept prepare`, or {BY_HAND}")


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield Path(on_path)
    if (fetched := cache_directory() / "java").is_dir():
        yield from sorted(fetched.glob("*/bin/java"))
        yield from sorted(fetched.glob("*/Contents/Home/bin/java"))


def _version(executable: Path) -> int | None:
    """The major version; None when it does not run (macOS has a /usr/bin/java that only asks for Java)."""
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(rb'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match[1]) if match and answer.returncode == 0 else None


def install_java(say: Callable[[str], None]) -> Java:
    """Find Java, or get one: from the system when we are root on Debian, else into our cache."""
    try:
        return find_java()
    except JavaMissing:
        if os.geteuid() == 0 and shutil.which("apt-get"):
            _from_debian(say)
        else:
            _into_cache(say)
    return find_java()


def _from_debian(say: Callable[[str], None]) -> None:
    say("no Java found; installing one with apt-get")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    steps = [["apt-get", "-qq", "update"]]
    steps += [["apt-get", "-qq", "install", "-y", "--no-install-recommends", name] for name in DEBIAN_PACKAGES]
    problem = "it did not say why"
    for step in steps:
        result = subprocess.run(step, env=quiet, capture_output=True, text=True, check=False)
        if result.returncode == 0 and "install" in step:
            return
        problem = result.stderr.strip() or problem
    raise JavaMissing(f"apt-get could not install Java: {problem.splitlines()[-1]}", way_out=BY_HAND)


def _into_cache(say: Callable[[str], None]) -> None:
    where = cache_directory() / "java"
    room = f"free some space there and in {tempfile.gettempdir()}, or set KEPT_CACHE to a directory with room"
    with only_one(cache_directory() / "java.lock", "installing Java"), write_errors_told(where, setting=room):
        with contextlib.suppress(JavaMissing):
            find_java()
            return  # somebody else fetched it while we waited
        say(f"no Java found; downloading Java {OLDEST} into {where}")
        arriving = cache_directory() / "java.part"
        shutil.rmtree(arriving, ignore_errors=True)
        arriving.mkdir(parents=True)
        unpacked = _download(arriving)
        where.mkdir(exist_ok=True)
        shutil.rmtree(where / unpacked.name, ignore_errors=True)  # one that does not run
        unpacked.replace(where / unpacked.name)
        shutil.rmtree(arriving, ignore_errors=True)


def _download(directory: Path) -> Path:
    import jdk  # noqa: PLC0415 - only machines without Java need it

    try:
        return Path(jdk.install(str(OLDEST), path=str(directory), jre=True))
    except Exception as error:
        cause = error.__cause__ or error
        if isinstance(cause, OSError) and cause.errno in OUT_OF_ROOM:
            raise cause from error
        raise JavaMissing(f"Java could not be downloaded: {error}", way_out=BY_HAND) from error
