"""Processes: started apart from us, recognised by what they are, stopped for certain; never a stranger's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kept.errors import DiskFull
from kept.local import processes
from kept.local.processes import Mark, State

from .conftest import SmallDisk
from .waiting import eventually

SERVE = "import time; print('up', flush=True); time.sleep(600)"
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
PYTHON = str(Path(sys.executable).resolve())

Launch = Callable[..., psutil.Process]


@pytest.fixture
def mark(tmp_path: Path) -> Mark:
    return Mark("java", f"-Dkept={tmp_path}")


@pytest.fixture
def launch(tmp_path: Path, mark: Mark) -> Iterator[Launch]:
    """Start a program of this name with these arguments, and wait until it is up."""
    launched: list[psutil.Process] = []

    def launch(program: str = "java", *arguments: str, code: str = SERVE) -> psutil.Process:
        executable = tmp_path / "bin" / program
        if not executable.exists():
            executable.parent.mkdir(exist_ok=True)
            executable.symlink_to(PYTHON)
        output = tmp_path / f"{len(launched)}.out"
        command = [str(executable), "-I", "-c", code, *(arguments or [mark.argument])]
        launched.append(psutil.Process(processes.start(command, output, os.environ)))
        eventually(lambda: output.exists() and "up\n" in output.read_text(), f"{program} is up")
        return launched[-1]

    yield launch
    for process in launched:
        if process.is_running():
            process.kill()
            process.wait(10)


def ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


class TestStart:
    def test_in_a_session_of_its_own(self, launch: Launch) -> None:
        pid = launch().pid
        assert os.getsid(pid) == pid
        assert os.getpgid(pid) == pid

    def test_it_reads_nothing_and_all_it_says_is_added_to_one_file(self, tmp_path: Path) -> None:
        output = tmp_path / "logs" / "server.out"
        code = "import sys; print(repr(sys.stdin.read())); sys.stdout.flush(); print('trouble', file=sys.stderr)"
        for _ in range(2):
            pid = processes.start([PYTHON, "-I", "-c", code], output, os.environ)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert output.read_text() == "''\ntrouble\n" * 2

    def test_its_environment_is_the_one_given(self, tmp_path: Path) -> None:
        output = tmp_path / "out"
        code = "import os; print(os.environ['GIVEN'], 'HOME' in os.environ)"
        os.waitpid(processes.start([PYTHON, "-I", "-c", code], output, {"GIVEN": "yes"}), 0)
        assert output.read_text() == "yes False\n"

    def test_signals_that_we_block_or_ignore_reach_it(self, launch: Launch) -> None:
        """A shell's background job ignores Ctrl-C, and Python ignores SIGPIPE: a server inherits neither."""
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        try:
            process = launch()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            for number, action in before.items():
                signal.signal(number, action)
        status = Path(f"/proc/{process.pid}/status").read_text()
        masks = {
            name: int(value, 16) for name, value in re.findall(r"^(SigBlk|SigIgn):\s*(\w+)$", status, re.MULTILINE)
        }
        assert masks["SigBlk"] == 0
        assert [number for number in numbers if masks["SigIgn"] & 1 << number - 1] == []

    def test_it_outlives_who_started_it_and_ctrl_c_does_not_reach_it(self, tmp_path: Path, mark: Mark) -> None:
        (tmp_path / "java").symlink_to(PYTHON)
        code = f"""
import os, sys, signal
from pathlib import Path
from kept.local import processes
signal.signal(signal.SIGINT, signal.SIG_DFL)
command = [{str(tmp_path / "java")!r}, "-I", "-c", {SERVE!r}, {mark.argument!r}]
processes.start(command, Path({str(tmp_path)!r}, "out"), os.environ)
print("started", flush=True)
sys.stdin.read()
"""
        starter = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert starter.stdout is not None
            assert starter.stdout.readline() == "started\n"
            eventually(lambda: (tmp_path / "out").read_text() == "up\n", "the server is up")
            os.killpg(starter.pid, signal.SIGINT)
            assert starter.wait(10) == -signal.SIGINT
            assert processes.state(mark) is State.RUNNING
        finally:
            starter.kill()
            starter.communicate()
            processes.kill(processes.find(mark))
        assert processes.state(mark) is State.STOPPED

    def test_no_room_for_its_output_is_told(self, small_disk: SmallDisk) -> None:
        disk = small_disk("nr_inodes=1")
        with pytest.raises(DiskFull):
            processes.start([PYTHON, "-c", ""], disk / "server.out", os.environ)


class TestFind:
    def test_what_was_started_is_found_until_it_ends(self, launch: Launch, mark: Mark) -> None:
        assert processes.find(mark) == []
        assert processes.state(mark) is State.STOPPED
        process = launch()
        assert processes.find(mark) == [process]
        assert processes.state(mark) is State.RUNNING
        processes.kill([process])
        assert processes.find(mark) == []
        assert processes.state(mark) is State.STOPPED

    def test_every_one_of_them_is_found(self, launch: Launch, mark: Mark) -> None:
        assert {launch().pid, launch().pid} == {process.pid for process in processes.find(mark)}

    def test_strangers_are_neither_found_nor_stopped(self, launch: Launch, mark: Mark) -> None:
        strangers = [
            launch("grep", mark.argument),
            launch("postgres", mark.argument),
            launch("java-of-another", mark.argument),
            launch("java", f"{mark.argument}-2"),
            launch("java", f"{mark.argument}/broker-1"),
            launch("java", f"looking for {mark.argument}"),
            launch("java", "-Dkept=/elsewhere"),
        ]
        shell = subprocess.Popen(["sh", "-c", f"read line # java {mark.argument}"], stdin=subprocess.PIPE)
        ours = launch()
        try:
            assert processes.find(mark) == [ours]
            processes.stop(processes.find(mark), signal.SIGTERM, within=10)
            assert not ours.is_running()
            assert processes.find(mark) == []
            assert [process for process in strangers if ended(process)] == []
            assert shell.poll() is None
        finally:
            shell.kill()
            shell.communicate()

    @pytest.mark.parametrize(
        ("command", "fits"),
        [
            (["/usr/lib/jvm/bin/java", "-Xmx1g", "mark"], True),
            (["java", "mark"], True),
            (["java"], False),
            (["mark"], False),
            (["/usr/bin/grep", "java", "mark"], False),
            (["sh", "-c", "java mark"], False),
            (["java", "marks"], False),
            (["java", "x mark"], False),
            (["mark", "java"], False),
            ([""], False),
            ([], False),
        ],
    )
    def test_a_mark_fits_the_program_and_one_whole_argument(self, command: list[str], fits: bool) -> None:
        assert Mark("java", "mark").fits(command) is fits

    def test_our_own_dead_child_that_nobody_asked_after_is_not_running(self, launch: Launch, mark: Mark) -> None:
        process = launch()
        os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: process.status() == psutil.STATUS_ZOMBIE, "it is a zombie")
        assert processes.find(mark) == []
        assert processes.state(mark) is State.STOPPED
        again = launch()
        assert processes.find(mark) == [again]

    def test_paused_is_seen(self, launch: Launch, mark: Mark) -> None:
        process = launch()
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: processes.state(mark) is State.PAUSED, "it is paused")
        process.send_signal(signal.SIGCONT)
        eventually(lambda: processes.state(mark) is State.RUNNING, "it runs again")


class TestStop:
    def test_it_returns_as_soon_as_they_have_ended(self, launch: Launch) -> None:
        several = [launch(), launch()]
        began = time.monotonic()
        processes.stop(several, signal.SIGTERM, within=60)
        assert time.monotonic() - began < 10
        assert not any(process.is_running() for process in several), "they are reaped too"

    def test_a_paused_one_is_woken_to_hear_it(self, launch: Launch, tmp_path: Path) -> None:
        code = (
            "import signal, sys, time; signal.signal(15, lambda *_: (print('good-bye', flush=True), sys.exit()));"
            "print('up', flush=True); time.sleep(600)"
        )
        process = launch(code=code)
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: process.status() == psutil.STATUS_STOPPED, "it is paused")
        began = time.monotonic()
        processes.stop([process], signal.SIGTERM, within=60)
        assert time.monotonic() - began < 10
        assert not process.is_running()
        assert (tmp_path / "0.out").read_text() == "up\ngood-bye\n", "it ended in good order"

    def test_a_deaf_one_is_killed_after_the_deadline(self, launch: Launch) -> None:
        deaf, good = launch(code=DEAF), launch()
        began = time.monotonic()
        processes.stop([deaf, good], signal.SIGTERM, within=0.5)
        assert 0.5 <= time.monotonic() - began < 10
        assert not deaf.is_running()
        assert not good.is_running()

    def test_the_signal_is_the_one_asked_for(self, launch: Launch, tmp_path: Path) -> None:
        code = (
            "import signal, sys, time; signal.signal(2, lambda *_: (print('fast', flush=True), sys.exit()));"
            "print('up', flush=True); time.sleep(600)"
        )
        processes.stop([launch(code=code)], signal.SIGINT, within=20)
        assert (tmp_path / "0.out").read_text() == "up\nfast\n"

    def test_none_is_no_trouble(self) -> None:
        processes.stop([], signal.SIGTERM, within=60)
        processes.kill([])

    def test_one_that_ended_by_itself_is_no_trouble(self, launch: Launch) -> None:
        process = launch()
        process.kill()
        process.wait(10)
        processes.stop([process], signal.SIGTERM, within=60)
        processes.kill([process])

    def test_a_paused_one_can_be_killed(self, launch: Launch) -> None:
        process = launch()
        process.send_signal(signal.SIGSTOP)
        processes.kill([process])
        assert not process.is_running()

    @pytest.mark.parametrize("way", ["stop", "kill"])
    def test_one_whose_parent_does_not_ask_after_it_is_not_waited_for(
        self, tmp_path: Path, mark: Mark, way: str
    ) -> None:
        """It stays a zombie: of a session that started the cluster, or of a container's first process."""
        (tmp_path / "java").symlink_to(PYTHON)
        code = f"""
import subprocess, sys
child = subprocess.Popen([{str(tmp_path / "java")!r}, "-I", "-c", {SERVE!r}, {mark.argument!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print("up", flush=True)
sys.stdin.read()
"""
        parent = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "up\n"
            (process,) = processes.find(mark)
            began = time.monotonic()
            if way == "stop":
                processes.stop([process], signal.SIGTERM, within=8)
            else:
                processes.kill([process], within=8)
            assert time.monotonic() - began < 4
            assert process.status() == psutil.STATUS_ZOMBIE
            assert processes.state(mark) is State.STOPPED
        finally:
            parent.kill()
            parent.communicate()


# Runs as the first process of a namespace of its own, where it can choose the number of the next process.
SAME_NUMBER = """
import signal, subprocess, sys, time
import psutil
from kept.local import processes
from kept.local.processes import Mark

mark = Mark("java", sys.argv[2])
ours = subprocess.Popen([sys.argv[1], "-I", "-c", "import time; time.sleep(600)", mark.argument])
deadline = time.monotonic() + 10
while not (found := processes.find(mark)):
    assert time.monotonic() < deadline, "ours was never found"
(remembered,) = found
ours.kill()
ours.wait()
time.sleep(0.05)  # the kernel tells a start to 1/100 s; nothing but time makes the two differ
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(ours.pid - 1))
stranger = subprocess.Popen(["sleep", "600"])
if stranger.pid != ours.pid:
    print("other number")
    sys.exit()
assert processes.find(mark) == []
processes.stop([remembered], signal.SIGTERM, within=1)
processes.kill([remembered], within=1)
print("spared" if stranger.poll() is None else "killed a stranger")
"""


def test_a_stranger_with_the_number_of_a_dead_one_is_never_signalled(tmp_path: Path, mark: Mark) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can choose the number of the next process")
    (tmp_path / "java").symlink_to(PYTHON)
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    try:
        result = subprocess.run(
            [*unshare, sys.executable, "-c", SAME_NUMBER, str(tmp_path / "java"), mark.argument],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if result.stderr.startswith("unshare:"):
        pytest.skip(f"no namespace can be made here: {result.stderr.strip()}")
    if result.stdout == "other number\n":
        pytest.skip("the number of the next process cannot be chosen here")
    assert (result.stdout, result.stderr) == ("spared\n", "")
