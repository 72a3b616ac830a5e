"""How a cluster is reached is taken over to every client; what a client does is not."""

from kept.guarantees import connection, only_asks


def test_what_says_how_a_cluster_is_reached_is_found() -> None:
    reach = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "ssl.ca.location": "ca.pem",
        "broker.address.family": "v4",
        "reconnect.backoff.max.ms": 500,
    }
    assert connection({**reach, "acks": "all", "transactional.id": "a", "linger.ms": 5}) == reach


def test_a_client_of_our_own_makes_nothing_whatever_it_is_given() -> None:
    given = {"bootstrap.servers": "a:1", "allow.auto.create.topics": True}
    assert only_asks(given) == {"bootstrap.servers": "a:1", "allow.auto.create.topics": False, "log_level": 0}
    assert given["allow.auto.create.topics"], "what was given is left as it was"
