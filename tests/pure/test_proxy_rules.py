"""The proxy's rules: which frames, which of those, how often; and what makes no sense is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.errors import FixConfiguration
from kept.verify.proxy import (
    Answer,
    Api,
    Chance,
    Delay,
    Direction,
    Drop,
    EveryKth,
    HoldAndReset,
    KafkaProxy,
    Nth,
    PostgresProxy,
    Reset,
    Rule,
)
from kept.verify.proxy.armed import Table
from kept.verify.proxy.evidence import REMEMBERED, Did, Evidence
from kept.verify.proxy.frames import Frame
from kept.verify.proxy.rules import Count

REQUEST, RESPONSE = Direction.REQUEST, Direction.RESPONSE
PRODUCE = Frame(REQUEST, b"", Api.PRODUCE, 1, "me")


def taken(rule: Rule, frames: list[Frame], broker: int = 1) -> list[bool]:
    count = Count(rule)
    return [count.takes(frame, broker) for frame in frames]


def test_a_rule_names_frames_by_kind_direction_broker_and_client() -> None:
    rule = Rule(Api.PRODUCE, REQUEST, Drop(), brokers={1, 2}, client="me")
    assert rule.names(PRODUCE, 1)
    assert not rule.names(PRODUCE, 3)
    assert not rule.names(Frame(RESPONSE, b"", Api.PRODUCE, 1, "me"), 1)
    assert not rule.names(Frame(REQUEST, b"", Api.FETCH, 1, "me"), 1)
    assert not rule.names(Frame(REQUEST, b"", Api.PRODUCE, 1, "you"), 1)
    assert Rule(None, REQUEST, Drop()).names(PRODUCE, 9), "no kind, no broker: every one"
    assert not Rule(None, REQUEST, Drop()).names(Frame(REQUEST, b""), 9), "what has no name is not for rules"


def test_only_the_nth_of_its_own_frames() -> None:
    other = Frame(REQUEST, b"", Api.FETCH, 2, "me")
    rule = Rule(Api.PRODUCE, REQUEST, Drop(), Nth(2))
    assert taken(rule, [other, PRODUCE, other, PRODUCE, PRODUCE]) == [False, False, False, True, False]


def test_every_kth_and_at_most() -> None:
    rule = Rule(Api.PRODUCE, REQUEST, Drop(), EveryKth(3), at_most=2)
    assert [number for number, yes in enumerate(taken(rule, [PRODUCE] * 20), 1) if yes] == [3, 6]


@given(st.floats(0, 1), st.integers())
def test_a_seed_repeats_its_row(probability: float, seed: int) -> None:
    rows = [list(islice(Chance(probability, seed).pattern(), 200)) for _ in range(2)]
    assert rows[0] == rows[1]
    if probability in (0, 1):
        assert set(rows[0]) == {probability == 1}


@given(st.integers(1, 30), st.integers(1, 100))
def test_every_kth_is_as_often_as_it_says(k: int, length: int) -> None:
    assert sum(islice(EveryKth(k).pattern(), length)) == length // k
    assert list(islice(Nth(k).pattern(), length)).count(True) == (length >= k)


def test_the_first_rule_that_takes_a_frame_hides_it_from_the_next() -> None:
    table = Table()
    first = table.add(Rule(Api.PRODUCE, REQUEST, Drop(), Nth(1)))
    second = table.add(Rule(Api.PRODUCE, REQUEST, Reset(), Nth(1)))
    assert [table.taking(PRODUCE, 1) for _ in range(3)] == [first, second, None]
    third = table.add(Rule(None, REQUEST, Delay(0)))
    assert table.taking(PRODUCE, 1) is third
    table.remove(third)
    table.remove(third)
    assert table.taking(PRODUCE, 1) is None


@pytest.mark.parametrize(
    "nonsense",
    [
        lambda: Nth(0),
        lambda: EveryKth(0),
        lambda: Chance(1.5, seed=1),
        lambda: Delay(-1),
        lambda: Rule(Api.FETCH, REQUEST, Drop(), at_most=0),
        lambda: Rule(Api.FETCH, RESPONSE, HoldAndReset()),
        lambda: Rule(Api.FETCH, RESPONSE, Answer(bytes)),
        lambda: KafkaProxy({1: "localhost"}),
        lambda: KafkaProxy({1: "127.0.0.1:9092"}).addresses,
    ],
)
def test_what_makes_no_sense_is_refused_with_a_way_out(nonsense: Callable[[], object]) -> None:
    with pytest.raises(FixConfiguration, match="way out"):
        nonsense()


def test_what_would_garble_a_postgres_connection_is_refused() -> None:
    with PostgresProxy("127.0.0.1:1") as proxy, pytest.raises(FixConfiguration, match="Reset or Delay"):
        proxy.add(Rule("COMMIT", RESPONSE, Drop()))


def test_a_server_that_is_not_behind_the_proxy_is_told() -> None:
    with KafkaProxy({1: None}) as proxy:
        with pytest.raises(FixConfiguration, match="no server 2"):
            proxy.cut(2)
        with pytest.raises(FixConfiguration, match="no server 3"):
            proxy.add(Rule(Api.FETCH, REQUEST, Drop(), brokers=[3]))


def test_the_log_has_an_end_and_the_counts_have_none() -> None:
    evidence = Evidence()
    for number in range(REMEMBERED + 5):
        evidence.frame(1, 1, Frame(REQUEST, b"", Api.FETCH, number), Did.PASSED)
    assert [line.number for line in evidence.log()] == list(range(5, REMEMBERED + 5))
    assert evidence.counts(REQUEST) == {Api.FETCH: REMEMBERED + 5}
    assert evidence.counts(RESPONSE) == {}
