"""Which topics a pipeline reads: those that were named or that its pattern finds, and none that goes round.

Pure. What there is, and what the pipeline was born on, is asked by others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from kept.errors import FixConfiguration, SourceChanged


@dataclass(frozen=True)
class Pattern:
    """A pattern as a person wrote it, and how it is compared with a name."""

    said: str
    matches: Callable[[str], bool]

    def topics(self, pipeline: str, there: Collection[str], born: Collection[str]) -> list[str]:
        """Those that it finds. One that was read before, and is gone, stops: nobody knows if it was read to its end."""
        gone = sorted(topic for topic in born if topic not in there and self.matches(topic))
        if gone:
            names = "|".join(map(re.escape, gone))
            raise SourceChanged(
                f"{', '.join(gone)} was read by {pipeline!r}, and is not in the source any more: what it had not read "
                "of it is lost",
                way_out=f"`kept pipelines show {pipeline}` says how far it had come; to go on without, leave it out of "
                f"the pattern: (?!(?:{names})$)(?:{self.said})",
            )
        found = sorted(filter(self.matches, there))
        if not found:
            raise FixConfiguration(
                f"no topic matches {self.said}", way_out="`kept topics list` shows the topics there are"
            )
        return found


def refuse_feeding_itself(written: str | None, read: Collection[str]) -> None:
    """Of one cluster: a topic that is read and written would come round again and again, without end."""
    if written in read:
        raise FixConfiguration(
            f"the pipeline reads {written}, and writes to it: it would read again what it has written, without end",
            way_out="write to another topic, or leave this one out of the source: with a pattern, by "
            f"(?!{re.escape(str(written))}$) before it",
        )
