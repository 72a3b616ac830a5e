"""Proving the guarantees: faults on purpose, and what became of every record.

scenarios/      what is provoked, one file each: a thing under test, a fault, and a control that must break
trials/         plays them on a cluster; the things under test are processes that can be killed (trials/roles)
workload        values that name their sender, their key and their number
history/        what was attempted, said, struck and found: lines that are only ever appended
checkers/       PURE: one anomaly each        allowed     PURE: what a guarantee permits
verdict         PURE: holds, violated, unknown, for one history; `cells` beside its control
applicable      PURE: which cells there are, and why not others
run_directory   a run on disk, to be judged again; report/ shows it
proxy/          breaks connections by frame   scenes/     the classic failures, step by step, for people
"""
