"""The history of a run: what was attempted, what the product said, which faults struck, what a reader found.

Each process that takes part appends lines of JSON to a file of its own, and never changes one. A process that is
killed may leave its last line torn: that line is kept out, and told. Judging needs these files and nothing else.
"""

from kept.verify.history.events import (
    Begun,
    Ended,
    Event,
    Fate,
    Fault,
    Found,
    Read,
    Settled,
    Shortened,
    Side,
    Stopped,
    Told,
    TransactionEnded,
    Trial,
    Unfinished,
)
from kept.verify.history.reading import read_history
from kept.verify.history.view import Attempt, History
from kept.verify.history.writing import Recorder

__all__ = [
    "Attempt",
    "Begun",
    "Ended",
    "Event",
    "Fate",
    "Fault",
    "Found",
    "History",
    "Read",
    "Recorder",
    "Settled",
    "Shortened",
    "Side",
    "Stopped",
    "Told",
    "TransactionEnded",
    "Trial",
    "Unfinished",
    "read_history",
]
