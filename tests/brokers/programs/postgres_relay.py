"""A relay of a Postgres outbox in a process of its own, until it is ended: DSN BOOTSTRAP [DEATH].

With a death (when, at which point, which time; or null) it is impatient, and kills itself there.
"""

from __future__ import annotations

import json
import signal
import sys

from kept.errors import KeptError
from kept.outbox.journal import Journal
from kept.outbox.postgres_backlog import PostgresBacklog
from kept.outbox.relay import Relay
from tests.brokers.programs.impatient import CLIENT, lower_time_outs
from tests.brokers.programs.outbox_life import RELAY_POINTS, dies

POINTS = {
    name: (PostgresBacklog if owner is Journal else owner, function) for name, (owner, function) in RELAY_POINTS.items()
}


def main(dsn: str, bootstrap: str, death: str | None = None) -> int:
    if death is not None:
        lower_time_outs()
        dies(POINTS, json.loads(death))
    backlog = PostgresBacklog(dsn)
    settings: dict[str, object] = {} if death is None else dict(CLIENT)
    relay = Relay(backlog, bootstrap, **settings)  # type: ignore[arg-type]
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
