"""The end of a pipeline that is asked for between two looks: the batch in hand is finished, whenever it began."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import SparkSession

from kept.guarantees import Guarantee
from kept.local import Cluster
from kept.spark import pipeline as pipelines
from tests.spark.things import OutPostgres, each_once, fill, pipeline


class RightAfter(threading.Event):
    """The end is asked for right after a batch has looked whether it was, and whoever waits for it is quicker."""

    def is_set(self) -> bool:
        was = super().is_set()
        if not was and threading.current_thread() is not threading.main_thread():
            self.set()
            threading.Event().wait(2)  # nobody tells when the other thread has looked
        return was


def test_a_batch_that_has_just_begun_is_finished(
    cluster: Cluster, topic: str, dsn: str, exactly: Guarantee, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = OutPostgres(dsn)
    fill(cluster, topic, 30)
    monkeypatch.setattr(pipelines, "SETTLES_WITHIN", 0.2)
    made = pipeline(cluster, topic, out.sink, exactly, spark)
    made._stopping = RightAfter()
    assert made.run().rows == 30
    assert out.held() == each_once(30)
