"""Jars: named in a lock file, verified before any use, resumed after whatever cut them short."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from kept.errors import DiskFull, DownloadDamaged, DownloadFailed, FixConfiguration
from kept.local import jars
from kept.local.jars import MAVEN_CENTRAL, PARALLEL_DOWNLOADS, Jar, broker_jars, fetch, read_lock

from .conftest import SmallDisk
from .mirror import Answer, Mirror
from .waiting import eventually

# What `kept` does, as a process that can be interrupted; a shell's background job would otherwise ignore Ctrl-C.
FETCH = """
import signal, sys
from pathlib import Path
from kept.local.jars import fetch, read_lock
signal.signal(signal.SIGINT, signal.default_int_handler)
fetch(read_lock(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
"""

StartFetch = Callable[[Iterable[Jar], Path], "subprocess.Popen[str]"]


@pytest.fixture
def start_fetch(tmp_path: Path) -> Iterator[StartFetch]:
    """Fetch in a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(rows: Iterable[Jar], directory: Path) -> subprocess.Popen[str]:
        lock = tmp_path / "test.lock"
        lock.write_text("\n".join(f"{jar.coordinate} {jar.size} {jar.sha256}" for jar in rows))
        command = [sys.executable, "-c", FETCH, str(lock), str(directory)]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {".lock"}


def part_of(directory: Path, jar: Jar) -> Path:
    return directory / f"{jar.file_name}.part"


def part_size(directory: Path, jar: Jar) -> int:
    part = part_of(directory, jar)
    return part.stat().st_size if part.exists() else 0


class TestLockFile:
    def test_every_row_of_the_brokers_lock_file_is_complete(self) -> None:
        rows = broker_jars()
        assert len(rows) > 10
        for jar in rows:
            assert re.fullmatch(r"[\w.-]+:[\w.-]+:[\w.-]+", jar.coordinate), jar
            assert re.fullmatch(r"[0-9a-f]{64}", jar.sha256), jar
            assert jar.size > 0, jar

    def test_no_row_of_the_brokers_lock_file_is_there_twice(self) -> None:
        rows = broker_jars()
        assert len({jar.file_name for jar in rows}) == len(rows)
        assert len({jar.coordinate.rpartition(":")[0] for jar in rows}) == len(rows)
        assert len({jar.sha256 for jar in rows}) == len(rows)

    def test_comments_and_empty_lines_are_no_rows(self) -> None:
        (jar,) = read_lock("# jars\n\n  org.made.up:one:1.0 12 abc  # why\n")
        assert jar == Jar("org.made.up:one:1.0", 12, "abc")

    def test_a_coordinate_names_a_file_and_its_place_in_a_maven_repository(self) -> None:
        jar = Jar("org.apache.kafka:kafka-clients:4.3.1", 1, "")
        assert jar.file_name == "kafka-clients-4.3.1.jar"
        assert jar.url_path == "org/apache/kafka/kafka-clients/4.3.1/kafka-clients-4.3.1.jar"


class TestFetch:
    def test_every_jar_arrives_whole_under_its_own_name(self, mirror: Mirror, tmp_path: Path) -> None:
        rows = [mirror.publish(name, size) for name, size in (("one", 1), ("two", 70_000), ("three", 300_000))]
        paths = fetch(rows, tmp_path / "jars")
        assert [path.read_bytes() for path in paths] == [mirror.content(jar) for jar in rows]
        assert names(tmp_path / "jars") == {jar.file_name for jar in rows}

    def test_what_is_there_is_not_asked_for_again(self, mirror: Mirror, tmp_path: Path) -> None:
        one, two = mirror.publish("one"), mirror.publish("two")
        fetch([one], tmp_path)
        paths = fetch([one, two], tmp_path)
        assert [asked.file_name for asked in mirror.asked] == [one.file_name, two.file_name]
        assert paths == [tmp_path / one.file_name, tmp_path / two.file_name]

    def test_jars_are_downloaded_in_parallel(self, mirror: Mirror, tmp_path: Path) -> None:
        together = threading.Barrier(PARALLEL_DOWNLOADS, timeout=10)
        rows = [mirror.publish(f"jar-{number}") for number in range(PARALLEL_DOWNLOADS)]
        for jar in rows:
            mirror.answer(jar, Answer(first=together.wait))
        fetch(rows, tmp_path)
        assert not together.broken

    def test_more_jars_than_downloads_at_once(self, mirror: Mirror, tmp_path: Path) -> None:
        rows = [mirror.publish(f"jar-{number}", 100) for number in range(3 * PARALLEL_DOWNLOADS)]
        fetch(rows, tmp_path)
        assert names(tmp_path) == {jar.file_name for jar in rows}

    def test_progress_ends_with_everything(self, mirror: Mirror, tmp_path: Path) -> None:
        rows = [mirror.publish("one", 200_000), mirror.publish("two", 1_000)]
        told: list[tuple[int, int]] = []
        fetch(rows, tmp_path, lambda done, whole: told.append((done, whole)))
        assert told == sorted(told)
        assert told[-1] == (201_000, 201_000)

    def test_a_jar_damaged_in_the_cache_is_fetched_again(self, mirror: Mirror, tmp_path: Path) -> None:
        one, two = rows = [mirror.publish("one"), mirror.publish("two")]
        fetch(rows, tmp_path)
        damaged = bytearray(mirror.content(one))
        damaged[17] ^= 1
        (tmp_path / one.file_name).write_bytes(damaged)
        fetch(rows, tmp_path)
        assert (tmp_path / one.file_name).read_bytes() == mirror.content(one)
        assert (len(mirror.of(one)), len(mirror.of(two))) == (2, 1)

    def test_a_jar_cut_short_in_the_cache_is_fetched_again(self, mirror: Mirror, tmp_path: Path) -> None:
        jar = mirror.publish("one")
        fetch([jar], tmp_path)
        (tmp_path / jar.file_name).write_bytes(mirror.content(jar)[:100])
        fetch([jar], tmp_path)
        assert (tmp_path / jar.file_name).read_bytes() == mirror.content(jar)


class TestMirror:
    def test_maven_central_unless_told_otherwise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert jars.mirror() == MAVEN_CENTRAL
        monkeypatch.setenv("KEPT_MAVEN_MIRROR", "")
        assert jars.mirror() == MAVEN_CENTRAL

    def test_a_slash_at_the_end_does_no_harm(
        self, mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KEPT_MAVEN_MIRROR", f"{mirror.url}/")
        jar = mirror.publish("one")
        fetch([jar], tmp_path)
        assert names(tmp_path) == {jar.file_name}

    @pytest.mark.parametrize(
        "nonsense",
        [
            "yes",
            "repo1.maven.org/maven2",
            "ftp://repo1.maven.org/maven2",
            "file:///srv/maven",
            "/srv/maven",
            "http://",
            "https:///maven2",
            "http://[::1/maven2",
            "http://mirror:port/maven2",
            "http://mirror:99999/maven2",
            "http://my mirror/maven2",
            "http://mirror/für-uns",
        ],
    )
    def test_nonsense_is_told_with_a_good_example(
        self, nonsense: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KEPT_MAVEN_MIRROR", nonsense)
        with pytest.raises(FixConfiguration) as told:
            fetch([Jar("org.made.up:one:1.0", 1, "0" * 64)], tmp_path)
        assert f"KEPT_MAVEN_MIRROR={nonsense.rstrip('/')}" in told.value.what
        assert MAVEN_CENTRAL in told.value.way_out


class TestResume:
    def test_a_connection_cut_midway_goes_on_where_it_stopped(self, mirror: Mirror, tmp_path: Path) -> None:
        jar = mirror.publish("one", 5_000)
        mirror.answer(jar, Answer(cut_after=2_000))
        fetch([jar], tmp_path)
        assert [(asked.range, asked.sent) for asked in mirror.of(jar)] == [(None, 2_000), ("bytes=2000-", 3_000)]
        assert (tmp_path / jar.file_name).read_bytes() == mirror.content(jar)

    def test_a_cut_in_every_try_keeps_what_arrived_for_the_next_run(self, mirror: Mirror, tmp_path: Path) -> None:
        jar = mirror.publish("one", 5_000)
        mirror.answer(jar, *[Answer(cut_after=1_000)] * jars.TRIES)
        with pytest.raises(DownloadFailed, match=f"{jar.file_name}.* 3000 of 5000 bytes"):
            fetch([jar], tmp_path)
        assert names(tmp_path) == {f"{jar.file_name}.part"}
        mirror.asked.clear()
        fetch([jar], tmp_path)
        assert [(asked.range, asked.sent) for asked in mirror.of(jar)] == [("bytes=3000-", 2_000)]
        assert names(tmp_path) == {jar.file_name}
        assert (tmp_path / jar.file_name).read_bytes() == mirror.content(jar)

    def test_a_mirror_without_range_support_sends_it_all_again(self, mirror: Mirror, tmp_path: Path) -> None:
        jar = mirror.publish("one", 5_000)
        mirror.answer(jar, Answer(cut_after=2_000), Answer(ranges=False))
        fetch([jar], tmp_path)
        assert [(asked.range, asked.sent) for asked in mirror.of(jar)] == [(None, 2_000), ("bytes=2000-", 5_000)]
        assert (tmp_path / jar.file_name).read_bytes() == mirror.content(jar)

    @pytest.mark.parametrize("length", [100, 5_000, 6_000], ids=["half", "whole", "too long"])
    def test_a_damaged_part_from_last_time_is_fetched_once_more_from_the_start(
        self, mirror: Mirror, tmp_path: Path, length: int
    ) -> None:
        jar = mirror.publish("one", 5_000)
        part_of(tmp_path, jar).write_bytes(b"\0" * length)
        fetch([jar], tmp_path)
        assert mirror.of(jar)[-1].range is None
        assert (tmp_path / jar.file_name).read_bytes() == mirror.content(jar)
        assert names(tmp_path) == {jar.file_name}

    def test_a_whole_part_needs_no_request(self, mirror: Mirror, tmp_path: Path) -> None:
        jar = mirror.publish("one")
        part_of(tmp_path, jar).write_bytes(mirror.content(jar))
        fetch([jar], tmp_path)
        assert mirror.asked == []
        assert names(tmp_path) == {jar.file_name}


class TestDamaged:
    @pytest.mark.parametrize("body", [b"\0" * 5_000, b"\0" * 6_000], ids=["as long", "longer"])
    def test_other_bytes_are_told_with_both_sums_and_thrown_away(
        self, mirror: Mirror, tmp_path: Path, body: bytes
    ) -> None:
        jar = mirror.publish("one", 5_000)
        mirror.answer(jar, Answer(body=body))
        with pytest.raises(DownloadDamaged) as told:
            fetch([jar], tmp_path)
        assert jar.file_name in told.value.what
        sums = re.findall(r"[0-9a-f]{64}", told.value.what)
        assert len(set(sums)) == 2
        assert sums[1] == jar.sha256
        assert "KEPT_MAVEN_MIRROR" in told.value.way_out
        assert names(tmp_path) == set()

    def test_a_damaged_part_and_a_damaged_mirror_end_in_the_same_error(self, mirror: Mirror, tmp_path: Path) -> None:
        jar = mirror.publish("one", 5_000)
        part_of(tmp_path, jar).write_bytes(b"\0" * 100)
        mirror.answer(jar, *[Answer(body=b"\1" * 5_000)] * 2)
        with pytest.raises(DownloadDamaged):
            fetch([jar], tmp_path)
        assert [asked.range for asked in mirror.of(jar)] == ["bytes=100-", None]
        assert names(tmp_path) == set()

    def test_a_server_that_never_ends_cannot_fill_the_disk(self, mirror: Mirror, tmp_path: Path) -> None:
        jar = mirror.publish("one", 100_000)
        mirror.answer(jar, Answer(repeated=300))
        most = 0

        def progress(done: int, _whole: int) -> None:
            nonlocal most
            most = max(most, done)

        with pytest.raises(DownloadDamaged, match=jar.file_name):
            fetch([jar], tmp_path, progress)
        assert most <= jar.size + jars.CHUNK
        assert names(tmp_path) == set()


class TestServerSaysNo:
    def test_not_found_is_told_at_once(self, mirror: Mirror, tmp_path: Path) -> None:
        jar = mirror.publish("one")
        mirror.answer(jar, Answer(status=404))
        with pytest.raises(DownloadFailed, match=f"{jar.file_name} from {mirror.url}: the server answered 404") as told:
            fetch([jar], tmp_path)
        assert "KEPT_MAVEN_MIRROR" in told.value.way_out
        assert len(mirror.asked) == 1
        assert names(tmp_path) == set()

    def test_a_server_error_is_tried_again(self, mirror: Mirror, tmp_path: Path) -> None:
        jar = mirror.publish("one")
        mirror.answer(jar, Answer(status=500))
        fetch([jar], tmp_path)
        assert len(mirror.asked) == 2
        assert names(tmp_path) == {jar.file_name}

    def test_a_server_error_that_stays_is_told(self, mirror: Mirror, tmp_path: Path) -> None:
        jar = mirror.publish("one")
        mirror.answer(jar, *[Answer(status=503)] * jars.TRIES)
        with pytest.raises(DownloadFailed, match="the server answered 503"):
            fetch([jar], tmp_path)
        assert len(mirror.asked) == jars.TRIES
        assert names(tmp_path) == set()

    def test_one_failure_ends_the_others_which_keep_what_they_have(self, mirror: Mirror, tmp_path: Path) -> None:
        slow, missing = mirror.publish("slow", 300_000), mirror.publish("missing")

        def slow_has_begun() -> None:
            eventually(lambda: part_size(tmp_path, slow), "the slow jar has begun")

        mirror.answer(slow, Answer(hold_after=200_000))
        mirror.answer(missing, Answer(status=404, first=slow_has_begun))
        began = time.monotonic()
        with pytest.raises(DownloadFailed, match="404"):
            fetch([slow, missing], tmp_path)
        assert time.monotonic() - began < 10
        assert names(tmp_path) == {f"{slow.file_name}.part"}
        fetch([slow], tmp_path)
        assert mirror.of(slow)[-1].range is not None


class TestNoNetwork:
    def test_nobody_listens(self, closed_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KEPT_MAVEN_MIRROR", f"http://127.0.0.1:{closed_port}/maven2")
        began = time.monotonic()
        with pytest.raises(DownloadFailed, match="Connection refused") as told:
            fetch([Jar(f"org.made.up:jar-{number}:1.0", 1, "0" * 64) for number in range(20)], tmp_path)
        assert time.monotonic() - began < 10
        assert "check the network" in told.value.way_out
        assert "KEPT_MAVEN_MIRROR" in told.value.way_out
        assert names(tmp_path) == set()

    def test_a_server_that_falls_silent_is_given_up(
        self, mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jars, "SECONDS_WITHOUT_A_BYTE", 0.3)
        jar = mirror.publish("one", 5_000)
        mirror.answer(jar, *[Answer(hold_after=1_000)] * jars.TRIES)
        with pytest.raises(DownloadFailed, match=f"{jar.file_name}.*timed out"):
            fetch([jar], tmp_path)
        assert names(tmp_path) == {f"{jar.file_name}.part"}


class TestFullDisk:
    def test_too_little_room_is_refused_before_anything_is_asked(self, mirror: Mirror, small_disk: SmallDisk) -> None:
        directory = small_disk("size=1m") / "jars"
        with pytest.raises(DiskFull) as told:
            fetch([mirror.publish("one", 3_000_000)], directory)
        assert "3 MB are needed" in told.value.what
        assert "1.0 MB are free" in told.value.what
        assert str(directory) in told.value.what
        assert "KEPT_CACHE" in told.value.way_out
        assert mirror.asked == []
        assert names(directory) == set()

    def test_what_is_there_already_needs_no_room(self, mirror: Mirror, small_disk: SmallDisk) -> None:
        directory = small_disk("size=1m")
        one, two = mirror.publish("one", 600_000), mirror.publish("two", 300_000)
        fetch([one], directory)
        part_of(directory, two).write_bytes(mirror.content(two)[:250_000])
        fetch([one, two], directory)
        assert names(directory) == {one.file_name, two.file_name}

    def test_a_disk_that_fills_up_meanwhile_leaves_nothing_that_could_be_used(
        self, mirror: Mirror, small_disk: SmallDisk
    ) -> None:
        disk = small_disk("size=1m")
        directory, somebody_elses = disk / "jars", disk / "log"
        jar = mirror.publish("one", 600_000)
        mirror.answer(jar, Answer(first=lambda: somebody_elses.write_bytes(b"\0" * 800_000)))
        with pytest.raises(DiskFull) as told:
            fetch([jar], directory)
        assert str(directory) in told.value.what
        assert "KEPT_CACHE" in told.value.way_out
        assert len(mirror.asked) == 1, "a full disk is no reason to download again"
        assert names(directory) <= {f"{jar.file_name}.part"}

        somebody_elses.unlink()
        fetch([jar], directory)
        assert (directory / jar.file_name).read_bytes() == mirror.content(jar)


class TestTwoProcesses:
    def test_the_second_waits_and_downloads_nothing_twice(
        self, mirror: Mirror, tmp_path: Path, start_fetch: StartFetch
    ) -> None:
        directory = tmp_path / "jars"
        rows = [mirror.publish(f"jar-{number}") for number in range(3)]
        for jar in rows:
            mirror.answer(jar, Answer(hold_after=100))
        first = start_fetch(rows, directory)
        eventually(lambda: len(mirror.asked) == len(rows), "the first has asked for everything")
        second = start_fetch(rows, directory)
        lock = str(directory / ".lock")
        eventually(
            lambda: lock in [file.path for file in psutil.Process(second.pid).open_files()], "the second is at the lock"
        )
        mirror.release()
        assert (first.wait(20), second.wait(20)) == (0, 0)
        assert len(mirror.asked) == len(rows)
        assert names(directory) == {jar.file_name for jar in rows}


class TestInterrupted:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_it_ends_at_once_and_the_next_run_goes_on(
        self, mirror: Mirror, tmp_path: Path, start_fetch: StartFetch, number: signal.Signals
    ) -> None:
        directory = tmp_path / "jars"
        one, two = rows = [mirror.publish("one", 300_000), mirror.publish("two", 300_000)]
        for jar in rows:
            mirror.answer(jar, Answer(hold_after=200_000))
        process = start_fetch(rows, directory)
        eventually(lambda: all(part_size(directory, jar) > 100_000 for jar in rows), "both jars have half arrived")
        process.send_signal(number)
        process.wait(5)
        assert process.returncode == -number
        assert names(directory) == {f"{one.file_name}.part", f"{two.file_name}.part"}

        mirror.release()
        mirror.asked.clear()
        kept = {jar: part_size(directory, jar) for jar in rows}
        fetch(rows, directory)
        for jar in rows:
            (asked,) = mirror.of(jar)
            assert (asked.range, asked.sent) == (f"bytes={kept[jar]}-", jar.size - kept[jar])
            assert (directory / jar.file_name).read_bytes() == mirror.content(jar)
        assert names(directory) == {jar.file_name for jar in rows}

    def test_a_trickle_is_kept_to_the_byte(self, mirror: Mirror, tmp_path: Path, start_fetch: StartFetch) -> None:
        jar, directory = mirror.publish("one", 5_000), tmp_path / "jars"
        mirror.answer(jar, Answer(hold_after=1_234))
        process = start_fetch([jar], directory)
        eventually(lambda: part_size(directory, jar) == 1_234, "what was sent is on the disk")
        process.send_signal(signal.SIGINT)
        process.wait(5)
        mirror.release()
        fetch([jar], directory)
        assert mirror.of(jar)[-1].range == "bytes=1234-"
        assert (directory / jar.file_name).read_bytes() == mirror.content(jar)
