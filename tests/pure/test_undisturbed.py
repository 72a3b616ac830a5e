"""The garbage collector waits while records are made, and is afterwards as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from kept.consumer.undisturbed import undisturbed


@pytest.fixture(autouse=True)
def enabled_again() -> Iterator[None]:
    yield
    gc.enable()


def test_it_waits_and_comes_back() -> None:
    with undisturbed():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_comes_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="a bad record"), undisturbed():
        raise ValueError("a bad record")
    assert gc.isenabled()


def test_who_has_sent_it_away_keeps_it_away() -> None:
    gc.disable()
    with undisturbed():
        pass
    assert not gc.isenabled()
