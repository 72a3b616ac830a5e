"""What becomes of a task of Spark's at certain records: its worker dies there, once; or the plan fails there.

The options: `dies_at_values` and `marks`, a folder where each death leaves its mark; `fails_at`, a value that the
transform cannot take until somebody has repaired it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PERILS = "perils"
DIED = 17
UNTIL_WRITTEN = 1.0
"""What was passed on before is in the sink by then: a task is met when it has done a part of its work."""


def mark_of(folder: str, value: str) -> Path:
    """Where the death at a value is written down."""
    return Path(folder) / _in_letters(value)


def refusal_of(value: str) -> str:
    """How the plan says at which value it failed: whatever the value is made of, any log can write this."""
    return f"record {_in_letters(value)} cannot be taken"


def _in_letters(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:16]


def message(spark: Any, options: Mapping[str, Any]) -> str:
    """The value of a record as text, with all perils on the way, as an expression of Spark's SQL."""
    text = "cast(value AS string)"
    if not _any(options):
        return text
    spark.udf.register(PERILS, through_perils(options), "string")
    return f"{PERILS}({text})"


def perilous(frame: Any, options: Mapping[str, Any]) -> Any:
    """The same rows; whoever reads their values meets all perils on the way."""
    if not _any(options):
        return frame
    passing = through_perils(options)

    def passing_bytes(value: bytes | None) -> bytes | None:
        if value is not None:
            passing(bytes(value).decode(errors="replace"))
        return value

    frame.sparkSession.udf.register(PERILS, passing_bytes, "binary")
    return frame.selectExpr(*(f"{PERILS}(value) AS value" if name == "value" else name for name in frame.columns))


def _any(options: Mapping[str, Any]) -> bool:
    return bool(options.get("dies_at_values")) or "fails_at" in options


def through_perils(options: Mapping[str, Any]) -> Callable[[str], str]:
    deadly, marks = frozenset(options.get("dies_at_values", ())), options.get("marks", "")
    unbearable = options.get("fails_at")

    def passing(value: str) -> str:
        if value in deadly:
            _die_once(mark_of(marks, value))
        if value == unbearable:
            time.sleep(UNTIL_WRITTEN)
            raise ValueError(f"{refusal_of(value)}: {value}")
        return value

    return passing


def _die_once(mark: Path) -> None:
    """End this worker as a power cut would; who comes second goes on."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    time.sleep(UNTIL_WRITTEN)
    os._exit(DIED)
