"""Pipeline files: what they say, and an error with line, key and expectation for everything that is wrong."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from kept.errors import FixConfiguration
from kept.guarantees import AtMostOnce, ExactlyOnce
from kept.pipelines.files import KafkaTopic, PostgresTable, read, understood
from kept.pipelines.keys import KEYS
from kept.pipelines.lines import NotToml, lines, parsed
from kept.pipelines.references import plain

ROOT = Path(__file__).resolve().parents[2]
FILE = Path("pay.toml")
GOOD = """\
name = "pay"
guarantee = "exactly-once"

[source]
bootstrap = "localhost:9091"
topics = [
  "a",   # one
  "b",
]

[sink]
postgres = "postgresql://localhost/shop"
table = "t"
"""


def wrong(text: str) -> str:
    with pytest.raises(FixConfiguration) as caught:
        understood(FILE, text)
    return caught.value.what


def test_what_a_file_says() -> None:
    said = understood(FILE, GOOD)
    assert (said.name, said.guarantee, said.every) == ("pay", ExactlyOnce("pay"), 0.0)
    assert said.part("source") == {"bootstrap": "localhost:9091", "topics": ("a", "b")}
    assert said.sink == PostgresTable("postgresql://localhost/shop", "t", (), False)
    assert (said.checkpoint, said.emit, said.start) == (None, None, "beginning")


def test_the_other_sink_and_every_other_key() -> None:
    said = understood(
        FILE,
        """
name = "pay"
guarantee = "at-most-once"
trigger = "every 2.5 seconds"
checkpoint = "hdfs://somewhere/pay"
emit = "changes"
[source]
bootstrap = "env:KAFKA"
pattern = "pay-.*"
start = 2026-01-31T08:00:00Z
max_per_batch = 10
schema = "id STRING"
options.kafka.security.protocol = "SSL"
client = { "security.protocol" = "ssl", "ssl.key.password" = "file:secret" }
[transform]
sql = "SELECT * FROM source"
[sink]
kafka = "localhost:9091"
key = "id"
value = "v"
headers = { of = "id" }
producer = { "linger.ms" = 5, "enable.idempotence" = true }
[limits]
rows = 10
seconds = 1
[spark]
master = "local[2]"
conf.spark.sql.shuffle.partitions = 4
""",
    )
    assert (said.guarantee, said.every, said.checkpoint) == (AtMostOnce(), 2.5, "hdfs://somewhere/pay")
    assert said.emit == "changes"
    assert said.start == datetime(2026, 1, 31, 8, tzinfo=timezone.utc)
    assert said.part("source")["options"] == {"kafka.security.protocol": "SSL"}
    assert said.part("spark")["conf"] == {"spark.sql.shuffle.partitions": "4"}
    assert said.sink == KafkaTopic(
        "localhost:9091", None, "v", "id", {"of": "id"}, {"linger.ms": "5", "enable.idempotence": "true"}
    )


def test_available_now_ends_and_a_path_is_meant_from_the_file() -> None:
    said = understood(Path("/somewhere/pay.toml"), 'trigger = "available-now"\ncheckpoint = "notes"\n' + GOOD)
    assert said.every is None
    assert said.checkpoint == "/somewhere/notes"


def test_the_line_of_every_key_whatever_stands_before_it() -> None:
    found = lines('a = """\nb = 1\n"""\n# c = 2\nd = [\n  1,\n]\n\n[t.u]\ne.f = 1\n[v]\n')
    assert found == {("a",): 1, ("d",): 5, ("t",): 9, ("t", "u"): 9, ("t", "u", "e"): 10, ("t", "u", "e", "f"): 10,
                     ("v",): 11}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line"), [("a = 1\nb = = 2\n", 2), ("a = 1\nb = [1,\n", 3), ('a = """\n', 2), ("[a\n", 1), ("a=1\na=2", 2)]
)
def test_what_is_not_toml_has_a_line_too(text: str, line: int) -> None:
    with pytest.raises(NotToml) as caught:
        parsed(text)
    assert caught.value.line == line
    assert "line" not in caught.value.what
    assert wrong(text).startswith(f"pay.toml:{line}: this is not TOML: ")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("topics =", "topcis =", "pay.toml:6: source.topcis: no such key; did you mean topics?"),
        ("[sink]", "[sinc]", "pay.toml:11: sinc: no such key; did you mean sink?"),
        ('table = "t"', 'tabel = "t"', "pay.toml:13: sink.tabel: no such key; did you mean table?"),
        ('name = "pay"', 'name = "pay"\ntopics = "a"', "pay.toml:2: topics: no such key; did you mean source.topics?"),
        ('name = "pay"', 'name = "pay"\nxyz = "a"', "pay.toml:2: xyz: no such key; known here: name, guarantee, "),
        ('"exactly-once"', '"exactly once"', "pay.toml:2: guarantee: expected one of at-most-once"),
        ('"exactly-once"', '"exactly once"', "exactly-once, found 'exactly once'; did you mean exactly-once?"),
        ('"pay"', '"pay roll"', "pay.toml:1: name: use 1 to 100 of the characters"),
        ('"localhost:9091"', "9091", "pay.toml:5: source.bootstrap: expected host:port, ..., found 9091"),
        ('"b",', "3,", "pay.toml:6: source.topics: expected a topic, or a list of topics, found ['a', 3]"),
        ('guarantee = "exactly-once"', "", "pay.toml:1: guarantee: missing: one of at-most-once"),
        ('table = "t"', "", "pay.toml:11: sink.table: missing: the table that rows go to"),
        ('table = "t"', 'table = "t"\nmode = "upsert"', "pay.toml:14: sink.mode: upsert needs a key"),
        ('table = "t"', 'table = "t"\nmode = "insert"', "pay.toml:14: sink.mode: expected \"append\" or \"upsert\""),
        ('table = "t"', 'table = "t"\ntopic = "x"', "pay.toml:14: sink.topic: has no meaning for a sink in Postgres"),
        ('table = "t"', 'table = "t"\nkafka = "x"', "pay.toml:11: sink: expected either postgres or kafka"),
        ("[sink]", 'pattern = "x"\n[sink]', "pay.toml:6: source.topics: expected either topics or pattern"),
        ("[sink]", 'start = "noon"\n[sink]', "pay.toml:11: source.start: expected \"beginning\", \"end\" or a time"),
        ("[sink]", "start = 2026-01-01T00:00:00\n[sink]", "pay.toml:11: source.start: the time does not say its zone"),
        ("[sink]", "max_per_batch = true\n[sink]", "pay.toml:11: source.max_per_batch: expected a number of records"),
        ("[sink]", '[transform]\nfunction = "f"\n[sink]', 'pay.toml:12: transform.function: expected "package.module'),
        ("[sink]", '[transform]\nfunction = "m:f"\nsql = "s"\n[sink]', "pay.toml:13: transform.sql: expected either"),
        ("[sink]", 'options = { x = [1] }\n[sink]', "pay.toml:11: source.options: x is neither text nor a number"),
        ('name = "pay"', 'name = "pay"\ntrigger = "often"', "pay.toml:2: trigger: expected \"available-now\" or"),
        ('name = "pay"', 'name = "pay"\nemit = "change"', "pay.toml:2: emit: expected \"changes\" or \"final\""),
        ('name = "pay"', 'name = "pay"\nemit = "change"', "'change'; did you mean changes?"),
        ('name = "pay"', 'name = "pay"\nspark = 1', "pay.toml:2: spark: expected a table: [spark] on a line of its"),
    ],
)  # fmt: skip
def test_what_is_wrong_has_its_line_its_key_and_what_was_expected(old: str, new: str, what: str) -> None:
    assert old in GOOD
    assert what in wrong(GOOD.replace(old, new, 1))


def test_a_kafka_sink_without_a_topic_and_a_transform_would_feed_itself() -> None:
    text = GOOD.replace('postgres = "postgresql://localhost/shop"\ntable = "t"', 'kafka = "localhost:9091"')
    assert "pay.toml:11: sink.topic: missing" in wrong(text)


INTO_KAFKA = GOOD.replace(
    'postgres = "postgresql://localhost/shop"\ntable = "t"', 'kafka = "localhost:9091"\ntopic = "t"'
)


def test_dead_letters_go_where_the_rows_go() -> None:
    assert not understood(FILE, GOOD).buries
    table = understood(FILE, GOOD + '[dead_letters]\ntable = "kept_dead_letters"\n')
    assert (table.buries, table.part("dead_letters")) == (True, {"table": "kept_dead_letters"})
    topic = understood(FILE, INTO_KAFKA + '[dead_letters]\ntopic = "t.dead"\n')
    assert (topic.buries, topic.part("dead_letters")) == (True, {"topic": "t.dead"})


@pytest.mark.parametrize(
    ("text", "letters", "what"),
    [
        (GOOD, 'topic = "x"', "pay.toml:15: dead_letters.topic: rows go to Postgres, and letters must be in the same"),
        (INTO_KAFKA, 'table = "kept_dead_letters"', "pay.toml:15: dead_letters.table: rows go to Kafka"),
        (GOOD, 'table = "others"', "pay.toml:15: dead_letters.table: expected \"kept_dead_letters\", found 'others'"),
        (INTO_KAFKA, 'topic = "t"', "pay.toml:15: dead_letters.topic: the pipeline reads or writes this topic"),
        (INTO_KAFKA, 'topic = "a"', "pay.toml:15: dead_letters.topic: the pipeline reads or writes this topic"),
        (GOOD, 'postgres = "postgresql://elsewhere"', "pay.toml:15: dead_letters.postgres: no such key"),
        (INTO_KAFKA, 'kafka = "elsewhere:9091"', "pay.toml:15: dead_letters.kafka: no such key"),
    ],
)
def test_dead_letters_that_would_not_be_in_the_transaction_of_the_rows_are_refused(
    text: str, letters: str, what: str
) -> None:
    assert what in wrong(f"{text}[dead_letters]\n{letters}\n")


def test_everything_that_is_wrong_is_told_at_once_in_the_order_of_lines() -> None:
    told = wrong(GOOD.replace("guarantee", "garantee").replace("table", "tabel")).splitlines()
    assert told[0] == "3 things are wrong"
    assert [line.split(":")[1] for line in told[1:]] == ["1", "2", "13"]


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:hunter2@localhost/shop",
        "postgresql://localhost/shop?password=hunter2",
        "host=localhost password=hunter2",
        "host=localhost sslpassword=hunter2",
    ],
)
def test_a_password_in_the_file_is_refused_and_not_shown(dsn: str) -> None:
    told = wrong(GOOD.replace("postgresql://localhost/shop", dsn))
    assert "pay.toml:12: sink.postgres: a password stands in the file" in told
    assert 'postgres = "env:NAME"' in told
    assert "hunter2" not in told


def test_so_are_other_secrets() -> None:
    told = wrong(GOOD.replace("[sink]", 'client."sasl.password" = "hunter2"\n[sink]'))
    assert "pay.toml:11: source.client.sasl.password: this is a secret" in told
    assert "hunter2" not in told
    jaas = 'options."kafka.sasl.jaas.config" = "x required password=hunter2;"\n[sink]'
    assert "this is a secret" in wrong(GOOD.replace("[sink]", jaas))


def test_references_are_looked_up_where_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP", "postgresql://one")
    (tmp_path / "secret").write_text("postgresql://two\n")
    assert plain("env:SHOP") == "postgresql://one"
    assert plain("file:secret", tmp_path) == "postgresql://two"
    assert plain(f"file:{tmp_path / 'secret'}") == "postgresql://two"
    assert plain("postgresql://three") == "postgresql://three"
    for missing in ("env:NOT_SET_ANYWHERE", "file:nowhere"):
        with pytest.raises(FixConfiguration):
            plain(missing, tmp_path)


def test_a_file_that_is_not_there_or_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(FixConfiguration, match="cannot be read"):
        read(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FixConfiguration, match="cannot be read"):
        read(tmp_path / "bytes.toml")
    (tmp_path / "windows.toml").write_bytes(GOOD.replace("\n", "\r\n").encode())
    assert read(tmp_path / "windows.toml").name == "pay"


def test_the_page_names_every_key() -> None:
    page = (ROOT / "docs" / "pipelines.md").read_text()
    assert [key.name for key in KEYS if f"`{key.name}`" not in page] == []


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.toml")), ids=lambda file: file.name)
def test_every_example_can_be_read(file: Path) -> None:
    assert read(file).name == file.stem
