"""Every command: help that can be followed, no traceback on wrong input."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from kept.cli.exit_codes import ExitCode
from kept.cli.main import kept as command_line
from tests.conftest import Kept


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))


@pytest.mark.parametrize(("words", "command"), list(commands(command_line)), ids=str)
def test_every_command_and_option_says_what_it_is_for(words: tuple[str, ...], command: click.Command) -> None:
    assert command.help
    assert command.help.strip().split("\n")[0].endswith((".", ":"))
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


@pytest.mark.parametrize("words", [words for words, _ in commands(command_line)], ids=" ".join)
def test_reporting_commands_have_json(words: tuple[str, ...]) -> None:
    reporting = {("up",), ("status",), ("topics", "create"), ("topics", "list"), ("topics", "describe"), ("send",),
                 ("receive",), ("demo",), ("groups", "list"), ("groups", "describe"), ("groups", "reset"),
                 ("transactions",), ("dead-letters", "list"), ("dead-letters", "show"), ("scenes",),
                 ("outbox", "status"), ("outbox", "inspect"), ("run",), ("verify", "run"), ("verify", "judge"),
                 ("verify", "resume"), ("verify", "pipeline"),
                 *(("pipelines", word) for word in ("list", "show", "replay", "repair"))}  # fmt: skip
    options = {option for parameter in dict(commands(command_line))[words].params for option in parameter.opts}
    assert ("--json" in options) == (words in reporting)


def test_exit_codes_are_told_in_help(kept: Kept) -> None:
    text = " ".join(kept("--help").stdout.split())
    for code in ExitCode:
        assert f"{code.value} " in text
        assert code.meaning


def test_output_that_is_not_a_terminal_has_no_colour(kept: Kept) -> None:
    result = kept("status")
    assert "\x1b[" not in result.stderr + result.stdout
    assert result.returncode == 1
