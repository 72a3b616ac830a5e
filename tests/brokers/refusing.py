"""Answers that a broker gives to records, given in its place: faults that cannot be had from a broker when needed."""

from __future__ import annotations

import struct
from collections.abc import Callable

from kept.verify.proxy import Answer
from kept.verify.proxy.kafka_frames import LENGTH, REQUEST_HEADER

AS_WRITTEN = 10
"""The version of Produce that is answered here."""


def refusing(topic: str, error: int, meanwhile: Callable[[], object] = lambda: None) -> Answer:
    """Partition 0 of the topic takes nothing, with this error; before that the proxy stands still for `meanwhile`."""

    def answered(request: bytes) -> bytes:
        _, _, version, number, _ = REQUEST_HEADER.unpack_from(request)
        assert version == AS_WRITTEN
        meanwhile()
        name = topic.encode()
        partition = struct.pack(">ihqqq", 0, error, -1, -1, -1) + b"\1\0\0"
        of_topic = bytes([2, len(name) + 1]) + name + b"\2" + partition + b"\0"
        body = struct.pack(">i", number) + b"\0" + of_topic + struct.pack(">i", 0) + b"\0"
        return LENGTH.pack(len(body)) + body

    return Answer(answered)
