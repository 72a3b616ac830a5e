"""Where `kept verify` runs: on a cluster that is started for it, on the local one that is up, or on the user's own."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kept.cli.output import say
from kept.errors import FixConfiguration

if TYPE_CHECKING:
    from kept.local import Cluster
    from kept.verify.trials.elsewhere import Elsewhere

_PREFIX = re.compile(r"[a-zA-Z0-9._-]{1,200}")


@dataclass(frozen=True)
class Place:
    """What the options say together; what they contradict is refused before anything is done."""

    here: bool
    bootstrap: str | None
    topic_prefix: str | None
    yes: bool

    def __post_init__(self) -> None:
        if self.bootstrap is None and (self.topic_prefix is not None or self.yes):
            raise FixConfiguration(
                "--topic-prefix and --yes are for a cluster of yours", way_out="name it with --bootstrap HOST:PORT"
            )
        if self.bootstrap is None:
            return
        if self.here:
            raise FixConfiguration("--here and --bootstrap are two clusters", way_out="leave one of them out")
        if self.topic_prefix is None or not _PREFIX.fullmatch(self.topic_prefix):
            raise FixConfiguration(
                "topics are made on your cluster, and need a name by which you know them",
                way_out="add --topic-prefix PREFIX, of letters, digits, '.', '_' and '-', such as scratch-",
            )

    @classmethod
    def of_its_own(cls) -> Place:
        """A cluster that is started for it."""
        return cls(here=False, bootstrap=None, topic_prefix=None, yes=False)

    @property
    def lasts(self) -> bool:
        """Does the cluster stay after the run?"""
        return self.here or self.bootstrap is not None

    @property
    def prefix(self) -> str:
        from kept.verify.trials.arena import PREFIX

        return self.topic_prefix or PREFIX

    def chosen(self, named: Sequence[str], usual: Sequence[str]) -> list[str]:
        """The scenarios to run. One that was named and is not safe is refused; of the usual ones it is left out."""
        if self.bootstrap is None:
            return list(named or usual)
        from kept.verify.scenarios import scenario
        from kept.verify.trials.elsewhere import Elsewhere, why_not

        brokers = Elsewhere(self.bootstrap).brokers()
        refused = {name: why for name in named or usual if (why := why_not(scenario(name).needs, brokers))}
        safe = [name for name in named or usual if name not in refused]
        if (named and refused) or not safe:
            reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
            raise FixConfiguration(
                f"not on your cluster: {reasons}", way_out="without --bootstrap a cluster is started for them"
            )
        for name, why in refused.items():
            say(f"left out: {name}, because {why}")
        return safe

    @contextmanager
    def cluster(self) -> Iterator[Cluster | Elsewhere]:
        if self.bootstrap is not None:
            self._ask()
            from kept.verify.trials.elsewhere import Elsewhere

            yield Elsewhere(self.bootstrap)
        elif self.here:
            yield _local()
        else:
            with _started() as cluster:
                yield cluster

    def _ask(self) -> None:
        """Nothing is done in somebody's cluster that they did not agree to."""
        from kept.guarantees import CARRIER

        say(f"on the cluster at {self.bootstrap}, which stays as it is but for this:")
        say(f"  topics and groups that begin with {self.prefix} or kept.{self.prefix} are made, filled, and deleted")
        say(f"  {CARRIER}, kept's own topic, is made where it is missing, and stays")
        say("processes of this machine are killed, brokers are not")
        if self.yes:
            return
        if not sys.stdin.isatty():
            raise FixConfiguration("nothing was done: nobody is there to ask", way_out="add --yes")
        if not click.confirm("Go on?", err=True):
            raise FixConfiguration("nothing was done", way_out="without --bootstrap a cluster is started for it")


def _local() -> Cluster:
    from kept.local import Cluster
    from kept.local.processes import State

    local = Cluster()
    if not all(server.state is State.RUNNING for server in local.status()):
        raise FixConfiguration(
            f"not all of the cluster in {local.directory} runs", way_out="`kept up` first, or leave out --here"
        )
    say(f"on the local cluster in {local.directory}")
    return local


@contextmanager
def _started() -> Iterator[Cluster]:
    from kept.local import Cluster
    from kept.local.ports import ANY_FREE
    from kept.local.runtime import prepared
    from kept.local.tether import tethered

    say("starting a cluster for it")
    prepared(say)
    with (
        tempfile.TemporaryDirectory(prefix="kept-verify-") as scratch,
        tethered(Cluster(Path(scratch, "cluster"))) as cluster,
    ):
        cluster.up(ports=ANY_FREE, say=say)
        yield cluster
