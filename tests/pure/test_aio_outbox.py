"""The outbox for asyncio, and the thread that writes for it: whoever cannot be told does not end it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

import kept
from kept.errors import FixConfiguration
from kept.outbox import Sending

AT_ONCE = 30.0


def test_a_callback_that_raises_ends_no_writer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Event()

    def then() -> None:
        called.set()
        raise ZeroDivisionError

    with kept.Outbox(tmp_path / "journal") as outbox:
        batch = outbox.begin([Sending("topic", "1")], then)
        assert called.wait(AT_ONCE)
        later = threading.Event()
        second = outbox.begin([Sending("topic", "2")], later.set)
        assert later.wait(AT_ONCE), "the writer is gone"
        assert (batch.fate, second.fate) == (range(1, 2), range(2, 3))
        assert outbox.lag().records == 2
    assert "ZeroDivisionError" in caplog.text


def test_a_loop_that_ends_in_the_middle_of_sending_ends_no_writer(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    outbox = kept.aio.Outbox(path)
    disk = None

    async def ends() -> None:
        nonlocal disk
        await outbox.send("topic", "1")
        disk = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        disk.execute("BEGIN IMMEDIATE")  # the disk takes its time
        sending = asyncio.ensure_future(outbox.send("topic", "2"))
        await asyncio.sleep(0.2)
        sending.cancel()

    async def goes_on() -> None:
        assert await asyncio.wait_for(outbox.send("topic", "3"), AT_ONCE) == 3
        assert (await outbox.lag()).records == 3
        await outbox.close()

    asyncio.run(ends())
    assert disk is not None
    disk.execute("ROLLBACK")
    disk.close()
    asyncio.run(goes_on())


def test_opened_or_closed_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        outbox = kept.aio.Outbox(tmp_path / "journal")
        with pytest.raises(FixConfiguration, match="not open yet"):
            print(outbox.damage)
        async with outbox:
            assert outbox.damage is None
            await outbox.close()
        with pytest.raises(FixConfiguration, match="closed"):
            await outbox.lag()

    asyncio.run(main())
