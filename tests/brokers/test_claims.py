"""Claims in a real Postgres: an effect that no transaction holds happens once, or it is known that nobody knows."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator

import psycopg
import pytest

from kept.errors import Fenced, FixConfiguration, OutcomeUnknown, TryAgain
from kept.local import Cluster
from kept.stores import Claims
from kept.verify.proxy import Always, Command, Direction, Nth, PostgresProxy, Reset, Rule
from tests.brokers.store_things import tell, told_by, worker


@pytest.fixture
def claims(dsn: str) -> Iterator[Claims]:
    with Claims(dsn, "mail") as one:
        yield one


def send(claims: Claims, key: str | uuid.UUID, sent: list[str], retry_after: float | None = None) -> None:
    with claims.once(key, retry_after=retry_after) as claim:
        if claim:
            sent.append(str(key))


def test_an_effect_happens_once_and_kinds_are_told_apart(dsn: str, claims: Claims) -> None:
    sent: list[str] = []
    key = uuid.uuid4()
    for _ in range(3):
        send(claims, key, sent)
    with Claims(dsn, "mail") as another:
        send(another, str(key), sent)
    assert sent == [str(key)]
    with Claims(dsn, "sms") as other_kind:
        send(other_kind, key, sent)
    assert len(sent) == 2


def test_the_claim_is_committed_before_the_effect(dsn: str, claims: Claims) -> None:
    with claims.once("k"), psycopg.connect(dsn) as look:
        assert look.execute("SELECT key, done_at FROM kept_claims").fetchall() == [("k", None)]


def test_a_killed_doer_leaves_an_unknown_outcome_until_somebody_settles_it(dsn: str, claims: Claims) -> None:
    doer = worker("claim", dsn)
    tell(doer)
    assert told_by(doer) == "claimed"
    sent: list[str] = []
    with pytest.raises(OutcomeUnknown, match="under way"):
        send(claims, "k", sent)
    doer.kill()
    doer.communicate()
    with pytest.raises(OutcomeUnknown):
        send(claims, "k", sent)
    claims.settle("k", happened=False)
    send(claims, "k", sent)
    assert sent == ["k"]
    with pytest.raises(FixConfiguration):
        claims.settle("k", happened=True)


def test_settled_as_happened_is_skipped(claims: Claims) -> None:
    with pytest.raises(ZeroDivisionError), claims.once("k"):
        raise ZeroDivisionError
    claims.settle("k", happened=True)
    with claims.once("k") as claim:
        assert not claim


def test_an_abandoned_claim_is_taken_over_by_one_that_bears_a_second_time(dsn: str, claims: Claims) -> None:
    sent: list[str] = []
    with pytest.raises(ZeroDivisionError), claims.once("k"):
        raise ZeroDivisionError
    with pytest.raises(TryAgain, match="may be under way"):
        send(claims, "k", sent, retry_after=60)
    time.sleep(0.3)
    send(claims, "k", sent, retry_after=0.2)
    send(claims, "k", sent, retry_after=0.2)
    assert sent == ["k"]


def test_a_slow_doer_learns_that_it_was_overtaken(dsn: str, claims: Claims) -> None:
    sent: list[str] = []
    with Claims(dsn, "mail") as impatient, pytest.raises(Fenced, match="twice"), claims.once("k"):
        time.sleep(0.3)
        send(impatient, "k", sent, retry_after=0.2)
    assert sent == ["k"]
    send(claims, "k", sent)
    assert sent == ["k"]


def test_a_claim_is_given_back_only_when_that_is_said(claims: Claims) -> None:
    sent: list[str] = []
    with pytest.raises(TryAgain), claims.once("open"):
        raise TryAgain("perhaps after the effect", way_out="none")
    with pytest.raises(OutcomeUnknown):
        send(claims, "open", sent)
    with pytest.raises(ConnectionRefusedError), claims.once("given back") as claim:
        claim.nothing_was_done()
        raise ConnectionRefusedError
    send(claims, "given back", sent)
    assert sent == ["given back"]


def test_many_at_once_do_it_once(dsn: str) -> None:
    sent: list[str] = []
    unknown: list[str] = []
    gate = threading.Barrier(8)

    def race() -> None:
        with Claims(dsn, "mail") as own:
            gate.wait(30)
            for number in range(20):
                try:
                    send(own, f"k{number}", sent)
                except OutcomeUnknown:
                    unknown.append(f"k{number}")

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(sent) == sorted(f"k{number}" for number in range(20))


@pytest.mark.parametrize("direction", list(Direction), ids=str)
@pytest.mark.parametrize("statement", [Command.INSERT, Command.UPDATE], ids=["the claim", "the mark"])
def test_a_lost_answer_is_asked_for_again(cluster: Cluster, dsn: str, statement: Command, direction: Direction) -> None:
    sent: list[str] = []
    with PostgresProxy(cluster.layout.listens("postgres")) as proxy, Claims(proxy.dsn(dsn), "mail") as claims:
        lost = proxy.add(Rule(statement, direction, Reset(), Nth(1)))
        send(claims, "k", sent)
        assert lost.caught == 1
        send(claims, "k", sent)
    assert sent == ["k"]


def test_a_database_that_went_away(cluster: Cluster, dsn: str) -> None:
    sent: list[str] = []
    with PostgresProxy(cluster.layout.listens("postgres")) as proxy, Claims(proxy.dsn(dsn), "mail") as claims:
        proxy.cut()
        with pytest.raises(TryAgain):
            send(claims, "before", sent)
        proxy.mend()
        send(claims, "before", sent)
        with pytest.raises(OutcomeUnknown, match="could not be recorded"), claims.once("during"):
            proxy.cut()
        proxy.mend()
        with pytest.raises(OutcomeUnknown):
            send(claims, "during", sent)
        claims.settle("during", happened=True)
        send(claims, "during", sent)
    assert sent == ["before"]


def test_a_claim_whose_answer_never_came_is_ours_at_the_next_try(cluster: Cluster, dsn: str) -> None:
    """The claim was committed, no answer arrived, and the effect never began: nobody need be asked."""
    sent: list[str] = []
    with PostgresProxy(cluster.layout.listens("postgres")) as proxy, Claims(proxy.dsn(dsn), "mail") as claims:
        silent = proxy.add(Rule(Command.INSERT, Direction.RESPONSE, Reset(), Always()))
        with pytest.raises(TryAgain):
            send(claims, "k", sent)
        proxy.remove(silent)
        with psycopg.connect(dsn) as look:
            assert look.execute("SELECT key, done_at FROM kept_claims").fetchall() == [("k", None)]
        send(claims, "k", sent)
    assert sent == ["k"]


def test_old_claims_are_forgotten_and_open_ones_never(dsn: str, claims: Claims) -> None:
    send(claims, "done", [])
    with pytest.raises(ZeroDivisionError), claims.once("open"):
        raise ZeroDivisionError
    assert claims.forget(older_than=60) == 0
    time.sleep(0.1)
    assert claims.forget(older_than=0.05) == 1
    with psycopg.connect(dsn) as look:
        assert look.execute("SELECT key FROM kept_claims").fetchall() == [("open",)]
