"""The end of a pipeline that is asked for between two looks: the batch in hand is finished, whenever it began."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kept.guarantees import Guarantee
from kept.local import Cluster
from kept.spark import UntilEnd
from kept.spark import pipeline as pipelines
from tests.conftest import Eventually
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


class CutShort(UntilEnd):
    """Ctrl-C while the query starts: Spark goes on with it, and nobody is handed the query."""

    def given_to(self, writer: DataStreamWriter) -> DataStreamWriter:
        start = writer.start

        def cut_short() -> StreamingQuery:
            start()
            raise KeyboardInterrupt

        writer.start = cut_short  # type: ignore[method-assign, assignment]
        return super().given_to(writer)


def test_a_query_whose_start_was_cut_short_ends_by_itself(
    cluster: Cluster, topic: str, dsn: str, exactly: Guarantee, spark: SparkSession, eventually: Eventually
) -> None:
    out = OutPostgres(dsn)
    fill(cluster, topic, 30)
    with pytest.raises(KeyboardInterrupt):
        pipeline(cluster, topic, out.sink, exactly, spark, trigger=CutShort()).run()
    eventually(lambda: not spark.streams.active, "the query that nobody has in hand has ended")
    assert not out.held()
    assert pipeline(cluster, topic, out.sink, exactly, spark).run().rows == 30
    assert out.held() == each_once(30)
