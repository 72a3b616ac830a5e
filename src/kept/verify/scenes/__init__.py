"""The failures that the slide deck tells, played step by step on a real cluster, each beside its fix.

with Stage(cluster) as stage:
    scene = perform(script("message-loss"), stage)      # kills a process, and starts it again, under both guarantees
    scene.as_promised                                   # harm without the fix, none with it
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kept.verify.scenes.performing import Script

# A scene's file is imported when it is played: `kept --help` needs the names only, and no Kafka client.
TITLES = {
    "lost-acknowledgement": "An acknowledgement is lost, and the record is stored twice",
    "message-loss": "Progress is recorded first, the consumer crashes, and records are never processed",
    "double-processing": "The consumer crashes before its progress is recorded, and records are processed twice",
    "order": "A record is sent again without idempotence, and lands behind a later one",
    "order-across-partitions": "Records of one account are spread over partitions, and read in another order",
}
NAMES = tuple(TITLES)


def script(name: str) -> Script:
    """How a scene goes, by its name."""
    found: Script = import_module(f"kept.verify.scenes.{name.replace('-', '_')}").SCRIPT
    return found
