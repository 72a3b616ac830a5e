"""A cluster that is somebody else's: what may be done there, and what is refused with its reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NoReturn

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kept.errors import FixConfiguration, TryAgain
from kept.guarantees import only_asks
from kept.local.ports import HOST
from kept.verify.trials.scenario import Need

ANSWERS_WITHIN = 15.0


class Elsewhere:
    """It has an address and brokers. Nobody starts, stops or mends anything in it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def brokers(self) -> dict[int, str]:
        """Where each broker tells its clients that it is."""
        admin = AdminClient(only_asks({"bootstrap.servers": self.bootstrap}))
        try:
            found = admin.list_topics(timeout=ANSWERS_WITHIN).brokers
        except KafkaException as failure:
            raise TryAgain(
                f"no broker answers at {self.bootstrap}: {failure.args[0].str()}",
                way_out="check the address; a cluster that asks who you are is not supported here yet",
            ) from failure
        return {number: f"{broker.host}:{broker.port}" for number, broker in found.items()}

    def up(self) -> None:
        """Nothing was broken, so there is nothing to mend."""

    def broker(self, _number: int) -> NoReturn:
        _refuse(Need.BROKERS)

    @property
    def postgres(self) -> NoReturn:
        _refuse(Need.POSTGRES)

    @property
    def dsn(self) -> NoReturn:
        _refuse(Need.POSTGRES)


def why_not(needs: Collection[Need], brokers: Mapping[int, str]) -> str | None:
    """Why a scenario is not run on somebody else's cluster; None when it may be."""
    for need in (Need.BROKERS, Need.POSTGRES):
        if need in needs:
            return str(need.value)
    strange = [address for address in brokers.values() if address.rpartition(":")[0] != HOST]
    if Need.PROXY in needs and strange:
        return f"{Need.PROXY.value}, which cannot stand in for {strange[0]}: only for brokers that say {HOST}"
    return None


def _refuse(need: Need) -> NoReturn:
    raise FixConfiguration(
        f"not on a cluster of somebody else's: {need.value}",
        way_out="leave out --bootstrap: a cluster is started for it",
    )
