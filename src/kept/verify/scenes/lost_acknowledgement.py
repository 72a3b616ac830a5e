"""Scene: the broker has stored a record, its acknowledgement is lost, and the producer sends it again."""

from __future__ import annotations

from collections.abc import Mapping

from kept.verify.proxy import Api, Direction, Hold, Nth, Rule
from kept.verify.scenes.crashing import second_times
from kept.verify.scenes.performing import Script
from kept.verify.scenes.producing import IDEMPOTENCE, SEEN_WITHIN, break_connections, producer_through, seen
from kept.verify.scenes.stage import Stage
from kept.verify.scenes.telling import LOST, Story

DECK = "M2 is sent and stored; it is never ack-ed; M2 is resent, and stored again."
WHY = "The idempotent producer numbers what it sends: the broker knows that it has this M2 already."


def play(stage: Stage, word: str, story: Story) -> Mapping[str, int]:
    topic, client = stage.topic(), stage.name()
    with stage.proxy() as proxy, producer_through(proxy, client, word) as producer:
        producer.send(topic, "M1", key="account").result(SEEN_WITHIN)
        story.tell("the producer sends M1, and it is acknowledged", "the log:", stage.log(topic))
        lost = proxy.add(Rule(Api.PRODUCE, Direction.RESPONSE, Hold(), Nth(1), client=client))
        before = seen(proxy, client, Direction.REQUEST)
        second = producer.send(topic, "M2", key="account")
        lost.wait_caught()
        story.tell("it sends M2, and the broker stores it", "the log:", stage.log(topic))
        break_connections(proxy)
        story.tell("the acknowledgement is lost with the connection", f"{lost.caught} acknowledgement lost")
        second.result(SEEN_WITHIN)
        sent = seen(proxy, client, Direction.REQUEST) - before
        story.tell("without an answer, it sends M2 again", f"M2 was sent {sent} times")
    log = stage.log(topic)
    story.tell("the log, in the end", "", log, second_times(log))
    return {"stored twice": len(second_times(log)), LOST: len({"M1", "M2"} - set(log))}


SCRIPT = Script("lost-acknowledgement", DECK, WHY, f"{IDEMPOTENCE}=false", f"{IDEMPOTENCE}=true", "stored twice", play)
