"""Places: which cluster a command means, and one process at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kept.errors import Busy, DiskFull
from kept.local import processes
from kept.local.places import cache_directory, cluster_directory, only_one, write_errors_told

from .conftest import SmallDisk
from .waiting import eventually

HOLD = """
import sys
from pathlib import Path
from kept.local.places import only_one
with only_one(Path(sys.argv[1]), "holding the lock"):
    print("held", flush=True)
    sys.stdin.read()
"""

# Says when it comes in and when it goes out; two that were in at once would show as "in in".
COME_AND_GO = """
import os, sys, time
from pathlib import Path
from kept.local.places import only_one
log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for _ in range(5):
    with only_one(Path(sys.argv[1]), "coming and going"):
        os.write(log, b"in ")
        time.sleep(0.005)
        os.write(log, b"out ")
"""

Hold = Callable[[Path], "subprocess.Popen[str]"]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """A process that has the lock until its input ends, or it is killed."""
    started: list[subprocess.Popen[str]] = []

    def hold(lock: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, str(lock)]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        return holder

    yield hold
    for holder in started:
        holder.kill()
        holder.communicate()


class TestCacheDirectory:
    def test_kept_cache_then_the_desktops_cache_then_the_home(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache_directory() == tmp_path / ".cache" / "kept"
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "desktop"))
        assert cache_directory() == tmp_path / "desktop" / "kept"
        monkeypatch.setenv("KEPT_CACHE", "~/mine")
        assert cache_directory() == tmp_path / "mine"
        monkeypatch.setenv("KEPT_CACHE", "")
        assert cache_directory() == tmp_path / "desktop" / "kept"

    def test_a_relative_one_is_made_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("KEPT_CACHE", "here")
        assert cache_directory() == tmp_path / "here"


class TestClusterDirectory:
    @pytest.fixture
    def project(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A project with a folder in it, where we are."""
        project = tmp_path.resolve() / "project"
        (project / "src" / "deep").mkdir(parents=True)
        monkeypatch.chdir(project / "src" / "deep")
        return project

    @staticmethod
    def with_cluster(directory: Path) -> Path:
        (directory / ".kept").mkdir()
        (directory / ".kept" / "cluster.json").write_text("{}")
        return directory / ".kept"

    def test_here_when_there_is_none(self, project: Path) -> None:
        assert cluster_directory() == project / "src" / "deep" / ".kept"

    def test_the_nearest_upwards(self, project: Path) -> None:
        above = self.with_cluster(project)
        assert cluster_directory() == above
        nearer = self.with_cluster(project / "src")
        assert cluster_directory() == nearer
        here = self.with_cluster(project / "src" / "deep")
        assert cluster_directory() == here

    def test_a_folder_of_that_name_without_a_cluster_is_passed_over(self, project: Path) -> None:
        above = self.with_cluster(project)
        (project / "src" / ".kept").mkdir()
        assert cluster_directory() == above

    def test_kept_dir_comes_before_the_nearest(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.with_cluster(project)
        monkeypatch.setenv("KEPT_DIR", "elsewhere")
        assert cluster_directory() == project / "src" / "deep" / "elsewhere"
        monkeypatch.setenv("KEPT_DIR", "")
        assert cluster_directory() == project / ".kept"

    def test_the_one_named_comes_before_kept_dir(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KEPT_DIR", "elsewhere")
        assert cluster_directory(Path("named")) == project / "src" / "deep" / "named"

    def test_the_same_directory_has_one_name(self, project: Path, tmp_path: Path) -> None:
        """Processes are recognised by this name: a link to it must not make a second cluster of it."""
        (tmp_path / "link").symlink_to(project)
        assert cluster_directory(tmp_path / "link" / ".kept") == project / ".kept"
        assert cluster_directory(project / "src" / ".." / ".kept") == project / ".kept"


class TestOnlyOne:
    def test_another_process_is_waited_for_in_vain(self, tmp_path: Path, hold: Hold) -> None:
        lock = tmp_path / "made" / "as needed" / "lock"
        hold(lock)
        began = time.monotonic()
        with pytest.raises(Busy) as told, only_one(lock, "stirring", wait_seconds=0.3):
            raise AssertionError("two are in at once")
        assert 0.3 <= time.monotonic() - began < 5
        assert "stirring" in told.value.what
        assert str(lock) in told.value.what
        assert "try again" in told.value.way_out

    def test_it_goes_on_as_soon_as_the_other_ends(self, tmp_path: Path, hold: Hold) -> None:
        lock = tmp_path / "lock"
        holder = hold(lock)
        leaving = threading.Timer(0.2, holder.communicate)
        leaving.start()
        began = time.monotonic()
        with only_one(lock, "stirring", wait_seconds=30):
            assert time.monotonic() - began < 10
        leaving.join()
        assert holder.returncode == 0

    def test_a_holder_that_was_killed_holds_nothing(self, tmp_path: Path, hold: Hold) -> None:
        lock = tmp_path / "lock"
        holder = hold(lock)
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
        with only_one(lock, "stirring", wait_seconds=0):
            pass

    def test_an_error_inside_frees_it(self, tmp_path: Path) -> None:
        lock = tmp_path / "lock"
        with pytest.raises(ZeroDivisionError), only_one(lock, "stirring"):
            raise ZeroDivisionError
        with only_one(lock, "stirring", wait_seconds=0):
            pass

    def test_processes_come_and_go_one_by_one(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        command = [sys.executable, "-c", COME_AND_GO, str(tmp_path / "lock"), str(log)]
        several = [subprocess.Popen(command) for _ in range(3)]
        assert [process.wait(30) for process in several] == [0, 0, 0]
        assert log.read_text() == "in out " * 15

    def test_threads_of_one_process_too(self, tmp_path: Path) -> None:
        with (
            only_one(tmp_path / "lock", "stirring"),
            pytest.raises(Busy),
            only_one(tmp_path / "lock", "stirring", wait_seconds=0),
        ):
            raise AssertionError("two are in at once")

    def test_a_server_started_meanwhile_does_not_keep_it(self, tmp_path: Path) -> None:
        output = tmp_path / "out"
        with only_one(tmp_path / "lock", "starting"):
            command = [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(600)"]
            pid = processes.start(command, output, os.environ)
        try:
            eventually(lambda: output.read_text() == "up\n", "the server is up")
            with only_one(tmp_path / "lock", "stopping", wait_seconds=0):
                pass
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


class TestFullDisk:
    def test_no_room_for_a_lock_is_told(self, small_disk: SmallDisk) -> None:
        disk = small_disk("nr_inodes=1")
        with pytest.raises(DiskFull) as told, only_one(disk / "lock", "stirring"):
            raise AssertionError("there is no room for a lock")
        assert str(disk) in told.value.what

    def test_no_room_to_write_is_told_with_the_way_out(self, small_disk: SmallDisk) -> None:
        file = small_disk("size=64k") / "file"
        with pytest.raises(DiskFull) as told, write_errors_told(file, setting="set KEPT_CACHE"):
            file.write_bytes(b"\0" * 100_000)
        assert "0.0 MB are free" in told.value.what
        assert told.value.way_out == "set KEPT_CACHE"

    def test_any_other_trouble_stays_what_it_is(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError), write_errors_told(tmp_path):
            (tmp_path / "missing").read_text()
