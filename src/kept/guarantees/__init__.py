"""The promise in one word, the settings that carry it out, and the refusal of those that break it."""

from kept.guarantees.acceptable import Acceptable, Anything, AtLeast, Between, NotSet, OneOf, Text, Under
from kept.guarantees.broker import broker_settings
from kept.guarantees.connection import connection, only_asks
from kept.guarantees.consumer import consumer_settings
from kept.guarantees.levels import AtLeastOnce, AtMostOnce, ExactlyOnce, Guarantee, parse
from kept.guarantees.merging import merge
from kept.guarantees.producer import producer_settings
from kept.guarantees.rows import Row, Setting, Settings, Side
from kept.guarantees.spark import spark_session_settings, spark_sink_settings, spark_source_settings
from kept.guarantees.topic import BATCHES, CARRIER, carrier_settings, carries_progress, topic_settings

__all__ = [
    "BATCHES",
    "CARRIER",
    "Acceptable",
    "Anything",
    "AtLeast",
    "AtLeastOnce",
    "AtMostOnce",
    "Between",
    "ExactlyOnce",
    "Guarantee",
    "NotSet",
    "OneOf",
    "Row",
    "Setting",
    "Settings",
    "Side",
    "Text",
    "Under",
    "broker_settings",
    "carrier_settings",
    "carries_progress",
    "connection",
    "consumer_settings",
    "merge",
    "only_asks",
    "parse",
    "producer_settings",
    "spark_session_settings",
    "spark_sink_settings",
    "spark_source_settings",
    "topic_settings",
]
