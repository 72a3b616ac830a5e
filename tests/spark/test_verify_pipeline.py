"""`kept verify pipeline`: a file as users write them, faults of Spark, and what it owes found by itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kept.local import Cluster
from kept.verify.run_directory import RunDirectory
from kept.verify.scenarios import scenario
from kept.verify.trials.running import Runner
from kept.verify.trials.users import put_on_trial, write_reference
from kept.verify.verdict import Verdict
from tests.conftest import Kept

FILE = """
name = "mine"
guarantee = "exactly-once"

[source]
bootstrap = "nobody.example:9092"
topics = ["payments"]
schema = "id STRING, cents BIGINT"

[transform]
sql = "SELECT value.id, value.cents, 1 AS one FROM source WHERE value.cents > 0"

[sink]
postgres = "postgresql://nobody.example/shop"
table = "payments"
"""


@pytest.fixture
def records(tmp_path: Path) -> str:
    lines = [json.dumps({"id": f"p{number % 900}", "cents": number % 10}) for number in range(1000)]
    (tmp_path / "records").write_text("\n".join(lines))
    return "records"


@pytest.mark.slow
@pytest.mark.timeout(600)  # Spark starts four times
def test_a_pipeline_of_a_user_holds_what_its_file_promises(mended: Cluster, tmp_path: Path, records: str) -> None:
    """The rows that it owes are nine of ten, some of them alike: only an undisturbed run could know."""
    file = tmp_path / "mine.toml"
    file.write_text(FILE)
    reference = write_reference(mended, file, tmp_path / records, tmp_path / "undisturbed")
    trial = replace(put_on_trial(scenario("checkpoint-deleted"), file, tmp_path / records, reference), controls={})
    runner = Runner(mended, RunDirectory(tmp_path / "run"), 3, smoke=False, lasting=False, say=print)
    (outcome,) = runner.run([trial]).outcomes
    assert outcome.verdict is Verdict.HOLDS, outcome.reasons
    judgement = outcome.subject.judgement
    assert judgement is not None
    assert (judgement.counts.sent, judgement.counts.found, judgement.counts.faults) == (900, 900, 1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["mine.toml", "--input", "none"], "none cannot be read"),
        (["none.toml", "--input", "records"], "none.toml cannot be read"),
        (["mine.toml"], "--input"),
        (["mine.toml", "zombie", "--input", "records"], "zombie"),
    ],
)
@pytest.mark.usefixtures("records")
def test_what_is_wrong_is_told_before_anything_starts(
    kept: Kept, tmp_path: Path, arguments: list[str], told: str
) -> None:
    (tmp_path / "mine.toml").write_text(FILE)
    done = kept("verify", "pipeline", *arguments)
    assert done.returncode != 0
    assert told in done.stderr
    assert "starting" not in done.stderr
