"""A sample of the proof, small: `make prove-spark` runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kept.local import Cluster
from tests.spark.faults import FAULTS, Means
from tests.spark.proof import played, runs
from tests.spark.turns import Run
from tests.spark.verdicts import PLANNED


@pytest.mark.parametrize(
    ("fault", "sink", "word"),
    [
        ("commits-deleted", "postgres", "exactly-once"),
        ("task-killed-between", "kafka", "at-least-once"),
    ],
)
def test_a_sample_of_the_proof_holds(
    cluster: Cluster, spark: SparkSession, tmp_path: Path, fault: str, sink: str, word: str
) -> None:
    with Means(cluster, lambda: spark, tmp_path, {}) as means:
        verdict = played(Run(fault, sink, word, seed=1, records=3000), means, tmp_path / "world")
    print(verdict)
    assert verdict.word_for_it == "holds", verdict
    harmed = {"at-most-once": verdict.lost, "at-least-once": verdict.twice, "exactly-once": 1}[word]
    assert harmed > 0, "between its two moves the weaker guarantees lose or repeat: the fault was there"


def test_every_fault_sink_and_guarantee_is_in_the_proof() -> None:
    planned = list(runs(range(10), [], 100))
    assert len(planned) == (len(FAULTS) * 2 - 1) * (10 + 3 + 3) == PLANNED
    assert len({run[:4] for run in planned}) == len(planned)
