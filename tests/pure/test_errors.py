"""The error tree: drawn as it is, every error with its way out, and able to travel between processes."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator

import pytest

from kept import errors
from kept.errors import KeptError, NotPersisted, WeakensGuarantee


def tree(kind: type[KeptError], depth: int = 0) -> Iterator[tuple[int, str]]:
    yield depth, kind.__name__
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child, depth + 1)


def test_the_docstring_draws_the_tree_as_it_is() -> None:
    drawn = [
        (match.start() // 4, match[0])
        for line in (errors.__doc__ or "").splitlines()
        if (match := re.search(r"[A-Z][A-Za-z]+(?=   )", line))
    ]
    assert drawn == list(tree(KeptError))


@pytest.mark.parametrize(
    "error",
    [
        KeptError("what", way_out="out"),
        NotPersisted("what", way_out="out", retriable=True),
        WeakensGuarantee("acks", 1, "exactly-once", "reason", way_out="out"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_to_another_process(error: KeptError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_an_error_ends_with_its_way_out() -> None:
    assert str(KeptError("it broke", way_out="mend it")) == "it broke\n  way out: mend it"
