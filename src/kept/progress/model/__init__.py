"""A tiny in-memory model of every rule in docs/rules.md, and a search for the schedule that breaks it.

It ships with the package because it is the executable form of the rules: one file a rule, one class a
file, and anyone can run a schedule again with `python -m kept.progress.model <World> <seed> [without]`.
The worlds run the very decisions of `kept.progress`; leave a rule out, and the search finds the harm.
"""

from kept.progress.model.batch_identity import BatchIdentity
from kept.progress.model.commit_order import CommitOrder
from kept.progress.model.gaps import Gaps
from kept.progress.model.journal import JournalRelay
from kept.progress.model.late_message import LateMessage
from kept.progress.model.lazy_result import LazyResult
from kept.progress.model.perishable_progress import PerishableProgress
from kept.progress.model.plan_shapes import PlanShapes
from kept.progress.model.poison import Poison
from kept.progress.model.row_lock import RowLock
from kept.progress.model.source_changed import OrdinaryElections, SourceChanges
from kept.progress.model.staging import Staging
from kept.progress.model.truncated_input import TruncatedInput
from kept.progress.model.two_attempts import TwoAttempts
from kept.progress.model.two_moves import TwoMoves
from kept.progress.model.two_owners import TwoOwners
from kept.progress.model.world import World

RULES: tuple[type[World], ...] = (
    LateMessage,
    Gaps,
    SourceChanges,
    BatchIdentity,
    RowLock,
    PerishableProgress,
    TwoOwners,
    TruncatedInput,
    Staging,
    LazyResult,
    TwoAttempts,
    PlanShapes,
    JournalRelay,
    Poison,
    CommitOrder,
)
"""One world for each rule, in the order of docs/rules.md."""

__all__ = ["RULES", "OrdinaryElections", "TwoMoves", "World"]
