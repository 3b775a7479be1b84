"""When a figure changed for good: change points in the history of one case, and how large the change was.

**Exact quantities.** Every change is one; there is no noise.

**Noisy quantities.** What is looked at is the logarithm of each run's median, so that effects are ratios. Two steps,
because the first is good at finding and the second at not being fooled:

1. PELT (Killick, Fearnhead and Eckley 2012) with the squared-error cost proposes, on winsorised values. It is exact for
   a penalty a change; ruptures implements it. The penalty is of BIC's form, ``3 * variance * log(n)``: each change has
   a mean and a place, and the third unit pays for an estimated variance. The variance is estimated from differences of
   successive runs, which a step hardly touches: ``(1.4826 * median |difference|)**2 / 2``.
2. Each proposal must survive the exact Wilcoxon-Mann-Whitney test between the runs before and after it, at
   ``alpha / (n - 1)``: Bonferroni over all places where a proposal could lie. It assumes no law of the times, outliers
   and several modes included; only that without a change the order of the nights tells nothing.

The second step also says how much history is needed (:func:`least_after`): ranks of few runs cannot be so improbable.
At alpha 0.01 a change is seen 6 nights after it where 8 were before it, after 5 where 10, 4 where 20 and 3 where 40
were; 7 and 7 are the least that ever tell anything.

Measured on 2,000 histories without a change each: at most 0.4 % were said to have one (30, 100 and 300 runs; normal,
Student's t with 2 degrees of freedom, two modes 20 % apart; most for two modes over 300). A step of 5 % in the middle,
where nights differ by 1 %, was found within two runs of its place in all of 100 histories (normal) and in 95 (Student's
t); one of 6 nights ago in all and in about 80. Between modes 20 % apart it is found half of the time at best: gate such
cases in pairs.

Slow drift has no such point. It is found by holding each run against the frozen anchor (:mod:`waveproof.perf.night`).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from waveproof.perf.history import Point
from waveproof.perf.records import version_changes

ALPHA = 0.01
"""Of one history: the probability that one without a change is said to have one."""

NEAREST = 40
"""Runs on each side of a change that are compared; more make it no clearer when it was."""

SHORTEST = 3
"""Runs between two changes."""

CONFIDENCE = 0.95
"""Of the interval of an effect."""


@dataclass(frozen=True)
class ChangePoint:
    """Between two successive runs."""

    index: int
    """Of the first point after it."""
    before: Point
    after: Point
    versions: tuple[str, ...]
    """What was installed otherwise after it than before: ``triton 3.9.0 -> 3.10.0``."""
    effect: float
    """After over before; the other way round where higher is better, so that above 1 is worse."""
    low: float
    """Of the effect's interval; the effect itself for exact quantities."""
    high: float
    confidence: float
    runs: tuple[int, int]
    """How many runs were compared, before and after."""

    @property
    def worse(self) -> bool:
        """Whether it was for the worse."""
        return self.effect > 1

    @property
    def when(self) -> tuple[datetime, datetime]:
        """The two runs that it lies between."""
        return self.before.when, self.after.when


def change_points(points: Sequence[Point], alpha: float = ALPHA) -> tuple[ChangePoint, ...]:
    """The changes in a history of one key, the oldest first.

    Args:
        points: as :meth:`waveproof.perf.history.History.series` gives them.
        alpha: of noisy quantities, see above.
    """
    if len(points) < 2:
        return ()
    if points[0].measurement.quantity.exact:
        pairs = itertools.pairwise(points)
        steps = [
            number for number, (one, next_) in enumerate(pairs, 1) if one.measurement.values != next_.measurement.values
        ]
        return tuple(_exactly(points, index) for index in steps)
    found = find_steps([logarithm(point.measurement.median) for point in points], alpha)
    return tuple(_noisily(points, step) for step in found)


@dataclass(frozen=True)
class Step:
    """A change in a row of values."""

    index: int
    shift: float
    """Hodges-Lehmann estimate: the median of all differences of one after and one before."""
    low: float
    high: float
    runs: tuple[int, int]


def find_steps(values: Sequence[float], alpha: float = ALPHA) -> tuple[Step, ...]:
    """Where the values of a row step up or down, as described above.

    Args:
        values: without NaN, in their order.
        alpha: probability of any step where the order is without meaning.
    """
    if len(values) < 2 * least_after(1, alpha, balanced=True):
        return ()
    kept = _proposed(values)
    while kept:
        ends = [0, *kept, len(values)]
        sides = [(values[max(a, b - NEAREST) : b], values[b : min(c, b + NEAREST)]) for a, b, c in _triples(ends)]
        chances = [mann_whitney(before, after) for before, after in sides]
        weakest = max(range(len(kept)), key=chances.__getitem__)
        if chances[weakest] <= alpha / (len(values) - 1):
            return tuple(_step(index, *side) for index, side in zip(kept, sides, strict=True))
        del kept[weakest]  # its neighbours are longer without it, and are asked again
    return ()


def least_after(before: int, alpha: float = ALPHA, balanced: bool = False) -> int:
    """So many runs after a change are needed to see it, where there are so many before it.

    Ranks of b and a runs have C(a+b, a) orders, and the two most extreme must be improbable enough together.

    Args:
        before: runs before it; too few for any number after it are taken for as many as there are after it.
        alpha: as in :func:`change_points`.
        balanced: as many before as after.
    """
    for after in range(1, 10_000):
        b = after if balanced else before
        if 2 * (b + after - 1) / math.comb(min(b, NEAREST) + min(after, NEAREST), min(after, NEAREST)) <= alpha:
            return after
        if after >= NEAREST and not balanced:
            return least_after(before, alpha, balanced=True)
    raise ValueError(f"alpha {alpha}: no history is long enough")


def mann_whitney(before: Sequence[float], after: Sequence[float]) -> float:
    """Two-sided p-value of the exact test; with ties the conservative one, in which they count against a shift."""
    ups = sum(a > b for b in before for a in after)
    downs = sum(a < b for b in before for a in after)
    orders = _orders(len(before), len(after))
    total = math.comb(len(before) + len(after), len(after))
    return min(1.0, 2 * sum(orders[max(ups, downs) :]) / total)


def logarithm(value: float) -> float:
    """Of a figure; what takes no time at all is taken to take a femtosecond, since 0 has none."""
    return math.log(max(value, 1e-15))


def _proposed(values: Sequence[float]) -> list[int]:
    """Places that PELT proposes."""
    import numpy as np
    import ruptures

    differences = sorted(abs(b - a) for a, b in itertools.pairwise(values))
    variance = (1.4826 * statistics.median(differences)) ** 2 / 2
    if variance == 0:  # more than half of the nights repeat the one before: as fine as the rest goes
        variance = max(statistics.fmean(differences) ** 2 / 2, 1e-24)
    row = np.asarray(_winsorised(values, 3 * math.sqrt(variance)))
    search = ruptures.KernelCPD(kernel="linear", min_size=SHORTEST).fit(row[:, None])
    return [int(place) for place in search.predict(pen=3 * variance * math.log(len(values)))[:-1]]


def _winsorised(values: Sequence[float], most: float) -> list[float]:
    """Values no further than that from the median of themselves and the two on each side: one odd night is no step."""
    near = [statistics.median(values[max(0, i - 2) : i + 3]) for i in range(len(values))]
    return [min(max(value, middle - most), middle + most) for value, middle in zip(values, near, strict=True)]


def _triples(ends: Sequence[int]) -> Iterable[tuple[int, int, int]]:
    return zip(ends, ends[1:], ends[2:], strict=False)


def _step(index: int, before: Sequence[float], after: Sequence[float]) -> Step:
    """A step with its size: the interval is of the differences that the exact test does not reject."""
    differences = sorted(a - b for b in before for a in after)
    orders = _orders(len(before), len(after))
    total = math.comb(len(before) + len(after), len(after))
    missed, rank = 0, 0
    while rank < len(differences) // 2 and 2 * (missed + orders[rank]) <= (1 - CONFIDENCE) * total:
        missed += orders[rank]
        rank += 1
    rank = max(rank, 1)
    ends = differences[rank - 1], differences[-rank]
    return Step(index, statistics.median(differences), *ends, (len(before), len(after)))


@lru_cache(maxsize=256)
def _orders(before: int, after: int) -> tuple[int, ...]:
    """In how many orders of distinct values so many pairs (one before, one after) ascend: a Gaussian binomial."""
    counts = [1] + [0] * (before * after)
    for k in range(1, after + 1):
        for place in range(before * after, before + k - 1, -1):
            counts[place] -= counts[place - before - k]
        for place in range(k, before * after + 1):
            counts[place] += counts[place - k]
    return tuple(counts)


def _exactly(points: Sequence[Point], index: int) -> ChangePoint:
    before, after = points[index - 1], points[index]
    effect = after.measurement.quantity.worsening(before.measurement.median, after.measurement.median)
    return ChangePoint(index, before, after, _installed(before, after), effect, effect, effect, 1.0, (1, 1))


def _noisily(points: Sequence[Point], step: Step) -> ChangePoint:
    before, after = points[step.index - 1], points[step.index]
    shift, low, high = step.shift, step.low, step.high
    if after.measurement.quantity.higher_is_better:
        shift, low, high = -shift, -high, -low
    return ChangePoint(
        step.index, before, after, _installed(before, after), math.exp(shift), math.exp(low), math.exp(high),
        CONFIDENCE, step.runs,
    )  # fmt: skip


def _installed(before: Point, after: Point) -> tuple[str, ...]:
    return version_changes(before.measurement.place.versions, after.measurement.place.versions)
