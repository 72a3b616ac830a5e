"""What an audit of one run has found, whether its guarantee allows it, and the page that tells all of them. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import NamedTuple, TypeAlias

PAGE = """\
# Faults under Spark, and what became of the records

Every run is a pipeline on Spark from a full topic into a sink of its own, and one fault in the midst. In batch mode its
rows are shuffled on the way.
Then a reader that knows nothing of kept counts what is in the sink. `struck` says how often the fault has hit: a run
that it has missed shows nothing. At most and at least once may lose or repeat one batch each time (`allowed`), exactly
once nothing. `stopped` says how often a pipeline has ended with an error of kept, and was started again. Runs share a
cluster, a Spark session and, unless their fault harms the source, the topic; two of them go on at a time, unless their
fault is about a server that both use.

    make prove-spark     a piece of nine minutes, of what is missing here; again, until nothing is left
    python -m tests.spark.proof --only driver-killed --seeds 1 --first 7 --records 10000

This page is generated from `spark-proof.jsonl`, to which the command appends a line a run. Each line says by which code
it was made: a hash of the files of `src/kept` that a pipeline may use (all but those of the layers above it: `aio`,
`cli`, `demo`, `verify`). Only lines of one code are counted together; a proof of changed code begins anew.
"""


PARTITION, BATCH = "partition", "batch"
"""The modes of a pipeline."""
PLANNED, VOLUME = 393, 100_000
"""Every fault, sink and guarantee: ten seeds for exactly once, three for the others, and for exactly once in batch
mode; and how many records each."""
Key: TypeAlias = tuple[str, str, str, str, int]
"""Fault, sink, guarantee, mode and seed: what is run once."""


class Counts(NamedTuple):
    """Records against what is there: not there, there again, there and never sent."""

    found: int
    lost: int
    twice: int
    strange: int


def counted(expected: Counter[str], held: Counter[str]) -> Counts:
    """A record that is there three times is twice repeated."""
    lost = sum(1 for value in expected if not held[value])
    twice = sum(times - 1 for value, times in held.items() if value in expected)
    strange = sum(times for value, times in held.items() if value not in expected)
    return Counts(held.total(), lost, twice, strange)


@dataclass(frozen=True)
class Verdict:
    """One run."""

    fault: str
    sink: str
    word: str
    seed: int
    records: int
    found: int
    lost: int
    twice: int
    strange: int
    struck: int
    allowed: int
    """Records that at most once may lose, and at least once may repeat."""
    stopped: Sequence[str]
    seconds: float
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    """A hash of the product's files; of the first lines it was not written down."""
    mode: str = PARTITION

    @property
    def key(self) -> Key:
        return self.fault, self.sink, self.word, self.mode, self.seed

    @property
    def word_for_it(self) -> str:
        """Holds, violated, or unknown: the fault has not struck."""
        lost, twice = {
            "at-most-once": (self.allowed, 0),
            "at-least-once": (0, self.allowed),
            "exactly-once": (0, 0),
        }[self.word]
        if self.lost > lost or self.twice > twice or self.strange:
            return "violated"
        return "holds" if self.struck else "unknown"

    @property
    def is_violated(self) -> bool:
        return self.word_for_it == "violated"

    def __str__(self) -> str:
        stopped = f", stopped by {', '.join(self.stopped)}" if self.stopped else ""
        return (
            f"{self.word_for_it}: {self.fault}, {self.sink}, {self.word}, {self.mode} mode, seed {self.seed}: "
            f"{self.records} records, "
            f"{self.found} found, {self.lost} lost, {self.twice} twice, {self.strange} never sent; "
            f"struck {self.struck}{stopped}; {self.seconds:.0f} s"
        )

    def line(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of(line: str) -> Verdict:
        return Verdict(**json.loads(line))


def latest(lines: Iterable[str], code: str) -> dict[Key, Verdict]:
    """The last verdict of each run that was made by this code."""
    return {verdict.key: verdict for verdict in map(Verdict.of, filter(str.strip, lines)) if verdict.code == code}


def of_code(lines: Iterable[str], code: str) -> list[str]:
    """Those that were made by this code."""
    return [line for line in filter(str.strip, lines) if Verdict.of(line).code == code]


def page(lines: Sequence[str]) -> str:
    """docs/spark-proof.md, of the code that the last line was made by.

    A run that was made again counts once; but that a promise was broken stays there.
    """
    every = list(map(Verdict.of, filter(str.strip, lines)))
    code = every[-1].code if every else ""
    made = [each for each in every if each.code == code]
    verdicts = list(latest(lines, code).values())
    whole = sum(each.records >= VOLUME for each in verdicts)
    parts = [PAGE, f"Code: {f'`{code}`' if code else 'not written down'}. "]
    parts[-1] += f"**{whole} of {PLANNED} planned runs of {VOLUME:,} records were made**, and "
    parts[-1] += f"{len(verdicts) - whole} with fewer records; the others are missing."
    parts[-1] += f" {len(every) - len(made)} runs of other code do not count.\n" if len(every) > len(made) else "\n"
    for word, mode in product(("exactly-once", "at-least-once", "at-most-once"), (PARTITION, BATCH)):
        groups: dict[tuple[str, str], list[Verdict]] = {}
        for each in sorted(verdicts, key=lambda each: each.key):
            if (each.word, each.mode) == (word, mode):
                groups.setdefault((each.fault, each.sink), []).append(each)
        if groups:
            parts += [f"## {word}, {mode} mode\n", _HEAD, *(_row(*group, runs) for group, runs in groups.items()), ""]
    harmed = [f"- {each}" for each in verdicts if each.word_for_it != "holds"]
    harmed += [f"- before it was run again: {each}" for each in made if each not in verdicts and each.is_violated]
    parts += ["## Not held, or not shown\n", *(harmed or ["None."]), ""]
    parts += ["## Versions\n", *_versions(verdicts)]
    return "\n".join(parts) + "\n"


_HEAD = (
    "| fault | sink | seeds | records each | lost | twice | never sent | allowed | struck | stopped | verdict |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def _row(fault: str, sink: str, runs: Sequence[Verdict]) -> str:
    volumes = sorted({each.records for each in runs})
    volume = f"{volumes[0]:,}" if len(volumes) == 1 else f"{volumes[0]:,} to {volumes[-1]:,}"
    words = Counter(each.word_for_it for each in runs)
    cells = [
        fault,
        sink,
        _seeds([each.seed for each in runs]),
        volume,
        sum(each.lost for each in runs),
        sum(each.twice for each in runs),
        sum(each.strange for each in runs),
        0 if runs[0].word == "exactly-once" else sum(each.allowed for each in runs),
        sum(each.struck for each in runs),
        sum(len(each.stopped) for each in runs),
        ", ".join(f"{word} {count}" for word, count in sorted(words.items())),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _seeds(seeds: Sequence[int]) -> str:
    whole = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))


def _versions(verdicts: Sequence[Verdict]) -> list[str]:
    used = Counter(json.dumps(each.versions, sort_keys=True) for each in verdicts)
    dates = sorted(each.date for each in verdicts)
    told = [f"Run between {dates[0]} and {dates[-1]}." if dates else "Nothing was run yet.", ""]
    for versions, count in sorted(used.items()):
        said = ", ".join(f"{name} {version}" for name, version in json.loads(versions).items())
        told.append(f"- {count} runs: {said}")
    return told
