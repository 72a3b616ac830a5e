"""Ports: the usual ones when they are free, others when they are not, none twice."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from kept.errors import KeptError, PortTaken
from kept.local.ports import (
    ANY_FREE,
    OTHER_PORTS,
    USUAL,
    USUAL_PORTS,
    Ports,
    choose,
    is_free,
    require_free,
)

Listen = Callable[..., int]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Listen on an address, on any port unless one is given; returns the port."""
    listening: list[socket.socket] = []

    def listen(host: str = "127.0.0.1", port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> int:
        server = socket.socket(family)
        listening.append(server)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, port))
        server.listen()
        return int(server.getsockname()[1])

    yield listen
    for server in listening:
        server.close()


def free_ports(count: int) -> list[int]:
    """Ports where nobody listens, from the same range that the package takes its own from."""
    return list(choose({str(number): OTHER_PORTS.start + 7 * number for number in range(count)}).values())


def three_in_a_row() -> int:
    """The first of three free ports side by side."""
    return next(first for first in range(31_000, 31_900) if all(is_free(first + more) for more in range(3)))


class TestIsFree:
    def test_where_somebody_listens_is_not_free(self, listen: Listen) -> None:
        assert not is_free(listen())

    def test_where_somebody_listens_on_every_address_is_not_free(self, listen: Listen) -> None:
        assert not is_free(listen("0.0.0.0"))

    def test_where_somebody_listens_on_every_address_of_both_kinds_is_not_free(self, listen: Listen) -> None:
        if not socket.has_ipv6:
            pytest.skip("this Python has no IPv6")
        try:
            port = listen("::", family=socket.AF_INET6)
        except OSError as error:
            pytest.skip(f"this machine has no IPv6: {error}")
        assert not is_free(port)

    def test_a_server_that_just_ended_leaves_its_port_free(self) -> None:
        """Its closed connections linger in the kernel (TIME_WAIT); a server with SO_REUSEADDR may listen there."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)) as client:
                accepted, _ = server.accept()
                accepted.close()
                assert client.recv(1) == b""
        assert is_free(port)

    def test_asking_takes_nothing(self, listen: Listen) -> None:
        (port,) = free_ports(1)
        assert is_free(port)
        assert is_free(port)
        assert listen(port=port) == port


class TestRequireFree:
    def test_free_ones_pass(self) -> None:
        require_free(free_ports(3), way_out="choose another")

    def test_the_one_that_is_taken_is_named(self, listen: Listen) -> None:
        taken = listen()
        with pytest.raises(PortTaken, match=f"port {taken} is taken") as told:
            require_free([*free_ports(2), taken], way_out="leave out --port")
        assert f"127.0.0.1:{taken}" in told.value.way_out
        assert "leave out --port" in told.value.way_out

    def test_a_number_that_is_no_port_is_told(self) -> None:
        with pytest.raises(KeptError, match="65536"):
            require_free([65_535, 65_536], way_out="leave out --port")


class TestChoose:
    def test_the_preferred_one_when_it_is_free(self) -> None:
        one, two = free_ports(2)
        assert choose({"one": one, "two": two}) == {"one": one, "two": two}

    def test_another_one_when_it_is_taken(self, listen: Listen) -> None:
        taken, (free,) = listen(), free_ports(1)
        chosen = choose({"one": taken, "two": free})
        assert chosen["two"] == free
        assert chosen["one"] in OTHER_PORTS
        assert chosen["one"] != free
        assert is_free(chosen["one"])

    def test_another_one_is_outside_what_the_kernel_gives_to_clients(self) -> None:
        assert OTHER_PORTS.start > 1024
        assert OTHER_PORTS.stop <= 32_768
        assert all(port < 32_768 for port in USUAL_PORTS.values())
        assert not set(USUAL_PORTS.values()) & set(OTHER_PORTS)

    def test_no_port_twice(self, listen: Listen) -> None:
        (free,) = free_ports(1)
        taken = listen()
        chosen = choose({"one": free, "two": free, "three": taken, "four": taken})
        assert chosen["one"] == free
        assert len(set(chosen.values())) == 4

    def test_what_is_to_be_avoided_is_not_chosen(self) -> None:
        (free,) = free_ports(1)
        assert choose({"one": free}, avoid=[free])["one"] != free

    def test_what_was_preferred_is_left_alone(self) -> None:
        preferred = dict.fromkeys(["one", "two"], free_ports(1)[0])
        before = dict(preferred)
        choose(preferred)
        assert preferred == before


class TestPorts:
    @staticmethod
    def known() -> dict[str, int]:
        return dict(zip(USUAL_PORTS, free_ports(len(USUAL_PORTS)), strict=True))

    def test_no_server_has_the_same_usual_port_as_another(self) -> None:
        assert len(set(USUAL_PORTS.values())) == len(USUAL_PORTS)

    def test_a_new_cluster_would_like_the_usual_ones(self) -> None:
        assert USUAL.preferred() == USUAL_PORTS

    def test_any_that_are_free_leave_the_usual_ones_to_others(self) -> None:
        chosen = ANY_FREE.preferred()
        assert chosen.keys() == USUAL_PORTS.keys()
        assert set(chosen.values()) <= set(OTHER_PORTS)

    def test_a_cluster_keeps_its_ports_while_they_are_free(self) -> None:
        known, said = self.known(), list[str]()
        assert USUAL.arrange(known, (), said.append) == known
        assert said == []

    def test_a_server_whose_port_was_taken_gets_another_and_it_is_said(self, listen: Listen) -> None:
        known, said = self.known(), list[str]()
        listen(port=known["postgres"])
        arranged = USUAL.arrange(known, (), said.append)
        assert arranged["postgres"] != known["postgres"]
        assert {**arranged, "postgres": 0} == {**known, "postgres": 0}
        assert said == [f"port {known['postgres']} is taken: postgres gets {arranged['postgres']} instead"]

    def test_a_server_that_runs_keeps_its_ports_though_they_are_taken(self, listen: Listen) -> None:
        known = self.known()
        listen(port=known["broker-1"])
        listen(port=known["broker-1-internal"])
        assert USUAL.arrange(known, ["broker-1"], print) == known

    def test_brokers_that_run_need_the_controller_where_they_know_it(self, listen: Listen) -> None:
        known = self.known()
        listen(port=known["controller"])
        with pytest.raises(PortTaken, match=f"port {known['controller']}") as told:
            USUAL.arrange(known, ["broker-1"], print)
        assert "kept down" in told.value.way_out

    def test_a_row_of_their_own_for_the_brokers(self) -> None:
        first, known = three_in_a_row(), self.known()
        arranged = Ports(first=first).arrange(known, (), print)
        row = {"broker-1": first, "broker-2": first + 1, "broker-3": first + 2}
        assert arranged == {**known, **row}

    def test_a_row_that_is_taken_is_refused(self, listen: Listen) -> None:
        first, known = three_in_a_row(), self.known()
        listen(port=first + 1)
        with pytest.raises(PortTaken, match=f"port {first + 1} is taken") as told:
            Ports(first=first).arrange(known, (), print)
        assert "--port" in told.value.way_out

    def test_a_row_that_meets_another_server_of_the_cluster_moves_that_one(self) -> None:
        first, known = three_in_a_row(), self.known()
        known["controller"] = first + 2
        arranged = Ports(first=first).arrange(known, (), lambda _text: None)
        assert arranged["broker-3"] == first + 2
        assert len(set(arranged.values())) == len(USUAL_PORTS)
