"""A cluster that goes down with whoever asked for it, even when that process is killed without a word.

A watcher in a process of its own reads a pipe that only the owner can write to; when the owner ends,
however it ends, the pipe ends, and the watcher takes the cluster down.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kept.local.cluster import Cluster


@contextmanager
def tethered(cluster: Cluster) -> Iterator[Cluster]:
    """Whatever is started in this block is down after it, and after the end of this process."""
    watcher = subprocess.Popen(
        [sys.executable, "-m", "kept.local.tether", str(cluster.directory)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield cluster
    finally:
        cluster.down()
        watcher.communicate()


if __name__ == "__main__":
    sys.stdin.buffer.read()
    Cluster(Path(sys.argv[1])).down()
