"""Reading records."""

from kept.consumer.reading import Reader, Start
from kept.consumer.records import Record

__all__ = ["Reader", "Record", "Start"]
