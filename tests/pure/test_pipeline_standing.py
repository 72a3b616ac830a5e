"""Where a pipeline stands, what keeps it from going on, and what moving its progress means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from kept.errors import FixConfiguration, Gap, ProgressLost, ProgressMoved, SinkChanged, SourceChanged
from kept.pipelines import checkpoints
from kept.pipelines.standing import Change, Goal, Standing, choices, chosen, meaning, moved, refuse_troubled, successor
from kept.progress import Identity, Owner, Position, Progress, Recorded, Source, Unsigned

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
HERE = Identity("c", "id1", 3)


def at(offset: int, generation: int = 4, identity: Identity = HERE, name: str = "pay", partition: int = 0) -> Progress:
    return Progress(Position("t", partition, offset), identity, Owner(name, generation))


def log(start: int, end: int, identity: Identity = HERE, epoch_end: int | None = None) -> Source:
    return Source(identity, start, end, end if epoch_end is None else epoch_end)


LOG = log(0, 100)


def bound(progress: Progress, sink: str) -> Progress:
    return replace(progress, owner=replace(progress.owner, sink=sink))


def standing(recorded: Recorded, source: Source | None = LOG, **more: object) -> Standing:
    partition = recorded.position.partition if recorded else 0
    return Standing(("t", partition), recorded, source, source.log_end if source else 0, **more)  # type: ignore[arg-type]


def plan(where: str, *standings: Standing, moments: Mapping[tuple[str, int], int | None] | None = None) -> list[Change]:
    return moved(Goal.typed(where, NOW), standings, dict(moments or {}), successor("pay", standings))


def test_a_pipeline_that_is_well() -> None:
    well = standing(at(40), checkpoint=40, born_on="id1")
    assert (well.trouble("pay"), well.behind, well.restart()) == (None, 60, "goes on at 40")
    assert standing(at(40), source=None).trouble("pay") is None, "the source was not asked"
    refuse_troubled("pay", [well])


@pytest.mark.parametrize(
    ("troubled", "kind", "choice"),
    [
        (standing(at(40), log(50, 100)), Gap, "--from beginning accepts the loss"),
        (standing(at(40), log(0, 30)), SourceChanged, "compare the sink with the source"),
        (standing(at(40), log(0, 100, Identity("c", "id1", 5), epoch_end=20)), SourceChanged, "compare the sink"),
        (standing(at(40), log(0, 100, Identity("c", "id2", 0))), SourceChanged, "takes the new topic for the source"),
        (standing(at(40), log(0, 100), born_on="id0"), SourceChanged, "compare the sink"),
        (standing(at(40), None, gone=True), SourceChanged, "start a new pipeline"),
        (standing(None), ProgressLost, "where the sink really stands"),
        (standing(Unsigned(Position("t", 0, 7))), ProgressMoved, "then or --from an offset"),
        (standing(Unsigned(Position("t", 0, 7)), copy=at(40)), ProgressMoved, "--from copy goes back to 40"),
        (standing(bound(at(40), "a@1"), sink="b@2"), SinkChanged, "--from +0 goes on where it stands"),
        (standing(bound(at(40), "a@1"), None, sink="a@2"), SinkChanged, "give the pipeline another name"),
        (standing(at(40, name="other"), copy=at(30)), ProgressMoved, "--from copy goes back to 30"),
    ],
)
def test_what_a_person_has_to_decide(troubled: Standing, kind: type[Exception], choice: str) -> None:
    stop = troubled.trouble("pay")
    assert stop is not None
    assert stop.kind is kind
    assert "kept pipelines repair pay" in stop.way_out
    assert choice in choices(stop, troubled)
    with pytest.raises(kind, match="kept pipelines repair pay"):
        refuse_troubled("pay", [troubled])


def test_what_a_restart_does_with_a_checkpoint() -> None:
    assert standing(at(40), checkpoint=30).restart() == "the checkpoint is at 30: 10 offsets are read again and dropped"
    assert "5 ahead of the sink: it stops with a gap" in standing(at(40), checkpoint=45).restart()
    assert standing(at(40)).restart() == "goes on at 40"


def test_a_checkpoint_that_is_ahead_stops_it_and_no_progress_is_to_be_moved_for_that() -> None:
    ahead = standing(at(40), checkpoint=45)
    stop = ahead.stops("pay")
    assert stop is not None
    assert (stop.kind, "move the checkpoint away" in stop.way_out) == (Gap, True)
    assert ahead.trouble("pay") is None, "repair would move it, and a replay would be refused"
    refuse_troubled("pay", [ahead])
    for well in (standing(at(40), checkpoint=40), standing(at(40), checkpoint=30), standing(at(40))):
        assert well.stops("pay") is None
    deleted = standing(at(40), log(50, 100), checkpoint=45)
    assert deleted.stops("pay") == deleted.trouble("pay")


@pytest.mark.parametrize(
    ("where", "new", "again", "skipped"),
    [("beginning", 10, 30, 0), ("end", 100, 0, 60), ("25", 25, 15, 0), ("-5", 35, 5, 0), ("+5", 45, 0, 5),
     ("2026-01-31T08:00:00Z", 60, 0, 20)],
)  # fmt: skip
def test_where_to_and_what_that_costs(where: str, new: int, again: int, skipped: int) -> None:
    (change,) = plan(where, standing(at(40), log(10, 100)), moments={("t", 0): 60})
    assert (change.new.position.next_offset, change.move.read_again, change.move.skipped) == (new, again, skipped)
    assert change.expected == at(40)
    assert change.new.owner == Owner("pay", 5), "whoever is at work has a lower generation"


def test_all_partitions_get_the_generation_above_the_highest() -> None:
    changes = plan("beginning", standing(at(40, 4)), standing(at(40, 9, partition=1)))
    assert {change.new.owner.generation for change in changes} == {10}


def test_what_is_moved_counts_for_the_sink_as_it_is_now_or_else_for_the_recorded_one() -> None:
    lost = Standing(("t", 1), None, LOG)
    for sink, then in (("b@2", "b@2"), (None, "a@1")):
        changes = plan("beginning", standing(bound(at(40), "a@1"), sink=sink), replace(lost, sink=sink))
        assert [change.new.owner.sink for change in changes] == [then, then]


def test_of_a_new_topic_nothing_was_read_and_its_identity_is_taken() -> None:
    new = Identity("c", "id2", 0)
    (change,) = plan("beginning", standing(at(40), log(0, 5, new), born_on="id1"))
    assert (change.new.identity, change.new.position.next_offset) == (new, 0)
    assert (change.move.old, change.move.read_again) == (None, None)


def test_a_copy_is_taken_as_it_is_under_a_new_generation() -> None:
    (change,) = plan("copy", standing(Unsigned(Position("t", 0, 7)), copy=at(40)))
    assert change.new == at(40, 5)
    after = plan("copy", standing(Unsigned(Position("t", 0, 7)), copy=at(40, 6)))
    assert after[0].new.owner.generation == 7, "a sleeper of generation 6 must not wake up as the owner"
    with pytest.raises(FixConfiguration, match="no durable copy"):
        plan("copy", standing(at(40)))


@pytest.mark.parametrize("where", ["101", "5", "yesterday", "2027-01-01T00:00:00Z", "2026-01-01T00:00:00"])
def test_nowhere_to_go(where: str) -> None:
    with pytest.raises(FixConfiguration) as caught:
        plan(where, standing(at(40), log(10, 100)))
    assert "--to" not in str(caught.value)


def test_without_its_source_nothing_is_moved() -> None:
    with pytest.raises(FixConfiguration, match="the source was not asked"):
        plan("beginning", standing(at(40), None))


def meant(where: str, checkpoint: Mapping[tuple[str, int], int] | None) -> str:
    return " ".join(meaning(Goal.typed(where, NOW), plan(where, standing(at(40))), checkpoint))


def test_what_it_means_is_said_above_all_for_duplicates() -> None:
    again = meant("beginning", {})
    assert "at most 40 records are read again, and written again, whatever the guarantee" in again
    assert "ahead" not in again
    skipped = meant("end", None)
    assert "at most 60 records are never read" in skipped
    assert "move the checkpoint away" in skipped, "nobody knows where a checkpoint stands"
    assert "move the checkpoint away" in meant("beginning", {("t", 0): 40})
    assert meant("40", {("t", 0): 40}) == ""


def test_that_a_shift_is_not_simply_said_again_is_told() -> None:
    for shift in ("+5", "-5"):
        assert "what was moved already would move once more" in meant(shift, {})
    assert meant("+0", {}) == ""
    assert "once more" not in meant("35", {})


def test_a_part_of_a_pipeline_is_chosen_by_name() -> None:
    one, two = standing(at(1)), standing(at(1, partition=1))
    other = Standing(("u", 0), None, None)
    assert chosen([one, two, other], None, ()) == [one, two, other]
    assert chosen([one, two, other], "t", (1,)) == [two]
    assert chosen([one, two], None, (0,)) == [one]
    for topic, partitions in (("v", ()), ("t", (7,)), (None, (0,))):
        with pytest.raises(FixConfiguration, match=r"partition"):
            chosen([one, two, other], topic, partitions)


def test_a_checkpoint_is_read_without_spark(tmp_path: Path) -> None:
    def planned(number: int, offset: int) -> None:
        text = f'v1\n{{"batchWatermarkMs":0}}\n{{"t":{{"0":{offset},"1":7}}}}'
        (tmp_path / "offsets").mkdir(exist_ok=True)
        (tmp_path / "offsets" / str(number)).write_text(text)

    def committed(number: int) -> None:
        (tmp_path / "commits").mkdir(exist_ok=True)
        (tmp_path / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    assert checkpoints.read(str(tmp_path)) is None
    planned(9, 50)
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_text('\0v1\n{"t":{"0":5}}')
    first = checkpoints.read(f"file://{tmp_path}")
    assert first is not None
    assert (first.batch, first.committed, first.restart) == (9, False, {("t", 0): 5})
    committed(9)
    planned(10, 80)
    (tmp_path / "offsets" / ".10.crc").write_text("x")
    (tmp_path / "offsets" / "11.tmp").write_text("x")
    second = checkpoints.read(str(tmp_path))
    assert second is not None
    assert (second.batch, second.committed, second.next_batch) == (10, False, 10)
    assert second.restart == {("t", 0): 50, ("t", 1): 7}
    committed(10)
    third = checkpoints.read(str(tmp_path))
    assert third is not None
    assert (third.committed, third.next_batch, third.restart) == (True, 11, {("t", 0): 80, ("t", 1): 7})


@pytest.mark.parametrize("text", ["", "v9\n{}\n{}", "v1\n{}\nno json", "v1\n{}\n[1]"])
def test_a_checkpoint_that_is_none(tmp_path: Path, text: str) -> None:
    for directory in ("offsets", "commits"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "0").write_text(text)
    with pytest.raises(FixConfiguration, match="cannot be read"):
        checkpoints.read(str(tmp_path))
    with pytest.raises(FixConfiguration, match="not on this machine"):
        checkpoints.read("s3a://bucket/checkpoint")
