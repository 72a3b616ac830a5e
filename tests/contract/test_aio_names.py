"""`kept.aio` has the words of what it stands for."""

from __future__ import annotations

import pytest

import kept

NOT_FOR_ASYNCIO = {
    "Consumer": {"joined_loop"},  # what the loops of asyncio are made of
    "Producer": {"make_room", "room_within"},  # `send` waits by itself
    "Outbox": {"begin"},  # what `send` is made of
    "Delivery": {
        "result",
        "topic",
        "fail",
        "refused",
        "refuse_inside",
        "settle",
        "settled",
        "under_way",
        "without_place",
    },
}


@pytest.mark.parametrize("name", sorted(NOT_FOR_ASYNCIO))
def test_every_word_is_there(name: str) -> None:
    blocking = kept.Delivery if name == "Delivery" else getattr(kept, name)
    words = {word for word in dir(blocking) if not word.startswith("_")}
    assert words - set(dir(getattr(kept.aio, name))) == NOT_FOR_ASYNCIO[name]


def test_what_they_were_made_with_is_told() -> None:
    guarantee = kept.ExactlyOnce("a-name")
    consumer = kept.aio.Consumer("127.0.0.1:1", "topic", guarantee=guarantee)
    assert (consumer.guarantee, consumer.group) == (
        guarantee,
        kept.Consumer("127.0.0.1:1", "topic", guarantee=guarantee).group,
    )
    assert kept.aio.Producer("127.0.0.1:1", guarantee).guarantee == guarantee
