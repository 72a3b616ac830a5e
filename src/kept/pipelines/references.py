"""Secrets stay out of files and command lines: `env:NAME` and `file:PATH` say where one is."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kept.errors import FixConfiguration

_SECRET = re.compile(r"password|passphrase|secret|token|credential|jaas|private|key\.pem", re.IGNORECASE)


def plain(given: str, beside: Path | None = None) -> str:
    """What was given, or what the environment variable or the file holds that it names.

    A relative path is looked for `beside` something, else in the working directory.
    """
    kind, _, where = given.partition(":")
    if kind == "env":
        found = os.environ.get(where)
        if not found:
            raise FixConfiguration(f"the environment variable {where} is not set", way_out=f"export {where}=...")
        return found
    if kind == "file":
        path = Path(where) if beside is None else beside / where
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise FixConfiguration(f"{where} cannot be read: {error}", way_out="name a file that holds it") from error
    return given


def is_reference(text: str) -> bool:
    return text.startswith(("env:", "file:"))


def names_a_secret(setting: str) -> bool:
    """Whether a setting of this name holds what nobody should read in a file."""
    return _SECRET.search(setting) is not None


def without_password(dsn: str) -> bool:
    """Whether a DSN can be shown to anybody; one that cannot be read is not the question here."""
    import psycopg  # noqa: PLC0415 - only who has a DSN pays for it
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    try:
        said = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return "password" not in dsn
    return not ({"password", "sslpassword"} & said.keys())
