"""The door of the command line: registers every command, turns errors into words and exit codes."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from kept._version import __version__
from kept.cli.broker import broker, postgres
from kept.cli.dead_letters import dead_letters
from kept.cli.demo import demo
from kept.cli.down import down
from kept.cli.exit_codes import ExitCode, code_for
from kept.cli.groups import groups
from kept.cli.logs import logs
from kept.cli.outbox import outbox
from kept.cli.output import print_json
from kept.cli.pipelines import pipelines
from kept.cli.prepare import prepare
from kept.cli.receive import receive
from kept.cli.run import run
from kept.cli.scenes import scenes
from kept.cli.send import send
from kept.cli.status import status
from kept.cli.topics import topics
from kept.cli.transactions import transactions
from kept.cli.up import up
from kept.cli.verify import verify
from kept.errors import KeptError


class _InOrder(click.Group):
    """Commands in the order a newcomer meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own signature
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="kept")
def kept() -> None:
    """Delivery guarantees for Kafka, kept and proven.

    \b
    A first minute:
      kept up                          a Kafka of three brokers and a Postgres, on this machine
      kept topics create payments      a topic that survives the loss of a broker
      kept send payments 'hello'       prints the partition and offset
      kept receive payments --from-beginning --to-end
      kept down

    Exit codes: 0 done; 1 failed, the message says the way out; 2 wrong command line; 3 the answer is no;
    4 the outcome is unknown; 130 interrupted.
    """


for command in (
    up, down, status, logs, broker, postgres, topics, send, receive, groups, transactions, dead_letters, outbox, run,
    pipelines, demo, scenes, verify, prepare,
):  # fmt: skip
    kept.add_command(command)


def main() -> NoReturn:
    """Run the command line; every error of ours ends with its way out."""
    try:
        result = kept.main(prog_name="kept", standalone_mode=False)
        sys.exit(result if isinstance(result, int) else ExitCode.DONE)
    except KeptError as error:
        if "--json" in sys.argv:
            print_json({"error": type(error).__name__, "what": error.what, "way_out": error.way_out})
        else:
            click.secho("error: ", fg="red", bold=True, nl=False, err=True)
            click.echo(str(error), err=True)
        sys.exit(code_for(error))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except ModuleNotFoundError as error:
        click.echo(f"error: {error.name} is not installed\n  way out: pip install 'kept[all]'", err=True)
        sys.exit(ExitCode.FAILED)


if __name__ == "__main__":
    main()
