"""Pipelines on Spark: Kafka in, rows transformed, Postgres or Kafka out, under each of the three guarantees.

The only package that imports pyspark, and only when a pipeline runs.
"""

from kept.spark.sessions import refuse_without_pyspark, session

refuse_without_pyspark()  # told as what it is, before an import fails

from kept.spark.dead_letters import DeadLetterTable, DeadLetterTopic
from kept.spark.driver import Ran
from kept.spark.drop_in import register
from kept.spark.kafka_sink import KafkaSink
from kept.spark.pipeline import Pipeline
from kept.spark.position import POSITION
from kept.spark.postgres_sink import PostgresSink
from kept.spark.source import KafkaSource, with_position
from kept.spark.tasks import Limits
from kept.spark.triggers import Emit, Every, UntilEnd

__all__ = [
    "POSITION",
    "DeadLetterTable",
    "DeadLetterTopic",
    "Emit",
    "Every",
    "KafkaSink",
    "KafkaSource",
    "Limits",
    "Pipeline",
    "PostgresSink",
    "Ran",
    "UntilEnd",
    "register",
    "session",
    "with_position",
]
