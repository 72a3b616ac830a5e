"""The first progress of a pipeline in Postgres: for every partition at once, from where it was told to begin."""

from __future__ import annotations

from kept.consumer.beginning import Beginning
from kept.consumer.sources import Sources
from kept.progress import Identity
from kept.stores import PostgresProgress, Seed

UNKNOWN_EPOCH = -1


class Seeding:
    """Knows where partitions begin, and tells the store once."""

    def __init__(self, beginning: Beginning, sources: Sources) -> None:
        self._beginning = beginning
        self._sources = sources

    def seed(self, store: PostgresProgress, topic: str, cluster_id: str) -> None:
        """At birth, and when the topic has grown; a topic that was made anew is refused by the store."""
        identity = Identity(cluster_id, self._sources.topic_ids([topic])[topic], UNKNOWN_EPOCH)
        places = [(topic, number) for number in self._beginning.numbers(topic)]
        born = store.born(topic)
        if born is not None and (born.topic_id, born.partitions) == (identity.topic_id, len(places)):
            return
        starts = self._beginning.starts(places)
        store.seed(
            topic,
            [Seed(place[1], starts[place].offset, self._beginning.watermarks(place)[0], identity) for place in places],
        )
