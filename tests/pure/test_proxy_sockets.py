"""The proxy between two plain sockets: ends and resets are passed on, slowness too, and nothing is left behind."""

from __future__ import annotations

import gc
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from kept.errors import TryAgain
from kept.verify.proxy import (
    Answer,
    Api,
    Delay,
    Did,
    Direction,
    Drop,
    Duplicate,
    Hold,
    HoldAndReset,
    KafkaProxy,
    Nth,
    Rule,
)
from kept.verify.proxy.frames import Frame
from kept.verify.proxy.kafka_frames import KafkaConversation
from kept.verify.proxy.service import FrameProxy
from tests.conftest import Eventually
from tests.pure.test_proxy_frames import request, response

REQUEST, RESPONSE = Direction.REQUEST, Direction.RESPONSE
RESET = struct.pack("ii", 1, 0)


class Ends:
    """A proxy and both ends of one connection through it."""

    def __init__(self, proxy: KafkaProxy, listener: socket.socket) -> None:
        self.proxy = proxy
        self._listener = listener
        self.opened: list[socket.socket] = []
        self.client, self.server = self.connect()

    def connect(self) -> tuple[socket.socket, socket.socket]:
        host, _, port = self.proxy.addresses[1].partition(":")
        client = socket.create_connection((host, int(port)), timeout=20)
        server, _ = self._listener.accept()
        server.settimeout(20)
        self.opened += [client, server]
        return client, server


@pytest.fixture
def ends() -> Iterator[Ends]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        with KafkaProxy({1: f"127.0.0.1:{listener.getsockname()[1]}"}) as proxy:
            both = Ends(proxy, listener)
            try:
                yield both
            finally:
                for each in both.opened:
                    each.close()


def receive(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := end.recv(size - len(data))):
        data += piece
    return data


def is_silent(end: socket.socket, seconds: float = 0.3) -> bool:
    end.settimeout(seconds)
    try:
        return end.recv(1) is None
    except TimeoutError:
        return True
    finally:
        end.settimeout(20)


def reset(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    end.close()


@contextmanager
def in_background(work: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def test_frames_pass_both_ways_and_a_half_close_is_a_half_close(ends: Ends) -> None:
    ask, answer = request(3, 1), response(1, b"here")
    ends.client.sendall(ask)
    ends.client.shutdown(socket.SHUT_WR)
    assert receive(ends.server, len(ask)) == ask
    assert ends.server.recv(1) == b"", "the client's end has arrived"
    ends.server.sendall(answer)
    ends.server.close()
    assert receive(ends.client, len(answer) + 1) == answer, "answered after the client's end, then ended too"


def test_the_beginning_of_a_frame_that_never_ends_is_passed_on_too(ends: Ends) -> None:
    piece = request(3, 1, body=b"..")[:-1]
    ends.client.sendall(piece)
    ends.client.close()
    assert receive(ends.server, 1000) == piece


@pytest.mark.parametrize("breaks", ["client", "server"])
def test_a_reset_is_a_reset(ends: Ends, breaks: str) -> None:
    broken, other = (ends.client, ends.server) if breaks == "client" else (ends.server, ends.client)
    reset(broken)
    with pytest.raises(ConnectionResetError):
        other.recv(1)


def test_a_server_that_is_away_resets_the_client() -> None:
    with KafkaProxy({1: None}) as proxy:
        host, _, port = proxy.addresses[1].partition(":")
        # The reset may come before the client knows that it is connected.
        with pytest.raises(ConnectionResetError), socket.create_connection((host, int(port)), timeout=20) as client:
            client.recv(1)
        assert Did.NOT_REACHED in {line.did for line in proxy.log}


def test_who_does_not_read_makes_the_other_side_wait(ends: Ends) -> None:
    frame = request(0, 1, body=bytes(1 << 20))
    ends.client.settimeout(1.0)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 100:
            ends.client.sendall(frame)
            sent += 1
    assert sent < 40, "buffers of the system and of the proxy, and no more"


def test_tens_of_megabytes_a_second(ends: Ends) -> None:
    frame = request(0, 1, body=bytes(200_000))
    count = 500
    start = time.monotonic()
    with in_background(lambda: ends.client.sendall(frame * count)):
        left = count * len(frame)
        while left:
            left -= len(ends.server.recv(1 << 20))
    speed = count * len(frame) / (time.monotonic() - start) / 1e6
    print(f"{speed:.0f} MB/s")
    assert speed > 20


def test_drop_delay_and_duplicate(ends: Ends) -> None:
    proxy, client, server = ends.proxy, ends.client, ends.server
    dropped = proxy.add(Rule(Api.FETCH, REQUEST, Drop(), Nth(1)))
    delayed = proxy.add(Rule(Api.FETCH, REQUEST, Delay(0.5), Nth(1)))
    doubled = proxy.add(Rule(Api.FETCH, REQUEST, Duplicate(), Nth(1)))
    frames = [request(1, number) for number in (1, 2, 3)]
    start = time.monotonic()
    client.sendall(b"".join(frames))
    expected = frames[1] + frames[2] * 2
    assert receive(server, len(expected)) == expected
    assert time.monotonic() - start >= 0.5
    for armed in (dropped, delayed, doubled):
        armed.wait_caught()
    server.sendall(response(2) + response(3) * 2)
    assert receive(client, 16) == response(2) + response(3)
    assert is_silent(client), "the second answer was not asked for"
    assert proxy.counts(RESPONSE) == {Api.FETCH: 3}
    actions = [line.did for line in proxy.log if line.kind is not None]
    assert actions == [Did.DROPPED, Did.DELAYED, Did.DUPLICATED, Did.PASSED, Did.PASSED, Did.DISCARDED]


def test_a_request_is_answered_in_the_servers_place_if_it_is_about_what_is_meant(ends: Ends) -> None:
    ours = ends.proxy.add(Rule(Api.FETCH, REQUEST, Answer(lambda _: response(1)), about=lambda frame: b"one" in frame))
    one, two = request(1, 1, body=b"one"), request(1, 2, body=b"two")
    ends.client.sendall(one + two)
    assert receive(ends.client, 8) == response(1)
    assert receive(ends.server, len(two)) == two
    ends.server.sendall(response(2))
    assert receive(ends.client, 8) == response(2)
    assert ours.caught == 1
    assert Did.ANSWERED in {line.did for line in ends.proxy.log}


def test_a_held_request_is_overtaken_and_its_late_answer_arrives(ends: Ends) -> None:
    held = ends.proxy.add(Rule(Api.FETCH, REQUEST, Hold(), Nth(1)))
    first, second = request(1, 1), request(1, 2)
    ends.client.sendall(first + second)
    held.wait_caught()
    assert receive(ends.server, len(second)) == second
    held.release()
    assert receive(ends.server, len(first)) == first
    ends.server.sendall(response(2) + response(1))
    assert receive(ends.client, 16) == response(2) + response(1)
    assert held.wait_answered() == [response(1)]
    with pytest.raises(TryAgain, match="nothing is held"):
        held.release()


def test_a_held_request_outlives_its_client(ends: Ends, eventually: Eventually) -> None:
    held = ends.proxy.add(Rule(Api.END_TXN, REQUEST, HoldAndReset(), Nth(1)))
    late = request(26, 1)
    ends.client.sendall(late)
    with pytest.raises(ConnectionResetError):
        ends.client.recv(1)
    held.wait_caught()
    assert is_silent(ends.server), "the server's side stays open and hears nothing"
    client, server = ends.connect()
    client.sendall(request(26, 2))
    assert receive(server, len(late)) == request(26, 2), "the next connection is not touched"

    held.release()
    assert receive(ends.server, len(late)) == late, "the very bytes"
    ends.server.sendall(response(1, b"done"))
    assert held.wait_answered() == [response(1, b"done")]
    with pytest.raises(ConnectionResetError):
        ends.server.recv(1)
    eventually(lambda: [line.did for line in ends.proxy.log].count(Did.CLOSED) == 1, "the held one's connection ended")


def test_a_held_request_whose_server_went_away_is_told(ends: Ends, eventually: Eventually) -> None:
    held = ends.proxy.add(Rule(Api.END_TXN, REQUEST, HoldAndReset(), Nth(1)))
    ends.client.sendall(request(26, 1))
    held.wait_caught()
    reset(ends.server)
    eventually(lambda: Did.CLOSED in {line.did for line in ends.proxy.log}, "the connection ended")
    with pytest.raises(TryAgain, match="closed"):
        held.release()


def test_what_is_not_kafka_resets_both_sides_and_is_in_the_log(ends: Ends) -> None:
    ends.client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    for end in (ends.client, ends.server):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    assert [line.note for line in ends.proxy.log if line.did is Did.NOT_UNDERSTOOD]


def test_cut_resets_and_refuses_until_mended_at_the_same_address(ends: Ends) -> None:
    before = ends.proxy.addresses
    ends.proxy.pause()  # a connection that is paused is cut all the same
    ends.client.sendall(request(3, 1))
    ends.proxy.cut(1)
    for end in (ends.client, ends.server):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    with pytest.raises(ConnectionRefusedError):
        ends.connect()
    ends.proxy.cut()
    ends.proxy.mend()
    ends.proxy.resume()
    assert ends.proxy.addresses == before
    client, server = ends.connect()
    client.sendall(request(3, 1))
    assert receive(server, 16) == request(3, 1)[:16]


def test_a_connection_that_arrives_in_the_moment_of_a_cut_is_ended_too(ends: Ends) -> None:
    host, _, port = ends.proxy.addresses[1].partition(":")
    over = threading.Event()

    def knock() -> None:
        while not over.is_set():
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as client:
                client.sendall(request(3, 1))
                client.recv(1)

    with in_background(knock), in_background(knock):
        for _ in range(300):
            ends.proxy.cut()
            ends.proxy.mend()
        ends.proxy.cut()
        over.set()
    gc.collect()  # a socket nobody closed says so here; warnings are errors


def test_pause_keeps_what_comes_and_resume_lets_it_through(ends: Ends) -> None:
    ends.proxy.pause(1)
    ends.client.sendall(request(3, 1) + request(3, 2))
    assert is_silent(ends.server)
    ends.proxy.resume(1)
    both = request(3, 1) + request(3, 2)
    assert receive(ends.server, len(both)) == both


class Stumbles(KafkaConversation):
    """A protocol whose reading has a fault of its own."""

    def cut(self, direction: Direction, data: bytes) -> list[Frame]:
        raise ZeroDivisionError(direction)


def test_a_fault_of_the_proxy_itself_is_raised_when_it_closes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = FrameProxy({1: f"127.0.0.1:{listener.getsockname()[1]}"}, Stumbles)
        proxy.open()
        host, _, port = proxy.addresses[1].partition(":")
        with socket.create_connection((host, int(port)), timeout=20) as client:
            client.sendall(b"anything")
            with pytest.raises(ConnectionResetError):
                receive(client, 1)
        with pytest.raises(ZeroDivisionError):
            proxy.close()
        proxy.close()


def test_closing_ends_every_connection_and_thread() -> None:
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with KafkaProxy({n: f"127.0.0.1:{listener.getsockname()[1]}" for n in (1, 2, 3)}) as proxy:
            both = Ends(proxy, listener)
            more = [both.connect() for _ in range(20)]
            proxy.pause()
            proxy.add(Rule(None, REQUEST, HoldAndReset()))
            for client, _ in more:
                client.sendall(request(3, 1))
        for end in both.opened:
            with pytest.raises(ConnectionResetError):
                end.recv(1)
            end.close()
    assert set(threading.enumerate()) == before
