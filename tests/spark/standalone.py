"""A Spark standalone cluster on this machine: a master and two workers, whose machines can be lost.

    with standalone(folder) as there: kept.spark.session(master=there.url)

Every process works in a folder of its own server: what lives there is what is killed, and what must not be left over.
The workers have different names of this machine: Spark never starts the copy of a task on the host of the first.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyspark

from kept.local import processes
from kept.local.java import find_java
from kept.local.ports import HOST, choose
from tests.spark.conftest import ROOT

HOSTS = {1: "127.0.0.1", 2: "localhost"}
SPARK_HOME = Path(pyspark.__file__).parent
READY_WITHIN = 60.0
USUAL = {"master": 7077, "web": 8080}
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# What a driver asks for: one executor of one core on each worker, and both before it begins.
SESSION = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.executor.extraJavaOptions": SMALL,
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.locality.wait": "0s",
}


def living(folder: Path) -> list[psutil.Process]:
    """Every process whose working directory is here."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if Path(process.cwd()).is_relative_to(folder):
                found.append(process)
    return found


class Standalone:
    """The servers of one cluster, by their folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        ports = choose(USUAL, avoid=USUAL.values())
        self.url = f"spark://{HOST}:{ports['master']}"
        self._web = ports["web"]
        self._started: list[subprocess.Popen[bytes]] = []

    def up(self) -> None:
        where = ["--host", HOST, "--port", self.url.rpartition(":")[2], "--webui-port", str(self._web)]
        self._launch("master", "master.Master", *where)
        self._wait_until("status", "ALIVE")  # a worker that comes earlier is not heard, and waits long to say it again
        for number in HOSTS:
            self.start(number)
        self.wait_for_workers()

    def start(self, number: int) -> None:
        """Start a worker; do not wait."""
        size = ["--host", HOSTS[number], "--cores", "1", "--memory", "1g", "--webui-port", "0"]
        folder = self.folder_of(number)
        self._launch(folder.name, "worker.Worker", *size, "--work-dir", str(folder), self.url)

    def kill(self, number: int) -> None:
        """SIGKILL for the worker, its executors and their Python, as when its machine is lost."""
        processes.kill(living(self.folder_of(number)))

    def alive(self, number: int) -> set[int]:
        """The ids of the processes that a worker consists of."""
        return {each.pid for each in living(self.folder_of(number))}

    def folder_of(self, number: int) -> Path:
        return self.folder / f"worker-{number}"

    def home_of(self, folder: str) -> int:
        """The number of the worker in whose folder this is."""
        (number,) = (number for number in HOSTS if Path(folder).is_relative_to(self.folder_of(number)))
        return number

    def wait_for_workers(self) -> None:
        self._wait_until("aliveworkers", len(HOSTS))

    def down(self) -> None:
        processes.kill(living(self.folder))
        for each in self._started:
            each.wait()

    def _wait_until(self, what: str, value: object) -> None:
        deadline = time.monotonic() + READY_WITHIN
        while self._state().get(what) != value:
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} is not {value} within {READY_WITHIN:.0f} s: see {self.folder}")
            time.sleep(0.1)

    def _state(self) -> dict[str, Any]:
        """What the master says of itself; nothing while it starts, or has only its page to show."""
        address = f"http://{HOST}:{self._web}/json/"
        with contextlib.suppress(OSError, json.JSONDecodeError), urllib.request.urlopen(address, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
        return {}

    def _launch(self, name: str, server: str, *arguments: str) -> None:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK_HOME),
            "JAVA_HOME": str(find_java().executable.resolve().parents[1]),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SMALL,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),  # the Python of executors inherits it
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self._started.append(
                subprocess.Popen(
                    [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{server}", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env=environment,
                    start_new_session=True,
                )
            )


@contextmanager
def standalone(folder: Path) -> Iterator[Standalone]:
    """A cluster that is gone after this block, and after the end of this process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    there = Standalone(folder)
    watcher = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.standalone", str(there.folder)],
        stdin=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        there.up()
        yield there
    finally:
        there.down()
        watcher.communicate()


if __name__ == "__main__":
    sys.stdin.buffer.read()  # ends with whoever holds the other end
    processes.kill(living(Path(sys.argv[1])))
