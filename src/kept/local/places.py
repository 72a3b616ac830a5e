"""Where things are kept on this machine: the cache that all clusters share, and a cluster's own directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from kept.errors import Busy, DiskFull, FixConfiguration, FixMachine

CLUSTER_DIRECTORY_NAME = ".kept"
OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


def cache_directory() -> Path:
    """What can be fetched again: jars, Java. KEPT_CACHE moves it."""
    if chosen := os.environ.get("KEPT_CACHE"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "kept"


def cluster_directory(chosen: Path | None = None) -> Path:
    """The cluster a command means: the one named, else KEPT_DIR, else the nearest .kept upwards, else here."""
    named = chosen or (Path(os.environ["KEPT_DIR"]) if os.environ.get("KEPT_DIR") else None)
    if named is not None:
        try:
            return named.expanduser().resolve()
        except RuntimeError as error:
            raise FixConfiguration(
                f"there is no directory {named}: {error}", way_out="name one that can be made"
            ) from error
    here = Path.cwd().resolve()
    for directory in (here, *here.parents):
        if (directory / CLUSTER_DIRECTORY_NAME / "cluster.json").is_file():
            return directory / CLUSTER_DIRECTORY_NAME
    return here / CLUSTER_DIRECTORY_NAME


@contextlib.contextmanager
def only_one(lock: Path, doing: str, *, wait_seconds: float = 120.0) -> Iterator[None]:
    """Let one process at a time do this; the kernel frees the lock when its holder dies."""
    with write_errors_told(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Busy(
                        f"another kept command has been {doing} for {wait_seconds:.0f} s (lock {lock})",
                        way_out="wait until it ends, or end it, then try again",
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def write_errors_told(path: Path, *, setting: str = "free some space, or choose another place") -> Iterator[None]:
    """Turn the kernel's refusal to write at this path into an error that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in OUT_OF_ROOM:
            raise disk_full(path, setting=setting) from error
        if error.errno in FORBIDDEN:
            raise FixMachine(
                f"cannot write {error.filename or path}: {error.strerror}",
                way_out="choose another place (KEPT_CACHE for downloads, --dir for a cluster), or mend its permissions",
            ) from error
        raise


def disk_full(path: Path, *, setting: str, needed: int | None = None) -> DiskFull:
    """The error for a disk without room at this path."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    wanted = f"{needed / 1e6:.0f} MB are needed, " if needed is not None else ""
    return DiskFull(f"the disk is full: {wanted}{free / 1e6:.1f} MB are free at {path}", way_out=setting)
