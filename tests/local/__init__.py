"""The local cluster's parts that need no running Kafka."""
