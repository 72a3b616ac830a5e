"""A journal whose bytes were changed or cut: found out when it is opened, and every intact record is kept."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from kept.errors import FixConfiguration, PersonMustLook, SourceChanged
from kept.outbox import Outbox
from kept.outbox.backlog import Entry
from kept.outbox.journal import Journal
from kept.outbox.locks import beside
from kept.outbox.pages import PAGE, read_log
from kept.outbox.salvage import JUMP, forget
from tests.pure.outbox_files import as_left_by_a_dead_process, entries, fill, two_generations

LOG_HEADER, FRAME_HEADER = 32, 24


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Entry]]:
    return two_generations(tmp_path_factory.mktemp("journal"))


def copied(dead: Path, folder: Path) -> Path:
    return as_left_by_a_dead_process(dead, folder)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def opened(path: Path) -> tuple[list[Entry], str | None]:
    """What is there after the journal was opened, and what is told of it: None when nothing was found wrong."""
    journal = Journal(path)
    damage = journal.damage
    journal.close()
    return entries(path), None if damage is None else damage.lost


def assert_nothing_silent(path: Path, before: list[Entry], at: object) -> tuple[int, str | None]:
    """Never a changed record; a missing one only with words about it."""
    after, lost = opened(path)
    assert set(map(repr, after)) <= set(map(repr, before)), f"{at}: a record was changed"
    assert [entry.position for entry in after] == sorted(entry.position for entry in after)
    missing = len(before) - len(after)
    assert not missing or lost, f"{at}: {missing} records are missing, and nobody is told"
    return missing, lost


def test_what_a_dead_process_leaves_is_whole(dead: tuple[Path, list[Entry]], tmp_path: Path) -> None:
    path, before = dead
    assert beside(path, "wal").stat().st_size > 0, "the log is part of the test"
    assert opened(copied(path, tmp_path)) == (before, None)


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("the magic", 3), ("the page size", 16), ("the form of writing", 18), ("the page count", 30),
        ("the schema", PAGE - 20), ("the application's mark", 69),
        ("the state", 2 * PAGE - 30), ("a page's kind", 4 * PAGE), ("a page's count", 5 * PAGE + 4),
        ("a cell's address", 6 * PAGE + 9), ("a cell", 7 * PAGE - 10), ("a large value", -300),
    ],
)  # fmt: skip
def test_a_changed_byte_of_the_file(dead: tuple[Path, list[Entry]], tmp_path: Path, name: str, at: int) -> None:
    path = copied(dead[0], tmp_path)
    flip(path, at)
    missing, _ = assert_nothing_silent(path, dead[1], name)
    assert missing <= 60, "one page's worth at most"


def test_a_changed_byte_anywhere(dead: tuple[Path, list[Entry]], tmp_path: Path) -> None:
    seed = int(os.environ.get("KEPT_FIRST_SEED", "0"))
    dice = random.Random(seed)
    print(f"seed {seed}")
    found = 0
    for number in range(30):
        path = copied(dead[0], tmp_path / str(number))
        harmed = dice.choice([path, beside(path, "wal")])
        at = dice.randrange(harmed.stat().st_size)
        flip(harmed, at)
        _, lost = assert_nothing_silent(path, dead[1], f"seed {seed}: byte {at} of {harmed.name}")
        found += lost is not None
    assert found > 3


@pytest.mark.parametrize("at", [5, 17, 25], ids=["magic", "salt", "checksum"])
def test_a_changed_header_of_the_log_loses_nothing(dead: tuple[Path, list[Entry]], tmp_path: Path, at: int) -> None:
    """SQLite would ignore the whole log without a word."""
    path = copied(dead[0], tmp_path)
    flip(beside(path, "wal"), at)
    assert opened(path) == (dead[1], "")


@pytest.mark.parametrize("at", [2, 9, 17, FRAME_HEADER + 4000], ids=["page", "salt", "checksum", "content"])
def test_a_changed_frame_in_the_middle_of_the_log(dead: tuple[Path, list[Entry]], tmp_path: Path, at: int) -> None:
    """SQLite would drop every commit from there on without a word."""
    path = copied(dead[0], tmp_path)
    log = beside(path, "wal")
    frames = (log.stat().st_size - LOG_HEADER) // (FRAME_HEADER + PAGE)
    flip(log, LOG_HEADER + frames // 2 * (FRAME_HEADER + PAGE) + at)
    missing, lost = assert_nothing_silent(path, dead[1], at)
    assert lost is not None
    assert missing <= 1


def test_a_log_whose_last_transaction_was_not_finished_is_no_damage(
    dead: tuple[Path, list[Entry]], tmp_path: Path
) -> None:
    """Frames without a commit behind them: what a process leaves that is killed while it writes."""
    path = copied(dead[0], tmp_path)
    log = beside(path, "wal")
    content = log.read_bytes()
    last = LOG_HEADER + (len(content) - LOG_HEADER) // (FRAME_HEADER + PAGE) * (FRAME_HEADER + PAGE)
    torn = bytearray(content[last - FRAME_HEADER - PAGE : last])
    torn[4:8] = bytes(4)  # not a commit
    log.write_bytes(content + bytes(torn) + bytes(torn[:1000]))
    assert opened(path) == (dead[1], None)


def test_a_file_that_was_cut(dead: tuple[Path, list[Entry]], tmp_path: Path) -> None:
    whole = dead[0].stat().st_size
    for number, size in enumerate([0, 1, 50, 100, PAGE, PAGE + 1, 2 * PAGE, whole // 2, whole - PAGE, whole - 1]):
        path = copied(dead[0], tmp_path / str(number))
        os.truncate(path, size)
        missing, lost = assert_nothing_silent(path, dead[1], f"cut at {size}")
        if size >= whole - PAGE:
            assert missing <= 1, "and none when the log has the page too"
        else:
            assert lost


def test_after_a_salvage_positions_go_on_far_above_and_the_damaged_file_is_kept(
    dead: tuple[Path, list[Entry]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = copied(dead[0], tmp_path)
    identity = Journal(copied(dead[0], tmp_path / "other")).identity
    flip(path, 7 * PAGE - 10)
    harmed = path.read_bytes()
    with Outbox(path) as outbox:
        assert outbox.damage is not None
        assert Path(outbox.damage.moved_to).read_bytes() == harmed
        assert str(outbox.damage.moved_to) in caplog.text
        assert outbox.send("numbers", "new") > dead[1][-1].position + JUMP
    journal = Journal(path)
    assert journal.identity == identity
    assert journal.damage is None
    assert [damage.moved_to for damage in journal.damages()] == [outbox.damage.moved_to]
    assert journal.knows(dead[1][0].position, dead[1][0].tag)
    journal.close()


def test_a_salvage_that_was_cut_short_is_finished_or_begun_anew(dead: tuple[Path, list[Entry]], tmp_path: Path) -> None:
    """Killed after each step: before the new file counts, and after."""
    begun = copied(dead[0], tmp_path / "begun")
    flip(begun, 7 * PAGE - 10)
    beside(begun, "new").write_bytes(b"half of a file")
    missing, lost = assert_nothing_silent(begun, dead[1], "begun")
    assert lost is not None
    counted = copied(dead[0], tmp_path / "counted")
    shutil.copy(begun, beside(counted, "salvaged"))
    flip(counted, 7 * PAGE - 10)
    after, told = opened(counted)
    assert after == entries(begun)
    assert told is None, "it was told when it was salvaged"
    assert not beside(counted, "salvaged").exists()
    assert len(dead[1]) - len(after) == missing


def test_a_journal_whose_identity_is_lost_twice_is_left_alone(dead: tuple[Path, list[Entry]], tmp_path: Path) -> None:
    path = copied(dead[0], tmp_path)
    flip(path, 3)
    harmed = bytearray(path.read_bytes())
    harmed[PAGE : 2 * PAGE] = bytes(PAGE)
    path.write_bytes(harmed)
    beside(path, "identity").write_bytes(b"")
    with pytest.raises(PersonMustLook, match="cannot be known"):
        Journal(path)
    assert path.read_bytes() == harmed


def test_the_identity_is_read_from_the_file_when_the_one_beside_it_is_gone(
    dead: tuple[Path, list[Entry]], tmp_path: Path
) -> None:
    path = copied(dead[0], tmp_path)
    beside(path, "identity").unlink()
    assert opened(path) == (dead[1], None)
    harmed = copied(dead[0], tmp_path / "harmed")
    beside(harmed, "identity").unlink()
    flip(harmed, 7 * PAGE - 10)
    assert opened(harmed)[1]


def test_a_journal_that_is_gone_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    with Outbox(path) as outbox:
        outbox.send("t", "x")
    forget(path)
    with pytest.raises(PersonMustLook, match="is gone"):
        Outbox(path)


def test_a_file_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary")
    with pytest.raises(FixConfiguration, match="not a journal"):
        Outbox(path)
    assert path.read_text() == "dear diary"
    assert sorted(tmp_path.iterdir()) == [path]


def put(there: Path, here: Path, *words: str) -> None:
    """One journal's files in the place of another's."""
    for word in words:
        shutil.copy(f"{there}{word}", f"{here}{word}")


@pytest.mark.parametrize(
    "words", [("",), ("", "-wal"), ("-wal",)], ids=["the file", "the file and its log", "the log alone"]
)
def test_another_journal_in_its_place_is_not_taken_for_damage(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Rule 13. Each was left by a process that died, with records in the file and in the log."""
    (mine, my_records), (other, other_records) = (two_generations(tmp_path / name) for name in ("mine", "other"))
    identities = [beside(each, "identity").read_text().strip() for each in (mine, other)]
    here = copied(mine, tmp_path / "here")
    put(other, here, *words)
    before = {each.name: each.read_bytes() for each in here.parent.iterdir()}
    for _ in range(2):
        with pytest.raises(SourceChanged) as stopped:
            Outbox(here)
        assert all(identity in stopped.value.what for identity in identities)
    assert {each.name: each.read_bytes() for each in here.parent.iterdir()} == before, "nothing was changed"
    put(mine, here, *words)
    assert opened(here) == (my_records, None), "the right file, put back"
    put(other, here, "", "-wal")
    beside(here, "identity").unlink()
    assert opened(here) == (other_records, None), "the other one, on purpose"
    assert beside(here, "identity").read_text().strip() == identities[1]


def test_another_journal_in_its_place_is_recognised_though_it_is_damaged(tmp_path: Path) -> None:
    (mine, _), (other, _) = (two_generations(tmp_path / name) for name in ("mine", "other"))
    here = copied(mine, tmp_path / "here")
    put(other, here, "")
    beside(here, "wal").unlink()
    flip(here, 2 * PAGE - 3)  # the state's checksum
    harmed = here.read_bytes()
    with pytest.raises(SourceChanged, match=beside(other, "identity").read_text().strip()):
        Outbox(here)
    assert here.read_bytes() == harmed


def test_another_journal_is_not_opened_beside_those_who_have_the_first_one_open(tmp_path: Path) -> None:
    """Whoever comes second does not check the file again, and still does not write into another journal."""
    path, other = tmp_path / "outbox.db", tmp_path / "other.db"
    with Outbox(other) as outbox:
        outbox.send("t", "other")
    with Outbox(path) as outbox:
        outbox.send("t", "mine")
        path.rename(tmp_path / "moved.db")
        shutil.copy(other, path)
        with pytest.raises(SourceChanged, match="is of"):
            Outbox(path)
        (tmp_path / "moved.db").rename(path)
        outbox.send("t", "mine too")
    assert [entry.value for entry in entries(path)] == [b"mine", b"mine too"]


def test_an_identity_file_with_other_words_in_it_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    with Outbox(path) as outbox:
        outbox.send("t", "x")
    beside(path, "identity").write_text("nonsense\n")
    with pytest.raises(SourceChanged, match="nonsense"):
        Outbox(path)
    beside(path, "identity").unlink()
    assert [entry.value for entry in entries(path)] == [b"x"]


def test_a_file_that_goes_while_it_is_used_is_told_before_it_takes_another_record(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    with Outbox(path) as outbox:
        outbox.send("t", "x")
        path.rename(tmp_path / "moved.db")
        with pytest.raises(PersonMustLook, match="removed or replaced"):
            outbox.send("t", "y")
        (tmp_path / "moved.db").rename(path)
        outbox.send("t", "z")
    assert [entry.value for entry in entries(path)] == [b"x", b"z"]


def test_the_log_is_read_as_sqlite_reads_it(tmp_path: Path) -> None:
    """Without damage, nothing stands beyond what SQLite sees; with another round of the log behind it, neither."""
    path = tmp_path / "outbox.db"
    with Outbox(path) as outbox:
        fill(outbox, 300)
        outbox._journal._connection.execute("PRAGMA wal_checkpoint(RESTART)")  # type: ignore[union-attr]
        fill(outbox, 3)
        log = read_log(beside(path, "wal").read_bytes())
    assert log.seen
    assert not log.beyond
