"""What the demo kills is dead as a whole, and what it started does not outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from kept.local.processes import kill_session
from tests.conftest import Eventually

# As Spark does it: a child in the same group, and one that leaves it but stays in the session.
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
children = [subprocess.Popen(sleeping), subprocess.Popen(sleeping, preexec_fn=lambda: os.setpgid(0, 0))]
print(*(child.pid for child in children), flush=True)
time.sleep(600)
"""
OWNER = """
import subprocess, sys, time
lifeline = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def family() -> tuple[subprocess.Popen[str], list[int]]:
    leader = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert leader.stdout is not None
    return leader, [leader.pid, *map(int, leader.stdout.readline().split())]


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_session_dies_with_the_groups_in_it_and_a_stranger_lives() -> None:
    (leader, dead), (stranger, living) = family(), family()
    try:
        kill_session(leader.pid)
        assert [pid for pid in dead if lives(pid)] == []
        assert all(lives(pid) for pid in living)
    finally:
        kill_session(stranger.pid)
        for each in (leader, stranger):
            each.communicate()


@pytest.mark.parametrize("word", [b"", b"done"])
def test_a_session_ends_with_its_owner_unless_it_was_done(word: bytes) -> None:
    leader, members = family()
    try:
        command = [sys.executable, "-m", "kept.demo.lifeline", str(leader.pid)]
        lifeline = subprocess.run(command, input=word, check=True, timeout=60)
        assert lifeline.returncode == 0
        assert [lives(pid) for pid in members] == [bool(word)] * 3
    finally:
        kill_session(leader.pid)
        leader.communicate()


def test_an_owner_that_is_killed_without_a_word_leaves_nothing(eventually: Eventually) -> None:
    """The owner holds the only end of the pipe: the kernel closes it."""
    leader, members = family()
    command = [sys.executable, "-c", OWNER, sys.executable, "-m", "kept.demo.lifeline", str(leader.pid)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        owner.stdout.readline()
        os.kill(owner.pid, signal.SIGKILL)
        owner.communicate()
        eventually(lambda: not any(lives(pid) for pid in members), "the session is dead")
    finally:
        kill_session(leader.pid)
        leader.communicate()
