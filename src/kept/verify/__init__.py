"""Proving the guarantees: faults on purpose, and what became of every record."""
