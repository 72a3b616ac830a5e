"""Where progress and effects are kept together: one transaction of the user's Postgres holds both."""

from kept.stores.births import Birth, Seed
from kept.stores.claims import Claim, Claims
from kept.stores.dead_letters import Buried, DeadLetter, DeadLetters, Tally, overview
from kept.stores.holders import Part
from kept.stores.messages import Messages
from kept.stores.poison import Poison, isolated
from kept.stores.postgres import OpenChunk, PostgresProgress
from kept.stores.sessions import Session

__all__ = [
    "Birth",
    "Buried",
    "Claim",
    "Claims",
    "DeadLetter",
    "DeadLetters",
    "Messages",
    "OpenChunk",
    "Part",
    "Poison",
    "PostgresProgress",
    "Seed",
    "Session",
    "Tally",
    "isolated",
    "overview",
]
