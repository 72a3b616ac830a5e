"""Which cluster a command talks to: the address given, else the local one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kept.errors import FixConfiguration
from kept.guarantees.levels import WORDS
from kept.pipelines.references import plain

__all__ = ["Dsn", "Place", "address", "bootstrap", "directory", "dsn", "guarantee", "plain"]
Command = TypeVar("Command", bound=Callable[..., Any])

directory = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="The local cluster's directory. [KEPT_DIR; else the nearest .kept upwards, else ./.kept]",
)
bootstrap = click.option(
    "--bootstrap",
    envvar="KEPT_BOOTSTRAP",
    metavar="HOST:PORT,...",
    help="The Kafka to talk to. [KEPT_BOOTSTRAP; else the local cluster]",
)
dsn = click.option(
    "--dsn", metavar="DSN", help="The Postgres to look into: postgresql://..., or env:NAME or file:PATH that holds it."
)


def guarantee(default: str) -> Callable[[Command], Command]:
    """The option that chooses the promise in one word."""
    return click.option(
        "--guarantee", type=click.Choice(WORDS), default=default, show_default=True, help="What to promise."
    )


def address(given: str | None) -> str:
    """The bootstrap address, or an error that says how to get one."""
    if given:
        return given
    from kept.local import layout
    from kept.local.places import cluster_directory

    found = layout.load(cluster_directory())
    if found is None:
        raise FixConfiguration(
            "no Kafka to talk to: no address was given, and there is no local cluster here",
            way_out="`kept up` starts one, or name yours with --bootstrap HOST:PORT",
        )
    return found.bootstrap


class Dsn(str):
    """The address of a Postgres, as it was given: it may only name where the secret is."""

    __slots__ = ()

    @property
    def plain(self) -> str:
        return plain(self)


class Place(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """Where an outbox is: a file, or a Postgres."""

    name = "path or DSN"

    def convert(self, value: object, parameter: click.Parameter | None, context: click.Context | None) -> Path | Dsn:
        if str(value).startswith(("postgresql://", "postgres://", "env:", "file:")):
            return Dsn(value)
        kind: click.Path = click.Path(path_type=Path, dir_okay=False)
        return Path(str(kind.convert(str(value), parameter, context)))
