"""What became of the records whose handle nobody asked: so that closing a producer can say so."""

from __future__ import annotations

import threading

from kept.errors import KeptError, NotPersisted, OutcomeUnknown


class Book:
    """Counts failed records until somebody has heard of them; several threads may write in it."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._unheard = 0
        self._first_unknown: OutcomeUnknown | None = None
        self._first_other: KeptError | None = None
        self.refusal: NotPersisted | None = None

    def failed(self, error: KeptError) -> None:
        """A record failed; nobody has asked yet."""
        with self._writing:
            self._unheard += 1
            if isinstance(error, OutcomeUnknown):
                self._first_unknown = self._first_unknown or error
            elif isinstance(error, NotPersisted):
                self.refusal = self.refusal or error
            else:
                self._first_other = self._first_other or error

    def heard(self) -> None:
        """Somebody asked, and was told."""
        with self._writing:
            self._unheard -= 1

    def complaint(self) -> KeptError | None:
        """The error that nobody has heard of yet; an unknown fate is told first, a refusal last."""
        first: KeptError | None = self._first_unknown or self._first_other or self.refusal
        if not self._unheard or first is None:
            return None
        what = f"{self._unheard} records failed, and nobody asked for their fate; the first: {first.what}"
        if isinstance(first, NotPersisted):
            return NotPersisted(what, way_out=first.way_out, retriable=first.retriable)
        return type(first)(what, way_out=first.way_out)
