"""Where progress and effects are kept together: one transaction of the user's Postgres holds both."""

from kept.stores.births import Birth, Seed
from kept.stores.chunks import OpenChunk, Ownership
from kept.stores.claims import Claim, Claims
from kept.stores.dead_letters import Buried, DeadLetter, DeadLetters, Tally, overview
from kept.stores.holders import Part
from kept.stores.messages import Messages
from kept.stores.poison import Poison, isolated
from kept.stores.postgres import PostgresProgress
from kept.stores.sessions import Session
from kept.stores.sinks import OWN_EFFECTS, Sink

__all__ = [
    "OWN_EFFECTS",
    "Birth",
    "Buried",
    "Claim",
    "Claims",
    "DeadLetter",
    "DeadLetters",
    "Messages",
    "OpenChunk",
    "Ownership",
    "Part",
    "Poison",
    "PostgresProgress",
    "Seed",
    "Session",
    "Sink",
    "Tally",
    "isolated",
    "overview",
]
