"""`kept demo`, the main job of README: it keeps its word and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import psutil

from tests.conftest import KEPT, Eventually, Kept


def of_a_demo() -> list[psutil.Process]:
    """Every process of a cluster that a demo started."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any("kept-demo-" in word for word in process.info["cmdline"] or ())
    ]


def test_every_record_once_through_the_death_of_a_leader(kept: Kept) -> None:
    result = kept("demo", "--records", "3000", "--json")
    assert result.returncode == 0, result.stderr
    audit = json.loads(result.stdout)
    assert (audit["sent"], audit["read"], audit["lost"], audit["duplicated"]) == (3000, 3000, 0, 0)
    assert "killed broker" in result.stderr
    assert "taking everything down" in result.stderr
    assert of_a_demo() == []


def test_an_interrupted_demo_leaves_nothing_running(eventually: Eventually) -> None:
    with subprocess.Popen([KEPT, "demo"], stderr=subprocess.PIPE, text=True, start_new_session=True) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if "starting broker-3" in line:
                break
        os.killpg(demo.pid, signal.SIGINT)
        demo.communicate(timeout=60)
    assert demo.returncode == 130
    eventually(lambda: of_a_demo() == [], "the demo's cluster is down")
