"""The first progress of a pipeline in Postgres: for every partition at once, from where it was told to begin."""

from __future__ import annotations

from collections.abc import Sequence

from kept.consumer.beginning import Beginning
from kept.consumer.membership import Membership
from kept.consumer.records import Place
from kept.consumer.sources import Sources
from kept.errors import ProgressLost, TryAgain
from kept.progress import Identity
from kept.stores import PostgresProgress, Seed

UNKNOWN_EPOCH = -1


class Seeding:
    """Knows where partitions begin, and tells the store once."""

    def __init__(self, member: Membership, beginning: Beginning, sources: Sources) -> None:
        self._member = member
        self._beginning = beginning
        self._sources = sources

    def seed(self, store: PostgresProgress, topic: str, assigned: Sequence[int], cluster_id: str) -> None:
        """At birth, and when the topic has grown; a topic that was made anew is refused by the store."""
        topic_id, numbers = self._sources.partitions(topic)
        identity = Identity(cluster_id, topic_id, UNKNOWN_EPOCH)
        places = [(topic, number) for number in numbers]
        if (topic, max(assigned)) not in places:
            raise TryAgain(  # or else progress that is only not seeded yet would be taken for lost
                f"{topic} grew to {max(assigned) + 1} partitions, and the broker that was asked does not know it yet",
                way_out="ask again",
            )
        born = store.born(topic)
        if born is not None and (born.topic_id, born.partitions) == (identity.topic_id, len(places)):
            return
        if born is None:
            self._refuse_second_birth(store.pipeline, topic, places)
        starts, firsts = self._beginning.starts(places), self._member.logs.first_offsets(places)
        store.seed(topic, [Seed(place[1], starts[place].offset, firsts[place], identity) for place in places])

    def _refuse_second_birth(self, pipeline: str, topic: str, places: Sequence[Place]) -> None:
        """The database knows nothing of a pipeline whose group shows progress: it is another one, or it was emptied."""
        shown = {place: position for place, position in self._member.committed(places).items() if position is not None}
        if shown:
            (_, number), position = max(shown.items())
            raise ProgressLost(
                f"this database has no progress of {pipeline!r} for {topic}, though its group went as far as "
                f"{topic}[{number}]@{position.offset}: beginning anew would repeat or skip records",
                way_out="restore kept_pipelines and kept_progress together with the effects; "
                "for a new beginning choose a new name, or delete the group first",
            )
