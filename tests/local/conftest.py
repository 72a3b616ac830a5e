"""What the tests of the local cluster stand on: a mirror, a small disk, and an environment of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .mirror import Mirror

OURS = ("KEPT_CACHE", "KEPT_DIR", "KEPT_MAVEN_MIRROR", "JAVA_HOME", "JAVA_TOOL_OPTIONS", "XDG_CACHE_HOME")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's own settings reaches a test."""
    for name in (*OURS, *PROXIES, *(proxy.upper() for proxy in PROXIES)):
        monkeypatch.delenv(name, raising=False)
    urllib.request.urlcleanup()  # it remembers the proxies of its first request


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """A mirror that KEPT_MAVEN_MIRROR points at."""
    mirror = Mirror()
    monkeypatch.setenv("KEPT_MAVEN_MIRROR", mirror.url)
    yield mirror
    mirror.close()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port where nobody listens, and nobody else can begin to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


SmallDisk = Callable[[str], Path]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Mounts a tmpfs with the given options, such as `size=1m`; a skip where that is not allowed."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        if os.geteuid() != 0:
            pytest.skip("only root can mount a small disk")
        place = tmp_path / f"disk-{len(mounted)}"
        place.mkdir()
        result = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "kept-test", place], capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            pytest.skip(f"a small disk cannot be mounted here: {result.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", place], check=True)
