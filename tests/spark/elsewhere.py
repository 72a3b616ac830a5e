"""A second Kafka beside the shared one, as small as it gets: one process that is broker and controller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kept.local import Cluster, layout
from kept.local.kafka import KafkaServer, properties
from kept.local.layout import Layout
from kept.local.ports import USUAL_PORTS, choose
from kept.local.runtime import prepared
from kept.local.tether import tethered

NAME = "broker-1"
PLACES = ("controller", NAME, f"{NAME}-internal")
ALONE = {
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


class OneBroker(KafkaServer):
    """Broker and controller in one process, without anybody to copy to."""

    more: Mapping[str, str] = {}
    """Settings over those that a cluster of ours has."""

    def configure(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        both = properties(self._layout, self.name, self.data)
        controller = self._layout.listens("controller")
        rows = {
            **both,
            **ALONE,
            "process.roles": "broker,controller",
            "controller.quorum.voters": f"{both['node.id']}@{controller}",
            "listeners": f"CONTROLLER://{controller},{both['listeners']}",
            **self.more,
        }
        self._configuration.write_text("".join(f"{name}={value}\n" for name, value in rows.items()))


@contextmanager
def another_cluster(folder: Path, **more: str) -> Iterator[Cluster]:
    """Without a Postgres; down after this block, and after the end of this process. `more`: settings of the broker."""
    usual = {place: USUAL_PORTS[place] for place in PLACES}
    chosen = choose(usual, avoid=usual.values())
    # All that a cluster is asked for is there: this broker stands for each of the three.
    ports = {place: chosen.get(place, chosen[NAME]) for place in USUAL_PORTS}
    ports |= {place: chosen[f"{NAME}-internal"] for place in ports if place.endswith("-internal")}
    with tethered(Cluster(folder)) as cluster:
        layout.save(cluster.directory, Layout(layout.new_cluster_id(), ports))
        server = OneBroker(cluster.directory, NAME, cluster.layout, prepared)
        server.more = more
        server.configure()
        server.make_data()
        server.launch()
        server.wait_ready()
        yield cluster


def make_topic(cluster: Cluster, name: str, partitions: int, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    request = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
    admin.create_topics([request], operation_timeout=30)[name].result(30)
