"""Claims: effects that no transaction can hold (a mail, an HTTP call) happen once, or it is known that nobody knows.

claims = Claims(dsn, "mail")
with claims.once(key) as claim:
    if claim:                       # else it was done before
        send_the_mail()

The claim is committed BEFORE the effect, and marked done AFTER it. What that can and cannot do:
- Done is done: whoever comes later, in any process, skips.
- A crash between the claim and the mark: the effect may have happened or not, and nobody can know from here. The next
  call raises OutcomeUnknown. Ask the receiver, then `settle(key, happened=...)`. Or choose `retry_after=seconds`: the
  effect then happens AT LEAST once for that key, and twice if its first doer was only slow.
- The one way to "exactly once" is a receiver that knows the key: send it along (an Idempotency-Key header), then
  `retry_after` is safe.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import psycopg
from psycopg import errors as pg
from psycopg.rows import TupleRow

from kept.errors import Fenced, FixConfiguration, KeptError, OutcomeUnknown, TryAgain
from kept.stores.sessions import Session, open_session, session_name
from kept.stores.sql_errors import told
from kept.stores.tables import make_missing

TABLES = {
    "kept_claims": """
        CREATE TABLE IF NOT EXISTS kept_claims (
            effect text NOT NULL,
            key text NOT NULL,
            token uuid NOT NULL,
            attempts int NOT NULL DEFAULT 1,
            claimed_at timestamptz NOT NULL DEFAULT now(),
            done_at timestamptz,
            PRIMARY KEY (effect, key))
    """
}
CLAIM = "INSERT INTO kept_claims (effect, key, token) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
LOOK = """
    SELECT token, done_at IS NOT NULL, extract(epoch FROM now() - claimed_at)::float8 FROM kept_claims
    WHERE effect = %s AND key = %s
"""
TAKE_OVER = """
    UPDATE kept_claims SET token = %s, claimed_at = now(), attempts = attempts + 1
    WHERE effect = %s AND key = %s AND token = %s AND done_at IS NULL
"""
DONE = "UPDATE kept_claims SET done_at = coalesce(done_at, now()) WHERE effect = %s AND key = %s AND token = %s"
RELEASE = "DELETE FROM kept_claims WHERE effect = %s AND key = %s AND token = %s AND done_at IS NULL"
SETTLE_DONE = "UPDATE kept_claims SET done_at = now() WHERE effect = %s AND key = %s AND done_at IS NULL"
SETTLE_UNDONE = "DELETE FROM kept_claims WHERE effect = %s AND key = %s AND done_at IS NULL"
FORGET = "DELETE FROM kept_claims WHERE effect = %s AND done_at < now() - make_interval(secs => %s)"
ATTEMPTS = 3


class Claim:
    """True in a condition: the effect is ours to apply. False: it was done before."""

    def __init__(self, ours: bool) -> None:
        self._ours = ours
        self.given_back = False

    def __bool__(self) -> bool:
        return self._ours

    def nothing_was_done(self) -> None:
        """The effect certainly did not happen (the receiver refused the connection, say): the claim is given back."""
        self.given_back = True


class Claims:
    """Claims of one kind of effect; may be used from several threads. A record with two effects needs two kinds."""

    def __init__(self, dsn: str, effect: str = "effect") -> None:
        self._dsn, self._effect = dsn, effect
        self._name = session_name(f"claims of {effect}", str(uuid.uuid4()))
        self._lock = threading.Lock()
        self._open_session: Session | None = None
        # Claims whose answer was lost before their effect began: ours to claim again, by the same token.
        self._never_begun: dict[str, uuid.UUID] = {}
        make_missing(self._session(), TABLES)

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._open_session is not None:
            self._open_session.close()

    @contextmanager
    def once(self, key: str | uuid.UUID, *, retry_after: float | None = None) -> Iterator[Claim]:
        """Apply the effect in this block if the claim is true; it is marked done when the block is left well.

        An exception leaves the claim open, for the effect may have happened, unless `nothing_was_done` was said.
        """
        token = self._claim(str(key), retry_after)
        claim = Claim(token is not None)
        try:
            yield claim
        finally:
            if token is not None and claim.given_back:
                self._run(RELEASE, (self._effect, str(key), token))
        if token is not None and not claim.given_back:
            self._mark_done(str(key), token)

    def settle(self, key: str | uuid.UUID, *, happened: bool) -> None:
        """A person, or the receiver, knows what became of an open claim."""
        statement = SETTLE_DONE if happened else SETTLE_UNDONE
        if self._run(statement, (self._effect, str(key))).rowcount != 1:
            raise FixConfiguration(f"{self._told(key)} is not an open claim", way_out="nothing needs settling")

    def forget(self, older_than: float) -> int:
        """Delete claims that were done so many seconds ago: no record of that age may come again. How many it were."""
        return self._run(FORGET, (self._effect, older_than)).rowcount

    def _claim(self, key: str, retry_after: float | None) -> uuid.UUID | None:
        """Our token once the claim is committed, None if the effect is done; whatever is in between raises."""
        token = self._never_begun.pop(key, None) or uuid.uuid4()
        try:
            self._run(CLAIM, (self._effect, key, token))
            row = self._run(LOOK, (self._effect, key)).fetchone()
            if row is not None and row[0] != token and not row[1]:
                self._take_over(key, token, row, retry_after)
                return token
        except TryAgain:
            self._never_begun[key] = token
            raise
        if row is None:
            raise TryAgain(f"{self._told(key)} was just given back", way_out="try again")
        return token if row[0] == token and not row[1] else None

    def _take_over(self, key: str, token: uuid.UUID, row: TupleRow, retry_after: float | None) -> None:
        other, _, age = row
        if retry_after is None:
            raise OutcomeUnknown(
                f"{self._told(key)} was claimed {age:.0f} s ago and is not done: under way, or its doer crashed",
                way_out="ask the receiver, then settle(key, happened=...); or bear a second time with retry_after",
            )
        arguments = (token, self._effect, key, other)
        if age < retry_after or self._run(TAKE_OVER, arguments).rowcount != 1:
            raise TryAgain(
                f"{self._told(key)} was claimed {age:.0f} s ago and may be under way",
                way_out=f"try again when the claim is {retry_after:.0f} s old",
            )

    def _mark_done(self, key: str, token: uuid.UUID) -> None:
        try:
            marked = self._run(DONE, (self._effect, key, token)).rowcount
        except KeptError as error:
            raise OutcomeUnknown(
                f"{self._told(key)} happened, but that could not be recorded: {error.what}",
                way_out="settle(key, happened=True) when the database is back",
            ) from error
        if marked != 1:
            raise Fenced(
                f"{self._told(key)} was taken over or settled by another meanwhile: it may have happened twice",
                way_out="choose a longer retry_after than the effect can take",
            )

    def _run(self, statement: str, arguments: tuple[object, ...]) -> psycopg.Cursor[TupleRow]:
        """Each statement is a transaction, and may be repeated after a lost answer: the token tells whose it was."""
        with self._lock:
            for attempt in range(ATTEMPTS):
                session = self._session()
                try:
                    return session.execute(statement.encode(), arguments)
                except pg.OperationalError as error:
                    if error.sqlstate is None:
                        session.close()  # the server said nothing: what this connection waits for may never come
                    if not session.closed or attempt == ATTEMPTS - 1:
                        raise told(error, "keeping a claim") from error
                except psycopg.Error as error:
                    raise told(error, "keeping a claim") from error
        raise AssertionError("the last attempt returns or raises")

    def _session(self) -> Session:
        if self._open_session is None or self._open_session.closed:
            self._open_session = open_session(self._dsn, self._name, 5.0, 60.0)
        return self._open_session

    def _told(self, key: object) -> str:
        return f"{self._effect} {key}"
