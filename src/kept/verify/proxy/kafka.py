"""A proxy in front of Kafka's brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kept.local import Cluster
from kept.local.ports import ANY_FREE, BROKERS, Ports
from kept.verify.proxy.kafka_frames import KafkaConversation
from kept.verify.proxy.service import FrameProxy


class KafkaProxy(FrameProxy):
    """In front of brokers by their number; they must advertise the proxy's addresses, or clients go around it.

    An upstream of None is one that is not known yet: `lead` names it later.
    """

    def __init__(self, upstreams: Mapping[int, str | None]) -> None:
        super().__init__(upstreams, KafkaConversation)

    @property
    def bootstrap(self) -> str:
        """Where clients begin."""
        return ",".join(self.addresses.values())


@contextmanager
def in_front_of(cluster: Cluster, *, ports: Ports = ANY_FREE) -> Iterator[KafkaProxy]:
    """Start a cluster that is down, with a proxy in front of each broker, in one go.

    The brokers' ports are known only once they run, and what they advertise must be known before: so the proxy is
    there first and learns afterwards where it leads. The cluster stays up afterwards, behind a proxy that is gone.
    """
    with KafkaProxy(dict.fromkeys(BROKERS)) as proxy:
        cluster.up(ports=ports, advertised=proxy.addresses)
        for broker in BROKERS:
            proxy.lead(broker, cluster.layout.listens(f"broker-{broker}"))
        yield proxy
