"""Plays a script twice, without the fix and with it; nothing differs but one word."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kept.errors import NotPersisted, OutcomeUnknown, TryAgain
from kept.verify.scenes import TITLES
from kept.verify.scenes.stage import Stage
from kept.verify.scenes.telling import Scene, Side, Story

Play: TypeAlias = Callable[[Stage, str, Story], Mapping[str, int]]
Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class Script:
    """How a scene goes: what the deck says, why the fix helps, the word that is changed, and the steps,
    which return what was counted.
    """

    name: str
    deck: str
    why: str
    without: str
    fixed: str
    harm: str
    play: Play


def perform(script: Script, stage: Stage, say: Say = lambda _text: None) -> Scene:
    """Both sides, one after the other."""
    began = time.monotonic()
    sides = []
    for label, word in (("without", script.without), ("with", script.fixed)):
        say(f"{script.name}: {label} the fix: {word}")
        sides.append(_side(script, stage, word))
    without, fixed = sides
    return Scene(
        script.name,
        TITLES[script.name],
        script.deck,
        script.why,
        script.harm,
        without,
        fixed,
        time.monotonic() - began,
    )


def _side(script: Script, stage: Stage, word: str) -> Side:
    """What was awaited and did not come in time is no proof of anything, and is told as such."""
    story = Story()
    try:
        counted = script.play(stage, word, story)
    except (TryAgain, OutcomeUnknown, NotPersisted) as late:
        return Side(word, tuple(story.steps), not_struck=late.what)
    return Side(word, tuple(story.steps), counted)
