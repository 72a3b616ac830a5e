"""Takes away the position of a group on one partition, as expiry does: the client library can only take away all."""

from __future__ import annotations

import struct

from kept.admin.wire import Question, asked, text
from kept.errors import TryAgain


def delete_position(address: str, group: str, topic: str, partition: int) -> None:
    """The address is that of the group's coordinator."""
    body = text(group) + struct.pack(">i", 1) + text(topic) + struct.pack(">ii", 1, partition)
    error = asked(address, Question.OFFSET_DELETE, body, flexible=False).short()
    if error:
        raise TryAgain(f"the position of {group} was not deleted: error {error} of Kafka's", way_out="run it again")
