"""Statistics of paired measurements: the interval of a mean ratio, and the verdict on it.

Two variants are measured in turn, in short slices. Neighbouring slices give one ratio, so that what else the machine does
at that moment weighs on both. A pair is a number of slices in the same processes; processes differ a little from each
other, so the interval is that of the pairs. Ratios are averaged by their logarithms: 2 and 1/2 are equally far from 1.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

CONFIDENCE = 0.95
SLOWER_BELOW = 0.97  # of the ratio old cost / new cost
PAIRS_MIN = 7


class Verdict(Enum):
    """Conclusion from an interval of old cost / new cost."""

    SLOWER = "slower"  # the whole interval lies below SLOWER_BELOW
    UNDECIDED = "undecided"  # SLOWER_BELOW lies in the interval
    HOLDS = "holds"  # the whole interval lies at SLOWER_BELOW or above


@dataclass(frozen=True, slots=True)
class Interval:
    """Geometric mean of paired ratios, and the confidence interval of that mean; both ends inclusive."""

    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """Conclusion: a slow-down is claimed only where the upper end of the interval shows it."""
        if self.high < SLOWER_BELOW:
            return Verdict.SLOWER
        return Verdict.HOLDS if self.low >= SLOWER_BELOW else Verdict.UNDECIDED


def t_quantile(confidence: float, degrees: int) -> float:
    """Two-sided quantile of Student's t distribution: P(|T| <= result) = confidence.

    Args:
        confidence: greater than 0 and less than 1.
        degrees: degrees of freedom, at least 1.
    """
    assert 0 < confidence < 1, confidence
    assert degrees >= 1, degrees
    high = 1.0
    while _t_probability(high, degrees) < confidence:
        high *= 2
    low = 0.0
    for _ in range(200):  # each step halves the interval, down to the precision of a float
        middle = (low + high) / 2
        if _t_probability(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return high


def _t_probability(t: float, degrees: int) -> float:
    """P(|T| <= t), by the finite series for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    is_odd = degrees % 2 == 1
    term = cosine if is_odd else 1.0
    total = 0.0
    for power in range(2 if is_odd else 1, degrees, 2):
        total += term
        term *= cosine * cosine * power / (power + 1)
    if is_odd:
        return 2 / math.pi * (angle + sine * total)
    return sine * total


def pair_ratio(old: Sequence[float], new: Sequence[float]) -> float:
    """Old cost / new cost of one pair: the mean of the middle half of the ratios of its slices.

    A slice in which the machine did something else is far from the others, and is left out.

    Args:
        old: cost of each slice, greater than 0.
        new: cost of the slice that was measured right before or after it.
    """
    logarithms = sorted(math.log(before / after) for before, after in zip(old, new, strict=True))
    cut = len(logarithms) // 4
    return math.exp(statistics.fmean(logarithms[cut : len(logarithms) - cut]))


def ratio_interval(ratios: Sequence[float]) -> Interval:
    """Interval of the mean of old cost / new cost, by Student's t. Greater than 1: the new one is cheaper.

    Args:
        ratios: one of each pair, at least two.
    """
    assert len(ratios) >= 2, len(ratios)
    logarithms = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logarithms)
    error = statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    half = t_quantile(CONFIDENCE, len(logarithms) - 1) * error
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
