"""Which line of a TOML file says what.

The parser of the standard library gives values without lines. A file is a row of statements, and what stands before
the end of any of them is a valid file by itself; so the file is read again, a line longer each time, and a key belongs
to the statement with which it came. That is the parser's own word, not a second parser's opinion.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Path: TypeAlias = tuple[str, ...]
"""A key with the tables around it: ("source", "topics")."""
_AT_LINE = re.compile(r" \(at line (\d+), column (\d+)\)$")
_AT_END = re.compile(r" \(at end of document\)$")


class NotToml(ValueError):
    """What is wrong with the text, and in which line."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.what = what
        self.line = line


def parsed(text: str) -> dict[str, Any]:
    """The values of a file."""
    try:
        values: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = str(error)
        found = _AT_LINE.search(said)
        line = int(found[1]) if found else text.count("\n") + 1
        raise NotToml(_AT_END.sub("", _AT_LINE.sub("", said)), line) from None
    return values


def lines(text: str) -> dict[Path, int]:
    """The line of every key of a valid file, and of the tables that have none of their own: where they came first."""
    rows = text.split("\n")
    found: dict[Path, int] = {}
    begun = 0
    for count in range(1, len(rows) + 1):
        try:
            so_far = tomllib.loads("\n".join(rows[:count]))
        except tomllib.TOMLDecodeError:
            continue  # in the middle of a statement
        for path in _paths(so_far):
            found.setdefault(path, begun + 1)
        begun = count
    return found


def _paths(values: Mapping[str, Any], above: Path = ()) -> Iterator[Path]:
    for name, value in values.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))
