"""Progress is the next source position; a guarantee is when it is recorded: before, after or with the effect.

`order` is the one idea of this project as pure code; `positions`, `batches`, `modes` and `poison` are the
decisions that every store and sink shares; `model` breaks each rule once, in memory, and finds the harm.
"""

from kept.progress.batches import Batch, BatchRecord, Verdict, check_batch, check_move, staging_is_whole
from kept.progress.modes import Mode, Operator, choose_mode
from kept.progress.order import ORDER, Chunk, Move, Seen, Step, Steps, close_range, follow, one_chunk, take_over
from kept.progress.poison import Fate, fate_of_sqlstate, isolate
from kept.progress.positions import (
    Accept,
    Identity,
    Owner,
    Position,
    Progress,
    Range,
    Recorded,
    Source,
    Stop,
    Unsigned,
    advance,
    check,
    check_rows,
    seed,
    trust,
)

__all__ = [
    "ORDER",
    "Accept",
    "Batch",
    "BatchRecord",
    "Chunk",
    "Fate",
    "Identity",
    "Mode",
    "Move",
    "Operator",
    "Owner",
    "Position",
    "Progress",
    "Range",
    "Recorded",
    "Seen",
    "Source",
    "Step",
    "Steps",
    "Stop",
    "Unsigned",
    "Verdict",
    "advance",
    "check",
    "check_batch",
    "check_move",
    "check_rows",
    "choose_mode",
    "close_range",
    "fate_of_sqlstate",
    "follow",
    "isolate",
    "one_chunk",
    "seed",
    "staging_is_whole",
    "take_over",
    "trust",
]
