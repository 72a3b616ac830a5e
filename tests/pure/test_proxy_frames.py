"""The proxy's reading of both protocols: whatever pieces the bytes arrive in, the same frames come out."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.verify.proxy import Api, Command, Direction
from kept.verify.proxy.frames import LARGEST, Conversation, Frame, NotUnderstood
from kept.verify.proxy.kafka_frames import MOST_ASKED, KafkaConversation
from kept.verify.proxy.postgres_frames import PostgresConversation

REQUEST, RESPONSE = Direction.REQUEST, Direction.RESPONSE


def request(key: int, number: int, client: str | None = "me", body: bytes = b"") -> bytes:
    name = b"" if client is None else client.encode()
    size = -1 if client is None else len(name)
    payload = struct.pack(">hhih", key, 3, number, size) + name + body
    return struct.pack(">i", len(payload)) + payload


def response(number: int, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(body), number) + body


def cut(conversation: Conversation, direction: Direction, pieces: Iterable[bytes]) -> list[Frame]:
    return [frame for piece in pieces for frame in conversation.cut(direction, piece)]


def in_two(data: bytes) -> list[list[bytes]]:
    return [[data[:at], data[at:]] for at in range(len(data) + 1)]


def in_bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def test_a_kafka_request_is_named_by_its_header() -> None:
    (frame,) = KafkaConversation().cut(REQUEST, request(26, 7, "writer", b"..."))
    assert (frame.kind, frame.number, frame.client) == (Api.END_TXN, 7, "writer")
    (frame,) = KafkaConversation().cut(REQUEST, request(999, 8, None))
    assert (frame.kind, frame.number, frame.client) == (999, 8, None)


def test_kafka_requests_split_at_every_byte() -> None:
    frames = [request(0, 1, body=b"records"), request(3, 2, None), request(26, 3, "")]
    whole = b"".join(frames)
    for pieces in [*in_two(whole), in_bytes(whole)]:
        found = cut(KafkaConversation(), REQUEST, pieces)
        assert [frame.data for frame in found] == frames
        assert [frame.kind for frame in found] == [Api.PRODUCE, Api.METADATA, Api.END_TXN]


@given(
    st.lists(st.tuples(st.integers(0, 90), st.text(max_size=9), st.binary(max_size=60)), max_size=8),
    st.lists(st.integers(0, 600), max_size=8),
)
def test_kafka_requests_in_any_pieces(wanted: list[tuple[int, str, bytes]], cuts: list[int]) -> None:
    frames = [request(key, number, client, body) for number, (key, client, body) in enumerate(wanted)]
    whole = b"".join(frames)
    ends = sorted({0, len(whole), *(at for at in cuts if at < len(whole))})
    pieces = [whole[start:end] for start, end in pairwise(ends)]
    conversation = KafkaConversation()
    found = cut(conversation, REQUEST, pieces)
    assert [frame.data for frame in found] == frames
    assert [(frame.kind, frame.client) for frame in found] == [(key, client) for key, client, _ in wanted]
    assert conversation.rest(REQUEST) == b""


def test_a_kafka_response_is_named_by_the_request_it_answers() -> None:
    conversation = KafkaConversation()
    for frame in cut(conversation, REQUEST, [request(0, 1) + request(22, 2) + request(0, 3)]):
        conversation.forwarded(frame)
    answers = response(2, b"x") + response(3)  # number 1 was acks=0: it has none
    found = cut(conversation, RESPONSE, in_bytes(answers))
    assert [(frame.kind, frame.number, frame.client) for frame in found] == [
        (Api.INIT_PRODUCER_ID, 2, "me"),
        (Api.PRODUCE, 3, "me"),
    ]
    (stray,) = conversation.cut(RESPONSE, response(77))
    assert (stray.kind, stray.number, stray.data) == (None, 77, response(77)), "passed on, but no rule names it"


def test_of_a_doubled_request_the_second_answer_is_not_wanted() -> None:
    conversation = KafkaConversation()
    (asked,) = conversation.cut(REQUEST, request(0, 1))
    conversation.forwarded(asked)
    conversation.forwarded(asked, wanted=False)
    assert [frame.wanted for frame in conversation.cut(RESPONSE, response(1) * 2)] == [True, False]


def test_requests_without_an_answer_do_not_pile_up() -> None:
    conversation = KafkaConversation()
    for number in range(MOST_ASKED + 10):
        (asked,) = conversation.cut(REQUEST, request(0, number))
        conversation.forwarded(asked)
    (last,) = conversation.cut(RESPONSE, response(MOST_ASKED + 9))
    assert last.kind is Api.PRODUCE
    assert len(conversation._asked) == 0


@pytest.mark.parametrize("length", [-1, 0, 3, LARGEST + 1, 0x16030100])
def test_what_is_not_kafka_is_told(length: int) -> None:
    with pytest.raises(NotUnderstood, match="not Kafka"):
        KafkaConversation().cut(REQUEST, struct.pack(">i", length) + b"12345678")


def test_a_request_too_short_for_its_header_is_told() -> None:
    with pytest.raises(NotUnderstood, match="too short"):
        KafkaConversation().cut(REQUEST, struct.pack(">ii", 4, 0))


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", 4 + len(body)) + body


STARTUP = struct.pack(">ii", 8 + 11, 196608) + b"user\0me\0\0\0\0"
SSL_REQUEST = struct.pack(">ii", 8, 80877103)
GSS_REQUEST = struct.pack(">ii", 8, 80877104)
READY = message(b"Z", b"I")


def started() -> PostgresConversation:
    conversation = PostgresConversation()
    conversation.cut(REQUEST, STARTUP)
    return conversation


def test_postgres_start_with_both_wishes_for_encryption_refused() -> None:
    conversation = PostgresConversation()
    for wish in (GSS_REQUEST, SSL_REQUEST):
        assert [frame.data for frame in conversation.cut(REQUEST, wish)] == [wish]
        assert [frame.data for frame in conversation.cut(RESPONSE, b"N")] == [b"N"]
    assert [frame.data for frame in conversation.cut(REQUEST, STARTUP)] == [STARTUP]
    authenticated = message(b"R", struct.pack(">i", 0)) + READY
    assert [frame.data for frame in conversation.cut(RESPONSE, authenticated)] == [authenticated], "one stretch"
    (frame,) = conversation.cut(REQUEST, message(b"Q", b"commit;\0"))
    assert frame.kind == Command.COMMIT


def test_an_encrypted_postgres_connection_is_told() -> None:
    conversation = PostgresConversation()
    conversation.cut(REQUEST, SSL_REQUEST)
    with pytest.raises(NotUnderstood, match="sslmode=disable"):
        conversation.cut(RESPONSE, b"S")


def kinds(frames: Iterable[Frame]) -> list[object]:
    return [frame.kind for frame in frames if frame.kind is not None]


def every_piece(whole: bytes, direction: Direction, new: Callable[[], Conversation]) -> list[list[object]]:
    """What is named, however the bytes are cut; and nothing is ever lost or moved."""
    named = []
    for pieces in [[whole], *in_two(whole), in_bytes(whole)]:
        found = cut(new(), direction, pieces)
        assert b"".join(frame.data for frame in found) == whole
        named.append(kinds(found))
    return named


def test_postgres_replies_are_named_by_their_tag_at_every_split() -> None:
    replies = (
        message(b"1", b"")
        + message(b"2", b"")
        + message(b"D", b"C\0\0\0\x0bCOMMIT\0")  # a row that looks like a reply
        + message(b"C", b"INSERT 0 12\0")
        + message(b"C", b"COMMIT\0")
        + message(b"C", b"COMMIT PREPARED\0")
        + READY
    )
    expected: list[object] = [Command.INSERT, Command.COMMIT, "COMMIT PREPARED"]
    assert all(named == expected for named in every_piece(replies, RESPONSE, started))


def test_postgres_statements_are_named_in_both_query_protocols_at_every_split() -> None:
    asked = (
        message(b"P", b"name\0  insert into t values ($1)\0\0\0")
        + message(b"B", b"\0\0\0\0\0\0\0\0")
        + message(b"Q", b"\0")
        + message(b"P", b"\0COMMIT\0\0\0")
        + message(b"S", b"")
    )
    assert all(named == [Command.INSERT, Command.COMMIT] for named in every_piece(asked, REQUEST, started))


def test_what_is_not_postgres_is_told() -> None:
    with pytest.raises(NotUnderstood, match="not Postgres"):
        started().cut(RESPONSE, b"HTTP/1.1 200 OK")
