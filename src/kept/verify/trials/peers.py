"""What a user might take instead of kept: put under the same faults, and held against the same guarantees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kept.errors import FixConfiguration
from kept.guarantees.levels import ExactlyOnce
from kept.verify.trials.scenario import Scenario
from kept.verify.trials.things import Thing


@dataclass(frozen=True)
class Program:
    """A program that users of a peer would write; `takes`: the options of kept's that it understands."""

    words: str
    role: str
    takes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Peer:
    """Which program stands in for which role of kept's, for exactly-once by its transactions; with its own defaults."""

    plain: Mapping[str, Program]
    in_transactions: Mapping[str, Program]

    def instead_of(self, thing: Thing) -> Thing | None:
        """None where it has no counterpart: a thing whose settings are part of the fault has no default to be tried."""
        program = (self.in_transactions if thing.guarantee == ExactlyOnce.word else self.plain).get(thing.role)
        if program is None or thing.settings or not thing.options.keys() <= program.takes:
            return None
        return Thing(program.words, program.role, thing.guarantee, {}, thing.options)


KAFKA_PYTHON = Program(
    "kafka-python, a row and then the commit", "kafka_python_consumer", frozenset({"thinks", "one_by_one"})
)
SPARKS_OWN = Program("Spark's own: foreachBatch, checkpoint, sinks", "raw_pipeline", frozenset({"into_kafka"}))
PEERS = {
    "confluent-kafka": Peer(
        {"producer": Program("confluent-kafka, default settings", "raw_producer")},
        {
            "producer": Program(
                "confluent-kafka, transactions as its documentation shows",
                "one_for_all",
                frozenset({"thinks", "together"}),
            )
        },
    ),
    "kafka-python": Peer(
        {
            "producer": Program("kafka-python, acks='all'", "kafka_python_producer"),
            "processor": KAFKA_PYTHON,
        },
        {"processor": KAFKA_PYTHON},
    ),
    "spark": Peer({"pipeline": SPARKS_OWN}, {"pipeline": SPARKS_OWN}),
}


def instead(scenario: Scenario, name: str) -> Scenario | None:
    """The scenario with a peer under test; None where it has nothing to put in the place of kept's.

    The errors that kept owes its user have no names elsewhere: a peer is judged by its records alone.
    """
    peer = PEERS[name]
    things = {word: theirs for word, ours in scenario.things.items() if (theirs := peer.instead_of(ours))}
    if not things:
        return None
    controls = {word: control for word, control in scenario.controls.items() if word in things}
    return replace(scenario, things=things, controls=controls, tells={})


def all_instead(scenarios: list[Scenario], name: str, *, named: bool) -> list[Scenario]:
    """Those that are possible with a peer; one that a person named and is not is an error."""
    found = {scenario.name: instead(scenario, name) for scenario in scenarios}
    missing = [each for each, scenario in found.items() if scenario is None]
    if missing and (named or len(missing) == len(found)):
        raise FixConfiguration(
            f"{name} has nothing to put in the place of kept in {', '.join(missing)}",
            way_out="leave those out, or leave out --peer",
        )
    return [scenario for scenario in found.values() if scenario is not None]
