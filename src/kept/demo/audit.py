"""The audit: what was sent against what is in the table, payment by payment. Pure; kept's own words do not count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kept.demo.payments import Payment
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce


@dataclass(frozen=True)
class Audit:
    """What came of one guarantee. `strange` rows are those that nobody sent, or not so."""

    guarantee: str
    sent: int
    stored: int
    lost: int
    duplicated: int
    strange: int
    cents_sent: int
    cents_stored: int

    @property
    def cents_off(self) -> int:
        return self.cents_stored - self.cents_sent

    @property
    def balanced(self) -> bool:
        return not (self.lost or self.duplicated or self.strange or self.cents_off)

    @property
    def as_promised(self) -> bool:
        """Nothing happened that the guarantee does not allow."""
        if self.guarantee == AtMostOnce.word:
            return not (self.duplicated or self.strange)
        if self.guarantee == AtLeastOnce.word:
            return not (self.lost or self.strange)
        return self.balanced

    @property
    def verdict(self) -> str:
        """The end of it in a sentence."""
        if not self.as_promised:
            return (
                f"BROKEN: {self.lost:,} lost, {self.duplicated:,} duplicated, {self.strange:,} that nobody sent; "
                f"{self.guarantee} does not allow that"
            )
        if self.guarantee == ExactlyOnce.word:
            return "balances: every payment is there once"
        if self.balanced:
            return f"balances this time, by luck: {self.guarantee} does not promise it"
        if self.guarantee == AtMostOnce.word:
            return f"{self.lost:,} payments are lost for good, none is there twice"
        return f"{self.duplicated:,} payments too many, none is lost"

    def document(self) -> dict[str, object]:
        return {
            **vars(self),
            "cents_off": self.cents_off,
            "balanced": self.balanced,
            "as_promised": self.as_promised,
            "verdict": self.verdict,
        }

    def row(self) -> list[object]:
        counts = (self.sent, self.stored, self.lost, self.duplicated)
        return [self.guarantee, *(f"{count:,}" for count in counts), off(self.cents_off), self.verdict]


HEADINGS = ["guarantee", "sent", "stored", "lost", "duplicated", "money off (EUR)", "verdict"]


def audit(guarantee: str, sent: Iterable[Payment], stored: Mapping[Payment, int]) -> Audit:
    """Compare as multisets: a payment that is there twice does not make up for one that is missing."""
    wanted, there = Counter(sent), Counter(stored)
    extra = there - wanted
    strange = sum(count for payment, count in extra.items() if payment not in wanted)
    return Audit(
        guarantee,
        wanted.total(),
        there.total(),
        (wanted - there).total(),
        extra.total() - strange,
        strange,
        sum(payment.cents * count for payment, count in wanted.items()),
        sum(payment.cents * count for payment, count in there.items()),
    )


def money(cents: int) -> str:
    """Cents as people write money."""
    return f"{'-' if cents < 0 else ''}{abs(cents) // 100:,}.{abs(cents) % 100:02d}"


def off(cents: int) -> str:
    """Money too much or too little: it has its sign."""
    return f"{'+' if cents > 0 else ''}{money(cents)}"
