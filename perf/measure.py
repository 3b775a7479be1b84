"""Time several ways of doing one thing so that they can be compared: interleaved, paired, with an exact interval.

Load on a shared machine comes and goes over seconds. So the forms take turns within each repeat, in an order that
rotates, and what is compared is the ratio within a repeat. No law is assumed of the times: the interval of a median is
made of order statistics and its coverage is a binomial sum (David and Nagaraja, *Order Statistics*, 3rd edition,
section 7.1).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


class TooFewRepeats(ValueError):
    """No interval of order statistics has the coverage that was asked for."""


@dataclass(frozen=True)
class MedianInterval:
    """A sample's median, and an interval that holds the median of the law with probability ``coverage`` or more."""

    median: float
    low: float
    high: float
    coverage: float


def median_interval(values: Sequence[float], coverage: float = 0.95) -> MedianInterval:
    """The narrowest interval between the r-th smallest and the r-th largest value that covers enough.

    It misses on one side where fewer than r values lie there: a binomial probability at 1/2, whatever the law.

    Raises:
        TooFewRepeats: not even smallest to largest covers enough; six values are needed for 0.95.
    """
    ordered, count = sorted(values), len(values)
    best: MedianInterval | None = None
    missed = 0.0
    for rank in range(1, (count + 1) // 2 + 1):
        missed += 2 * math.comb(count, rank - 1) / 2**count
        if 1 - missed < coverage:
            break
        best = MedianInterval(statistics.median(ordered), ordered[rank - 1], ordered[-rank], 1 - missed)
    if best is None:
        raise TooFewRepeats(f"{count} repeats cannot cover a median with probability {coverage}: more are needed")
    return best


def interleaved_seconds(forms: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Wall seconds of each form in each repeat, after one call of each that does not count."""
    for form in forms.values():
        form()
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    names = list(forms)
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            forms[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def paired_ratios(seconds: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """How many times as long as the baseline of the same repeat."""
    return [one / other for one, other in zip(seconds, baseline, strict=True)]
