"""How far a Postgres outbox may be read: up to a position below which nothing can turn up any more (rule 15).

A record takes its position while its transaction commits, and is visible a moment later. Whoever is in between holds
a shared advisory lock, taken before the position and let go after the record can be seen. So:

1. read the highest position that was handed out;
2. look who holds the lock;
3. when all of those are gone, everything up to that position that will ever be there can be seen.

Nobody waits for the reader, and the reader waits for commits under way only, not for transactions that stay open.
"""

from __future__ import annotations

import logging
import time

from kept.stores.sessions import Session

logger = logging.getLogger("kept")
END = "SELECT CASE WHEN is_called THEN (kept_outbox_epoch() << 40) + last_value ELSE 0 END FROM kept_outbox_positions"
COMMITTING = """
    SELECT virtualtransaction, pid FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (classid::bigint << 32) | objid::bigint = kept_outbox_lock()
"""
WAITED_AT_ONCE = 0.05
BETWEEN_LOOKS = 0.002
TOLD_EVERY = 10.0


def end_of(session: Session) -> int:
    """The highest position that was ever handed out."""
    return int(session.execute(END).fetchall()[0][0])


def committing(session: Session) -> dict[str, int | None]:
    """The transactions that may hold positions which cannot be seen yet, and their processes."""
    return dict(session.execute(COMMITTING).fetchall())


class Horizon:
    """What may be read, as far as is known; it only rises."""

    def __init__(self) -> None:
        self.known = 0
        self._next = 0
        self._waited_for: dict[str, int | None] = {}
        self._since = self._told_at = 0.0

    def look(self, session: Session) -> None:
        """Raise `known` to the end that the outbox has now, or, while commits are under way, leave it for later."""
        if not self._waited_for:
            self._next = end_of(session)  # before the look at who commits: see above
            self._waited_for = committing(session)
            self._since = self._told_at = time.monotonic()
        deadline = time.monotonic() + WAITED_AT_ONCE
        while self._waited_for:
            time.sleep(BETWEEN_LOOKS)
            still = committing(session)
            self._waited_for = {name: pid for name, pid in self._waited_for.items() if name in still}
            if self._waited_for and time.monotonic() > deadline:
                self._tell()
                return
        self.known = max(self.known, self._next)

    @property
    def waits(self) -> bool:
        """Whether commits were under way at the last look."""
        return bool(self._waited_for)

    @property
    def held_up(self) -> str | None:
        """What it waits for, when it has waited for longer than a commit takes."""
        waited = time.monotonic() - self._since
        if not self._waited_for or waited < 1.0:
            return None
        who = ", ".join(f"process {pid}" if pid else "a prepared transaction" for pid in self._waited_for.values())
        return (
            f"for {waited:.0f} s the outbox cannot be read further: {who} took positions and did not commit yet "
            "(SET CONSTRAINTS IMMEDIATE in a long transaction, PREPARE TRANSACTION, or a standby that is waited for)"
        )

    def _tell(self) -> None:
        if self.held_up is not None and time.monotonic() - self._told_at > TOLD_EVERY:
            self._told_at = time.monotonic()
            logger.warning("%s", self.held_up)
