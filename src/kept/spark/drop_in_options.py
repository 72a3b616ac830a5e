"""What the options of a drop-in say: those of the writing end, and those of the reading end that it goes on from.

Options of Spark are texts, and their names know no upper case. What nobody here knows is refused: a misspelt option
would be a promise that was not given.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kept.consumer import Start
from kept.errors import FixConfiguration
from kept.guarantees import ExactlyOnce, Guarantee, merge, parse, spark_sink_settings
from kept.pipelines.references import plain
from kept.spark.kafka_sink import KafkaSink
from kept.spark.postgres_sink import PostgresSink
from kept.spark.sinks import Sink
from kept.spark.source import CHOSEN_BY, KafkaSource

KAFKA, POSTGRES = "kept_kafka", "kept_postgres"
FORMATS = (KAFKA, POSTGRES)
READING = "the reading end"
BOOTSTRAP = "kafka.bootstrap.servers"
FOR_SPARK = ("checkpointlocation", "queryname")
KNOWN = {
    KAFKA: ("pipeline", "guarantee", "start", *FOR_SPARK, "topic"),
    POSTGRES: ("pipeline", "guarantee", "start", *FOR_SPARK, "dsn", "table", "key", "mode"),
}
PRODUCERS, SOURCES = "kafka.", "source."
"""What follows are librdkafka's settings: of the producers, and of the clients that look at the source."""
MODES = ("append", "upsert")
GO_ON = re.compile(r"batch (\d+)")
STARTS = {"earliest": Start.BEGINNING, "latest": Start.END}
# Java's names of what librdkafka is told in another way.
ONLY_JAVA = {
    "sasl.jaas.config": "sasl.username and sasl.password",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.password": "ssl.ca.location",
}
# Ways to choose what is read that a successor could not repeat, or would take for something else.
NOT_FROM_HERE = {
    "assign": "name whole topics with subscribe: a pipeline reads every partition of its topics",
    "subscribepattern": "name the topics with subscribe, or use kept.Pipeline with KafkaSource(pattern=...)",
    "startingtimestamp": "use kept.Pipeline with KafkaSource(start=<a time>)",
    "startingoffsetsbytimestamp": "use kept.Pipeline with KafkaSource(start=<a time>)",
    # Arguments of KafkaSource; no option of Spark's has such a name.
    **dict.fromkeys(
        ("bootstrap", "topics", "pattern", "start", "max_per_batch", "client"), "leave it out: Spark does not know it"
    ),
}


@dataclass(frozen=True)
class Asked:
    """What the writing end asks for."""

    name: str
    guarantee: Guarantee
    sink: Sink
    client: Mapping[str, object] = field(repr=False)
    """By which the source is reached, where that takes more than its address."""
    for_spark: Mapping[str, str]
    """What is Spark's own business."""
    first_batch: int | None = None
    """With which batch of another query's checkpoint a pipeline that is new goes on."""


def asked_for(kind: str, options: Mapping[str, str]) -> Asked:
    """The sink, the guarantee and the name that options of a format of ours describe."""
    _refuse_unknown(kind, options)
    options = {each: _found(each, value) for each, value in options.items()}
    name = ExactlyOnce(_needed(kind, options, "pipeline")).name  # the same names are allowed for all guarantees
    word = _needed(kind, options, "guarantee")
    guarantee = parse(word, name if word == ExactlyOnce.word else None)
    merge(spark_sink_settings(guarantee), _beginning_with(PRODUCERS, options, whole=True))  # refused by its whole name
    client = _for_librdkafka(SOURCES, options)
    sink = _kafka(options) if kind == KAFKA else _postgres(options)
    for_spark = {each: options[each] for each in FOR_SPARK if each in options}
    return Asked(name, guarantee, sink, client, for_spark, _first_batch(options.get("start")))


def source_of(options: Mapping[str, str], client: Mapping[str, object]) -> KafkaSource:
    """The source that a reading of Spark describes; the options that it does not name pass untouched."""
    said = {name.lower(): value for name, value in options.items()}
    for name, way_out in NOT_FROM_HERE.items():
        if name in said:
            raise FixConfiguration(f"{READING} has the option {name}", way_out=way_out)
    _refuse_unreachable(said, client)
    most = said.get("maxoffsetspertrigger")
    if most is not None and not most.isdecimal():
        raise FixConfiguration(f"maxOffsetsPerTrigger={most} is no number", way_out="use a number, or leave it out")
    return KafkaSource(
        _needed(READING, said, BOOTSTRAP),
        [topic.strip() for topic in _needed(READING, said, "subscribe").split(",") if topic.strip()],
        start=_start(said.get("startingoffsets", "latest")),  # what Spark does when nothing is said
        max_per_batch=None if most is None else int(most),
        client=client,
        **{name: value for name, value in options.items() if name.lower() not in CHOSEN_BY},
    )


def _first_batch(text: str | None) -> int | None:
    """The number binds the word to one state of the checkpoint: left in the code, it cannot hide that a sink which was
    restored has lost its progress.
    """
    found = GO_ON.fullmatch(text or "")
    if text is not None and found is None:
        raise FixConfiguration(
            f"start={text} is not known", way_out='leave it out; docs/pipelines.md says when to use "batch <number>"'
        )
    return int(found[1]) if found else None


def _start(text: str) -> Start:
    start = STARTS.get(text.strip().lower())
    if start is None:
        raise FixConfiguration(
            f"startingOffsets={text} names offsets of its own: progress says where to go on",
            way_out="use earliest or latest, which count once, when the pipeline is new; "
            "`kept pipelines replay` moves one that is not",
        )
    return start


def _kafka(options: Mapping[str, str]) -> KafkaSink:
    producer = _for_librdkafka(PRODUCERS, options)
    _needed(KAFKA, options, BOOTSTRAP)
    return KafkaSink(str(producer.pop("bootstrap.servers")), options.get("topic"), **producer)


def _postgres(options: Mapping[str, str]) -> PostgresSink:
    mode = options.get("mode", "append")
    if mode not in MODES:
        raise FixConfiguration(f"mode={mode} is not known", way_out=f"choose one of {', '.join(MODES)}")
    key = tuple(name.strip() for name in options.get("key", "").split(",") if name.strip())
    dsn, table = (_needed(POSTGRES, options, name) for name in ("dsn", "table"))
    return PostgresSink(dsn, table, key, upsert=mode == "upsert")


def _needed(kind: str, options: Mapping[str, str], name: str) -> str:
    if not options.get(name):
        raise FixConfiguration(f"{kind} needs the option {name}", way_out=f'add .option("{name}", ...)')
    return options[name]


def _refuse_unknown(kind: str, options: Mapping[str, str]) -> None:
    prefixes = (PRODUCERS, SOURCES) if kind == KAFKA else (SOURCES,)
    unknown = [name for name in options if name not in KNOWN[kind] and not name.startswith(prefixes)]
    if unknown:
        known: Collection[str] = (*KNOWN[kind], *(f"{prefix}*" for prefix in prefixes))
        raise FixConfiguration(
            f"{kind} does not know the option {', '.join(sorted(unknown))}",
            way_out=f"leave it out; it knows {', '.join(known)}",
        )


def _refuse_unreachable(said: Mapping[str, str], client: Mapping[str, object]) -> None:
    """Spark's clients are Java's, and told in their own words how to reach a cluster; ours would wait in vain."""
    protocol = said.get("kafka.security.protocol", "PLAINTEXT").upper()
    if protocol != "PLAINTEXT" and "security.protocol" not in client:
        raise FixConfiguration(
            f"{READING} needs {protocol}, and kept looks at the source with a client of its own",
            way_out='tell it so at the writing end, as librdkafka does: .option("source.security.protocol", ...), ...',
        )


def _found(name: str, given: str) -> str:
    """What was given, or what the environment variable or the file holds that it names: secrets need not be here."""
    if name != "dsn" and not name.startswith((PRODUCERS, SOURCES)):
        return given
    try:
        return plain(given)
    except FixConfiguration as error:
        raise FixConfiguration(f"the option {name}: {error.what}", way_out=error.way_out) from error


def _for_librdkafka(prefix: str, options: Mapping[str, str]) -> dict[str, object]:
    found = _beginning_with(prefix, options)
    for name, instead in ONLY_JAVA.items():
        if name in found:
            raise FixConfiguration(
                f"{prefix}{name} is for Java, and kept writes with librdkafka", way_out=f"use {prefix}<name>: {instead}"
            )
    return found


def _beginning_with(prefix: str, options: Mapping[str, str], *, whole: bool = False) -> dict[str, object]:
    cut = 0 if whole else len(prefix)
    return {name[cut:]: value for name, value in options.items() if name.startswith(prefix)}
