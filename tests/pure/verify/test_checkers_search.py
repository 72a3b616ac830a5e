"""The checkers against an oracle that is written in another way: it counts by brute force, over the bare events."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from kept.verify.checkers import CHECKERS, Anomaly
from kept.verify.history import (
    Begun,
    Ended,
    Event,
    Fate,
    Fault,
    Found,
    History,
    Read,
    Settled,
    Shortened,
    Stopped,
    Told,
    TransactionEnded,
)
from tests.pure.verify.histories import trial

VALUES = [f"{sender}/{key}/{number}" for sender in "ab" for key in "xy" for number in range(4)]
READ = Read("topic", 4.0, True)
OWING = trial(tells="Gap")
ENDINGS: list[Event] = [
    Stopped("Gap", "deleted", 3.5),
    Stopped("Fenced", "gone", 3.5),
    Told("Gap: deleted", 3.5),
    Told("Gap: of source[0], 1 at most", 3.5),
    Told("Gap: of source[1], 2 at most", 3.5),
    Shortened("source", 0, 3, 3.0),
    Shortened("source", 1, 5, 3.0),
    Fault("deleted", 3.0),
    Ended(5.0),
    Ended(6.0, "it hung"),
]
TRANSACTIONS = [None, "t1", "t2", "t3"]


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """A few values in a few transactions, sent, settled and found in all ways, possible and impossible."""
    begun = draw(st.lists(st.tuples(st.sampled_from(VALUES), st.sampled_from(TRANSACTIONS)), max_size=12))
    events: list[Event] = [Begun(value, 1.0, transaction) for value, transaction in begun]
    for value, transaction in begun:
        fate = draw(st.sampled_from([None, *Fate]))
        if transaction is None and fate is not None:
            place = draw(st.sampled_from([(None, None, None), *(("source", p, o) for p in (0, 1) for o in range(6))]))
            events.append(Settled(value, fate, 2.0, None, *place))
    for transaction in ("t1", "t2", "t3"):
        fate = draw(st.sampled_from([None, *Fate]))
        if fate is not None:
            events.append(TransactionEnded(transaction, fate, 2.0))
    sources = begun or [(VALUES[0], None)]
    where = st.tuples(
        st.one_of(st.sampled_from(sources), st.tuples(st.sampled_from(VALUES), st.sampled_from(TRANSACTIONS))),
        st.integers(0, 1),
    )
    for offset, ((value, transaction), partition) in enumerate(draw(st.lists(where, max_size=14))):
        events.append(Found(value, "topic", partition, offset, 3.0, transaction))
    events += draw(st.lists(st.sampled_from(ENDINGS), unique=True, max_size=6))
    return draw(st.permutations(events))


def oracle(events: Sequence[Event]) -> dict[Anomaly, int]:
    """Every pair is looked at; nothing is indexed."""
    begun = [event for event in events if isinstance(event, Begun)]
    found = [event for event in events if isinstance(event, Found)]
    ends = [event for event in events if isinstance(event, TransactionEnded)]

    def said(value: str, transaction: str | None) -> str:
        """The fate of a value in a transaction, from the bare lines."""
        times = sum(1 for b in begun if (b.value, b.transaction) == (value, transaction))
        if not times:
            return "never sent"
        for end in ends:
            if end.transaction == transaction:
                return end.fate.value
        words = [
            s.fate.value for s in events if isinstance(s, Settled) and (s.value, s.transaction) == (value, transaction)
        ]
        if "persisted" in words:
            return "persisted"
        return "not persisted" if words.count("not persisted") == times else "unknown"

    promised = {b.value for b in begun if said(b.value, b.transaction) == "persisted"}
    there = [f.value for f in found]
    torn = 0
    for transaction in ("t1", "t2", "t3"):
        members = {b.value for b in begun if b.transaction == transaction}
        visible = [any(f.value == m and f.transaction == transaction for f in found) for m in members]
        others = any(f.transaction == transaction for f in found)
        # A stranger in a transaction of which nothing else is there: its own records are missing, all the same.
        torn += bool(members) and not all(visible) and others
    return {
        Anomaly.LOST: sum(1 for value in promised if there.count(value) == 0 and not excused(value, events)),
        Anomaly.DUPLICATED: len(there) - len(set(there)),
        Anomaly.PHANTOM: sum(1 for f in found if said(f.value, f.transaction) in ("never sent", "not persisted")),
        Anomaly.TORN: torn,
        Anomaly.REORDERED: len({(late.value, late.partition) for late in found if behind_a_later_one(late, found)}),
        Anomaly.STALLED: 0,
        Anomaly.SILENT: silences(events),
    }


def silences(events: Sequence[Event]) -> int:
    told = [f"{e.error}: " for e in events if isinstance(e, Stopped)] + [e.what for e in events if isinstance(e, Told)]
    ends = sorted((e.at, e.cut_short) for e in events if isinstance(e, Ended))
    due = any(isinstance(e, Fault) for e in events) and bool(ends) and ends[-1][1] is None
    tellings = [text for text in told if text.startswith("Gap: ")]
    if not due or not tellings:
        return int(due)
    counted = any(isinstance(e, Shortened) for e in events)
    return sum(1 for text in tellings if text not in right_tellings(events)) if counted else 0


def right_tellings(events: Sequence[Event]) -> set[str]:
    """What may be said of the two partitions of the source, each by the number of its records that are gone."""
    there = [e.value for e in events if isinstance(e, Found)]
    right = set()
    for partition in (0, 1):
        gone = 0
        for e in events:
            if isinstance(e, Settled) and (e.fate.value, e.partition) == ("persisted", partition):
                cut = any(
                    isinstance(s, Shortened) and s.partition == partition and (e.offset or 0) < s.first for s in events
                )
                gone += cut and e.value not in there
        right.add(f"Gap: of source[{partition}], {gone} at most")
    return right


def excused(value: str, events: Sequence[Event]) -> bool:
    """Behind a stop: nothing that is there has a later place, or the same one, in its partition of the source."""
    if not any(isinstance(e, Stopped) and e.error == "Gap" for e in events):
        return False
    here = last_place(value, events)
    if here is None:
        return False
    others = [last_place(e.value, events) for e in events if isinstance(e, Found)]
    return not any(other and other[0] == here[0] and other[1] >= here[1] for other in others)


def last_place(value: str, events: Sequence[Event]) -> tuple[int, int] | None:
    """Where the last word on a value says that it is in the source."""
    said = [e for e in events if isinstance(e, Settled) and e.value == value and e.fate.value == "persisted"]
    if not said or said[-1].partition is None or said[-1].offset is None:
        return None
    return said[-1].partition, said[-1].offset


def behind_a_later_one(late: Found, found: Sequence[Found]) -> bool:
    """Is there a first copy before this first copy that was sent after it?"""

    def first(one: Found) -> bool:
        return not any(
            other.offset < one.offset and (other.value, other.partition) == (one.value, one.partition)
            for other in found
        )

    sender, key, number = late.value.split("/")
    return first(late) and any(
        first(other)
        and other.partition == late.partition
        and other.offset < late.offset
        and other.value.split("/")[:2] == [sender, key]
        and int(other.value.split("/")[2]) > int(number)
        for other in found
    )


@settings(max_examples=300, deadline=None)
@given(histories())
def test_the_checkers_count_what_brute_force_counts(events: list[Event]) -> None:
    history = History([OWING, READ, *events])
    assert {anomaly: len(check(history)) for anomaly, check in CHECKERS.items()} == oracle(events)


@settings(max_examples=100, deadline=None)
@given(histories())
def test_evidence_leads_to_records_that_are_there(events: list[Event]) -> None:
    history = History([OWING, READ, *events])
    there = {(found.topic, found.partition, found.offset) for found in history.found}
    for anomaly, check in CHECKERS.items():
        for evidence in check(history):
            assert evidence.anomaly is anomaly
            assert evidence.of in evidence.what
            if anomaly not in (Anomaly.LOST, Anomaly.SILENT):
                assert evidence.places
                assert set(map(tuple, evidence.places)) <= there
