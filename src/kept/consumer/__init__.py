"""Consumers: loops whose body is the effect, under each guarantee; and readers that leave no trace."""

from kept.consumer.batch import Batch
from kept.consumer.consuming import Consumer
from kept.consumer.outgoing import Output
from kept.consumer.reading import Reader, Start
from kept.consumer.records import Record
from kept.consumer.retrying import Retry

__all__ = ["Batch", "Consumer", "Output", "Reader", "Record", "Retry", "Start"]
