"""The end of a transaction, while the next one is gathered: nobody waits for the coordinator with idle hands.

The next transaction sends nothing before all of this one is in the log, or records of a key could overtake each other;
and it is not committed before this one is known to be.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, wait
from threading import Event

from confluent_kafka import TopicPartition

from kept.consumer.window import Window


class Ending:
    """A window whose transaction is being committed. `check` raises when it must not be."""

    def __init__(
        self,
        executor: Executor,
        window: Window,
        check: Callable[[], object],
        positions: list[TopicPartition],
        group: object,
    ) -> None:
        self.window = window
        self._sent = Event()
        self._over = executor.submit(self._end, check, positions, group)

    def wait_until_sent(self) -> None:
        """Until its records are in the log, or will never be."""
        self._sent.wait()

    def is_over(self) -> bool:
        return self._over.done()

    def wait(self) -> None:
        """Until it is committed; raises what ended it otherwise."""
        self._over.result()

    def wait_for_any_end(self) -> None:
        """Until it has ended in one way or the other: the recorded positions tell which."""
        wait([self._over])

    def _end(self, check: Callable[[], object], positions: list[TopicPartition], group: object) -> None:
        transaction = self.window.transaction
        try:
            try:
                transaction.flush()
            finally:
                self._sent.set()
            check()
            transaction.commit(positions, group)
        except BaseException:
            transaction.abort()
            raise
