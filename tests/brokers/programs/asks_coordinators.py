"""Asks for the positions of groups whose coordinators are found too late, and says whether it is still there.

python -m tests.brokers.programs.asks_coordinators plain|ours BOOTSTRAP
"""

from __future__ import annotations

import sys
import time

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient

from kept.coordinator import ask_coordinator

TIMES = 5
WITHIN, FOUND_AFTER = 0.5, 1.0


def plain(client: AdminClient, group: str) -> None:
    client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=WITHIN)[group].result()


def ours(bootstrap: str, group: str) -> None:
    ask_coordinator(
        {"bootstrap.servers": bootstrap},
        lambda client, timeout: client.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=timeout
        ),
        WITHIN,
    )


def main() -> None:
    how, bootstrap = sys.argv[1:]
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    client.list_topics(timeout=20)
    unanswered = 0
    for number in range(TIMES):
        try:
            plain(client, f"late-{number}") if how == "plain" else ours(bootstrap, f"late-{number}")
        except KafkaException:
            unanswered += 1
        time.sleep(FOUND_AFTER)
    print(f"{unanswered} unanswered, and alive")


if __name__ == "__main__":
    main()
