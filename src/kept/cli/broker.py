"""`kept broker` and `kept postgres`: do to one server what life does to servers."""

from __future__ import annotations

from pathlib import Path

import click

from kept.cli import target
from kept.cli.output import say

ACTIONS = ("kill", "pause", "resume", "stop", "start", "restart")
ACTION = click.argument("action", type=click.Choice(ACTIONS))


@click.command()
@click.argument("which", type=click.Choice(["1", "2", "3", "controller"]))
@ACTION
@target.directory
def broker(which: str, action: str, directory: Path | None) -> None:
    """Kill (SIGKILL), pause (SIGSTOP), resume, stop, start or restart one broker or the controller.

    For example: kept broker 2 kill
    """
    _act("controller" if which == "controller" else f"broker-{which}", action, directory)


@click.command()
@ACTION
@target.directory
def postgres(action: str, directory: Path | None) -> None:
    """Kill, pause, resume, stop, start or restart the local Postgres."""
    _act("postgres", action, directory)


def _act(name: str, action: str, directory: Path | None) -> None:
    from kept.local import Cluster
    from kept.local.processes import State

    server = Cluster(directory).server(name)
    if action in ("kill", "pause", "resume", "stop") and server.state() is State.STOPPED:
        say(f"{name} is not running")
        return
    getattr(server, action)()
    say(f"{name} is {server.state().value}")
