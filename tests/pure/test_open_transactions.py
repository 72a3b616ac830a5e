"""Open transactions as brokers tell of them: bytes that are read from front to back, and what is made of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kept.admin.open_transactions import Known, OpenTransaction, OpenTransactions, named
from kept.admin.wire import Answer, Unanswered
from kept.errors import FixConfiguration, TryAgain

THEM = Known("them", 100.0, 60.0)


def test_an_answer_of_a_broker_is_read_from_front_to_back() -> None:
    answer = Answer(b"\x00\x07\xac\x02\x03ab\x03\x02x\x02y\x01\x05\x01z\x00\x00\x00\x09")
    assert (answer.short(), answer.varint(), answer.text()) == (7, 300, "ab")
    assert answer.several(answer.text) == ["x", "y"]
    answer.tags()
    assert answer.whole() == 9
    with pytest.raises(Unanswered):
        answer.short()


def test_a_transaction_has_the_name_and_the_age_that_its_coordinator_knows() -> None:
    assert named([(0, 12, 7), (1, 5, 8)], {7: THEM}, 103.5) == [
        OpenTransaction(0, 12, 7, "them", 3.5, 60.0),
        OpenTransaction(1, 5, 8),
    ]
    (ahead,) = named([(0, 12, 7)], {7: THEM}, 99.0)
    assert ahead.open_for == 0.0, "the clock of a coordinator may be ahead of ours"


def test_the_way_out_is_told_in_words() -> None:
    known, forgotten = named([(0, 12, 7), (1, 5, 8)], {7: THEM}, 103.5)
    assert "aborted by its time-out when it is 60 s old" in known.way_out("t")
    assert "whoever uses the id them again" in known.way_out("t")
    assert "`kafka-transactions.sh abort --topic t --partition 1 --start-offset 5`" in forgotten.way_out("t")


@contextmanager
def listener(answer: bytes) -> Iterator[str]:
    """A port that takes a question, sends this, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            there, _ = server.accept()
            with there:
                there.recv(1000)
                there.sendall(answer)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        serving.join(10)


@pytest.mark.parametrize("answer", [b"", b"\x15\x03\x03\x00\x02\x02\x46"], ids=["SASL closes", "TLS sends an alert"])
def test_a_port_that_does_not_speak_plain_text_is_told_as_such(answer: bytes) -> None:
    with listener(answer) as address, pytest.raises(FixConfiguration, match="in plain text only") as refused:
        OpenTransactions(address).on("t")
    assert "PLAINTEXT listener" in refused.value.way_out


def test_nobody_at_an_address_is_told_as_such() -> None:
    with pytest.raises(TryAgain, match=r"no broker answers DESCRIBE_CLUSTER at 127\.0\.0\.1:1"):
        OpenTransactions("127.0.0.1:1").on("t")
