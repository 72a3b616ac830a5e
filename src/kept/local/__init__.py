"""A real Kafka of three brokers and a real Postgres on this machine, without Docker."""

from kept.local.cluster import Cluster

__all__ = ["Cluster"]
