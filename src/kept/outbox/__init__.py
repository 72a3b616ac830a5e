"""Records that are safe before any broker has them: a journal, and a relay that carries it into Kafka."""
