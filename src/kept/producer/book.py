"""What became of the records whose handle nobody asked: so that closing a producer can say so."""

from __future__ import annotations

from kept.errors import KeptError, NotPersisted, OutcomeUnknown


class Book:
    """Counts failed records until somebody has heard of them."""

    def __init__(self) -> None:
        self._unheard = 0
        self._first_unknown: OutcomeUnknown | None = None
        self.refusal: NotPersisted | None = None

    def failed(self, error: KeptError) -> None:
        """A record failed; nobody has asked yet."""
        self._unheard += 1
        if isinstance(error, OutcomeUnknown):
            self._first_unknown = self._first_unknown or error
        elif isinstance(error, NotPersisted):
            self.refusal = self.refusal or error

    def heard(self) -> None:
        """Somebody asked, and was told."""
        self._unheard -= 1

    def complaint(self) -> KeptError | None:
        """The error that nobody has heard of yet; an unknown fate is told before a refusal."""
        first: KeptError | None = self._first_unknown or self.refusal
        if not self._unheard or first is None:
            return None
        what = f"{self._unheard} records failed, and nobody asked for their fate; the first: {first.what}"
        if isinstance(first, NotPersisted):
            return NotPersisted(what, way_out=first.way_out, retriable=first.retriable)
        return OutcomeUnknown(what, way_out=first.way_out)
