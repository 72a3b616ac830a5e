"""The checkers: each finds one anomaly in a history, and knows nothing of guarantees.

They are pure, report everything they see, and count records, never kinds of records. What a guarantee permits is
decided elsewhere (`allowed`), so that a checker cannot be kind to the product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kept.verify.checkers.duplicated import duplicated
from kept.verify.checkers.evidence import Anomaly, Evidence, Place
from kept.verify.checkers.lost import lost
from kept.verify.checkers.phantom import phantom
from kept.verify.checkers.reordered import reordered
from kept.verify.checkers.silent import silent
from kept.verify.checkers.stalled import stalled
from kept.verify.checkers.torn import torn
from kept.verify.history.view import History

Checker = Callable[[History], list[Evidence]]

CHECKERS: Mapping[Anomaly, Checker] = {
    Anomaly.LOST: lost,
    Anomaly.DUPLICATED: duplicated,
    Anomaly.PHANTOM: phantom,
    Anomaly.TORN: torn,
    Anomaly.REORDERED: reordered,
    Anomaly.STALLED: stalled,
    Anomaly.SILENT: silent,
}

__all__ = ["CHECKERS", "Anomaly", "Checker", "Evidence", "Place"]
