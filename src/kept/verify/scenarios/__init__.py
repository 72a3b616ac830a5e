"""The scenarios: faults against guarantees, one file each, each with its control."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kept.verify.trials.scenario import Scenario

# A scenario's file is imported when it is run: `kept --help` needs the names only, and no Kafka client.
TITLES = {
    "lost-acknowledgement": "An acknowledgement is lost after the record was appended, again and again",
    "leader-killed": "The leader is killed before its followers have the latest records, and its successor after it",
    "processor-killed": "A processor is killed between effect and progress, and started again",
    "late-commit": "The end of a transaction arrives late, inside the next transaction",
    "outbox-restarted": "A program is killed while it sends, and started again from its source",
    "late-positions": "The positions of a transaction arrive late, inside the next transaction",
    "transaction-left-open": "A processor is killed with an open transaction in Kafka, and started again",
    "transaction-hangs": "A stranger leaves a transaction open in the source: its readers stand still until it ends",
    "zombie": "A program sleeps, a successor takes its work over, and it wakes and goes on",
    "zombie-consumer": "A consumer sleeps past its session, another takes its partitions, and it wakes and goes on",
    "transaction-timed-out": "A program sleeps inside a transaction until that is aborted, wakes, and commits",
    "followers-away": "The followers are cut off from the leader, which dies; then they are back, and it is",
    "commit-reply-lost": "Postgres has committed, and its reply is lost on the way",
    "postgres-killed": "Postgres is killed in the middle of a batch, and started again",
    "rebalance-storm": "Members of a group come and go, in good order or killed, while one stays",
    "partitions-added": "Partitions are added to the source while members of its group come and go",
    "poison": "Some records cannot be processed, ever",
    "poison-too-large": "Of some records more is made than the sink takes",
    "poison-in-table": "Some records break a constraint of the table, at once or only at the commit",
    "brokers-away": "No broker is there for longer than a request may take, and the program is killed meanwhile",
    "coordinator-killed": "The coordinator of a transaction, or of a group, is killed during a commit",
    "delivery-timed-out": "Nobody answers for longer than the delivery time-out, and the program tries again",
    "records-deleted": "Records are deleted before they were read",
    "retention-overtakes": "Retention deletes records before they were read",
    "position-expired": "The group's position on one partition expires, and those on the others do not",
    "topic-made-again": "The source is deleted with unread records in it, and made again under the same name",
    "tails-cut": "The logs lose their tails, as after a power loss, and are filled with other records",
    "disk-full": "The disk of a broker is full while it takes records",
    "disks-full": "The disks of all brokers are full at once, until there is room again",
    "postgres-disk-full": "The disk of Postgres is full for a while",
    "progress-moved": "A stranger moves the progress of a pipeline",
    "mirror-moved": "A stranger moves the group that only mirrors a pipeline's progress",
    "group-deleted": "A stranger deletes the group",
    "stranger-joins": "A stranger joins the group, commits what it took, and leaves",
    "spark-source-shortened": "Records are deleted before a pipeline on Spark has read them",
    "driver-killed": "A driver of Spark dies after the sink has a batch, before Spark has noted it",
    "task-killed": "A task of Spark dies when it has written a part, and is run again",
    "checkpoint-deleted": "Spark's checkpoint is deleted between two starts",
    "two-drivers": "A second driver of the same pipeline is started while the first is at work",
    "sink-restored": "The database of a pipeline is restored from a backup, and Spark's checkpoint is not",
    "checkpoint-restored": "Spark's checkpoint is restored from a backup, and the database of the pipeline is not",
    "input-cut-short": "The plan fails after some rows of a batch, is repaired, and started again",
}
NAMES = tuple(TITLES)
SMOKE = NAMES[:5]
OF_SPARK = NAMES[NAMES.index("driver-killed") :]


def scenario(name: str) -> Scenario:
    """A scenario by its name."""
    found: Scenario = import_module(f"kept.verify.scenarios.{name.replace('-', '_')}").SCENARIO
    return found
