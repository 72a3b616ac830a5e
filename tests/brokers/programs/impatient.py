"""A relay whose every time-out is lower than usual, for a whole process: an outage of seconds outlasts them all."""

from __future__ import annotations

from kept.outbox import carrying
from kept.producer import carrier, clients, transactions

TIME_OUT = 5.0
CLIENT: dict[str, int] = {
    "transaction.timeout.ms": 6000,
    "socket.timeout.ms": 3000,
    "socket.connection.setup.timeout.ms": 3000,
    "request.timeout.ms": 3000,
    "reconnect.backoff.max.ms": 500,
}
"""What the client itself waits for; under exactly-once a record is given up with its transaction."""
LONGEST = max(TIME_OUT + clients.GRACE, *(value / 1000 for value in CLIENT.values()))
"""No call of a relay waits for longer, in seconds."""


def lower_time_outs() -> None:
    carrying.OPENED_WITHIN = carrying.COMMITTED_WITHIN = TIME_OUT
    clients.CONNECTS_WITHIN = transactions.CARRIED_WITHIN = carrier._MADE_WITHIN = TIME_OUT
