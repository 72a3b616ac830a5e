"""The pages that are generated from the code say what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_no_page_is_stale() -> None:
    check = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "generate_docs.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_the_generator_refuses_arguments_it_does_not_know() -> None:
    call = [sys.executable, str(ROOT / "scripts" / "generate_docs.py"), "--chekc"]
    assert subprocess.run(call, capture_output=True, check=False).returncode == 2
