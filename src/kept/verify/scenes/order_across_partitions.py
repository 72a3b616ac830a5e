"""Scene: records that belong together go to several partitions, and nobody keeps an order between partitions."""

from __future__ import annotations

from collections.abc import Mapping

from kept.guarantees import AtLeastOnce
from kept.producer import Producer
from kept.verify.scenes.crashing import messages
from kept.verify.scenes.order import overtaken
from kept.verify.scenes.performing import Script
from kept.verify.scenes.producing import SEEN_WITHIN
from kept.verify.scenes.stage import Stage
from kept.verify.scenes.telling import LOST, Story

DECK = "Order is kept within a partition; the idempotent producer's promise is per partition."
ROUND_ROBIN, KEYED = "round robin", "one key"
PARTITIONS = 3
WHY = "The key chooses the partition, and a partition is read in the order it was written."


def play(stage: Stage, word: str, story: Story) -> Mapping[str, int]:
    topic = stage.topic(PARTITIONS)
    sent = messages(1, 9)
    with Producer(stage.bootstrap, AtLeastOnce()) as producer:
        deliveries = [
            producer.send(topic, record, partition=number % PARTITIONS)
            if word == ROUND_ROBIN
            else producer.send(topic, record, key="account")
            for number, record in enumerate(sent)
        ]
        used = {delivery.result(SEEN_WITHIN).partition for delivery in deliveries}
    story.tell(f"one producer sends {sent[0]}..{sent[-1]}, in this order", f"to {len(used)} of {PARTITIONS} partitions")
    read = stage.log(topic)
    story.tell("a reader of the whole topic meets them", "", read, overtaken(read))
    return {"out of order": len(overtaken(read)), LOST: len(set(sent) - set(read))}


SCRIPT = Script("order-across-partitions", DECK, WHY, ROUND_ROBIN, KEYED, "out of order", play)
