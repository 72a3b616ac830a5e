"""A proxy beside a cluster that runs: who begins at the proxy stays with it, everybody else notices nothing.

Brokers tell clients where they are, and a client goes there. So each answer that names brokers is changed on its way:
where a broker's address stands, a host and a port of four bytes, the proxy's port is put, and no length changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kept.errors import FixConfiguration
from kept.local import Cluster
from kept.local.ports import BROKERS, HOST
from kept.verify.proxy.apis import Api
from kept.verify.proxy.frames import Frame
from kept.verify.proxy.kafka import KafkaProxy
from kept.verify.proxy.kafka_frames import KafkaConversation

NAMES_BROKERS = frozenset((Api.METADATA, Api.FIND_COORDINATOR, Api.DESCRIBE_CLUSTER, Api.PRODUCE))


class KafkaProxyBeside(KafkaProxy):
    """In front of brokers that tell clients other addresses than the proxy's; they must be on this machine."""

    def __init__(self, brokers: Mapping[int, str]) -> None:
        super().__init__(brokers)
        self._told = {number: _as_answered(address) for number, address in brokers.items()}
        self._conversation = lambda: _Readdressed(self._instead())

    def _instead(self) -> dict[bytes, bytes]:
        return {self._told[number]: _as_answered(f"{HOST}:{door.port}") for number, door in self._doors.items()}


def beside(cluster: Cluster) -> KafkaProxyBeside:
    """A proxy for clients that begin at its `bootstrap`; the cluster runs, and goes on as it is."""
    return KafkaProxyBeside({number: cluster.layout.tells_clients(f"broker-{number}") for number in BROKERS})


class _Readdressed(KafkaConversation):
    """A conversation in which brokers seem to be where the proxy is."""

    def __init__(self, instead: Mapping[bytes, bytes]) -> None:
        super().__init__()
        self._instead = instead

    def _response(self, data: bytes) -> Frame:
        frame = super()._response(data)
        if frame.kind not in NAMES_BROKERS:
            return frame
        data = frame.data
        for told, ours in self._instead.items():
            data = data.replace(told, ours)
        return replace(frame, data=data)


def _as_answered(address: str) -> bytes:
    """A broker's address as Kafka writes it: the host's letters, then the port; the host's length goes before."""
    host, _, port = address.rpartition(":")
    if host != HOST:
        raise FixConfiguration(
            f"a broker tells clients that it is at {address}, and only {HOST} can be exchanged for the proxy's address",
            way_out="`kept up --advertise none` lets the brokers of a local cluster tell where they listen",
        )
    return host.encode() + int(port).to_bytes(4, "big")
