"""What a cluster's directory holds: its identity and ports in cluster.json, and a folder for each server."""

from __future__ import annotations

import base64
import json
import os
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kept.errors import FixConfiguration
from kept.local.ports import BROKERS, HOST, USUAL_PORTS

FORMAT = 1


def new_cluster_id() -> str:
    """A random id in the form Kafka uses: 16 bytes in base64 for addresses; a leading dash would read as an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


@dataclass(frozen=True)
class Layout:
    """A cluster's identity, ports, and the addresses its brokers tell their clients."""

    cluster_id: str
    ports: dict[str, int]
    advertised: dict[str, str] = field(default_factory=dict)

    def listens(self, server: str) -> str:
        return f"{HOST}:{self.ports[server]}"

    def tells_clients(self, broker: str) -> str:
        return self.advertised.get(broker, self.listens(broker))

    @property
    def bootstrap(self) -> str:
        return ",".join(self.tells_clients(f"broker-{number}") for number in BROKERS)

    @property
    def internal_bootstrap(self) -> str:
        """The brokers' own addresses, never behind a proxy: what readiness is asked on."""
        return ",".join(self.listens(f"broker-{number}-internal") for number in BROKERS)

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@{self.listens('postgres')}/postgres"


def load(directory: Path) -> Layout | None:
    """The layout of the cluster in this directory; None when there is none."""
    path = directory / "cluster.json"
    try:
        document = json.loads(path.read_text())
        if document.pop("format") != FORMAT or not set(USUAL_PORTS) <= set(document["ports"]):
            raise ValueError("it was written by another version of kept")  # noqa: TRY301
        return _checked(Layout(**document))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FixConfiguration(
            f"{path} cannot be read: {error}",
            way_out="start over with `kept up --fresh` (this deletes the cluster's data), or restore the file",
        ) from error


def _checked(layout: Layout) -> Layout:
    """A file that somebody edited can hold anything; here it is told, not where a server stumbles over it."""
    names = [layout.cluster_id, *layout.ports, *layout.advertised, *layout.advertised.values()]
    if not all(isinstance(name, str) for name in names):
        raise TypeError("names and addresses are texts")
    if not all(isinstance(port, int) and 0 < port < 65_536 for port in layout.ports.values()):
        raise TypeError("ports are numbers from 1 to 65535")
    return layout


def save(directory: Path, layout: Layout) -> None:
    """Write cluster.json whole or not at all; git is told to leave the directory alone."""
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / ".gitignore").exists():
        (directory / ".gitignore").write_text("*\n")
    arriving = directory / "cluster.json.part"
    with arriving.open("w") as file:
        json.dump({"format": FORMAT, **asdict(layout)}, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    arriving.replace(directory / "cluster.json")
