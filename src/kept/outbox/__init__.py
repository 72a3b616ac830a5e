"""Records that are safe before any broker has them: a journal on disk, and a relay that carries it into Kafka."""

from kept.outbox.contents import Sending
from kept.outbox.metrics import Metrics
from kept.outbox.relay import Relay
from kept.outbox.sending import Outbox

__all__ = ["Metrics", "Outbox", "Relay", "Sending"]
