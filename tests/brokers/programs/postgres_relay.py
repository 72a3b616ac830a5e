"""A relay of a Postgres outbox in a process of its own, until it is ended: DSN BOOTSTRAP."""

from __future__ import annotations

import signal
import sys

from kept.errors import KeptError
from kept.outbox.postgres_backlog import PostgresBacklog
from kept.outbox.relay import Relay


def main(dsn: str, bootstrap: str) -> int:
    backlog = PostgresBacklog(dsn)
    relay = Relay(backlog, bootstrap)
    signal.signal(signal.SIGTERM, lambda *_: relay.stop())
    try:
        relay.run()
    except KeptError as error:
        print(type(error).__name__, error.what, flush=True)
        return 1
    finally:
        backlog.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
