"""What consumers leave behind in a cluster, taken away: their groups, and the births that kept wrote down for them."""

from __future__ import annotations

import json
import time
from collections.abc import Collection

from kept.admin.groups import Groups
from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.errors import TryAgain
from kept.guarantees import CARRIER, AtLeastOnce
from kept.producer import Producer

GONE_WITHIN = 20.0
"""A group is deleted when its last member's session is over: 6 s, the least that brokers allow."""


def forget_groups(bootstrap: str, groups: Collection[str]) -> None:
    """Delete groups, also such as were never made; their members have left, or are dead."""
    there = Groups(bootstrap)
    deadline = time.monotonic() + GONE_WITHIN
    for group in groups:
        while not there.delete(group):
            if time.monotonic() > deadline:
                raise TryAgain(f"group {group} still has a member", way_out="it is empty soon, and expires by itself")
            time.sleep(0.2)
    if CARRIER not in {topic.name for topic in Topics(bootstrap).list(internal=True)}:
        return
    with Reader(bootstrap, CARRIER, start=Start.BEGINNING) as reader:
        births = [each for each in reader.to_end() if each.value is not None and _is_of(each.key, groups)]
    with Producer(bootstrap, AtLeastOnce()) as producer:
        for each in births:
            producer.send(CARRIER, None, key=each.key, partition=each.partition)


def _is_of(key: bytes | None, groups: Collection[str]) -> bool:
    try:
        return key is not None and json.loads(key)[1] in groups
    except (ValueError, IndexError, KeyError, TypeError):
        return False
