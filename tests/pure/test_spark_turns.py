"""Which runs of the proof on Spark may go beside each other."""

from __future__ import annotations

import threading
import time

from tests.spark.turns import Run, Turns, next_of


def run(fault: str, seed: int = 0) -> Run:
    return Run(fault, "kafka", "exactly-once", seed, 10)


KILLED, WORKERS, COPIES, ELDER, BROKER = map(
    run, ("driver-killed", "worker-killed", "speculation", "two-drivers", "broker-killed")
)


def test_whoever_must_wait_for_what_another_uses_lets_others_pass() -> None:
    assert next_of([COPIES, ELDER], [WORKERS]) == ELDER
    assert next_of([COPIES], [WORKERS]) is None
    assert next_of([COPIES, ELDER], []) == COPIES
    assert next_of([KILLED], [run("driver-killed", 1)]) == KILLED


def test_whoever_needs_everything_is_alone_and_is_not_passed() -> None:
    assert next_of([BROKER, KILLED], [ELDER]) is None
    assert next_of([BROKER, KILLED], []) == BROKER
    assert next_of([KILLED], [BROKER]) is None


def test_all_have_their_turn_and_never_two_with_the_same_need() -> None:
    runs = [run(fault, seed) for seed in range(4) for fault in ("speculation", "worker-killed", "broker-killed")]
    at_work: list[Run] = []
    seen: list[tuple[Run, ...]] = []

    def play(each: Run) -> None:
        at_work.append(each)
        seen.append(tuple(at_work))
        time.sleep(0.001)
        at_work.remove(each)

    assert Turns(runs, 3).take(play, time.monotonic() + 30) == 0
    assert {together for together in seen if len(together) > 1} == set()
    assert sorted(each for (each,) in seen) == sorted(runs)


def test_no_run_begins_when_time_is_up() -> None:
    ended = threading.Event()
    runs = [run("driver-killed", seed) for seed in range(5)]
    assert Turns(runs, 1).take(lambda _run: ended.set(), time.monotonic() - 1) == len(runs)
    assert not ended.is_set()
