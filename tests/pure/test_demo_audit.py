"""The demo's audit and report: what is counted, what is called broken, and what a reader is told."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from kept.demo.audit import Audit, audit, money, off
from kept.demo.crashes import BEFORE_PROGRESS, BEFORE_ROWS, moments
from kept.demo.payments import Payment, payments
from kept.demo.report import conclusion, page
from kept.demo.running import Died, Outcome
from kept.guarantees.levels import WORDS

SENT = [Payment("a", "x", 100), Payment("b", "x", 250), Payment("c", "y", 5)]


def audited(guarantee: str, *, lost: str = "", again: str = "", strange: int = 0) -> Audit:
    stored = Counter({payment: 1 for payment in SENT if payment.id not in lost})
    stored.update(payment for payment in SENT if payment.id in again)
    if strange:
        stored[Payment("a", "x", 101)] += strange
    return audit(guarantee, SENT, stored)


def outcome(found: Audit) -> Outcome:
    return Outcome(found, (Died("<here>", 1.5, 1), Died("there", 2.5, 2)), ((0.0, 0), (1.0, 2), (3.0, found.stored)))


def test_a_payment_that_is_there_twice_does_not_make_up_for_one_that_is_missing() -> None:
    found = audited("exactly-once", lost="b", again="a")
    assert (found.sent, found.stored, found.lost, found.duplicated, found.strange) == (3, 3, 1, 1, 0)
    assert found.cents_off == 100 - 250
    assert not found.balanced


def test_a_payment_with_another_sum_is_one_that_nobody_sent() -> None:
    found = audited("at-least-once", strange=2)
    assert (found.lost, found.duplicated, found.strange, found.cents_off) == (0, 0, 2, 202)
    assert not found.as_promised


def test_the_same_payment_three_times_is_two_too_many() -> None:
    assert audit("at-least-once", SENT, {**dict.fromkeys(SENT, 1), SENT[0]: 3}).duplicated == 2


@pytest.mark.parametrize("guarantee", WORDS)
@pytest.mark.parametrize(("lost", "again"), [("", ""), ("a", ""), ("", "a"), ("a", "b")])
def test_each_guarantee_allows_what_it_says_and_nothing_else(guarantee: str, lost: str, again: str) -> None:
    allowed = {"at-most-once": not again, "at-least-once": not lost, "exactly-once": not (lost or again)}
    found = audited(guarantee, lost=lost, again=again)
    assert found.as_promised == allowed[guarantee]
    assert found.verdict.startswith("BROKEN") != found.as_promised
    assert not audited(guarantee, lost=lost, again=again, strange=1).as_promised


def test_luck_is_told_as_luck() -> None:
    lucky = audited("at-least-once")
    assert "by luck" in lucky.verdict
    told = conclusion([audited("at-most-once", lost="a"), lucky, audited("exactly-once")])
    assert told == "Exactly-once balances. at-least-once balanced too, this time: it is no promise there."


@pytest.mark.parametrize(
    ("audits", "told"),
    [
        ([audited("at-most-once", lost="a"), audited("exactly-once")], "Only exactly-once balances."),
        ([audited("at-most-once", lost="a")], "none of them promises to balance"),
        ([audited("exactly-once")], "Exactly-once balances."),
        ([audited("at-least-once", again="a"), audited("exactly-once", again="a")], "was broken: exactly-once"),
    ],
)
def test_the_conclusion_says_what_was_seen(audits: list[Audit], told: str) -> None:
    assert told in conclusion(audits)


def test_money_is_written_to_the_cent() -> None:
    assert [money(cents) for cents in (0, 5, 123_456_789)] == ["0.00", "0.05", "1,234,567.89"]
    assert [off(cents) for cents in (0, 5, -105)] == ["0.00", "+0.05", "-1.05"]


def test_a_seed_decides_payments_and_crashes() -> None:
    assert payments(50, 7) == payments(50, 7) != payments(50, 8)
    assert len({payment.id for payment in payments(500, 7)}) == 500
    assert all(payment.cents > 0 for payment in payments(500, 7))
    for seed in range(200):
        (first, one), (second, other) = moments(1_000, seed)
        assert (one, other) == (BEFORE_ROWS, BEFORE_PROGRESS)
        assert 150 <= first <= 350
        assert 500 <= second <= 700
    assert len({moments(100_000, seed)[0][0] for seed in range(20)}) > 10


class Tags(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_is_one_page_that_needs_nothing_else() -> None:
    audits = [audited("at-most-once", lost="b"), audited("at-least-once", again="c"), audited("exactly-once")]
    text = page([outcome(each) for each in audits], 7)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.seen["svg"] == 4
    assert not re.search(r"https?:|src=|<link|<script|@import|url\(", text)
    assert "&lt;here&gt;" in text
    assert "<here>" not in text
    for words in ("-2.50", "+0.05", "Only exactly-once balances", "--records 3 --seed 7", "kill 2"):
        assert words in text, words


def test_a_broken_promise_is_plain_to_see() -> None:
    text = page([outcome(audited("exactly-once", again="a"))], 7)
    assert 'class="verdict bad"' in text
    assert "BROKEN: 0 lost, 1 duplicated" in text
