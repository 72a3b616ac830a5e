"""`kept pipelines`: where pipelines stand, and their progress moved on purpose, in each kind of sink."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

import kept
from kept.admin.topics import Topics
from kept.cli.main import kept as command_line
from kept.consumer import Start
from kept.errors import Busy, Fenced, KeptError, ProgressMoved, SinkChanged, SourceChanged
from kept.local import Cluster
from kept.pipelines.files import read
from kept.progress import Progress, Range
from kept.spark import KafkaSink, PostgresSink
from kept.spark.from_file import FromFile
from kept.spark.kafka_progress import carrier_of
from kept.spark.looking import Looking
from kept.spark.sinks import Assignment, Done, DriverSink
from kept.stores import Part
from kept.stores.keeping import PostgresKeeping
from tests.conftest import Eventually
from tests.spark.things import each_once, fill


@dataclass(frozen=True)
class Piped:
    """A pipeline that somebody ran once: nobody else needs Spark here."""

    name: str
    cluster: Cluster
    topic: str
    sink: PostgresSink | KafkaSink

    @property
    def options(self) -> list[str]:
        to = ["--dsn", self.sink.dsn] if isinstance(self.sink, PostgresSink) else []
        return [*to, "--bootstrap", self.cluster.bootstrap]

    @contextmanager
    def driver(self) -> Iterator[tuple[DriverSink, dict[Part, Progress]]]:
        """One that has begun, and stands where progress is."""
        opened = self.sink.open(self.name, kept.ExactlyOnce(self.name))
        try:
            seeded = opened.seed({self.topic: self.looking.seeds(self.topic, Start.BEGINNING)})
            yield opened, dict(opened.take_over([(self.topic, number) for number in seeded[self.topic]]))
        finally:
            opened.close()

    def reach(self, driver: DriverSink, recorded: dict[Part, Progress], upto: int) -> None:
        """As if a batch had ended there, in every partition."""
        done = []
        for (topic, number), source in self.looking.now(recorded).items():
            start = recorded[topic, number].position.next_offset
            wanted = Range(topic, number, start, upto, source.identity.leader_epoch)
            done.append(Done(Assignment(wanted, source), start))
        driver.close_ranges(done)

    def run_to(self, upto: int) -> None:
        with self.driver() as (driver, recorded):
            self.reach(driver, recorded, upto)

    @property
    def looking(self) -> Looking:
        return Looking(kept.KafkaSource(self.cluster.bootstrap, self.topic).client)

    def shown(self, expected: int = 0) -> dict[int, dict[str, Any]]:
        document = said("show", self.name, *self.options, expected=expected)
        assert document["pipeline"] == self.name
        return {row["partition"]: row for row in document["partitions"]}

    def positions(self) -> list[int]:
        return [row["recorded"] for row in self.shown().values()]


def said(*words: str, expected: int = 0) -> Any:
    """What a command answers a program."""
    result = CliRunner().invoke(command_line, ["pipelines", *words, "--json"])
    if isinstance(result.exception, KeptError):
        raise result.exception
    assert result.exit_code == expected, (result.output, result.exception)
    return json.loads(result.stdout)


def told(*words: str) -> str:
    """What it tells a person."""
    result = CliRunner().invoke(command_line, ["pipelines", *words])
    assert result.exit_code in (0, 3), (result.output, result.exception)
    return result.output


@pytest.fixture(params=["postgres", "kafka"])
def piped(request: pytest.FixtureRequest, cluster: Cluster, topic: str) -> Piped:
    """Thirty records, ten in each partition, six of each done."""
    sink: PostgresSink | KafkaSink
    if request.param == "postgres":
        sink = PostgresSink(request.getfixturevalue("dsn"), "out")
    else:
        sink = KafkaSink(cluster.bootstrap, request.getfixturevalue("into_kafka").topic)
    fill(cluster, topic, 30)
    made = Piped(f"to-{topic}", cluster, topic, sink)
    made.run_to(6)
    return made


def delete_records(piped: Piped, below: int) -> None:
    admin = AdminClient({"bootstrap.servers": piped.cluster.bootstrap})
    places = [TopicPartition(piped.topic, number, below) for number in range(3)]
    for future in admin.delete_records(places).values():
        future.result(30)


def made_anew(piped: Piped, partitions: int, eventually: Eventually) -> None:
    before = piped.looking.partitions(piped.topic)[0]
    admin = AdminClient({"bootstrap.servers": piped.cluster.bootstrap})
    admin.delete_topics([piped.topic])[piped.topic].result(30)
    eventually(lambda: piped.topic not in piped.looking.topics(), "the topic is gone")
    Topics(piped.cluster.bootstrap).create(piped.topic, partitions, kept.ExactlyOnce("tests"))

    def is_new() -> bool:
        """Asked often, by a new client each time: any broker may answer."""
        try:
            return all(
                piped.looking.partitions(piped.topic)[0] != before
                and len(piped.looking.seeds(piped.topic, Start.BEGINNING)) == partitions
                for _ in range(8)
            )
        except KeptError:
            return False

    eventually(is_new, "every broker knows the new topic")


def test_where_it_stands(piped: Piped) -> None:
    listed = {row["pipeline"]: row for row in said("list", *piped.options)}
    assert (listed[piped.name]["topic"], listed[piped.name]["partitions"]) == (piped.topic, 3)
    for row in piped.shown().values():
        assert (row["recorded"], row["log_start"], row["log_end"], row["behind_at_most"]) == (6, 0, 10, 4)
        assert (row["restart"], row["trouble"]) == ("goes on at 6", None)
    assert "nothing is wrong" in told("repair", piped.name, *piped.options)
    with pytest.raises(kept.FixConfiguration, match="kept pipelines list"):
        said("show", "nobody", *piped.options)


def test_a_replay_is_shown_first_and_then_carried_out(piped: Piped) -> None:
    replay = ("replay", piped.name, *piped.options)
    shown = told(*replay, "--from", "beginning")
    assert "at most 18 records are read again, and written again, whatever the guarantee" in shown
    assert "nothing was moved: --yes carries it out" in shown
    assert piped.positions() == [6, 6, 6]
    moved = said(*replay, "--from", "2", "--partition", "1", "--yes")
    assert [row["read_again_at_most"] for row in moved["partitions"]] == [4]
    assert piped.positions() == [6, 2, 6]
    said(*replay, "--from", "end", "--yes")
    assert piped.positions() == [10, 10, 10]
    assert "what was moved already would move once more" in told(*replay, "--from", "-1")
    said(*replay, "--from", "beginning", "--yes")
    with piped.driver() as (_, recorded):  # it goes on from there, by itself
        assert [each.position.next_offset for each in recorded.values()] == [0, 0, 0]


def test_a_driver_that_is_at_work_is_seen_or_ends(piped: Piped) -> None:
    replay = ("replay", piped.name, *piped.options, "--from", "beginning", "--yes")
    with piped.driver() as (driver, recorded):
        if isinstance(piped.sink, PostgresSink):
            with pytest.raises(Busy, match="is at work: process"):
                said(*replay)
            piped.reach(driver, recorded, 8)
            assert piped.positions() == [8, 8, 8]
        else:
            said(*replay)
            with pytest.raises(Fenced):
                piped.reach(driver, recorded, 8)
            assert piped.positions() == [0, 0, 0]


def test_progress_that_moved_meanwhile_is_not_moved_again(
    piped: Piped, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """Between the look and the move a driver came, worked, and left."""
    from kept.spark.upkeep import Upkeep

    carry_out = Upkeep.carry_out

    def late(self: Upkeep, changes: Sequence[Any]) -> None:
        piped.run_to(9)
        if isinstance(self.keeping, PostgresKeeping):
            eventually(lambda: not self.keeping.at_work(), "the driver's connection is gone")
        carry_out(self, changes)

    monkeypatch.setattr(Upkeep, "carry_out", late)
    with pytest.raises(ProgressMoved, match="has moved since it was looked at"):
        said("replay", piped.name, *piped.options, "--from", "beginning", "--yes")
    assert piped.positions() == [9, 9, 9]


def test_records_that_were_deleted_are_accepted_as_lost_by_a_person(piped: Piped) -> None:
    delete_records(piped, 8)
    with pytest.raises(kept.errors.Gap, match="kept pipelines repair"):
        said("replay", piped.name, *piped.options, "--from", "end")
    assert "2 offsets from" in str(piped.shown(expected=3)[0]["trouble"])
    assert "--from beginning accepts the loss" in told("repair", piped.name, *piped.options)
    piped.shown(expected=3)
    said("repair", piped.name, *piped.options, "--from", "beginning", "--yes")
    assert piped.positions() == [8, 8, 8]


def test_a_topic_that_was_made_anew_is_taken_for_the_source(piped: Piped, eventually: Eventually) -> None:
    made_anew(piped, 2, eventually)
    with pytest.raises(SourceChanged, match=f"kept pipelines repair {piped.name}"):
        piped.run_to(6)
    rows = piped.shown(expected=3)
    assert "was made anew" in str(rows[0]["trouble"])
    assert "not in the source any more" in str(rows[2]["trouble"])
    with pytest.raises(kept.FixConfiguration, match="all are moved together"):
        said("repair", piped.name, *piped.options, "--from", "beginning", "--partition", "0", "--yes")
    said("repair", piped.name, *piped.options, "--from", "beginning", "--yes")
    assert piped.positions() == [0, 0]
    with piped.driver() as (_, recorded):
        assert [each.position.next_offset for each in recorded.values()] == [0, 0]


def test_lost_progress_is_set_where_a_person_says(piped: Piped) -> None:
    if not isinstance(piped.sink, PostgresSink):
        pytest.skip("in a Kafka the copy of it stays")
    with psycopg.connect(piped.sink.dsn) as connection:
        connection.execute("DELETE FROM kept_progress WHERE partition = 1")
    with pytest.raises(kept.errors.ProgressLost, match=f"kept pipelines repair {piped.name}"):
        piped.run_to(7)
    assert piped.shown(expected=3)[1]["trouble"]
    said("repair", piped.name, *piped.options, "--from", "5", "--yes")
    assert piped.positions() == [6, 5, 6]


def test_another_table_stops_it_until_a_person_chooses(piped: Piped) -> None:
    if not isinstance(piped.sink, PostgresSink):
        pytest.skip("a table is a Postgres's")
    with psycopg.connect(piped.sink.dsn) as connection:
        connection.execute("DROP TABLE kept_sinks")  # as an earlier version has left it
    said("replay", piped.name, *piped.options, "--from", "6", "--yes")
    piped.run_to(6)  # it is adopted
    other = replace(piped, sink=PostgresSink(piped.sink.dsn, "elsewhere"))
    with pytest.raises(SinkChanged, match=f"kept pipelines repair {piped.name} --into public.elsewhere"):
        other.run_to(7)
    assert "nothing is wrong" in told("repair", piped.name, *piped.options)
    repair = ("repair", piped.name, *piped.options, "--into", "elsewhere")
    assert "--from beginning writes all that is there to the new sink" in told(*repair)
    with pytest.raises(kept.FixConfiguration, match="all are moved together"):
        said(*repair, "--from", "beginning", "--partition", "1", "--yes")
    piped.run_to(7)  # nothing was decided yet
    said(*repair, "--from", "beginning", "--yes")
    with other.driver() as (_, recorded):
        assert [each.position.next_offset for each in recorded.values()] == [0, 0, 0]
    with pytest.raises(SinkChanged, match=r"public\.out would never get"):
        piped.run_to(7)
    said("repair", piped.name, *piped.options, "--into", "out", "--from", "+0", "--yes")
    piped.run_to(7)


def test_what_a_stranger_wrote_in_a_postgres_is_set_by_a_person(piped: Piped) -> None:
    if not isinstance(piped.sink, PostgresSink):
        pytest.skip("in a Kafka there is a copy to go back to")
    with psycopg.connect(piped.sink.dsn) as stranger:
        stranger.execute("UPDATE kept_progress SET next_offset = 9 WHERE partition = 1")
    with pytest.raises(ProgressMoved, match=f"kept pipelines repair {piped.name}"):
        piped.run_to(7)
    assert "a stranger moved it" in str(piped.shown(expected=3)[1]["trouble"])
    said("repair", piped.name, *piped.options, "--from", "6", "--yes")
    piped.run_to(7)
    assert piped.positions() == [7, 7, 7]


def test_what_a_stranger_wrote_gives_way_to_the_copy(piped: Piped) -> None:
    if not isinstance(piped.sink, KafkaSink):
        pytest.skip("in a Postgres there is no copy")
    stranger = Consumer({"bootstrap.servers": piped.cluster.bootstrap, "group.id": f"kept.{piped.name}"})
    stranger.commit(offsets=[TopicPartition(carrier_of(piped.topic), 2, 1)], asynchronous=False)
    stranger.close()
    with pytest.raises(ProgressMoved, match=f"kept pipelines repair {piped.name}"):
        piped.run_to(7)
    assert "--from copy goes back to 6" in told("repair", piped.name, *piped.options)
    said("repair", piped.name, *piped.options, "--from", "copy", "--yes")
    assert piped.positions() == [6, 6, 6]
    piped.run_to(7)
    assert piped.positions() == [7, 7, 7]


def test_a_pipeline_is_replayed_by_its_file_and_its_checkpoint_is_looked_at(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession, tmp_path: Path
) -> None:
    fill(cluster, topic, 30)
    (tmp_path / "dsn").write_text(dsn)
    file = tmp_path / "pay.toml"
    file.write_text(f"""
name = "to-{topic}"
guarantee = "exactly-once"
trigger = "available-now"
checkpoint = "notes"
[source]
bootstrap = "{cluster.bootstrap}"
topics = "{topic}"
[transform]
sql = "SELECT cast(value AS string) AS v FROM source"
[sink]
postgres = "file:dsn"
table = "out"
""")
    ready = FromFile(read(file))

    def held() -> Counter[str]:
        with psycopg.connect(dsn) as connection:
            return Counter(row[0] for row in connection.execute("SELECT v FROM out").fetchall())

    ready.pipeline(spark).run()
    rows = said("show", str(file))["partitions"]
    assert [(row["recorded"], row["checkpoint"], row["restart"]) for row in rows] == [(10, 10, "goes on at 10")] * 3
    assert "move the checkpoint away" in told("replay", str(file), "--from", "4", "--yes")
    assert "6 ahead of the sink: it stops with a gap" in told("show", str(file))
    assert "6 ahead of the sink" in said("show", str(file), expected=3)["partitions"][0]["trouble"]
    assert "move the checkpoint away" in told("repair", str(file)), "no progress is to be moved for it"
    fill(cluster, topic, 3, 30)
    with pytest.raises(kept.errors.Gap, match="move a checkpoint of Spark away"):
        ready.pipeline(spark).run()
    (tmp_path / "notes").rename(tmp_path / "old-notes")
    ready.pipeline(spark).run()
    assert held().total() == 33 + 18
    assert each_once(33) <= held()
