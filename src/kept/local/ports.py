"""Ports: the usual ones when they are free, others when they are not."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from kept.errors import FixConfiguration, PortTaken

HOST = "127.0.0.1"
BROKERS = (1, 2, 3)
USUAL_PORTS = {
    **{f"broker-{number}": 9090 + number for number in BROKERS},
    **{f"broker-{number}-internal": 19090 + number for number in BROKERS},
    "controller": 19090,
    "postgres": 5432,
}
# Below what Linux gives to outgoing connections (32768 and up): a client that reconnects to a dead
# broker could otherwise be handed that broker's own port and keep it from coming back.
OTHER_PORTS = range(20_000, 32_000)


@dataclass(frozen=True)
class Ports:
    """What a person wants of the ports: the usual ones, a row of their own for the brokers, or any that are free."""

    usual: bool = True
    first: int | None = None

    def preferred(self) -> dict[str, int]:
        """The ports a new cluster would like to have."""
        return dict(USUAL_PORTS) if self.usual else choose(USUAL_PORTS, avoid=USUAL_PORTS.values())

    def arrange(self, known: Mapping[str, int], running: Collection[str], say: Callable[[str], None]) -> dict[str, int]:
        """Ports for every server of a cluster, of which some run already and keep theirs."""
        wanted = dict(known)
        if self.first is not None:
            asked = {f"broker-{n}": self.first + n - 1 for n in BROKERS if f"broker-{n}" not in running}
            require_free(asked.values(), way_out="leave out --port to get free ones")
            wanted |= asked
        idle = {name: port for name, port in wanted.items() if name.removesuffix("-internal") not in running}
        if running and "controller" in idle:
            # The brokers that run know this address of the controller and no other.
            require_free([idle["controller"]], way_out="`kept down`, then `kept up`")
        chosen = choose(idle)
        for name, port in idle.items():
            if chosen[name] != port:
                say(f"port {port} is taken: {name} gets {chosen[name]} instead")
        return {**wanted, **chosen}


USUAL = Ports()
ANY_FREE = Ports(usual=False)


def is_free(port: int) -> bool:
    """Can a server listen here now?"""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def require_free(ports: Iterable[int], *, way_out: str) -> None:
    """Raise for the first port of these that somebody else has."""
    for port in ports:
        if not 0 < port < 65_536:
            raise FixConfiguration(f"{port} is not a port: they go from 1 to 65535", way_out=way_out)
        if not is_free(port):
            raise PortTaken(
                f"port {port} is taken by another program",
                way_out=f"stop what listens on {HOST}:{port}, or {way_out}",
            )


def choose(preferred: Mapping[str, int], *, avoid: Collection[int] = ()) -> dict[str, int]:
    """Each server's preferred port, or another free one; no port twice."""
    chosen: dict[str, int] = {}
    for name, port in preferred.items():
        taken = {*chosen.values(), *preferred.values(), *avoid}
        usable = port not in chosen.values() and port not in avoid and is_free(port)
        chosen[name] = port if usable else _another(taken)
    return chosen


def _another(taken: Collection[int]) -> int:
    for port in random.sample(OTHER_PORTS, 500):
        if port not in taken and is_free(port):
            return port
    raise PortTaken(
        f"no free port between {OTHER_PORTS.start} and {OTHER_PORTS.stop}",
        way_out="stop some of the programs that listen on this machine",
    )
