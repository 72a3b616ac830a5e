"""What the exit code of every `kept` command means."""

from __future__ import annotations

from enum import IntEnum

from kept.errors import KeptError, OutcomeUnknown


class ExitCode(IntEnum):
    """The exit codes; docs/cli.md lists them."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    DONE = 0, "done, and the answer is good"
    FAILED = 1, "not done; the message says why and the way out"
    USAGE = 2, "the command line was wrong; nothing was started"
    ANSWER_IS_NO = 3, "the command worked, and the answer is no (status: something is not running)"
    UNKNOWN = 4, "something may or may not have happened (send: a record without acknowledgement)"
    INTERRUPTED = 130, "stopped by Ctrl-C"


def code_for(error: KeptError) -> ExitCode:
    """The exit code for an error that reached the command line."""
    return ExitCode.UNKNOWN if isinstance(error, OutcomeUnknown) else ExitCode.FAILED
