"""A chunk as its caller has it, who may write it, and the errors that end one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import psycopg

from kept.errors import PersonMustLook, ProgressMoved
from kept.progress import Accept, Progress, Range
from kept.stores.holders import Part
from kept.stores.sessions import Session


@dataclass
class OpenChunk:
    """A transaction that holds the progress rows: apply the effects on `connection`.

    `drop_below` says per (topic, partition) which records are done already; it differs from where the range starts
    only when repeats were allowed. `recorded` is the new progress, once the block was left well.
    """

    connection: Session
    drop_below: Mapping[Part, int]
    recorded: dict[Part, Progress] = field(default_factory=dict)


@dataclass(frozen=True)
class Ownership:
    """An owner and the generations that it took over: handed to other processes, which write as the same owner."""

    owner: str
    generations: Mapping[Part, int]


def ends_the_session(error: psycopg.Error) -> bool:
    """Errors with which a server says goodbye; one may come after its COMMIT, before the answer to it."""
    return error.sqlstate is None or error.sqlstate[:2] in ("08", "57", "58", "XX")


def ahead(wanted: Range, answer: Accept) -> ProgressMoved:
    return ProgressMoved(
        f"the input starts at {wanted.start}, but {answer.progress.position} is recorded: "
        "records in between would be applied twice",
        way_out=f"go on from offset {answer.drop_below} (settle() tells it), or drop what is done with may_repeat=True",
    )


def transaction_was_ended() -> PersonMustLook:
    return PersonMustLook(
        "the handler ended the chunk's transaction itself, or wrote kept_progress: progress was not recorded",
        way_out="take COMMIT, ROLLBACK and kept_progress out of the handler; compare its effects with progress",
    )
