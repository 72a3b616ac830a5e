"""Reading records."""

from kept.consumer.reading import Reader, Record, Start

__all__ = ["Reader", "Record", "Start"]
