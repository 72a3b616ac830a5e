"""Ends a session of processes when whoever watches over it ends, however that happens.

It reads a pipe that only its owner can write to. The owner says a word when the session has ended already.
"""

from __future__ import annotations

import sys

from kept.local.processes import kill_session

if __name__ == "__main__":
    if not sys.stdin.buffer.read():
        kill_session(int(sys.argv[1]))
