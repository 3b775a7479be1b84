"""Times as they come on real machines, with and without a change: what the gate is tried on.

A trace gives the time that a call would take at each moment of a run if nothing had been changed. Whose call it is then
only multiplies it. Made traces follow a law each; recorded ones are real calls under real trouble
(:mod:`waveproof.perf.record_traces`), of which a comparison takes successive calls from a random start on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from waveproof.perf.measure import PairedSamples
from waveproof.perf.sign_flips import Array

Draw = Callable[[np.random.Generator, int, int], Array]
"""Of a generator, comparisons m and calls n: [m, n] seconds of successive calls."""

FOLDER = Path(__file__).parent / "baselines" / "traces"
BASE = 300e-6
"""Seconds of an undisturbed call."""
USUAL_LOOKS = (20, 40, 80)
LONG_LOOKS = (20, 40, 80, 160, 320)
LONGEST_LOOKS = (20, 40, 80, 160, 320, 640)


@dataclass(frozen=True)
class Trace:
    """One kind of trouble."""

    name: str
    says: str
    draw: Draw
    looks: tuple[int, ...] = USUAL_LOOKS
    """Repetitions that the kind needs, in pairs."""
    tick: float = 0.0
    """Of the clock, in seconds; 0 where it is finer than anything that counts."""

    def observed(self, seconds: Array) -> Array:
        """What the clock shows: whole ticks, one at least."""
        if not self.tick:
            return seconds
        ticks: Array = np.maximum(np.round(seconds / self.tick), 1) * self.tick
        return ticks


@dataclass(frozen=True)
class Pairs:
    """Of m comparisons, n pairs each: seconds of both sides, and whether the candidate was first."""

    candidate: Array
    baseline: Array
    candidate_first: NDArray[np.bool_]

    def samples(self, comparison: int, seed: int = 0) -> PairedSamples:
        """One of them, in the form in which measuring gives it."""
        rows = (self.candidate[comparison], self.baseline[comparison])
        candidate, baseline = (tuple(float(one) for one in row) for row in rows)
        coins = tuple(bool(one) for one in self.candidate_first[comparison])
        return PairedSamples(candidate, baseline, coins, seed, ("drawn from a trace",), "trace")


def in_pairs(
    trace: Trace, draw: np.random.Generator, comparisons: int, pairs: int, factor: float = 1.0, coins: bool = True
) -> Pairs:
    """Comparisons as :func:`waveproof.perf.measure.measure_pair` makes them.

    Args:
        trace: whose times.
        draw: of trace and coins.
        comparisons: m.
        pairs: n of each.
        factor: by which the candidate is slower in every call; 1 is A/A.
        coins: whether the order in a pair is drawn; without, the candidate is always first, which is wrong.
    """
    calls = trace.draw(draw, comparisons, 2 * pairs).reshape(comparisons, pairs, 2)
    first = draw.random((comparisons, pairs)) < 0.5 if coins else np.ones((comparisons, pairs), dtype=bool)
    candidate = np.where(first, calls[..., 0], calls[..., 1]) * factor
    baseline = np.where(first, calls[..., 1], calls[..., 0])
    return Pairs(trace.observed(candidate), trace.observed(baseline), first)


def in_sequence(
    trace: Trace, draw: np.random.Generator, comparisons: int, calls: int, factor: float = 1.0
) -> tuple[Array, Array]:
    """[m, calls] of the candidate and of the baseline, which ran first, as benchmarks are usually compared."""
    times = trace.draw(draw, comparisons, 2 * calls)
    return trace.observed(times[:, calls:] * factor), trace.observed(times[:, :calls])


def noise(draw: np.random.Generator, m: int, n: int, spread: float = 0.01) -> Array:
    """Log-normal around 1."""
    return np.exp(spread * draw.standard_normal((m, n)))


def steady(draw: np.random.Generator, m: int, n: int) -> Array:
    """Independent, 1 % apart."""
    return BASE * noise(draw, m, n)


def ramp(draw: np.random.Generator, m: int, n: int) -> Array:
    """As the device warms up it gets 30 % slower, evenly over the run; or faster, in every other run."""
    slope = draw.choice([-0.3, 0.3], (m, 1))
    return BASE * noise(draw, m, n) * (1 + slope * np.arange(n) / n)


def walk(draw: np.random.Generator, m: int, n: int) -> Array:
    """Load of others comes and goes: a random walk with steps of 1 %."""
    return BASE * noise(draw, m, n) * np.exp(np.cumsum(0.01 * draw.standard_normal((m, n)), axis=1))


def bimodal(draw: np.random.Generator, m: int, n: int) -> Array:
    """Three calls of ten take 25 % longer, whichever they are: a placement, an address, a branch of the driver."""
    return BASE * noise(draw, m, n, 0.005) * np.where(draw.random((m, n)) < 0.3, 1.25, 1.0)


def sticky(draw: np.random.Generator, m: int, n: int) -> Array:
    """Two modes, 40 % apart, that last 20 calls on average (a Markov chain)."""
    turns = draw.random((m, n)) < 0.05
    turns[:, 0] = draw.random(m) < 0.5
    return BASE * noise(draw, m, n) * np.where(np.cumsum(turns, axis=1) % 2, 1.4, 1.0)


def heavy_tailed(draw: np.random.Generator, m: int, n: int) -> Array:
    """Student's t with 2 degrees of freedom, and in one call of eight a Pareto pause whose variance is infinite."""
    body = np.exp(np.clip(0.01 * draw.standard_t(2, (m, n)), -0.5, 5))
    pause = np.where(draw.random((m, n)) < 0.125, 0.1 * (1 + draw.pareto(1.2, (m, n))), 0.0)
    return BASE * (body + pause)


def throttling(draw: np.random.Generator, m: int, n: int) -> Array:
    """The clock steps down by a fifth at a moment of the run, in half of the runs for good."""
    start = draw.integers(0, n, (m, 1))
    end = np.where(draw.random((m, 1)) < 0.5, n, start + n // 8)
    at = np.arange(n)
    return BASE * noise(draw, m, n) * np.where((at >= start) & (at < end), 1.25, 1.0)


def warmed(draw: np.random.Generator, m: int, n: int) -> Array:
    """The second call of two finds caches warm and is 3 % faster."""
    return BASE * noise(draw, m, n) * np.where(np.arange(n) % 2, 0.97, 1.0)


def recorded(name: str) -> Draw:
    """Successive calls of a recording."""

    def draw_recorded(draw: np.random.Generator, m: int, n: int) -> Array:
        times = recorded_seconds(name)
        if n > len(times):
            raise ValueError(f"{name}: {n} calls of a recording of {len(times)}")
        start = draw.integers(0, len(times) - n + 1, (m, 1))
        calls: Array = times[start + np.arange(n)]
        return calls

    return draw_recorded


@lru_cache(maxsize=8)
def recorded_seconds(name: str) -> Array:
    """All times of a recording, in order."""
    return np.array(json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["nanoseconds"]) * 1e-9


TRACES: tuple[Trace, ...] = (
    Trace("steady", "independent, 1 % apart", steady),
    Trace("ramp", "30 % slower or faster over the run", ramp),
    Trace("walk", "random walk, 1 % a call", walk),
    Trace("bimodal", "30 % of calls take 25 % longer, at random", bimodal, LONG_LOOKS),
    Trace("sticky", "two modes 40 % apart that last 20 calls", sticky),
    Trace("heavy_tailed", "t with 2 degrees of freedom, Pareto pauses", heavy_tailed, LONG_LOOKS),
    Trace("throttling", "clock steps down by a fifth in the run", throttling),
    Trace("quantised", "1 % apart, a clock that ticks at 2 %", steady, tick=0.02 * BASE),
    Trace("warmed", "second call of two 3 % faster", warmed),
    Trace("recorded_idle", "real: nothing else started", recorded("recorded_idle"), (20, 40, 80, 160)),
    Trace("recorded_busy", "real: neighbours that stream and sleep", recorded("recorded_busy"), LONG_LOOKS),
    Trace("recorded_moved", "real: moved between a busy and a free core", recorded("recorded_moved"), LONGEST_LOOKS),
)
"""All kinds."""


def trace_of(name: str) -> Trace:
    """By its name.

    Raises:
        KeyError: there is none; the message lists what there is.
    """
    found = [one for one in TRACES if one.name == name]
    if not found:
        raise KeyError(f"no trace {name!r}: {', '.join(one.name for one in TRACES)}")
    return found[0]
