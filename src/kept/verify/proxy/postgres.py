"""A proxy in front of Postgres."""

from __future__ import annotations

from urllib.parse import urlsplit

from kept.errors import FixConfiguration
from kept.verify.proxy.actions import Delay, Reset
from kept.verify.proxy.armed import Armed
from kept.verify.proxy.frames import Direction
from kept.verify.proxy.occurrences import Nth
from kept.verify.proxy.postgres_frames import Command, PostgresConversation
from kept.verify.proxy.rules import Rule
from kept.verify.proxy.service import FrameProxy

SERVER = 1


class PostgresProxy(FrameProxy):
    """In front of one Postgres; rules name a Command, as a request (the statement) or a response (its reply)."""

    def __init__(self, upstream: str) -> None:
        super().__init__({SERVER: upstream}, PostgresConversation)

    @property
    def address(self) -> str:
        return self.addresses[SERVER]

    def dsn(self, direct: str) -> str:
        """The same database, through the proxy; encryption would hide from it what it has to read."""
        parts = urlsplit(direct)
        login = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        query = "&".join(filter(None, [parts.query, "sslmode=disable", "gssencmode=disable"]))
        return parts._replace(netloc=f"{login}{self.address}", query=query).geturl()

    def add(self, rule: Rule) -> Armed:
        if not isinstance(rule.action, Reset | Delay):
            raise FixConfiguration(
                f"{rule}: without one of its messages a Postgres connection means nothing any more",
                way_out="use Reset or Delay",
            )
        return super().add(rule)

    def swallow_commit_reply(self, n: int = 1) -> Armed:
        """The n-th transaction from now that commits does so, and its client gets a reset instead of the news."""
        return self.add(Rule(Command.COMMIT, Direction.RESPONSE, Reset(), Nth(n)))
