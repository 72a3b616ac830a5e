"""Run every scenario in full, and put the verdicts into docs/proof.md.

    python scripts/prove.py [--minutes 9] [--seed 7]

With minutes it is done in pieces: what was run is kept, and the next call goes on. The page is written when nothing is
left. A run that was begun with other code, or other volumes, is left as it is, and another one begins.
"""

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from kept.verify.run_directory import RunDirectory
from kept.verify.scenarios import NAMES
from kept.verify.trials.running import in_full

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "proof.md"
RUNS = ROOT / "kept-verify"


def main() -> int:
    """The exit code of `kept verify`."""
    parser = argparse.ArgumentParser(description="proves the guarantees")
    parser.add_argument("--minutes", type=float, help="begin nothing after them")
    parser.add_argument("--seed", type=int, help="of a run that begins now")
    options = parser.parse_args()
    limit = [] if options.minutes is None else ["--minutes", str(options.minutes)]
    seed = [] if options.seed is None else ["--seed", str(options.seed)]
    run = unfinished() or RUNS / f"proof-{time.strftime('%Y%m%d-%H%M%S')}"
    words = ["resume", str(run)] if run.exists() else ["run", "--out", str(run), *seed]
    code = subprocess.run([sys.executable, "-m", "kept", "verify", *words, *limit], check=False).returncode
    if not (run / "report.md").exists():
        print(f"nothing was run, so {PAGE.name} stays as it is", file=sys.stderr)
    elif left := RunDirectory(run).left():
        print(f"{len(left)} trials are left: run it again; {PAGE.name} stays as it is until then", file=sys.stderr)
    else:
        shutil.copyfile(run / "report.md", PAGE)
        print(f"written: {PAGE}", file=sys.stderr)
    return code


def unfinished(runs: Path = RUNS) -> Path | None:
    """The latest of these runs, when something is left of it and it can be gone on with."""
    found = sorted(runs.glob("proof-*/run.json"))
    if not found or not RunDirectory(found[-1].parent).left():
        return None
    plan = RunDirectory(found[-1].parent).plan
    if differences := plan.differs_from(in_full(NAMES, plan.seed)):
        print(f"{found[-1].parent} is left as it is, and another run begins: {differences}", file=sys.stderr)
        return None
    return found[-1].parent


if __name__ == "__main__":
    sys.exit(main())
