"""Run one schedule of the model again and tell it: python -m kept.progress.model <World> <seed> [without]."""

from __future__ import annotations

import sys
from functools import partial

from kept.progress.model import RULES, TwoMoves, World
from kept.progress.model.search import replay

ALL: tuple[type[World], ...] = (*RULES, TwoMoves)
WORLDS = {world.__name__: world for world in ALL}


def main(arguments: list[str]) -> int:
    """Print the schedule; 1 if it did harm, 2 if there is nothing to run."""
    if len(arguments) < 2 or arguments[0] not in WORLDS or not arguments[1].isdigit():
        sys.stderr.write(f"{__doc__}\n")
        for name, world in WORLDS.items():
            sys.stderr.write(f"  {name}: without {' | '.join(map(repr, world.SWITCHES)) or 'nothing'}\n")
        return 2
    world = WORLDS[arguments[0]]
    played = replay(partial(world, without=" ".join(arguments[2:])), int(arguments[1]))
    sys.stdout.write(f"{played}\n")
    return int(not played.outcome.anomalies <= world.ALLOWED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
