"""How a cluster is reached is taken over to every client; what a client does is not."""

from kept.guarantees import connection


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
