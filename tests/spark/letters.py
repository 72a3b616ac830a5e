"""What the tests of dead letters share: records of which some are bad, pipeline files, and audits of the letters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import psycopg

import kept
from kept.consumer.dead_letters import DeadLetter, read_letter
from kept.guarantees import parse
from kept.local import Cluster
from kept.pipelines.files import understood
from kept.spark.from_file import FromFile
from kept.stores import DeadLetter as StoredLetter
from kept.stores import DeadLetters
from tests.brokers.pipes import read

HEADERS: list[tuple[str, str | bytes | None]] = [("trace", b"\xff\x00"), ("trace", None)]
Bad: TypeAlias = Mapping[int, str | bytes]
BAD = range(5, 90, 20)


def pay(cluster: Cluster, topic: str, bad: Bad, count: int = 90) -> None:
    """Records v0, v1, ... round the partitions, some of them replaced; each with key and headers."""
    with kept.Producer(cluster.bootstrap, kept.AtLeastOnce()) as producer:
        for number in range(count):
            value = bad.get(number, f"v{number}")
            producer.send(topic, value, key=f"k{number}", partition=number % 3, headers=HEADERS)


def bad_values(*numbers: int) -> Bad:
    return {number: f"bad{number}" for number in numbers or BAD}


def others(bad: Bad, count: int = 90) -> Counter[str]:
    return Counter(f"v{number}" for number in range(count) if number not in bad)


def in_table(dsn: str, name: str) -> list[StoredLetter]:
    with psycopg.connect(dsn) as connection:
        return [each.letter for each in DeadLetters(name).list(connection)]


def in_topic(cluster: Cluster, topic: str) -> list[DeadLetter]:
    return [read_letter(record) for record in read(cluster.bootstrap, topic)]


def refuse_unwhole(letters: list[StoredLetter] | list[DeadLetter], topic: str, bad: Bad) -> None:
    """Every bad record once, with each of its bytes, and from where it was."""
    found = {letter.value: letter for letter in letters}
    assert len(found) == len(letters) == len(bad)
    for number, value in bad.items():
        letter = found[value if isinstance(value, bytes) else value.encode()]
        assert (letter.topic, letter.partition, letter.offset) == (topic, number % 3, number // 3)
        assert (letter.key, letter.headers) == (f"k{number}".encode(), tuple(HEADERS))


def promised(word: str, topic: str) -> kept.Guarantee:
    return parse(word, f"to-{topic}" if word == "exactly-once" else None)


def make(dsn: str, *statements: bytes) -> None:
    with psycopg.connect(dsn) as connection:
        for statement in statements:
            connection.execute(statement)


FILE = """
name = "to-TOPIC"
guarantee = "exactly-once"
[source]
bootstrap = "env:KEPT_BOOTSTRAP"
topics = "TOPIC"
schema = "id STRING, n INT"
[transform]
sql = "SELECT value.id, value.n FROM source WHERE value.n > 0"
"""
INTO_TABLE = '[sink]\npostgres = "env:SHOP_DSN"\ntable = "out"\n[dead_letters]\ntable = "kept_dead_letters"\n'
INTO_TOPIC = '[sink]\nkafka = "env:KEPT_BOOTSTRAP"\ntopic = "OUT"\n[dead_letters]\ntopic = "DEAD"\n'
UNREADABLE: Bad = {
    5: "no json",
    25: '{"id": "a", "n": "x"}',
    45: "",
    65: "[1]",
    85: '[{"id": "a", "n": 1}, {"id": "b", "n": 2}]',
}


def from_file(text: str) -> FromFile:
    return FromFile(understood(Path("pay.toml"), text), until_end=True).checked()


def payments(bad: Bad, count: int = 90) -> Bad:
    """Records as the files expect them, but for some."""
    return {**{number: json.dumps({"id": f"p{number}", "n": number}) for number in range(count)}, **bad}
