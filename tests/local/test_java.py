"""Java: found where people keep it, passed over when too old, and asked for in one line when there is none.

No test reaches the real apt-get or the network: PATH holds only what the test put there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kept.errors import JavaMissing
from kept.local.java import DEBIAN_PACKAGES, Java, find_java, install_java

from .waiting import eventually

OPENJDK = 'openjdk version "{version}" 2025-04-15\nOpenJDK Runtime Environment (build {version}+6-Debian-1deb12u1)'
APT_GET = "apt-get install default-jre-headless"

# Stands in for the install-jdk package in a process of its own: what it does to the directory is what the tests need.
INSTALL_JDK = """
import errno, os, pathlib, signal
def install(version, path, jre):
    java = pathlib.Path(path, f"jdk-{version}-jre", "bin", "java")
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\\necho 'openjdk version \\"17.0.15\\"' >&2\\n")
    here = pathlib.Path(__file__).parent
    with (here / "calls").open("a") as calls:
        calls.write("called\\n")
    while (here / "hold").exists() and not (here / "go").exists():
        pass
    if (here / "killed-midway").exists():
        java.chmod(0o755)
        os.kill(os.getpid(), signal.SIGKILL)
    if (here / "disk-full").exists():
        cause = OSError(errno.ENOSPC, "No space left on device")
        raise RuntimeError(cause) from cause
    java.chmod(0o755)
    return str(java.parent.parent)
"""
INSTALL = "from kept.local.java import install_java; print(install_java(lambda text: None).executable)"


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def java(home: Path, version: str) -> Path:
    """A Java that says its version, the way Java does: on stderr."""
    return script(home / "bin" / "java", f"cat >&2 <<'END'\n{OPENJDK.format(version=version)}\nEND")


class Machine:
    """A machine without Java: a PATH, a JAVA_HOME and a cache of the test's own."""

    def __init__(self, root: Path) -> None:
        self.on_path = root / "usr"
        self.home = root / "java-home"
        self.cache = root / "cache"
        (self.on_path / "bin").mkdir(parents=True)
        (self.on_path / "bin" / "cat").symlink_to("/bin/cat")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(machine.on_path / "bin"))
    monkeypatch.setenv("KEPT_CACHE", str(machine.cache))
    return machine


class TestFind:
    @pytest.mark.parametrize(
        ("banner", "version"), [("17", 17), ("17.0.15", 17), ("21-ea", 21), ("25.0.1", 25)], ids=str
    )
    def test_a_java_on_the_path(self, machine: Machine, banner: str, version: int) -> None:
        found = java(machine.on_path, banner)
        assert find_java() == Java(found, version)

    def test_java_home_comes_before_the_path_and_the_path_before_the_cache(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fetched = java(machine.cache / "java" / "jdk-17-jre", "17.0.1")
        assert find_java() == Java(fetched, 17)
        on_path = java(machine.on_path, "21.0.1")
        assert find_java() == Java(on_path, 21)
        at_home = java(machine.home, "25.0.1")
        monkeypatch.setenv("JAVA_HOME", str(machine.home))
        assert find_java() == Java(at_home, 25)

    def test_a_java_in_the_cache_of_a_mac(self, machine: Machine) -> None:
        fetched = java(machine.cache / "java" / "jdk-17-jre" / "Contents" / "Home", "17.0.1")
        assert find_java() == Java(fetched, 17)

    def test_one_that_is_too_old_is_passed_over(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        java(machine.home, "1.8.0_392")
        monkeypatch.setenv("JAVA_HOME", str(machine.home))
        java(machine.on_path, "11.0.2")
        fetched = java(machine.cache / "java" / "jdk-17-jre", "17.0.1")
        assert find_java() == Java(fetched, 17)

    def test_those_passed_over_are_named(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        at_home = java(machine.home, "1.8.0_392")
        monkeypatch.setenv("JAVA_HOME", str(machine.home))
        on_path = java(machine.on_path, "11.0.2")
        with pytest.raises(JavaMissing) as told:
            find_java()
        assert f"{at_home} is Java 8" in told.value.what
        assert f"{on_path} is Java 11" in told.value.what

    def test_none_is_told_with_the_line_to_type(self, machine: Machine) -> None:
        with pytest.raises(JavaMissing, match="no Java 17 or later was found") as told:
            find_java()
        for line in ("kept prepare", APT_GET, "brew install", "JAVA_HOME"):
            assert line in told.value.way_out

    def test_a_java_home_without_java_is_named(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JAVA_HOME", str(machine.home))
        with pytest.raises(JavaMissing, match=f"{machine.home}/bin/java does not run"):
            find_java()

    @pytest.mark.parametrize(
        "body",
        [
            "echo 'The operation could not be completed. Unable to locate a Java Runtime.' >&2; exit 1",
            """echo 'openjdk version "17.0.1"' >&2; exit 1""",
            "echo hello",
            r"printf '\377\376 not text' >&2",
        ],
        ids=["asks for Java", "fails after its banner", "is something else", "says no text"],
    )
    def test_a_java_that_does_not_run_is_passed_over(self, machine: Machine, body: str) -> None:
        broken = script(machine.on_path / "bin" / "java", body)
        with pytest.raises(JavaMissing, match=f"{broken} does not run"):
            find_java()
        fetched = java(machine.cache / "java" / "jdk-17-jre", "17.0.1")
        assert find_java() == Java(fetched, 17)

    def test_a_file_that_is_no_program_is_passed_over(self, machine: Machine) -> None:
        broken = machine.on_path / "bin" / "java"
        broken.write_bytes(b"\x7fELF of another kind of machine")
        broken.chmod(0o755)
        with pytest.raises(JavaMissing, match=f"{broken} does not run"):
            find_java()

    def test_words_before_the_banner_do_no_harm(self, machine: Machine) -> None:
        found = script(
            machine.on_path / "bin" / "java",
            """echo 'Picked up JAVA_TOOL_OPTIONS: -Dversion=8' >&2; echo 'openjdk version "21.0.1"' >&2""",
        )
        assert find_java() == Java(found, 21)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs with apt-get")
class TestInstallWithAptGet:
    def test_what_is_there_is_taken(self, machine: Machine) -> None:
        script(machine.on_path / "bin" / "apt-get", f"echo called >> {machine.cache}.calls")
        found = java(machine.on_path, "17.0.1")
        assert install_java(print) == Java(found, 17)
        assert not Path(f"{machine.cache}.calls").exists()

    def test_the_first_package_that_this_debian_has(self, machine: Machine) -> None:
        ready = java(machine.home, "21.0.1")
        (machine.on_path / "bin" / "ln").symlink_to("/bin/ln")
        calls = machine.cache.with_suffix(".calls")
        script(
            machine.on_path / "bin" / "apt-get",
            f'echo "$DEBIAN_FRONTEND $*" >> {calls}\n'
            f'case "$*" in *{DEBIAN_PACKAGES[1]}*) ln -s {ready} {machine.on_path}/bin/java;; '
            '*update*) ;; *) echo "E: Unable to locate package" >&2; exit 100;; esac',
        )
        said: list[str] = []
        assert install_java(said.append) == Java(machine.on_path / "bin" / "java", 21)
        assert "apt-get" in said[0]
        lines = calls.read_text().splitlines()
        assert [line.split()[-1] for line in lines] == ["update", *DEBIAN_PACKAGES[:2]]
        assert all(line.startswith("noninteractive ") for line in lines)

    def test_a_failure_is_told_with_the_line_to_type(self, machine: Machine) -> None:
        script(machine.on_path / "bin" / "apt-get", "echo 'E: Unable to locate package' >&2; exit 100")
        with pytest.raises(JavaMissing, match="apt-get could not install Java: E: Unable to locate package") as told:
            install_java(lambda _text: None)
        assert APT_GET in told.value.way_out

    def test_a_failure_without_a_word_is_told_too(self, machine: Machine) -> None:
        script(machine.on_path / "bin" / "apt-get", "exit 1")
        with pytest.raises(JavaMissing, match="apt-get could not install Java") as told:
            install_java(lambda _text: None)
        assert APT_GET in told.value.way_out

    def test_an_apt_get_that_lies_is_found_out(self, machine: Machine) -> None:
        script(machine.on_path / "bin" / "apt-get", "exit 0")
        with pytest.raises(JavaMissing, match="no Java 17") as told:
            install_java(lambda _text: None)
        assert APT_GET in told.value.way_out


StartInstall = Callable[[], "subprocess.Popen[str]"]


class TestInstallIntoTheCache:
    @pytest.fixture
    def jdk(self, tmp_path: Path) -> Path:
        """The directory of the stand-in for install-jdk; files in it tell it how to misbehave."""
        directory = tmp_path / "install-jdk"
        directory.mkdir()
        (directory / "jdk.py").write_text(INSTALL_JDK)
        return directory

    @pytest.fixture
    def start_install(self, machine: Machine, jdk: Path) -> Iterator[StartInstall]:
        started: list[subprocess.Popen[str]] = []

        def start() -> subprocess.Popen[str]:
            environment = {**os.environ, "PYTHONPATH": str(jdk)}
            command = [sys.executable, "-c", INSTALL]
            pipe = subprocess.PIPE
            started.append(subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True))
            return started[-1]

        yield start
        for process in started:
            process.kill()
            process.communicate()

    def test_no_network_is_told_with_the_line_to_type(
        self,
        machine: Machine,
        jdk: Path,
        start_install: StartInstall,
        closed_port: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The real install-jdk, behind a proxy where nobody listens."""
        (jdk / "jdk.py").unlink()
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{closed_port}")
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port}")
        _, err = start_install().communicate(timeout=20)
        told = err.rpartition("JavaMissing: ")[2]
        assert "Java could not be downloaded" in told
        assert "Connection refused" in told
        assert APT_GET in told
        assert not (machine.cache / "java").exists()

    def test_it_is_found_afterwards(self, machine: Machine, start_install: StartInstall) -> None:
        out, err = start_install().communicate(timeout=20)
        expected = machine.cache / "java" / "jdk-17-jre" / "bin" / "java"
        assert out.strip() == str(expected), err
        assert find_java() == Java(expected, 17)
        assert not (machine.cache / "java.part").exists()

    def test_killed_midway_leaves_nothing_that_is_used_and_the_next_run_works(
        self, machine: Machine, jdk: Path, start_install: StartInstall
    ) -> None:
        (jdk / "killed-midway").touch()
        assert start_install().wait(20) == -9
        with pytest.raises(JavaMissing):
            find_java()
        (jdk / "killed-midway").unlink()
        assert start_install().wait(20) == 0
        assert find_java().version == 17

    def test_one_in_the_cache_that_does_not_run_any_more_is_replaced(
        self, machine: Machine, start_install: StartInstall
    ) -> None:
        script(machine.cache / "java" / "jdk-17-jre" / "bin" / "java", "exit 1")
        process = start_install()
        _, err = process.communicate(timeout=20)
        assert process.returncode == 0, err
        assert find_java().version == 17

    def test_of_two_at_once_the_second_takes_what_the_first_fetched(
        self, machine: Machine, jdk: Path, start_install: StartInstall
    ) -> None:
        (jdk / "hold").touch()
        first = start_install()
        eventually((jdk / "calls").exists, "the first is installing")
        second = start_install()
        eventually(
            lambda: any(file.path.endswith("java.lock") for file in psutil.Process(second.pid).open_files()),
            "the second is at the lock",
        )
        (jdk / "go").touch()
        assert [process.communicate(timeout=20)[1] for process in (first, second)] == ["", ""]
        assert (first.returncode, second.returncode) == (0, 0)
        assert (jdk / "calls").read_text().splitlines() == ["called"]

    def test_a_full_disk_is_told_as_one(self, machine: Machine, jdk: Path, start_install: StartInstall) -> None:
        (jdk / "disk-full").touch()
        _, err = start_install().communicate(timeout=20)
        assert "DiskFull: the disk is full" in err
        assert "KEPT_CACHE" in err
