"""How many seeds of deaths are tried: a sample with every other test, all of them by `make prove-crashes`."""

import os

SEEDS = range(int(os.environ.get("KEPT_SEEDS", "2")))
