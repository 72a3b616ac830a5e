"""What a relay carries into Kafka: records that are safe on a disk already, in the order in which they must go.

A backlog is a source like any other (rule 13): it has an identity, its records have rising positions, and the relay's
position in Kafka says how far it came. The backlog keeps a copy of that, its `Standing`, for three reasons: Kafka
forgets a position that nobody renews for a week; a relay that was succeeded must not trim or refuse any more; and a
backlog that was restored from an older copy must be recognised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

WITHOUT_A_MARK = 1_000_000
"""How far ahead of Kafka's generation somebody goes who takes a backlog over and leaves no mark in Kafka (at least
once, or a person who purges): more than relays can have died between their claim in Kafka and its note here."""


class Entry(NamedTuple):
    """One record that waits to be relayed, as it shall stand in Kafka."""

    position: int
    """Where it stands in the backlog: above 0, rising, never used twice; there may be holes."""
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    partition: int | None
    """None: chosen by the key."""
    timestamp: int | None
    """Milliseconds since 1970; None: the time at which it is sent."""
    tag: int
    """A random number of at most 63 bits, made when the record (or its batch) was written, and kept with it.

    The same position has another tag when a restored backlog hands it out a second time."""


class Lag(NamedTuple):
    """How far the relay is behind: what is not confirmed yet."""

    records: int
    bytes: int
    oldest_age: float
    """Seconds since the oldest of them was written; 0.0 when there is none."""


class Standing(NamedTuple):
    """The backlog's own durable copy of how far its relay came; all zero at birth."""

    generation: int
    """The highest generation of a relay that took it over."""
    confirmed: int
    """Every record up to here is in Kafka, or was refused and set aside."""
    attempted: int
    """No record above this was ever given to a broker. At rest it equals `confirmed`."""


class Backlog(Protocol):
    """A source of records for the relay. One relay at a time owns it; whoever owned it before is `Fenced`.

    The relay calls it by one thread at a time. Everything that is written here is durable when the call returns. Each
    call may raise `TryAgain` when its disk or database does not answer now: the relay then comes again.
    """

    @property
    def identity(self) -> str:
        """A uuid, made at its birth; a copy has the same one, another backlog never."""

    @property
    def name(self) -> str:
        """What a person calls it: a path, or an address without its secrets."""

    def standing(self) -> Standing:
        """How far its relays came, as recorded here."""

    def own(self, generation: int) -> None:
        """A relay takes over: from now on `attempt`, `trim` and `refuse` by a lower generation raise `Fenced`.

        `Fenced` when a higher generation, or another owner of this one, took it over already."""

    def knows(self, position: int, tag: int) -> bool:
        """Whether the record at this position is, or was when it was trimmed, the one with this tag.

        Asked once, at the start, about the last record that was relayed. False: this is not the backlog that it came
        from, but for example one restored from an older copy that has been written to since."""

    def end(self) -> int:
        """The highest position ever handed out, trimmed or not; 0 at birth."""

    def read(self, after: int, most: int) -> list[Entry]:
        """Up to `most` records with positions above `after`, rising, in the order in which they must be sent.

        No record may turn up later at or below the last position returned. Refused ones are left out. Fewer than
        `most` when they are large: what is in memory is bounded by bytes too. An empty list: there is none now."""

    def attempt(self, up_to: int) -> None:
        """Note, before the first of them is sent, that records up to here may be in Kafka from now on.

        A lower one than before takes back what was planned and certainly not done."""

    def trim(self, up_to: int) -> None:
        """Every record up to here is confirmed: note it, and forget them. Not necessarily at once, never more."""

    def refuse(self, entry: Entry, reason: str) -> None:
        """Set a record aside that the brokers will never take: it is kept for a person, and not read again.

        Again for the same position: nothing more happens."""

    def lag(self) -> Lag:
        """What is not confirmed yet."""

    def leave_word(self, error: str | None) -> None:
        """Note what holds the relay up, or ended it (None: nothing), for whoever looks. Need not outlive a crash."""

    def close(self) -> None:
        """Let go; what is recorded stays."""
