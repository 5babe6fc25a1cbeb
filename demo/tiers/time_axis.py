"""The axis of time of the picture. A long phase in which no segment moves is drawn shorter than it was."""

from collections.abc import Sequence

from demo.svg import ticks
from demo.tiers.results import SPARK, Phase

SHARE_MAX = 0.2  # the length of the still phase, beside that of all others
TICK_COUNT = 12


class TimeAxis:
    """A scale from seconds to positions.

    Args:
        phases: of the scene; the axis begins with the first one and ends with the last one.
        left: the position of the begin.
        right: the position of the end.
    """

    def __init__(self, phases: Sequence[Phase], left: float, right: float) -> None:
        self._begin_s, self._end_s = phases[0].start_s, phases[-1].end_s
        self._left, self._right = left, right
        still = next((phase for phase in phases if phase.name == SPARK), None)
        self._still = Phase("", self._end_s, self._end_s) if still is None else still
        seconds = self._still.end_s - self._still.start_s
        others = self._end_s - self._begin_s - seconds
        drawn = min(seconds, others * SHARE_MAX)
        self._cut = 1 - drawn / seconds if seconds else 0.0  # of each second of the still phase
        self._length = max(others + drawn, 1e-9)

    def __call__(self, at_s: float) -> float:
        """Return the position of a time; that of the nearest end if the time is outside the axis."""
        at_s = min(max(at_s, self._begin_s), self._end_s)
        still_s = min(max(at_s - self._still.start_s, 0), self._still.end_s - self._still.start_s)
        share = (at_s - self._begin_s - still_s * self._cut) / self._length
        return self._left + share * (self._right - self._left)

    @property
    def shortened(self) -> Phase | None:
        """The phase that is drawn shorter than it was; None if there is none."""
        return self._still if self._cut else None

    def ticks(self) -> list[tuple[float, str]]:
        """Return times with their labels, in seconds since the begin. None of them is in the shortened phase."""
        length_s, still = self._end_s - self._begin_s, self.shortened
        count = max(int(TICK_COUNT * length_s / self._length), 1)
        times = [self._begin_s + since_s for since_s in ticks(0, length_s, count)]
        return [
            (at_s, f"{at_s - self._begin_s:g} s")
            for at_s in times
            if still is None or not still.start_s - 0.5 < at_s < still.end_s + 0.5
        ]
