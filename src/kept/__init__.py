"""Delivery guarantees for Kafka, kept and proven."""
