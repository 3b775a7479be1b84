"""How counts grow with context and batch: the exponent, and the rule that linear stays linear.

Counts of a kernel that is linear in n keys are ``a + b * T * ceil(n / T) + e(n)``: a constant, work in whole tiles of T
keys (all splits' tiles together), and what the first and last iterations of a software pipeline do differently, which
no longer depends on n once every split has a few whole tiles. Two things follow.

*The constant* falls out of increments ``D(i) = c(n(i+1)) - c(n(i))``. A log-log slope of the counts themselves does not
lose it: under a large constant a quadratic looks flat.

*Tiles.* Between two sizes w apart lie from ``(w - T) / T`` to ``(w + T) / T`` tile borders. So ``D(j) / D(i) <= (w(j) +
T) / (w(i) - T)`` for every pair of increments of a linear kernel, wherever the borders are. Where all sizes are whole
tiles the bound is ``w(j) / w(i)`` exactly, and since counts are exact, nothing is allowed beyond it: under doubling the
exponent of increments is at most 1, not about 1. So a term in n^2 or n log n is seen however small.

The exponent over a ladder that doubles is ``log2(D(last) / D(first)) / (increments - 1)``: p, for ``a + b n^p``. Beside
it stands the p of a least-squares fit of ``a + b n^p`` to the counts (:func:`scipy.optimize.curve_fit`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from waveproof.golden.judges.judgement import Judgement
from waveproof.perf.counts import CountCase

LINEAR = "linear stays linear"
RULES = (LINEAR,)


class TooFewSizes(ValueError):
    """Sizes do not rise, or there are too few of them for two increments; the message holds them."""


@dataclass(frozen=True)
class Fit:
    """``constant + factor * n ** exponent``, by least squares of relative errors."""

    constant: float
    factor: float
    exponent: float
    worst: float
    """Largest relative error of the curve."""


@dataclass(frozen=True)
class Power:
    """What a ladder can tell from a linear kernel: the exponent that the other growth shows on it, and the bound."""

    bound: float
    n_log_n: float
    quadratic: float

    @property
    def tells_n_log_n(self) -> bool:
        """Whether ``n log n`` lies beyond the bound."""
        return self.n_log_n > self.bound

    @property
    def tells_quadratic(self) -> bool:
        """Whether ``n ** 2`` lies beyond the bound."""
        return self.quadratic > self.bound


def increments(counts: Sequence[int]) -> tuple[int, ...]:
    """Differences of neighbours."""
    return tuple(after - before for before, after in itertools.pairwise(counts))


def exponent(sizes: Sequence[int], counts: Sequence[int]) -> float:
    """p of ``a + b n^p`` from the first and the last increment; sizes have a common ratio.

    0 where the last increment is 0: nothing grows any more. Infinite where the first alone is.

    Raises:
        TooFewSizes: fewer than three sizes, or they have no common ratio.
    """
    _require(sizes, counts)
    ratio = sizes[1] / sizes[0]
    if any(after != before * ratio for before, after in itertools.pairwise(sizes)):
        raise TooFewSizes(f"sizes {tuple(sizes)} have no common ratio, so that increments have no exponent")
    grown = increments(counts)
    if grown[-1] <= 0:
        return 0.0
    if grown[0] <= 0:
        return math.inf
    return math.log(grown[-1] / grown[0], ratio) / (len(grown) - 1)


def fit(sizes: Sequence[int], counts: Sequence[int]) -> Fit:
    """The curve ``a + b n^p`` through counts; p within 0.05 and 4.

    Raises:
        TooFewSizes: fewer than four sizes: three parameters go through three points, whatever they are.
    """
    import numpy
    from numpy.typing import NDArray
    from scipy.optimize import curve_fit

    _require(sizes, counts, least=4)
    x = [size / sizes[0] for size in sizes]
    top = float(max(counts)) or 1.0
    y = [value / top for value in counts]

    def curve(n: NDArray[numpy.float64], a: float, b: float, p: float) -> NDArray[numpy.float64]:
        return a + b * n**p

    slope = (y[-1] - y[0]) / (x[-1] - x[0])
    start = (max(y[0] - slope, 0.0), max(slope, 1e-9), 1.0)
    found, _ = curve_fit(
        curve, numpy.array(x), numpy.array(y), p0=start, sigma=numpy.array([value or 1.0 for value in y]),
        bounds=([-2.0, 0.0, 0.05], [2.0, math.inf, 4.0]), max_nfev=20_000,
    )  # fmt: skip
    a, b, p = (float(value) for value in found)
    errors = [abs(a + b * n**p - value) / (value or 1.0) for n, value in zip(x, y, strict=True)]
    return Fit(a * top, b * top / sizes[0] ** p, p, max(errors))


def bound(first: int, last: int, tile: int) -> float:
    """The largest ratio of two increments of a linear kernel over widths ``first`` and ``last``, in keys.

    Infinite where the first may lie between two borders of tiles.
    """
    return (last + tile) / (first - tile) if first > tile else math.inf


def judge_linear(sizes: Sequence[int], counts: Sequence[int], tile: int = 0, where: str = "") -> Judgement:
    """Whether no pair of increments grows faster than a linear kernel's may.

    Args:
        sizes: rising; keys, or requests.
        counts: exact, one for each size.
        tile: keys in a step of work of the whole call; 0 where all sizes are whole tiles, each split having had a few.
        where: for the message.

    Raises:
        TooFewSizes: fewer than three sizes, they do not rise, or none is further from the next than a tile is wide.
    """
    _require(sizes, counts)
    widths, grown = increments(sizes), increments(counts)
    derivation = (
        "D(j)/D(i) <= (w(j) + T)/(w(i) - T) for increments over w keys, tiles of T keys; on whole tiles w(j)/w(i)"
    )
    worst, message, judged = 0.0, "", 0
    for j in range(1, len(grown)):
        for i in range(j):
            if widths[i] <= tile:
                continue
            judged += 1
            # In whole numbers: counts are exact, and so is the bound.
            most, found = max(grown[i], 0) * (widths[j] + tile), max(grown[j], 0) * (widths[i] - tile)
            excess = found / most if most else (math.inf if found else 0.0)
            if found > most and excess > worst:
                message = (
                    f"{where + ': ' if where else ''}{sizes[j]:,} to {sizes[j + 1]:,} adds {grown[j]:,}, "
                    f"{sizes[i]:,} to {sizes[i + 1]:,} added {grown[i]:,}: at most "
                    f"{bound(widths[i], widths[j], tile):.3g} times as much is linear"
                )
            worst = max(worst, excess)
    if not judged:
        raise TooFewSizes(f"sizes {tuple(sizes)}: no increment is wider than a tile of {tile}, so that none is judged")
    return Judgement(LINEAR, not message, worst, 1.0, "of the largest linear increment", derivation, message)


def power(sizes: Sequence[int], tile: int = 0) -> Power:
    """What is told on these sizes, by exponents over the whole ladder; bounds on single pairs tell more, never less."""
    _require(sizes, sizes)
    widths = increments(sizes)
    ratio, steps = sizes[1] / sizes[0], len(widths) - 1

    def of(growth: Callable[[int], float]) -> float:
        values = [growth(size) for size in sizes]
        return math.log((values[-1] - values[-2]) / (values[1] - values[0]), ratio) / steps

    limit = bound(widths[0], widths[-1], tile)
    return Power(
        math.log(limit, ratio) / steps if math.isfinite(limit) else math.inf,
        of(lambda n: n * math.log2(n)),
        of(lambda n: float(n * n)),
    )


def _require(sizes: Sequence[int], counts: Sequence[int], least: int = 3) -> None:
    if len(sizes) < least or len(sizes) != len(counts) or any(a >= b for a, b in itertools.pairwise(sizes)):
        raise TooFewSizes(f"sizes {tuple(sizes)} with {len(counts)} counts: {least} rising sizes or more are needed")


@dataclass(frozen=True)
class Ladder:
    """Calls of one implementation that differ in one size."""

    name: str
    """``decode``, ``verify`` or ``prefill``, with the provider."""
    axis: str
    """``keys`` or ``batch``."""
    sizes: tuple[int, ...]
    case: Callable[[int], CountCase]
    why: str
    """Why counts are in whole tiles on these sizes."""

    @property
    def cases(self) -> tuple[CountCase, ...]:
        """In the order of sizes."""
        return tuple(self.case(size) for size in self.sizes)
