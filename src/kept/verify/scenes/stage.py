"""What the scenes play with: topics, groups and a database of their own, gone afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType

from kept.admin.backlog import Place
from kept.admin.groups import Groups
from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.errors import FixConfiguration
from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.local import Cluster
from kept.producer import Producer
from kept.verify.leftovers import forget_groups
from kept.verify.proxy import KafkaProxyBeside, beside
from kept.verify.scenes.children import Child
from kept.verify.scenes.ledger import Ledger, create_database, drop_database


class Stage:
    """Makes what a scene needs on a cluster that runs; `with` takes all of it away at the end.

    `lasting=False`: the cluster itself goes down after the show, and nothing needs to be deleted from it.
    """

    def __init__(self, cluster: Cluster, *, lasting: bool = True) -> None:
        self.cluster = cluster
        self.bootstrap = cluster.bootstrap
        self._lasting = lasting
        self._show = f"kept-scenes-{uuid.uuid4().hex[:8]}"
        self._made = 0
        self._topics = Topics(self.bootstrap)
        self._database: str | None = None
        self._groups: list[str] = []
        self._undo = ExitStack()

    def name(self) -> str:
        """A name that nobody else has, for a client or an exactly-once process."""
        self._made += 1
        return f"{self._show}-{self._made}"

    def topic(self, partitions: int = 1) -> str:
        """A new topic of three copies."""
        name = self.name()
        if self._lasting:
            self._undo.callback(self._delete_topic, name)  # before: who is interrupted here has it all the same
        self._topics.create(name, partitions, ExactlyOnce("scenes"))
        return name

    def group(self, name: str) -> str:
        """Take note of a group, so that it goes with the rest."""
        if self._lasting:
            if not self._groups:
                self._undo.callback(forget_groups, self.bootstrap, self._groups)
            self._groups.append(name)
        return name

    def ledger(self) -> Ledger:
        """A new, empty table of effects, in a database of the show's own."""
        if self._database is None:
            server, name = self.cluster.dsn, self._show.replace("-", "_")
            if self._lasting:
                self._undo.callback(drop_database, server, name)
            self._database = create_database(server, name)
        ledger = Ledger(self._database, self.name())
        ledger.create()
        return ledger

    @contextmanager
    def proxy(self) -> Iterator[KafkaProxyBeside]:
        """A proxy that can harm those who go through it; the cluster's other clients notice nothing."""
        with beside(self.cluster) as proxy:
            yield proxy

    @contextmanager
    def child(self, *arguments: str) -> Iterator[Child]:
        """A process that is gone after the block, however it is left."""
        child = Child(arguments)
        try:
            yield child
        finally:
            child.kill()

    def send(self, topic: str, records: Sequence[str]) -> None:
        """Put records into a topic, in this order and for sure."""
        with Producer(self.bootstrap, AtLeastOnce()) as producer:
            for record in records:
                producer.send(topic, record)

    def log(self, topic: str) -> list[str]:
        """What a topic holds, as a reader meets it."""
        with Reader(self.bootstrap, topic, start=Start.BEGINNING) as reader:
            return [(record.value or b"").decode() for record in reader.to_end()]

    def recorded(self, group: str, topic: str) -> int | None:
        """The offset that a group goes on from in partition 0 of a topic, as the brokers have it; None: nothing yet."""
        (position,) = Groups(self.bootstrap).positions_at(group, [Place(topic, 0)])
        return position.offset

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.__exit__(kind, error, trace)

    def _delete_topic(self, name: str) -> None:
        with suppress(FixConfiguration):  # it was never made
            self._topics.delete(name)
