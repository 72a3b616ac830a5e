"""Ports: the usual ones when they are free, others when they are not."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable

from kept.errors import PortTaken

# Below what Linux gives to outgoing connections (32768 and up): a client that reconnects to a dead
# broker could otherwise be handed that broker's own port and keep it from coming back.
OTHER_PORTS = range(20_000, 32_000)
HOST = "127.0.0.1"


def is_free(port: int) -> bool:
    """Can a server listen here now?"""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def require_free(ports: Iterable[int]) -> None:
    """Raise for the first port of these that somebody else has."""
    for port in ports:
        if not is_free(port):
            raise PortTaken(
                f"port {port} is taken by another program",
                way_out=f"stop what listens on {HOST}:{port}, or leave out --port to get free ones",
            )


def choose(preferred: dict[str, int]) -> dict[str, int]:
    """Each server's preferred port, or another free one; no port twice."""
    chosen: dict[str, int] = {}
    for name, port in preferred.items():
        taken = set(chosen.values()) | set(preferred.values())
        chosen[name] = port if port not in chosen.values() and is_free(port) else _another(taken)
    return chosen


def _another(taken: set[int]) -> int:
    for port in random.sample(OTHER_PORTS, 500):
        if port not in taken and is_free(port):
            return port
    raise PortTaken(
        f"no free port between {OTHER_PORTS.start} and {OTHER_PORTS.stop}",
        way_out="stop some of the programs that listen on this machine",
    )
