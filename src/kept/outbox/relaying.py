"""A relay in the background of the process that sends; of several processes, one relays and the others stand by."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from kept.errors import KeptError, PersonMustLook
from kept.guarantees import Guarantee
from kept.outbox.journal import Journal
from kept.outbox.locks import Lock, beside
from kept.outbox.relay import Relay

logger = logging.getLogger("kept")
STANDS_BY = 0.2


class Relaying:
    """The thread: it waits for its turn, relays, and tells what ended it."""

    def __init__(
        self, path: Path, bootstrap: str, guarantee: Guarantee | None, overrides: Mapping[str, object]
    ) -> None:
        self.ended_by: KeptError | None = None
        self._lock = Lock(beside(path, "relay"))
        self._journal = Journal(path)
        self._stop = threading.Event()
        try:
            self._relay = Relay(self._journal, bootstrap, guarantee, **dict(overrides))  # type: ignore[arg-type]
        except BaseException:
            self._journal.close()
            self._lock.close()
            raise
        # A daemon: a program that ends without closing its outbox is not held up, and loses nothing.
        self._thread = threading.Thread(target=self._run, name="kept-relay", daemon=True)
        self._thread.start()

    @property
    def relayed(self) -> int:
        return self._relay.relayed

    @property
    def last_error(self) -> str | None:
        return self._relay.last_error if self.ended_by is None else self.ended_by.what

    def close(self) -> None:
        self._stop.set()
        self._relay.stop()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._lock.alone():
                if self._stop.wait(STANDS_BY):
                    return
            self._relay.run()
        except KeptError as error:
            self.ended_by = error
        except Exception as failure:  # noqa: BLE001 - a thread that dies silently would leave records unsent for good
            self.ended_by = PersonMustLook(
                f"the relay ended: {failure!r}", way_out="open the outbox anew, and report this as a fault of kept"
            )
        finally:
            if self.ended_by is not None:
                logger.error("the relay of %s has ended, and nothing is relayed: %s", self._journal.name, self.ended_by)
            self._relay.close()
            self._journal.close()
            self._lock.close()
