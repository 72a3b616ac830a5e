"""What a member of a group tells whoever works on its partitions: which come, and which go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kept.consumer.positions import Next
from kept.consumer.records import Place


class Follower(Protocol):
    """Whoever must know when partitions come and go."""

    def assigned(self, places: Sequence[Place]) -> Mapping[Place, Next]:
        """These are ours from now on: where to begin in each."""

    def revoked(self, places: Sequence[Place]) -> None:
        """These go to somebody else after this call: the last moment to record their progress."""

    def lost(self, places: Sequence[Place]) -> None:
        """These are somebody else's already: record nothing for them."""
