"""Layout: cluster.json goes round, is whole or not there at all, and says so when it is neither."""

from __future__ import annotations

import base64
import errno
import json
from pathlib import Path

import pytest

from kept.errors import FixConfiguration
from kept.local.layout import FORMAT, Layout, load, new_cluster_id, save
from kept.local.ports import USUAL_PORTS

from .conftest import SmallDisk

LAYOUT = Layout("abc", dict(USUAL_PORTS))


def written(**changes: object) -> str:
    """A good cluster.json with some entries changed; None leaves an entry out."""
    document = {"format": FORMAT, "cluster_id": "abc", "ports": dict(USUAL_PORTS), "advertised": {}, **changes}
    return json.dumps({name: value for name, value in document.items() if value is not None})


class TestAddresses:
    def test_clients_are_told_where_brokers_listen(self) -> None:
        assert LAYOUT.bootstrap == "127.0.0.1:9091,127.0.0.1:9092,127.0.0.1:9093"
        assert LAYOUT.dsn == "postgresql://postgres@127.0.0.1:5432/postgres"

    def test_a_proxy_is_for_clients_only(self) -> None:
        proxied = Layout("abc", dict(USUAL_PORTS), {"broker-2": "127.0.0.1:30000"})
        assert proxied.bootstrap == "127.0.0.1:9091,127.0.0.1:30000,127.0.0.1:9093"
        assert proxied.listens("broker-2") == "127.0.0.1:9092"
        assert proxied.internal_bootstrap == "127.0.0.1:19091,127.0.0.1:19092,127.0.0.1:19093"


def test_a_cluster_id_has_the_form_that_kafka_wants() -> None:
    ids = {new_cluster_id() for _ in range(500)}
    assert len(ids) == 500
    for text in ids:
        assert len(base64.urlsafe_b64decode(f"{text}==")) == 16
        assert not text.startswith("-"), "it would read as an option"


class TestSaveAndLoad:
    @pytest.mark.parametrize("advertised", [{}, {"broker-1": "127.0.0.1:30000"}], ids=["plain", "behind a proxy"])
    def test_round_trip(self, tmp_path: Path, advertised: dict[str, str]) -> None:
        layout = Layout(new_cluster_id(), dict(USUAL_PORTS), advertised)
        save(tmp_path / "deep" / ".kept", layout)
        assert load(tmp_path / "deep" / ".kept") == layout

    def test_none_where_there_is_none(self, tmp_path: Path) -> None:
        assert load(tmp_path) is None
        assert load(tmp_path / "missing") is None

    def test_nothing_half_written_is_left(self, tmp_path: Path) -> None:
        save(tmp_path, LAYOUT)
        save(tmp_path, Layout("def", dict(USUAL_PORTS)))
        assert {path.name for path in tmp_path.iterdir()} == {"cluster.json", ".gitignore"}

    def test_git_leaves_the_directory_alone(self, tmp_path: Path) -> None:
        save(tmp_path, LAYOUT)
        assert (tmp_path / ".gitignore").read_text() == "*\n"

    def test_what_a_crash_left_is_written_over(self, tmp_path: Path) -> None:
        (tmp_path / "cluster.json.part").write_text("x" * 10_000)
        save(tmp_path, LAYOUT)
        assert load(tmp_path) == LAYOUT

    def test_a_full_disk_leaves_the_old_one_as_it_was(self, small_disk: SmallDisk) -> None:
        disk = small_disk("size=32k")
        save(disk / ".kept", LAYOUT)
        with pytest.raises(OSError, match="No space left") as filled:
            (disk / "filler").write_bytes(b"\0" * 100_000)
        assert filled.value.errno == errno.ENOSPC
        with pytest.raises(OSError, match="No space left"):
            save(disk / ".kept", Layout("def", dict(USUAL_PORTS)))
        assert load(disk / ".kept") == LAYOUT


class TestDamaged:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            written()[:100],
            "[]",
            "3",
            "null",
            "{}",
            written(cluster_id=None),
            written(cluster_id=7),
            written(ports=None),
            written(ports=9091),
            written(ports=list(USUAL_PORTS)),
            written(ports={**USUAL_PORTS, "postgres": "5432"}),
            written(ports={**USUAL_PORTS, "postgres": None}),
            written(advertised=["broker-1"]),
        ],
    )
    def test_it_is_told_with_the_way_out(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "cluster.json").write_text(text)
        with pytest.raises(FixConfiguration, match=f"{tmp_path}/cluster.json cannot be read") as told:
            load(tmp_path)
        assert "kept up --fresh" in told.value.way_out

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "cluster.json").write_bytes(b"\xff\xfe\0\0")
        with pytest.raises(FixConfiguration) as told:
            load(tmp_path)
        assert "kept up --fresh" in told.value.way_out

    @pytest.mark.parametrize(
        "text",
        [
            written(format=FORMAT + 1),
            written(format=0),
            written(ports={"broker-1": 9091}),
        ],
    )
    def test_a_file_of_another_version_is_told_as_one(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "cluster.json").write_text(text)
        with pytest.raises(FixConfiguration, match="another version of kept") as told:
            load(tmp_path)
        assert "kept up --fresh" in told.value.way_out
