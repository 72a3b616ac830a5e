"""Outboxes whose senders and relays are killed, while the brokers go away and come back: nothing lost, nothing twice.

    python -m tests.brokers.outbox_proof --seeds 50 [--first 0]

Each seed is a world: a journal, a sender that is killed twice and a relay that is killed four times, at points and
moments that the seed chooses. Worlds run six at a time; in the middle of every round all brokers are killed, and stay
away for longer than any time-out of a relay and its client, which are lowered for that. An independent read_committed
reader audits each world.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.guarantees import ExactlyOnce
from kept.local import Cluster
from kept.local.ports import ANY_FREE
from kept.local.tether import tethered
from tests.brokers.programs import outbox_life
from tests.brokers.programs.impatient import CLIENT, LONGEST
from tests.brokers.programs.outbox_life import RELAY_POINTS, SENDER_POINTS, WHEN, World

AT_ONCE = 6
AWAY = 8.0
RARE = {"taking over", "noting the owner"}
# Nothing is refused in these worlds, and all of them are exactly once.
POINTS = [point for point in RELAY_POINTS if point not in ("setting aside", "carrying, at least once")]
BEGUN_WITHIN, DONE_WITHIN = 60.0, 180.0


class Verdict(NamedTuple):
    """What the audit of one world found."""

    seed: int
    safe: int
    found: int
    lost: list[str]
    twice: list[str]
    strange: list[str]
    out_of_order: list[str]
    deaths: int
    """Lives that ended by SIGKILL."""
    in_the_outage: int = 0
    """Records that became safe while no broker was there."""

    @property
    def good(self) -> bool:
        return not (self.lost or self.twice or self.strange or self.out_of_order)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.safe} safe, {self.found} in Kafka, {len(self.lost)} lost, "
            f"{len(self.twice)} twice, {len(self.strange)} never sent, {len(self.out_of_order)} out of order; "
            f"{self.deaths} deaths, {self.in_the_outage} sent without brokers"
        )


def made(seed: int, bootstrap: str, folder: Path) -> World:
    """The world of a seed."""
    dice = random.Random(seed)
    world = World(bootstrap, f"outbox-{seed}-{uuid.uuid4().hex[:8]}", str(folder), settings=dict(CLIENT), pause=0.01)
    folder.mkdir(parents=True)
    world.sender = [(dice.choice(WHEN), dice.choice(list(SENDER_POINTS)), dice.randint(1, 150)) for _ in range(2)]
    for _ in range(4):
        point = dice.choice(POINTS)
        world.relay.append((dice.choice(WHEN), point, 1 if point in RARE else dice.randint(1, 6)))
    Topics(bootstrap).create(world.topic, 3, ExactlyOnce("tests"))
    return world


def start(world: World, what: str) -> subprocess.Popen[bytes]:
    """A process group of its own: killed as one, with the life that is running."""
    command = [sys.executable, "-m", outbox_life.__name__, what, world.as_argument()]
    return subprocess.Popen(command, start_new_session=True)


def said(world: World, word: str) -> list[str]:
    """What the sender wrote down; a line that it died in is no line."""
    text = world.sent.read_text() if world.sent.exists() else ""
    lines = text.split("\n")[:-1]
    return [line.partition(" ")[2] for line in lines if line.startswith(f"{word} ")]


def audit(seed: int, world: World) -> Verdict:
    with Reader(world.bootstrap, world.topic, start=Start.BEGINNING) as reader:
        found = [(record.value or b"").decode() for record in reader.to_end()]
    safe, begun = said(world, "safe"), set(said(world, "begun"))
    order: dict[str, list[int]] = {}
    for value in found:
        thread, _, number = value.rpartition(".")
        order.setdefault(thread, []).append(int(number))
    return Verdict(
        seed,
        len(safe),
        len(found),
        lost=sorted(set(safe) - set(found)),
        twice=sorted(value for value, times in Counter(found).items() if times > 1),
        strange=sorted(set(found) - begun),
        out_of_order=[thread for thread, numbers in order.items() if numbers != sorted(numbers)],
        deaths=len(world.deaths.read_text().splitlines()) if world.deaths.exists() else 0,
    )


def played(cluster: Cluster, seeds: Sequence[int], folder: Path, *, away: float = AWAY) -> list[Verdict]:
    """One round: these worlds at once, and an outage of every broker in the middle."""
    if away <= LONGEST:
        raise ValueError(f"an outage of {away} s does not outlast a time-out of {LONGEST} s")
    worlds = {seed: made(seed, cluster.bootstrap, folder / str(seed)) for seed in seeds}
    processes = [start(world, what) for world in worlds.values() for what in ("send", "relay")]
    try:
        deadline = time.monotonic() + BEGUN_WITHIN
        while time.monotonic() < deadline and not all(len(said(world, "safe")) > 100 for world in worlds.values()):
            time.sleep(0.1)
        for number in (1, 2, 3):
            cluster.broker(number).kill()
        before = {seed: len(said(world, "safe")) for seed, world in worlds.items()}
        time.sleep(away)  # the outage itself
        meanwhile = {seed: len(said(world, "safe")) - before[seed] for seed, world in worlds.items()}
        cluster.up()
        deadline = time.monotonic() + DONE_WITHIN
        ended = [process.wait(max(1.0, deadline - time.monotonic())) for process in processes]
        if any(ended):
            raise AssertionError(f"a process ended with {ended}")
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGUSR1)  # says where it stands
                time.sleep(1)
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return [audit(seed, world)._replace(in_the_outage=meanwhile[seed]) for seed, world in worlds.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description="kills senders, relays and brokers, and counts")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    seeds = list(range(options.first, options.first + options.seeds))
    verdicts: list[Verdict] = []
    print(f"outages of {AWAY:.0f} s and more; no time-out is longer than {LONGEST:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder, tethered(Cluster(Path(folder) / "cluster")) as cluster:
        cluster.up(ports=ANY_FREE)
        for first in range(0, len(seeds), AT_ONCE):
            some = played(cluster, seeds[first : first + AT_ONCE], Path(folder) / f"round-{first}")
            verdicts += some
            print(*some, sep="\n", flush=True)
    print(f"{len(verdicts)} seeds:", summed(verdicts))
    return 0 if all(each.good for each in verdicts) else 1


def summed(verdicts: Sequence[Verdict]) -> str:
    safe, found = sum(each.safe for each in verdicts), sum(each.found for each in verdicts)
    lost, twice = sum(len(each.lost) for each in verdicts), sum(len(each.twice) for each in verdicts)
    strange, moved = sum(len(each.strange) for each in verdicts), sum(len(each.out_of_order) for each in verdicts)
    deaths, meanwhile = sum(each.deaths for each in verdicts), sum(each.in_the_outage for each in verdicts)
    return (
        f"{safe} safe, {found} in Kafka, {lost} lost, {twice} twice, {strange} never sent, {moved} out of order; "
        f"{deaths} deaths, {meanwhile} sent without brokers"
    )


if __name__ == "__main__":
    sys.exit(main())
