"""Where progress and effects are kept together: one transaction of the user's Postgres holds both."""

from kept.stores.births import Birth, Seed
from kept.stores.holders import Part
from kept.stores.postgres import OpenChunk, PostgresProgress
from kept.stores.sessions import Session

__all__ = ["Birth", "OpenChunk", "Part", "PostgresProgress", "Seed", "Session"]
