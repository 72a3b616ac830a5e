"""A small disk under one server, that can be filled: a tmpfs of its own, for which one must be root on Linux."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeAlias

from kept.errors import FixConfiguration, FixMachine
from kept.local.kafka import KafkaServer
from kept.local.postgres import PostgresServer

ROOM = 96 << 20
"""Bytes for what the trial sends, beside what is there already."""
BLOCK = 1 << 20
BALLAST = "ballast"
WHOLE = ("meta.properties", "PG_VERSION")
"""A directory of data has one of these."""
OnDisk: TypeAlias = KafkaServer | PostgresServer
_MOUNTS = 0x00020000  # CLONE_NEWNS of unshare(2)


@contextmanager
def small_disk(server: OnDisk) -> Iterator[None]:
    """The server is stopped, its data moved onto a small disk and back, and it is started again each time."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise FixMachine(
            "a disk cannot be made full here: that takes a tmpfs, and for it one must be root on Linux",
            way_out="run this scenario in a container, as root",
        )
    _have_mounts_of_our_own()
    aside = server.folder / "data.aside"
    server.stop()
    server.data.rename(aside)
    server.data.mkdir()
    try:
        _mount(server, _size(server) + ROOM)
        try:
            _copy(aside, server.data)
            server.start()
            yield
        finally:
            server.stop()
            if any(server.data.joinpath(name).exists() for name in WHOLE):
                (server.data / BALLAST).unlink(missing_ok=True)
                shutil.rmtree(aside)
                _copy(server.data, aside)
            _run("umount", str(server.data))
    finally:
        server.data.rmdir()
        aside.rename(server.data)
        server.start()


def refuse_lasting(*, lasting: bool) -> None:
    """Not under a server that somebody goes on using: its data would be in memory for a while."""
    if lasting:
        raise FixConfiguration(
            "the data of a server goes onto a small disk in memory: not that of a cluster which stays",
            way_out="leave out --here: a cluster is started for it",
        )


def _copy(here: Path, there: Path) -> None:
    """With everything's owner: Postgres takes no data of another's."""
    _run("cp", "-a", "-T", str(here), str(there))


def fill(server: OnDisk) -> None:
    """Until not a byte more is taken."""
    with (server.data / BALLAST).open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(BLOCK))
        except OSError:
            return  # this is what it was for


def make_room(server: OnDisk) -> None:
    (server.data / BALLAST).unlink()


@cache
def _have_mounts_of_our_own() -> None:
    """What is mounted from now on is seen by this process and its children only, and gone with the last of them."""
    if ctypes.CDLL(None, use_errno=True).unshare(_MOUNTS) != 0:
        raise FixMachine(
            f"no mounts of one's own: {os.strerror(ctypes.get_errno())}",
            way_out="run it where mounting is allowed (in a container: with CAP_SYS_ADMIN)",
        )
    _run("mount", "--make-rprivate", "/")


def _size(server: OnDisk) -> int:
    """What is on the disk in bytes, with the holes of files that are reserved and empty left out."""
    aside = server.folder / "data.aside"
    return sum(512 * file.stat().st_blocks for file in aside.rglob("*") if file.is_file())


def _mount(server: OnDisk, size: int) -> None:
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "kept-verify", str(server.data))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FixMachine(
            f"`{' '.join(command)}` failed: {done.stderr.strip()}",
            way_out="run it where mounting is allowed (in a container: with CAP_SYS_ADMIN)",
        )
