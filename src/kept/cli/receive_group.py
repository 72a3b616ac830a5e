"""`kept receive --group`: a member of a group whose effect is a line of output, a command, or an exactly-once sink."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kept.cli.output import print_line, say
from kept.consumer import Consumer, Output, Record, Start
from kept.errors import FixConfiguration
from kept.guarantees import ExactlyOnce, Guarantee, parse


@dataclass(frozen=True)
class Effect:
    """What is done with a record: at most one of the four, else its line is printed."""

    command: str | None
    dead_letters: str | None
    into: str | None
    into_postgres: str | None
    line: Callable[[Record], bytes]

    def __post_init__(self) -> None:
        chosen = {"--exec": self.command, "--into": self.into, "--into-postgres": self.into_postgres}
        given = [name for name, value in chosen.items() if value]
        if len(given) > 1:
            raise FixConfiguration(f"{' and '.join(given)} are different effects", way_out="choose one of them")
        if self.dead_letters and not (self.command or self.into):
            raise FixConfiguration("--dead-letters is for what --exec or --into gives up", way_out="leave it out")


class CommandFailed(Exception):
    """The command ended with a status other than 0."""


class Consuming:
    """One member, and its end by count, idleness or signal."""

    def __init__(self, bootstrap: str, topic: str, group: str, guarantee: str, *, from_beginning: bool) -> None:
        promise: Guarantee = ExactlyOnce(group) if guarantee == ExactlyOnce.word else parse(guarantee)
        self._promise = promise
        self._consumer = Consumer(
            bootstrap,
            topic,
            guarantee=promise,
            group=None if isinstance(promise, ExactlyOnce) else group,
            start=Start.BEGINNING if from_beginning else Start.END,
        )
        self._done = 0

    def run(self, effect: Effect, *, most: int | None, idle: float | None) -> None:
        exactly_once = isinstance(self._promise, ExactlyOnce)
        if exactly_once != bool(effect.into or effect.into_postgres):
            raise FixConfiguration(
                "exactly-once needs an effect that shares a transaction with the progress"
                if exactly_once
                else f"--into and --into-postgres are exactly-once, not {self._promise.word}",
                way_out="use --guarantee exactly-once with --into TOPIC or --into-postgres DSN",
            )
        if exactly_once and most is not None:
            raise FixConfiguration("--max counts records, exactly-once ends by the transaction", way_out="use --idle")
        with self._consumer, self._ended_by_idleness(idle):
            if effect.into is not None:
                self._copy(effect.into, effect.dead_letters)
            elif effect.into_postgres is not None:
                self._insert(effect.into_postgres)
            elif effect.command is not None:
                self._execute(effect.command, effect.dead_letters, most)
            else:
                self._print(effect.line, most)
        if not exactly_once and effect.command:
            say(f"{self._done} done")

    def _print(self, line: Callable[[Record], bytes], most: int | None) -> None:
        with self._consumer.stopped_by_signals():
            for record in self._consumer:
                if not print_line(line(record)):
                    return  # whoever read our output has left: this record is not done
                self._count(most)

    def _execute(self, command: str, dead_letters: str | None, most: int | None) -> None:
        def handle(record: Record) -> None:
            status = _run(command, record)
            if status != 0:
                raise CommandFailed(f"status {status} of: {command}")
            self._count(most)

        try:
            self._consumer.run(handle, dead_letters=dead_letters)
        except CommandFailed as failed:
            raise FixConfiguration(
                f"a record could not be done: {failed}",
                way_out="mend the command and start again: it goes on with that record; or name --dead-letters TOPIC",
            ) from failed

    def _copy(self, topic: str, dead_letters: str | None) -> None:
        def copy(record: Record) -> Output:
            return Output(topic, record.value, record.key, list(record.headers))

        self._consumer.into_kafka(copy, dead_letters=dead_letters)

    def _insert(self, dsn: str) -> None:
        self._consumer.into_postgres(dsn)

    def _count(self, most: int | None) -> None:
        self._done += 1
        if self._done == most:
            self._consumer.stop()

    @contextmanager
    def _ended_by_idleness(self, seconds: float | None) -> Iterator[None]:
        over = threading.Event()

        def watch() -> None:
            while seconds is not None and not over.wait(0.1):
                if self._consumer.idle_for > seconds:
                    self._consumer.stop()
                    return

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()


def _run(command: str, record: Record) -> int:
    """The command with the record; Ctrl-C is ours to heed, so that it is not cut short."""
    about = {
        "KEPT_TOPIC": record.topic,
        "KEPT_PARTITION": str(record.partition),
        "KEPT_OFFSET": str(record.offset),
        "KEPT_KEY": (record.key or b"").decode(errors="replace"),
    }
    done = subprocess.run(  # noqa: S602 - the person's own command line
        command,
        shell=True,
        input=record.value or b"",
        env={**os.environ, **{name: value.replace("\0", "") for name, value in about.items()}},
        start_new_session=True,
        check=False,
    )
    return done.returncode
