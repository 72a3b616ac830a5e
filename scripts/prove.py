"""Run every scenario in full, and put the verdicts into docs/proof.md.

    python scripts/prove.py [--minutes 9] [--seed 7] [--alone]

Two processes go through the scenarios, one from the first on and one from the last, each on a cluster of its own: most
of the time something is waited for, and what is killed in one cluster disturbs nobody in the other. They meet in the
middle.

With minutes it is done in pieces: what was run is kept, and the next call goes on. The page is written when nothing is
left. A run that was begun with other code, or other volumes, is left as it is, and another one begins.
"""

import argparse
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from kept.verify.run_directory import RunDirectory
from kept.verify.scenarios import NAMES
from kept.verify.trials.running import in_full

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "proof.md"
RUNS = ROOT / "kept-verify"
VERIFY = [sys.executable, "-m", "kept", "verify"]
LARGEST_SEED = 2**31


def main() -> int:
    """The exit code of `kept verify`."""
    parser = argparse.ArgumentParser(description="proves the guarantees")
    parser.add_argument("--minutes", type=float, help="begin nothing after them")
    parser.add_argument("--seed", type=int, help="of a run that begins now")
    parser.add_argument("--alone", action="store_true", help="one process instead of two")
    options = parser.parse_args()
    limit = [] if options.minutes is None else ["--minutes", str(options.minutes)]
    run = unfinished() or begun(random.randrange(LARGEST_SEED) if options.seed is None else options.seed)
    go_on(run, limit, [[]] if options.alone else [[], ["--backwards"]])
    code = subprocess.run([*VERIFY, "judge", str(run)], check=False).returncode
    if left := RunDirectory(run).left():
        print(f"{len(left)} trials are left: run it again; {PAGE.name} stays as it is until then", file=sys.stderr)
    else:
        shutil.copyfile(run / "report.md", PAGE)
        print(f"written: {PAGE}", file=sys.stderr)
    return code


def begun(seed: int, runs: Path = RUNS) -> Path:
    """A new run of everything, of which nothing was played yet."""
    run = runs / f"proof-{time.strftime('%Y%m%d-%H%M%S')}"
    RunDirectory(run).begin(in_full(NAMES, seed))
    print(f"seed {seed}: `kept verify --seed {seed}` repeats it", file=sys.stderr)
    return run


def go_on(run: Path, limit: list[str], ways: list[list[str]]) -> None:
    """With one process for each way through the scenarios, until all of them have ended."""
    lanes = []
    for number, way in enumerate(ways, start=1):
        process = subprocess.Popen(
            [*VERIFY, "resume", str(run), *way, *limit], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        reader = threading.Thread(target=tell, args=(number, process))
        reader.start()
        lanes.append((process, reader))
    for process, reader in lanes:
        process.wait()
        reader.join()


def tell(number: int, process: subprocess.Popen[str]) -> None:
    """What a process says, with its number."""
    for line in process.stderr or ():
        print(f"{number} | {line}", end="", file=sys.stderr, flush=True)


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
