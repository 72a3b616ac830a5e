"""README tells a newcomer the truth: its commands exist, its Python runs, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import click
import pytest

import kept
from kept.cli.main import kept as command_line
from kept.local import Cluster
from tests.conftest import Eventually

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def lines() -> list[list[str]]:
    return [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines() if line.strip()]


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {words[1] for words in lines() if words[0] == "make"}
    assert named == {"run", "test"}
    assert named <= targets
    assert "make test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("words", [words for words in lines() if words[0] == "kept"], ids=" ".join)
def test_kept_commands_parse(words: list[str]) -> None:
    """Down to the last option: click parses the line, nothing is run."""
    command: click.Command = command_line
    arguments = words[1:]
    context = click.Context(command)
    while isinstance(command, click.Group):
        name, found, arguments = command.resolve_command(context, arguments)
        assert found is not None, name
        command, context = found, click.Context(found, parent=context)
    command.parse_args(context, list(arguments))


def test_the_python_example_runs_as_printed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from kept.admin.topics import Topics
    from kept.consumer import Reader, Start

    Topics(cluster.bootstrap).create("payments", 3, kept.ExactlyOnce("readme"))
    program = blocks("python")[0].replace("localhost:9091", cluster.bootstrap)
    exec(compile(program, "README.md", "exec"), {})
    with Reader(cluster.bootstrap, "payments", start=Start.BEGINNING) as reader:
        assert sorted(record.value or b"" for record in reader.to_end()) == [b"-100 EUR", b"100 EUR"]
    Topics(cluster.bootstrap).delete("payments")


@pytest.mark.parametrize("number", [1, 2], ids=["a loop", "exactly once"])
def test_the_consumers_run_as_printed_until_they_are_told_to_end(
    cluster: Cluster, number: int, tmp_path: Path, eventually: Eventually
) -> None:
    from kept.admin.topics import Topics
    from kept.consumer import Reader, Start

    source, sink = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("payments", "ledger"))
    for name in (source, sink):
        Topics(cluster.bootstrap).create(name, 3, kept.ExactlyOnce("readme"))
    with kept.Producer(cluster.bootstrap, kept.AtLeastOnce()) as producer:
        producer.send(source, "100 EUR", key="alice")
    program = blocks("python")[number].replace("localhost:9091", cluster.bootstrap)
    program = program.replace('"payments"', f'"{source}"').replace('"ledger"', f'"{sink}"')
    with (tmp_path / "out").open("w") as out:
        running = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=out)

        def seen() -> bool:
            with Reader(cluster.bootstrap, sink, start=Start.BEGINNING) as reader:
                return "100 EUR" in (tmp_path / "out").read_text() or any(True for _ in reader.to_end())

        try:
            eventually(seen, "the record has had its effect", within=60)
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 0
        finally:
            running.kill()
            running.wait()


def test_the_refusal_reads_as_printed() -> None:
    statement, *message = blocks("python")[3].strip().splitlines()
    with pytest.raises(kept.WeakensGuarantee) as caught:
        exec(statement.removeprefix(">>> "), {"kept": kept})
    assert "\n".join(message) == f"kept.errors.WeakensGuarantee: {caught.value}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not link.startswith(("http://", "https://")):
            assert (page.parent / link).exists(), link


def test_decisions_are_numbered_and_one_page_each() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text()
        assert text.startswith(f"# {int(page.name[:4])}. ")
        assert len(text.splitlines()) <= 70
