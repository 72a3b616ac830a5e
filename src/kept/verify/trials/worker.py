"""`python -m kept.verify.trials.worker TASK`: plays one role, and ends with whoever started it."""

from __future__ import annotations

import faulthandler
import signal
import sys
from importlib import import_module

from kept.errors import Fenced, KeptError, PersonMustLook
from kept.verify.tied import end_even_asleep, end_with_parent
from kept.verify.trials.things import Task

DONE, FAILED, FENCED, STOPPED = 0, 1, 7, 8
"""Stopped: a person must look before it goes on."""


def main(text: str) -> int:
    """An error of kept ends the process in good order: it has been written down."""
    task = Task.of(text)
    try:
        import_module(task.role if "." in task.role else f"kept.verify.trials.roles.{task.role}").play(task)
    except KeptError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return FENCED if isinstance(error, Fenced) else STOPPED if isinstance(error, PersonMustLook) else FAILED
    return DONE


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    end_even_asleep()
    end_with_parent()
    sys.exit(main(sys.argv[1]))
