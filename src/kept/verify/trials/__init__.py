"""Trials: a thing under test in a process of its own, a workload, a fault, and an audit by somebody else."""
