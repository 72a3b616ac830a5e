"""`kept demo`, the main job of README: it keeps its word and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil

from tests.conftest import KEPT, Eventually, Kept


def of_a_demo(directory: Path) -> list[psutil.Process]:
    """Every process of a cluster that a demo started below this directory."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(directory) in word for word in process.info["cmdline"] or ())
    ]


def test_every_record_once_through_the_death_of_a_leader(kept: Kept, tmp_path: Path) -> None:
    result = kept("demo", "--records", "3000", "--json", TMPDIR=str(tmp_path))
    assert result.returncode == 0, result.stderr
    audit = json.loads(result.stdout)
    assert (audit["sent"], audit["read"], audit["lost"], audit["duplicated"]) == (3000, 3000, 0, 0)
    assert "killed broker" in result.stderr
    assert "taking everything down" in result.stderr
    assert of_a_demo(tmp_path) == []


def test_an_interrupted_demo_leaves_nothing_running(eventually: Eventually, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [KEPT, "demo"], stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment
    ) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if "starting broker-3" in line:
                break
        os.killpg(demo.pid, signal.SIGINT)
        demo.communicate(timeout=60)
    assert demo.returncode == 130
    eventually(lambda: of_a_demo(tmp_path) == [], "the demo's cluster is down")
