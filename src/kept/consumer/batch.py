"""Several records at once, done together or acknowledged one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from kept.consumer.records import Record
from kept.errors import FixConfiguration


class Batch(Sequence[Record]):
    """Records in their order. Leaving it makes all of them done, unless some were acknowledged: then only these.

    Progress follows the unbroken row of acknowledged records from the first on, per partition. What was not
    acknowledged comes again in the next batch; what was acknowledged behind it does not, unless this process dies.
    A body that raises, or breaks, leaves all of it to be done again.
    """

    def __init__(self, records: list[Record]) -> None:
        self._records = records
        self._acknowledged: set[int] | None = None
        self.unseen = False
        """Nobody got it: leaving it makes nothing done, and it is still to be handed out."""

    def acknowledge(self, *records: Record) -> None:
        """These are done, in whatever order."""
        known = {id(record) for record in self._records}
        if self._acknowledged is None:
            self._acknowledged = set()
        for record in records:
            if id(record) not in known:
                raise FixConfiguration(
                    f"{record} is not in this batch", way_out="acknowledge a record that it gave you"
                )
            self._acknowledged.add(id(record))

    def acknowledge_none(self) -> None:
        """Nothing of it is done, except what is acknowledged."""
        self.acknowledge()

    @property
    def is_partial(self) -> bool:
        """Whether some of it may be left, because records are acknowledged one by one or nobody saw any."""
        return self.unseen or self._acknowledged is not None

    def left(self) -> list[Record]:
        """The records that are not done, if the batch is left now."""
        if self.unseen:
            return list(self._records)
        if self._acknowledged is None:
            return []
        return [record for record in self._records if id(record) not in self._acknowledged]

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)


def refuse_none(most: int) -> None:
    """Raise where a batch could hold no record."""
    if most < 1:
        raise FixConfiguration(f"a batch of at most {most} records is none", way_out="give 1 or more")
