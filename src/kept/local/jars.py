"""Jars, the broker's and Spark's: named and summed in lock files, fetched in parallel, verified before any use.

A jar is either whole and verified under its own name, or a `.part` that the next try goes on from.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from queue import Empty, SimpleQueue
from urllib.parse import urlsplit

from kept.errors import DownloadDamaged, DownloadFailed, FixConfiguration
from kept.local.places import disk_full, only_one, write_errors_told

MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
MIRROR_VARIABLE = "KEPT_MAVEN_MIRROR"
PARALLEL_DOWNLOADS = 8
TRIES = 3
CHUNK = 1 << 16
SECONDS_WITHOUT_A_BYTE = 30
SECONDS_TO_PUT_DOWN_THE_PEN = 1.0
ANOTHER_CACHE = "free some space, or set KEPT_CACHE to a directory with room, then run it again"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Jar:
    """One row of the lock file."""

    coordinate: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"

    @property
    def url_path(self) -> str:
        group, artifact, version = self.coordinate.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{self.file_name}"


def read_lock(text: str) -> tuple[Jar, ...]:
    """The rows of a lock file: coordinate, size in bytes, sha256; `#` starts a comment."""
    rows = (line.split("#")[0].split() for line in text.splitlines())
    return tuple(Jar(coordinate, int(size), sha256) for coordinate, size, sha256 in filter(None, rows))


def broker_jars() -> tuple[Jar, ...]:
    """What the embedded broker needs on its class path."""
    return _locked("broker.lock")


def spark_jars() -> tuple[Jar, ...]:
    """What Spark needs beside its own jars to read Kafka."""
    return _locked("spark.lock")


def _locked(name: str) -> tuple[Jar, ...]:
    return read_lock(resources.files("kept.local").joinpath(name).read_text())


def mirror() -> str:
    """Where jars come from: Maven Central, or what KEPT_MAVEN_MIRROR says."""
    chosen = (os.environ.get(MIRROR_VARIABLE) or MAVEN_CENTRAL).rstrip("/")
    if not _is_address(chosen):
        raise FixConfiguration(
            f"{MIRROR_VARIABLE}={chosen} is not an address",
            way_out=f"give the root of a Maven repository, such as {MAVEN_CENTRAL}",
        )
    return chosen


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    plain = text.isascii() and text.isprintable() and " " not in text
    return plain and parts.scheme in ("https", "http") and bool(host) and port != 0


def fetch(jars: Iterable[Jar], directory: Path, progress: Progress = lambda _done, _all: None) -> list[Path]:
    """Have every jar, whole and verified, in this directory; download only what is missing."""
    jars = list(jars)
    with (
        only_one(directory / ".lock", "downloading jars", wait_seconds=600),
        write_errors_told(directory, setting=ANOTHER_CACHE),
    ):
        missing = [jar for jar in jars if not _intact(directory / jar.file_name, jar)]
        if missing:
            _refuse_without_room(missing, directory)
            _Download(missing, directory, mirror(), progress).run()
    return [directory / jar.file_name for jar in jars]


def _intact(path: Path, jar: Jar) -> bool:
    try:
        return path.stat().st_size == jar.size and _sum(path) == jar.sha256
    except FileNotFoundError:
        return False


def _sum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _refuse_without_room(missing: list[Jar], directory: Path) -> None:
    needed = sum(jar.size - min(jar.size, _size(_part(directory / jar.file_name))) for jar in missing)
    if shutil.disk_usage(directory).free < needed:
        raise disk_full(directory, setting=ANOTHER_CACHE, needed=needed)


class _Download:
    """One parallel fetch; the first failure stops the others, and what they have is kept."""

    def __init__(self, jars: list[Jar], directory: Path, root: str, progress: Progress) -> None:
        self._jars = jars
        self._directory = directory
        self._root = root
        self._progress = progress
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._arrived: dict[str, int] = {}

    def run(self) -> None:
        waiting: SimpleQueue[Jar] = SimpleQueue()
        outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
        for jar in self._jars:
            waiting.put(jar)
        # Daemons, not a pool: a pool is waited for, and a silent server can hold a read for half a minute.
        workers = [
            threading.Thread(target=self._work, args=(waiting, outcomes), daemon=True)
            for _ in range(min(PARALLEL_DOWNLOADS, len(self._jars)))
        ]
        for worker in workers:
            worker.start()
        try:
            for _ in self._jars:
                if error := outcomes.get():
                    raise error
        finally:
            self._stop.set()  # from here on nobody writes any more; who still listens to a server is left to it
            deadline = time.monotonic() + SECONDS_TO_PUT_DOWN_THE_PEN
            for worker in workers:
                worker.join(max(0.0, deadline - time.monotonic()))

    def _work(self, waiting: SimpleQueue[Jar], outcomes: SimpleQueue[BaseException | None]) -> None:
        while not self._stop.is_set():
            try:
                self._one(waiting.get_nowait())
            except Empty:
                return
            except BaseException as error:  # noqa: BLE001 - run() raises it
                outcomes.put(error)
            else:
                outcomes.put(None)

    def _one(self, jar: Jar) -> None:
        path = self._directory / jar.file_name
        part = _part(path)
        resumed = part.exists()
        while not self._stop.is_set():
            self._receive_all(jar, part)
            if self._stop.is_set():
                return
            got = _sum(part)
            if got == jar.sha256:
                part.replace(path)
                return
            part.unlink()
            if not resumed:
                raise DownloadDamaged(
                    f"{jar.file_name} from {self._root} is damaged: "
                    f"its sha256 is {got}, the lock file says {jar.sha256}",
                    way_out=f"run it again; if it stays so, the mirror serves other bytes: set {MIRROR_VARIABLE}",
                )
            resumed = False  # the half from last time may be the damaged one: once more from the start

    def _receive_all(self, jar: Jar, part: Path) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                self._receive(jar, part)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code < 500 or attempt == TRIES:
                    raise self._failed(jar, f"the server answered {error.code} {error.reason}") from error
            except (
                urllib.error.URLError,
                http.client.HTTPException,
                TimeoutError,
                ConnectionError,
                _Short,
            ) as error:
                if attempt == TRIES:
                    raise self._failed(jar, str(getattr(error, "reason", None) or error)) from error
            else:
                return
            if self._stop.wait(0.3 * 2**attempt):
                return

    def _receive(self, jar: Jar, part: Path) -> None:
        start = _size(part)
        if start >= jar.size:
            return
        request = urllib.request.Request(f"{self._root}/{jar.url_path}")  # noqa: S310 - mirror() checked the scheme
        if start:
            request.add_header("Range", f"bytes={start}-")
        with urllib.request.urlopen(request, timeout=SECONDS_WITHOUT_A_BYTE) as response:  # noqa: S310
            if self._stop.is_set():
                return
            append = start > 0 and response.status == http.HTTPStatus.PARTIAL_CONTENT
            with part.open("ab" if append else "wb") as file:
                # Stop at the first byte too many: the sum is wrong, and a server without an end cannot fill the disk.
                while file.tell() <= jar.size and (chunk := response.read1(CHUNK)) and not self._stop.is_set():
                    file.write(chunk)
                    file.flush()
                    self._tell(jar, file.tell())
                os.fsync(file.fileno())
        if _size(part) < jar.size and not self._stop.is_set():
            raise _Short(f"the connection ended after {_size(part)} of {jar.size} bytes")

    def _tell(self, jar: Jar, received: int) -> None:
        with self._lock:
            self._arrived[jar.coordinate] = received
            self._progress(sum(self._arrived.values()), sum(j.size for j in self._jars))

    def _failed(self, jar: Jar, reason: str) -> DownloadFailed:
        return DownloadFailed(
            f"could not download {jar.file_name} from {self._root}: {reason}",
            way_out="check the network or proxy and run it again (it goes on where it stopped), "
            f"or set {MIRROR_VARIABLE} to a Maven mirror that you reach",
        )


class _Short(Exception):
    """The connection ended before the file did."""
