"""A rule that is taken out of a task of Spark's is missed by `kept verify`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kept.guarantees import ExactlyOnce
from kept.local import Cluster
from kept.verify.run_directory import RunDirectory
from kept.verify.scenarios import scenario
from kept.verify.trials.running import Runner
from kept.verify.verdict import Verdict
from tests.spark import mutants
from tests.spark.conftest import reachable_by_workers

SEED = 20261116


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_progress_that_a_task_moves_to_the_end_of_the_batch_loses_what_the_plan_did_not_give_it(
    mended: Cluster, tmp_path: Path
) -> None:
    reachable_by_workers()
    sound = scenario("input-cut-short")
    mutant = replace(sound.things[ExactlyOnce.word], role=mutants.ROLE)
    broken = replace(sound, things={ExactlyOnce.word: mutant}, controls={})
    runner = Runner(mended, RunDirectory(tmp_path / "run"), SEED, smoke=True, lasting=False, say=print)
    (outcome,) = runner.run([broken]).outcomes
    assert outcome.verdict is Verdict.VIOLATED, outcome.reasons
    assert "lost, and exactly-once allows none; first: s1/" in outcome.reasons[0]
    judgement = outcome.subject.judgement
    assert judgement is not None
    assert judgement.counts.faults == 1
