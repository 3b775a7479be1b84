"""Intervals: of a median by order statistics, of any statistic by bootstrap, of a rate by Clopper and Pearson.

An interval of order statistics assumes that figures are independent and no law of them; its coverage is a binomial sum
(David and Nagaraja, *Order Statistics*, 3rd edition, section 7.1). A bootstrap interval is approximate.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

FEWEST_RESAMPLED = 4
"""Figures of a sample below which resampling tells nothing."""
RESAMPLES = 1000


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


def bootstrap_interval(statistic: Callable[..., Any], *samples: Sequence[float]) -> tuple[float, float] | None:
    """Percentile interval of 95 % by resampling each sample on its own, with a fixed seed.

    Args:
        statistic: of as many arrays as there are samples, along the keyword ``axis``: :func:`numpy.median`.
        samples: figures.

    Returns:
        the ends, or None where a sample has fewer than :data:`FEWEST_RESAMPLED` figures.
    """
    import numpy as np
    from scipy import stats

    if min(map(len, samples)) < FEWEST_RESAMPLED:
        return None
    arrays = tuple(np.asarray(sample) for sample in samples)
    if all(len(set(sample)) == 1 for sample in samples):
        only = float(statistic(*arrays, axis=-1))
        return only, only
    ends = stats.bootstrap(
        arrays, statistic, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return float(ends.low), float(ends.high)


def highest_rate(count: int, of: int, confidence: float = 0.95) -> float:
    """The upper one-sided Clopper-Pearson limit of a probability by which ``count`` of ``of`` came about."""
    from scipy.stats import beta

    return float(beta.ppf(confidence, count + 1, of - count)) if count < of else 1.0


def lowest_rate(count: int, of: int, confidence: float = 0.95) -> float:
    """The lower one-sided Clopper-Pearson limit, see :func:`highest_rate`."""
    from scipy.stats import beta

    return float(beta.ppf(1 - confidence, count, of - count + 1)) if count else 0.0
