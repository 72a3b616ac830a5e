"""A sample of the proof, small: `make prove-spark` runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kept.local import Cluster
from kept.pipelines.telling import BatchDone
from tests.spark.faults import FAULTS, Means, begins_anew, is_replayed, notes_deleted
from tests.spark.proof import code, made, played, runs
from tests.spark.things import each_once
from tests.spark.turns import Run
from tests.spark.verdicts import BATCH, PARTITION, PLANNED


@pytest.mark.parametrize(
    ("fault", "sink", "word", "mode", "struck"),
    [
        ("commits-deleted", "postgres", "exactly-once", PARTITION, 2),
        ("task-killed-between", "kafka", "at-least-once", PARTITION, 1),
        ("task-killed-after", "kafka", "exactly-once", BATCH, 1),
    ],
)
def test_a_sample_of_the_proof_holds(
    cluster: Cluster, spark: SparkSession, tmp_path: Path, fault: str, sink: str, word: str, mode: str, struck: int
) -> None:
    with Means(cluster, lambda: spark, tmp_path, {}) as means:
        verdict = played(Run(fault, sink, word, 1, 3000, mode), means, tmp_path / "world")
    print(verdict)
    assert verdict.word_for_it == "holds", verdict
    assert verdict.struck == struck, "each time that it was to strike it was seen to"
    harmed = {"at-most-once": verdict.lost, "at-least-once": verdict.twice, "exactly-once": verdict.struck}[word]
    assert harmed > 0, "between its two moves the weaker guarantees lose or repeat: the fault was there"


def test_a_fault_without_effect_has_not_struck(cluster: Cluster, spark: SparkSession, tmp_path: Path) -> None:
    """Nobody deletes anything: it must not be told as a fault that was withstood."""

    def shows(before: BatchDone, after: BatchDone) -> bool:
        return is_replayed(before, after) or begins_anew(before, after)

    with Means(cluster, lambda: spark, tmp_path, {}) as means:
        world = made(Run("commits-deleted", "postgres", "exactly-once", seed=1, records=600), means, tmp_path / "world")
        assert notes_deleted(world, lambda _checkpoint: None, shows) == 0
        assert world.order.out.held() == each_once(600)


def test_only_files_that_a_pipeline_may_use_make_its_code(tmp_path: Path) -> None:
    for name in ("errors.py", "spark/driver.py", "cli/main.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    before = code(tmp_path)
    (tmp_path / "cli/main.py").write_text("2")
    assert code(tmp_path) == before
    seen = {before}
    for name in ("errors.py", "spark/driver.py"):
        (tmp_path / name).write_text("2")
        seen.add(code(tmp_path))
    assert len(seen) == 3


def test_every_fault_sink_and_guarantee_is_in_the_proof() -> None:
    planned = list(runs(range(10), [], 100))
    of_each = len(FAULTS) * 2 - 1
    assert len(planned) == of_each * (10 + 3 + 3) + (of_each - 2) * 3 == PLANNED
    assert len({run.key for run in planned}) == len(planned)
