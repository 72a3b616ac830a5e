"""A thing under test ends with its runner, awake or asleep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.conftest import Eventually

CHILD = """
import time
from kept.verify.tied import end_even_asleep, end_with_parent
end_even_asleep()
end_with_parent()
print("ready", flush=True)
time.sleep(600)
"""
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE, start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("asleep", [False, True], ids=["awake", "asleep"])
def test_it_ends_when_its_runner_is_killed(eventually: Eventually, asleep: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            assert parent.stdout.readline() == "ready\n"
            if asleep:
                os.kill(child.pid, signal.SIGSTOP)
                eventually(lambda: child.status() == psutil.STATUS_STOPPED, "it sleeps")
        finally:
            parent.kill()
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "it is gone")
