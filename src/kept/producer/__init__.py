"""Sending records and knowing what became of each."""

from kept.producer.delivery import Delivery, Receipt
from kept.producer.sending import Producer

__all__ = ["Delivery", "Producer", "Receipt"]
