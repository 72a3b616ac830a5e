"""What Spark has planned: which mode a transform allows, and which offsets each task of a micro-batch was given.

With `trees` and `writers` the only module that looks into Spark's own objects. Rule 12: partition mode is for plans of
projections, filters and one scan, by an allow-list; a node that is not known here is not allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kept.errors import FixConfiguration, UnsoundInput
from kept.progress import Mode, Operator, choose_mode
from kept.spark import trees
from kept.spark.position import CARRIED, MISFIT, ORIGIN, POSITION
from kept.spark.triggers import Emit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

SCAN = "StreamingRelationV2"
# Spark's logical nodes. An alias and a view only give names.
ROW_BY_ROW = {
    "Project": Operator.PROJECT,
    "Filter": Operator.FILTER,
    "SubqueryAlias": Operator.PROJECT,
    "View": Operator.PROJECT,
    SCAN: Operator.SCAN,
}
# Nodes that move or multiply rows, and keep nothing from one batch to the next. Whatever is not here is taken for one
# with state: it then needs a checkpoint that stays, which does no harm.
WITHOUT_STATE = {
    *ROW_BY_ROW,
    "Generate",
    "MapInArrow",
    "MapInPandas",
    "PythonMapInArrow",
    "Repartition",
    "RepartitionByExpression",
    "RebalancePartitions",
    "ResolvedHint",
    "Union",
}
KAFKA_SOURCES = ("kafka", "org.apache.spark.sql.kafka010.kafkasourceprovider")
KAFKA_SCAN = "MicroBatchScanExec"
BATCH_RELATION = "StreamingDataSourceV2ScanRelation"
"""The source in the logical plan of a micro-batch; it has offsets when there is something new."""
NO_NEW_ROWS = {"LocalTableScanExec", "EmptyRelationExec"}


@dataclass(frozen=True)
class Planned:
    """What one task reads: offsets of one source partition, end excluded."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Shape:
    """What a transform does to rows, as far as guarantees are concerned."""

    mode: Mode
    in_the_way: tuple[str, ...]
    """The nodes that keep it from partition mode."""
    stateful: bool = False
    repeatable: bool = True
    """Whether the same rows always come to the same result."""

    def __str__(self) -> str:
        """What was chosen, and why."""
        told = f"{self.mode.name.lower()} mode ({self.mode.value}"
        if self.mode is Mode.PARTITION:
            return f"{told})"
        state = "state in the checkpoint" if self.stateful else "no state"
        return f"{told}, because of {', '.join(self.in_the_way)}; {state})"


def shape(frame: DataFrame) -> Shape:
    """Which mode the plan of a frame allows."""
    plan = trees.plan(frame)
    nodes = [(trees.kind(node), _operator(node)) for node in trees.nodes(plan)]
    mode = choose_mode([operator for _, operator in nodes])
    scans = [kind for kind, operator in nodes if operator is Operator.SCAN]
    others = [kind for kind, operator in nodes if operator is Operator.OTHER]
    stateful = any(_keeps_state(node) for node in trees.nodes(plan))
    return Shape(mode, tuple(dict.fromkeys(others or scans)), stateful, bool(plan.deterministic()))


def inlined(frame: DataFrame) -> DataFrame:
    """The same frame without WITH: each of its queries stands where its name was.

    Spark keeps them apart in the plan, and puts a node there that streams by itself: rows of the source would pass for
    those of another stream, and a plain SELECT for one with state.
    """
    if not _has_with(frame):
        return frame
    jvm: Any = frame.sparkSession._jvm
    where_it_may = jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(False, False)  # Spark's own rule
    found = trees.framed(frame, where_it_may.apply(trees.plan(frame)))
    if _has_with(found):
        raise FixConfiguration(
            "a query of WITH in the transform is used twice, and does not always come to the same result",
            way_out="use functions whose result depends on the rows alone, or write each as FROM (SELECT ...)",
        )
    return found


def _has_with(frame: DataFrame) -> bool:
    return any(trees.kind(node) == "WithCTE" for node in trees.nodes(trees.plan(frame)))


def refuse_other_streams(frame: DataFrame, source: DataFrame) -> None:
    """Progress is that of one source, read once: of another stream, or of a second reading, nobody knows how far it is.

    A join of the source with itself is two readings: Spark plans the end of each by itself.
    """
    (ours,) = _streams(source)
    found = _streams(frame)
    if not found:
        raise FixConfiguration(
            "the transform returns a frame without the source in it", way_out="return what becomes of its argument"
        )
    if any(trees.kind(each) != trees.kind(ours) or not each.table().equals(ours.table()) for each in found):
        raise FixConfiguration(
            "the transform brings a stream of its own: where it stands is not recorded",
            way_out="read all topics with one KafkaSource, and tell them apart by the column topic",
        )
    if len({str(each.output()) for each in found}) > 1:
        raise FixConfiguration(
            "the transform joins the source with itself: Spark would read it twice, each time to another end",
            way_out="aggregate instead of joining, or write what is joined to a topic of its own first",
        )


def refuse_without_position(frame: DataFrame, source: DataFrame) -> None:
    """Every row must still say where it comes from, in the very columns that the source made."""
    made = _ids(source)
    kept = _ids(frame)
    missing = [name for name in POSITION if name not in kept]
    if missing:
        raise FixConfiguration(
            f"the transform drops {', '.join(missing)}: a sink could not tell which rows are done",
            way_out='keep them in the select: frame.select(..., "_kept_topic", "_kept_partition", "_kept_offset")',
        )
    changed = [name for name in POSITION if kept[name] != made[name]]
    if changed:
        raise _put_something_else(changed)


def _put_something_else(names: Sequence[str]) -> FixConfiguration:
    return FixConfiguration(
        f"the transform puts something else into {', '.join(names)}",
        way_out="leave these columns as they come from the source, and use other names for your own",
    )


def carrying(frame: DataFrame) -> DataFrame:
    """The same rows of a plan of partition mode, each with the columns of dead letters.

    A select that leaves them behind gets them added, and no filter drops a record that could not be read: it has no
    columns to judge by, and would be gone without a letter.
    """
    return trees.framed(frame, _carrying(frame.sparkSession._jvm, trees.plan(frame)))


def _carrying(jvm: Any, node: Any) -> Any:
    """The plan from here down, which is a chain: projections, filters and names over one scan."""
    if not node.children().size():
        return node
    child = _carrying(jvm, node.children().apply(0))
    there = {name: each for name, each in trees.attributes(child).items() if name in CARRIED}
    kind, logical = trees.kind(node), jvm.org.apache.spark.sql.catalyst.plans.logical
    if kind == "Filter":
        return logical.Filter(_unless_misfit(jvm, node.condition(), there.get(MISFIT)), child)
    if kind != "Project":
        return node.withNewChildren(node.children().updated(0, child))
    made = trees.attributes(node)
    columns = node.projectList()
    for name, attribute in there.items():
        if name not in made:
            columns = columns.appended(attribute)
        elif made[name].exprId().id() != attribute.exprId().id():
            raise _put_something_else([name])
    return logical.Project(columns, child)


def _unless_misfit(jvm: Any, condition: Any, misfit: Any | None) -> Any:
    if misfit is None:
        return condition
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    return expressions.Or(expressions.IsNotNull(misfit), condition)


def refuse_unsupported(frame: DataFrame, emit: Emit) -> None:
    """What Spark would refuse when the query starts, before an earlier driver is disturbed."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - heavy, and only needed here

    jvm: Any = frame.sparkSession._jvm
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, emit.value.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(trees.plan(frame), mode)
    except AnalysisException as error:
        raise FixConfiguration(
            f"Spark cannot run this transform as a stream: {str(error).splitlines()[0]}",
            way_out="change the transform (an aggregation that is let out once needs withWatermark), or choose what it "
            'lets out: emit = "changes" (into a table with mode = "upsert", or no key), Emit.CHANGES; or "final"',
        ) from error


def as_read(frame: DataFrame) -> set[str]:
    """The columns that are the source's own, and hold what it has read."""
    scans = [node for node in trees.nodes(trees.plan(frame)) if trees.kind(node) == SCAN]
    read = {each.exprId().id() for scan in scans for each in trees.attributes(scan).values()}
    return {name for name, column in _ids(frame).items() if column in read}


def with_columns(frame: DataFrame, statement: str, names: Sequence[str]) -> DataFrame | None:
    """The same SELECT with more columns of the table at its end; None where it is more than a plain SELECT."""
    spark = frame.sparkSession
    jvm: Any = spark._jvm
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    select = parser.parsePlan(statement)
    if trees.kind(select) != "Project":
        return None
    more = parser.parsePlan(f"SELECT {', '.join(names)}").projectList()
    plan = jvm.org.apache.spark.sql.catalyst.plans.logical.Project(
        select.projectList().appendedAll(more), select.child()
    )
    return trees.framed(frame, plan)


def kafka_options(frame: DataFrame) -> dict[str, str]:
    """The options by which a frame of a user reads Kafka; a frame that partition mode cannot carry is refused."""
    found = shape(frame)
    if found.mode is not Mode.PARTITION:
        raise FixConfiguration(
            f"the frame is more than rows of one reading, one by one (because of {', '.join(found.in_the_way)}): "
            "a sink could not tell by their place which of them are done",
            way_out="select and filter only; or use kept.Pipeline, which has another mode for the rest",
        )
    scan = _scan(frame)
    if str(scan.sourceName()).lower() not in KAFKA_SOURCES:
        raise FixConfiguration(
            f"the frame is read from {scan.sourceName()}, not from Kafka", way_out='use readStream.format("kafka")'
        )
    return {str(name): str(value) for name, value in scan.extraOptions().asCaseSensitiveMap().items()}


def refuse_strange_position(frame: DataFrame) -> None:
    """Every row must say where it comes from, in columns that are the reading's own under another name."""
    kept = _ids(frame)
    missing = [name for name in POSITION if name not in kept]
    if missing:
        raise FixConfiguration(
            f"the frame lacks {', '.join(missing)}: a sink could not tell which rows are done",
            way_out="call kept.spark.with_position(frame) right after load(), and keep the columns in every select: "
            "frame.select(..., *kept.spark.POSITION)",
        )
    read = {attribute.name(): attribute.exprId().id() for attribute in trees.listed(_scan(frame).output())}
    copies = _copies(frame)
    strange = [name for name in POSITION if _first(kept[name], copies) != read[ORIGIN[name]]]
    if strange:
        raise FixConfiguration(
            f"something else than the place in the source is in {', '.join(strange)}",
            way_out="leave these columns as kept.spark.with_position(frame) makes them, right after load()",
        )


def read_anew(frame: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """The same frame, its one reading with other options. Columns keep their ids, so that all above still fits."""
    jvm: Any = frame.sparkSession._jvm
    given = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(dict(options))

    def again(node: Any) -> Any:
        if trees.kind(node) == SCAN:
            named = (node.catalog(), node.identifier(), node.v1Relation(), node.sourceIdentifyingName())
            return node.copy(node.source(), node.sourceName(), node.table(), given, node.output(), *named)
        below = [again(child) for child in trees.listed(node.children())]
        return node.withNewChildren(jvm.PythonUtils.toSeq(below))

    return trees.framed(frame, again(trees.plan(frame)))


def planned(query: StreamingQuery) -> list[Planned]:
    """What each task of the micro-batch in hand was given, in the order of the tasks' numbers."""
    execution: Any = query._jsq.streamingQuery().lastExecution()
    leaves = trees.listed(execution.executedPlan().collectLeaves())
    if [trees.kind(leaf) for leaf in leaves] != [KAFKA_SCAN]:
        raise UnsoundInput(
            f"the micro-batch reads {', '.join(map(trees.kind, leaves))}, not one Kafka source",
            way_out="use one KafkaSource, and nothing beside it",
        )
    found = [_planned(each.offsetRange()) for each in trees.listed(leaves[0].inputPartitions())]
    if len({(each.topic, each.partition) for each in found}) != len(found):
        raise UnsoundInput(
            "Spark has split a source partition over several tasks", way_out="leave out minPartitions and the like"
        )
    return found


def planned_whole(query: StreamingQuery) -> list[Planned]:
    """What the micro-batch in hand reads of the source, for a plan of any shape; empty when there is nothing new."""
    execution: Any = query._jsq.streamingQuery().lastExecution()
    leaves = list(_leaves(execution.executedPlan()))
    scans = [_put_together(trees.listed(leaf.inputPartitions())) for leaf in leaves if trees.kind(leaf) == KAFKA_SCAN]
    # A scan of which no row can come out (WHERE false, a join with nothing) is left out of the plan that runs. Its rows
    # are done all the same: would progress stay, the next batch began above it.
    scans = scans or [_put_together(parts) for parts in _left_out(execution.logical())]
    if not scans and not NO_NEW_ROWS.intersection(map(trees.kind, leaves)):
        raise UnsoundInput(
            f"the micro-batch reads {', '.join(map(trees.kind, leaves))}: its source cannot be seen in it",
            way_out="set spark.sql.adaptive.enabled=false, or tell us of this plan",
        )
    if any(scan != scans[0] for scan in scans):
        raise UnsoundInput("the source is read twice, to different ends", way_out="read it once in the transform")
    return scans[0] if scans else []


def _left_out(logical: Any) -> Iterator[Sequence[Any]]:
    """What the tasks of each reading in the plan of a micro-batch would have been given."""
    for node in trees.nodes(logical):
        if trees.kind(node) == BATCH_RELATION and node.endOffset().isDefined():
            yield list(node.stream().planInputPartitions(node.startOffset().get(), node.endOffset().get()))


def _put_together(parts: Sequence[Any]) -> list[Planned]:
    """The ranges of a scan; several parts of one partition become one."""
    ranges = [_planned(each.offsetRange()) for each in parts]
    whole: dict[tuple[str, int], Planned] = {}
    for each in sorted(ranges, key=lambda one: (one.topic, one.partition, one.start)):
        before = whole.get((each.topic, each.partition))
        if before is not None and before.end != each.start:
            raise UnsoundInput(f"Spark planned {before} and {each}", way_out="tell us of this plan")
        whole[each.topic, each.partition] = each if before is None else replace(before, end=each.end)
    return list(whole.values())


def _leaves(plan: Any) -> Iterator[Any]:
    for leaf in trees.listed(plan.collectLeaves()):
        if trees.kind(leaf) == "AdaptiveSparkPlanExec":
            yield from _leaves(leaf.initialPlan())
        else:
            yield leaf


def _streams(frame: DataFrame) -> list[Any]:
    nodes = trees.nodes(trees.plan(frame))
    return [node for node in nodes if node.isStreaming() and not node.children().size()]


def _keeps_state(node: Any) -> bool:
    """Nodes over data that does not stream keep nothing; a join does when both of its sides stream."""
    if not node.isStreaming() or trees.kind(node) in WITHOUT_STATE:
        return False
    if trees.kind(node) == "Join":
        return all(side.isStreaming() for side in trees.listed(node.children()))
    return True


def _planned(offsets: Any) -> Planned:
    place = offsets.topicPartition()
    return Planned(place.topic(), place.partition(), offsets.fromOffset(), offsets.untilOffset())


def _operator(node: Any) -> Operator:
    if node.subqueries().size():  # another plan, inside an expression
        return Operator.OTHER
    return ROW_BY_ROW.get(trees.kind(node), Operator.OTHER)


def _ids(frame: DataFrame) -> dict[str, int]:
    """The columns by name, each with the id that Spark gave it: a copy under the same name has another."""
    found = trees.attributes(trees.plan(frame))
    return {name: attribute.exprId().id() for name, attribute in found.items()}


def _scan(frame: DataFrame) -> Any:
    (scan,) = (node for node in trees.nodes(trees.plan(frame)) if trees.kind(node) == SCAN)
    return scan


def _copies(frame: DataFrame) -> dict[int, int]:
    """Columns that are another one under a new name and nothing more: id of the copy, id of the original."""
    projects = (node for node in trees.nodes(trees.plan(frame)) if trees.kind(node) == "Project")
    named = (each for node in projects for each in trees.listed(node.projectList()) if trees.kind(each) == "Alias")
    plain = (each for each in named if trees.kind(each.child()) == "AttributeReference")
    return {each.exprId().id(): each.child().exprId().id() for each in plain}


def _first(column: int, copies: Mapping[int, int]) -> int:
    """The id of what a column is a copy of, at last."""
    while column in copies:
        column = copies[column]
    return column
