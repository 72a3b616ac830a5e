"""The topics that carry births and progress, on brokers which make a topic for whoever asks about it.

That is how Apache's brokers are set when nobody changes them: what they make so is emptied after a week, and a birth
or a copy of progress that is gone with it means a silent new beginning. So asking makes nothing, and a carrier that
somebody else has made is looked at.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

import kept
from kept.admin.topics import Topics
from kept.cli.main import kept as command_line
from kept.consumer import Reader, Start
from kept.consumer.sources import Sources
from kept.errors import FixConfiguration, KeptError, PersonMustLook
from kept.guarantees import BATCHES, CARRIER
from kept.local import Cluster
from kept.outbox.topics import Destinations
from kept.producer.carrier import make_carrier
from kept.spark import KafkaSink
from kept.spark.kafka_staging import PARTITIONS, TOPIC_SETTINGS, staging_topic
from tests.brokers.pipes import copying, pipe
from tests.conftest import Eventually
from tests.spark.elsewhere import another_cluster, make_topic
from tests.spark.test_upkeep import Piped
from tests.spark.things import fill

POLICY = "cleanup.policy"
AS_APACHE_SHIPS_IT = {"auto.create.topics.enable": "true"}
WITH_RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("careless") / "cluster"
    with another_cluster(folder, **AS_APACHE_SHIPS_IT, **WITH_RIGHTS) as another:
        yield another


@pytest.fixture
def careless(started: Cluster, eventually: Eventually) -> Cluster:
    """Makes topics on the side, and has none of ours yet."""
    ours = [name for name in topics_of(started) if name.startswith("kept.")]
    admin = AdminClient(reach(started))  # it has to live until the answer is there
    for gone in admin.delete_topics(ours).values() if ours else ():
        gone.result(30)
    eventually(lambda: not topics_of(started) & set(ours), "the carriers of the test before are gone")
    return started


def reach(cluster: Cluster) -> dict[str, str | int | float | bool]:
    return {"bootstrap.servers": cluster.bootstrap, "log_level": 0}


def topics_of(cluster: Cluster) -> set[str]:
    """All of them are asked for, which makes none."""
    return set(AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=30).topics)


def policy(cluster: Cluster, topic: str) -> str:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient(reach(cluster))
    return str(admin.describe_configs([resource])[resource].result(30)[POLICY].value)


def policies(cluster: Cluster) -> dict[str, str]:
    return {name: policy(cluster, name) for name in topics_of(cluster) if name.startswith("kept.")}


def a_name() -> str:
    return f"test-{uuid.uuid4().hex[:8]}"


def filled(cluster: Cluster) -> str:
    name = a_name()
    make_topic(cluster, name, 3)
    fill(cluster, name, 30)
    return name


def consumes(cluster: Cluster) -> None:
    """Exactly once into Kafka: a birth."""
    source, out = filled(cluster), a_name()
    make_topic(cluster, out, 1)
    pipe(cluster.bootstrap, source, a_name(), copying(out))


def sends(cluster: Cluster) -> None:
    """Exactly once: a mark."""
    topic = a_name()
    make_topic(cluster, topic, 1)
    with kept.Producer(cluster.bootstrap, kept.ExactlyOnce(a_name())) as producer, producer.transaction():
        producer.send(topic, "x")


def drives(cluster: Cluster) -> None:
    """A pipeline without Spark: births, progress and copies of it, batches."""
    source, out = filled(cluster), a_name()
    make_topic(cluster, out, 2)
    Piped(a_name(), cluster, source, KafkaSink(cluster.bootstrap, out)).run_to(6)
    make_carrier(Sources(KafkaSink(cluster.bootstrap).client).admin, BATCHES)


USES = [consumes, sends, drives]


@pytest.mark.parametrize("use", USES)
def test_what_carries_progress_is_compacted_though_brokers_make_topics_on_the_side(
    careless: Cluster, use: Callable[[Cluster], None]
) -> None:
    use(careless)
    found = policies(careless)
    assert CARRIER in found
    assert set(found.values()) == {"compact"}


def asks_a_sink(cluster: Cluster, topic: str) -> None:
    Piped(a_name(), cluster, filled(cluster), KafkaSink(cluster.bootstrap, topic)).run_to(6)


def asks_a_source(cluster: Cluster, topic: str) -> None:
    with kept.Consumer(cluster.bootstrap, topic, guarantee=kept.AtLeastOnce(), group=a_name()) as consumer:
        next(iter(consumer))


def asks_a_reader(cluster: Cluster, topic: str) -> None:
    with Reader(cluster.bootstrap, topic, start=Start.BEGINNING) as reader:
        list(reader.to_end())


def asks_an_output(cluster: Cluster, topic: str) -> None:
    pipe(cluster.bootstrap, filled(cluster), a_name(), copying(topic))


def asks_dead_letters(cluster: Cluster, topic: str) -> None:
    def fails(_record: object) -> None:
        raise ValueError

    with kept.Consumer(cluster.bootstrap, filled(cluster), guarantee=kept.AtMostOnce(), group=a_name()) as consumer:
        consumer.run(fails, dead_letters=topic)


def asks_once(cluster: Cluster, topic: str) -> None:
    with kept.Producer(cluster.bootstrap, kept.AtMostOnce(), **{"message.timeout.ms": 2000}) as producer:
        producer.send(topic, "x").result(30)


def asks_for_a_relay(cluster: Cluster, topic: str) -> None:
    assert Destinations(reach(cluster), 0.0)._ask(topic) is None


def asks_the_command_line(cluster: Cluster, topic: str) -> None:
    Topics(cluster.bootstrap).describe(topic)


@pytest.mark.parametrize(
    "ask",
    [
        asks_a_sink,
        asks_a_source,
        asks_a_reader,
        asks_an_output,
        asks_dead_letters,
        asks_once,
        asks_for_a_relay,
        asks_the_command_line,
    ],
)
def test_to_ask_about_a_topic_does_not_make_it(careless: Cluster, ask: Callable[[Cluster, str], None]) -> None:
    nobodys = a_name()
    with suppress(KeptError):  # told as missing, each in its way; what is looked at here is what is left behind
        ask(careless, nobodys)
    make_topic(careless, a_name(), 1)  # what the broker has sent to the controller before is made by then
    assert nobodys not in topics_of(careless)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("found", ["delete", "compact,delete"])
def test_a_carrier_that_would_be_emptied_is_put_right(
    careless: Cluster, found: str, use: Callable[[Cluster], None]
) -> None:
    make_topic(careless, CARRIER, 1, **{POLICY: found, "retention.ms": "3600000"})
    use(careless)
    assert policy(careless, CARRIER) == "compact"


def test_a_carrier_that_was_emptied_already_needs_a_person(careless: Cluster) -> None:
    """Whose birth was among them nobody knows: to go on would begin anew for whoever has rested since."""
    make_topic(careless, CARRIER, 1, **{POLICY: "delete"})
    fill_carrier(careless)
    admin = AdminClient(reach(careless))
    for done in admin.delete_records([TopicPartition(CARRIER, 0, 2)]).values():
        done.result(30)
    for _ in range(2):
        with pytest.raises(PersonMustLook, match=r"kept\.progress.*before 2") as stopped:
            consumes(careless)
        assert f"--entity-name {CARRIER} --add-config {POLICY}=compact" in stopped.value.way_out
    assert policy(careless, CARRIER) == "delete", "nobody has looked yet"


def fill_carrier(cluster: Cluster) -> None:
    with kept.Producer(cluster.bootstrap, kept.AtLeastOnce()) as producer:
        for key in "abc":
            producer.send(CARRIER, "x", key=key)


Rule = TypeVar("Rule", AclBinding, AclBindingFilter)


def rules(kind: type[Rule], operation: AclOperation) -> list[Rule]:
    """Of the carrier, and of the cluster, which is asked too when something is to be made."""
    return [
        kind(*place, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", *says)
        for place in ((ResourceType.TOPIC, CARRIER), (ResourceType.BROKER, "kafka-cluster"))
        for says in ((AclOperation.ALL, AclPermissionType.ALLOW), (operation, AclPermissionType.DENY))
    ]


@contextmanager
def forbidden(cluster: Cluster, operation: AclOperation) -> Iterator[None]:
    """Everything with the carrier is allowed but this."""
    admin = AdminClient(reach(cluster))
    for made in admin.create_acls(rules(AclBinding, operation)).values():
        made.result(30)
    try:
        yield
    finally:
        for gone in admin.delete_acls(rules(AclBindingFilter, operation)).values():
            gone.result(30)


def test_a_carrier_that_may_not_be_put_right_is_refused_with_the_command_that_does_it(
    careless: Cluster, eventually: Eventually
) -> None:
    make_topic(careless, CARRIER, 1, **{POLICY: "delete"})
    with forbidden(careless, AclOperation.ALTER_CONFIGS):
        for use in USES:
            with pytest.raises(FixConfiguration) as refused:
                use(careless)
            assert f"{CARRIER} has {POLICY}=delete" in refused.value.what
            assert f"--entity-name {CARRIER} --add-config {POLICY}=compact" in refused.value.way_out
    eventually(lambda: policy(careless, CARRIER) == "delete", "the rule is gone")
    sends(careless)
    assert policy(careless, CARRIER) == "compact"


def test_a_carrier_that_may_not_be_looked_at_is_refused_with_the_right_to_ask_for(careless: Cluster) -> None:
    make_topic(careless, CARRIER, 1, **{POLICY: "compact"})
    with forbidden(careless, AclOperation.DESCRIBE_CONFIGS), pytest.raises(FixConfiguration) as refused:
        sends(careless)
    assert CARRIER in refused.value.what
    assert "DescribeConfigs" in refused.value.way_out


def test_a_carrier_that_may_not_be_made_is_made_by_the_command_that_is_told(careless: Cluster) -> None:
    with forbidden(careless, AclOperation.CREATE), pytest.raises(FixConfiguration) as refused:
        sends(careless)
    command = refused.value.way_out.split("`")[1]
    assert command.startswith("kept topics create")
    alone = ["--set", "replication.factor=1", "--guarantee", "at-most-once", "--bootstrap", careless.bootstrap]
    made = CliRunner().invoke(command_line, [*command.split()[1:], *alone])
    assert made.exit_code == 0, made.output
    assert policy(careless, CARRIER) == "compact"
    sends(careless)


def test_what_a_pipeline_puts_aside_is_deleted_not_compacted(careless: Cluster) -> None:
    topic = staging_topic("kept.payments")
    make_topic(careless, topic, 1)
    admin = Sources(reach(careless)).admin
    make_carrier(admin, topic, PARTITIONS, TOPIC_SETTINGS)
    assert policy(careless, topic) == "delete"
    assert len(admin.list_topics(topic, timeout=30).topics[topic].partitions) == PARTITIONS
