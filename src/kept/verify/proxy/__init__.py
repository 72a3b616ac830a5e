"""A proxy that reads Kafka's and Postgres' messages and harms them on purpose: dropped, delayed, held, doubled, reset.

with in_front_of(cluster) as proxy:
    late = proxy.add(Rule(Api.END_TXN, Direction.REQUEST, HoldAndReset(), Nth(1)))
    ...                       # a producer commits through proxy.bootstrap
    late.wait_caught()
    late.release()            # the very bytes, on the connection they came for
    late.wait_answered()
"""

from kept.verify.proxy.actions import Answer, Delay, Drop, Duplicate, Hold, HoldAndReset, Reset
from kept.verify.proxy.apis import Api
from kept.verify.proxy.armed import Armed
from kept.verify.proxy.beside import KafkaProxyBeside, beside
from kept.verify.proxy.evidence import Did, Sighting
from kept.verify.proxy.frames import Direction
from kept.verify.proxy.kafka import KafkaProxy, in_front_of
from kept.verify.proxy.occurrences import Always, Chance, EveryKth, Nth
from kept.verify.proxy.postgres import PostgresProxy
from kept.verify.proxy.postgres_frames import Command
from kept.verify.proxy.rules import Rule

__all__ = [
    "Always",
    "Answer",
    "Api",
    "Armed",
    "Chance",
    "Command",
    "Delay",
    "Did",
    "Direction",
    "Drop",
    "Duplicate",
    "EveryKth",
    "Hold",
    "HoldAndReset",
    "KafkaProxy",
    "KafkaProxyBeside",
    "Nth",
    "PostgresProxy",
    "Reset",
    "Rule",
    "Sighting",
    "beside",
    "in_front_of",
]
