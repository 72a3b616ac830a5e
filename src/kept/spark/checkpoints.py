"""Whose checkpoint it is: Spark writes the id of a query into it when the query starts for the first time.

Read as Spark reads it, on whatever file system it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kept.errors import FixConfiguration, ProgressLost, ProgressMoved
from kept.pipelines import checkpoints
from kept.progress import BatchRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def query_id(spark: SparkSession, checkpoint: str) -> str | None:
    """The id of the query that has begun there; None: nobody has."""
    jvm: Any = spark._jvm
    path, files = _inside(spark, checkpoint, "metadata")
    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        text = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
    finally:
        stream.close()
    return str(json.loads(text)["id"])


def standing(spark: SparkSession, checkpoint: str) -> checkpoints.Checkpoint | None:
    """Where a restart would begin; None: no batch was ever planned there."""
    jvm: Any = spark._jvm
    with TemporaryDirectory(prefix="kept-checkpoint-") as copy:
        # A batch that is committed between two copies is taken for one that is not: it comes again, and is not skipped.
        for name in ("commits", "offsets", "sources"):
            path, files = _inside(spark, checkpoint, name)
            if files.exists(path):
                files.copyToLocalFile(False, path, jvm.org.apache.hadoop.fs.Path(f"file://{copy}", name), True)
        return checkpoints.read(copy)


def refuse_lost_progress(spark: SparkSession, checkpoint: str, pipeline: str, unborn: Sequence[str]) -> None:
    """Births come before the checkpoint: topics that only the checkpoint knows were read into another sink, or this one
    has lost their progress.

    Born now, at the end or at a time, they would count as done up to there, with all that the checkpoint left unread.
    """
    found = standing(spark, checkpoint)
    begun = {topic for topic, _ in found.restart} if found is not None else set()
    lost = [topic for topic in unborn if topic in begun]
    if lost:
        raise ProgressLost(
            f"the checkpoint {checkpoint} has begun to read {', '.join(lost)}, and the sink knows of no progress of "
            f"{pipeline!r} there: it was deleted, the sink was restored from before the pipeline began, or it is "
            "another sink or another name. Begun anew by start, what the checkpoint left unread would count as done",
            way_out="restore the progress in the sink, or give the pipeline the name that it had; or, to begin anew "
            "by start, move the checkpoint away: what lies before is then not read",
        )


def refuse_lost_state(found: str | None, checkpoint: str, last: BatchRecord | None) -> None:
    """With state, the checkpoint is half of the truth: without it windows and sums would begin at nothing, unnoticed.

    Only whose checkpoint it is is asked here; which batch it stands at shows when the first one comes (rule 4).
    """
    if last is None or not last.stateful or found == last.query_id:
        return
    there = "is empty, or was deleted" if found is None else f"belongs to query {found}"
    raise ProgressMoved(
        f"the state of this pipeline is in the checkpoint of query {last.query_id}, up to batch {last.batch_id}; "
        f"{checkpoint} {there}",
        way_out="give the right checkpoint, or restore it; or start anew under another name, into another table or "
        "topic, which computes the state from the beginning",
    )


def needed(checkpoint: str | None) -> str:
    """The checkpoint of a plan with state; it has to be named."""
    if checkpoint is None:
        raise FixConfiguration(
            "the transform keeps state from batch to batch (an aggregation, a join of streams, duplicates dropped), "
            "and its state lives in a checkpoint",
            way_out="name a directory that stays and that every worker reaches: checkpoint='/var/lib/...', "
            "or s3a://...; back it up together with the sink",
        )
    return checkpoint


def _inside(spark: SparkSession, checkpoint: str, name: str) -> tuple[Any, Any]:
    """The path of a part of a checkpoint, and the file system that it is on."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(checkpoint, name)
    return path, path.getFileSystem(spark._jsc.hadoopConfiguration())
