"""Set up this checkout: a virtual environment, its packages, Java and the broker's jars. Needs only Python.

    python scripts/set_up.py [--browser]

With --browser only a Chromium, for the tests that look at pages; where it cannot be installed they are skipped.

Quick when it has been done: a stamp in the environment says for which pyproject.toml it was made.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "kept-set-up"
INPUTS = ("pyproject.toml", "constraints.txt", "scripts/set_up.py")
OLDEST = (3, 10)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
STARTED = time.monotonic()


def say(text: str) -> None:
    """One line a step, with the seconds so far."""
    print(f"[set-up {time.monotonic() - STARTED:4.0f} s] {text}", flush=True)


def stop(text: str) -> NoReturn:
    """End with the one thing to do."""
    sys.exit(f"set-up stopped: {text}")


def run(*command: str) -> None:
    """Run a step; its output is shown, its failure ends the set-up."""
    result = subprocess.run(command, cwd=ROOT, check=False)
    if result.returncode != 0:
        stop(f"this failed: {' '.join(map(str, command))}\nmend what it says above, then run it again")


def fingerprint() -> str:
    """What the environment is made from."""
    digest = hashlib.sha256(sys.version.encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def usable() -> bool:
    """Does the environment have a pip, and the very Python that was asked for?"""
    if not PYTHON.exists():
        return False
    question = [str(PYTHON), "-c", "import pip, sys; print(sys.version)"]
    answer = subprocess.run(question, capture_output=True, text=True, check=False)
    return answer.returncode == 0 and answer.stdout.strip() == sys.version.strip()


def make_environment() -> None:
    """A virtual environment in .venv; Debian keeps what that takes in a package of its own."""
    if usable():
        return
    say(f"making a virtual environment with Python {sys.version.split()[0]}")
    if subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True, check=False).returncode != 0:
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            stop(f"this Python cannot make virtual environments; type: sudo apt-get install {package}")
        say(f"installing {package}")
        run("apt-get", "-qq", "update")
        run("apt-get", "-qq", "install", "-y", "--no-install-recommends", package)
    run(sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT))


def install_packages() -> None:
    """What pyproject.toml names, in the versions that constraints.txt fixes."""
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", *quiet]
    say("installing packages (about a minute the first time)")
    run(*pip, "--upgrade", "pip>=25.1")
    run(*pip, "--constraint", "constraints.txt", "--editable", ".[local,spark]", "--group", "dev")


def install_browser() -> None:
    """Debian's Chromium, where that may be done; nothing else depends on it."""
    if any(map(shutil.which, BROWSERS)):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        say("there is no Chromium: tests that look at pages are skipped; type: sudo apt-get install chromium")
        return
    say("installing Chromium, for the tests that look at pages")
    for command in ("update", "install -y --no-install-recommends chromium"):
        if subprocess.run(["apt-get", "-qq", *command.split()], stdout=subprocess.DEVNULL, check=False).returncode:
            say("that failed: those tests are skipped")
            return


def main() -> None:
    """Do what is missing."""
    if sys.version_info < OLDEST:
        stop(f"Python {OLDEST[0]}.{OLDEST[1]} or later is needed, this is {sys.version.split()[0]}; "
             "type: make PYTHON=python3.12 ... with one that you have")  # fmt: skip
    wanted = fingerprint()
    if not (STAMP.exists() and STAMP.read_text() == wanted and usable()):
        make_environment()
        install_packages()
        STAMP.write_text(wanted)
    run(str(ENVIRONMENT / "bin" / "kept"), "prepare")


if __name__ == "__main__":
    install_browser() if sys.argv[1:] == ["--browser"] else main()
