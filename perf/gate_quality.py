"""How good the gate is, and others beside it: false alarms, changes found, and what stays open, by kind of trace.

All get the same number of times of each side. The gate and an interleaved Mann-Whitney test get them in pairs in an
order drawn by coins; pytest-benchmark's ``--benchmark-compare-fail`` and a plain Mann-Whitney test get one side after
the other, as they are used (without the hours that lie between in practice, which is in their favour). The check of
pytest-benchmark is its own class; the figures that it is given are computed with numpy, for its own are slow.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from waveproof.perf.intervals import highest_rate, lowest_rate
from waveproof.perf.sign_flips import Array, Rule, decide
from waveproof.perf.thresholds import LEAST_TOLERANCE
from waveproof.perf.traces import TRACES, Trace, in_pairs, in_sequence

MOST_FALSE_ALARMS = 1e-3
LEAST_FOUND = 0.99
CHANGE = 1.05
BATCH = 2000
"""Comparisons that are drawn at a time, for memory."""
CONFIDENCE = 0.95
"""Of the one-sided Clopper-Pearson limits."""


@dataclass(frozen=True)
class Said:
    """Of m comparisons; a method that does not know the last two never says them."""

    slower: NDArray[np.bool_]
    faster: NDArray[np.bool_]
    open: NDArray[np.bool_]
    """Inconclusive."""
    used: NDArray[np.int64]
    """Times of each side."""


@dataclass(frozen=True)
class Method:
    """One way of comparing."""

    name: str
    order: Literal["pairs", "sequence"]
    says: Callable[[Array, Array, Trace], Said]
    """Of candidate and baseline, [m, n] each."""


@dataclass(frozen=True)
class Quality:
    """Of one method on one kind of trace."""

    trace: str
    method: str
    times: int
    """Of each side, at most."""
    used: float
    """Of each side, on average over comparisons without a change."""
    unchanged: int
    """Comparisons without a change."""
    alarms: int
    """Of these, called slower or faster."""
    unchanged_open: int
    changed: int
    """Comparisons with a candidate that is 5 % slower in every call."""
    found: int
    """Of these, called slower."""
    changed_open: int

    @property
    def most_alarms(self) -> float:
        """Upper Clopper-Pearson limit of the rate."""
        return highest_rate(self.alarms, self.unchanged, CONFIDENCE)

    @property
    def least_found(self) -> float:
        """Lower Clopper-Pearson limit of the rate."""
        return lowest_rate(self.found, self.changed, CONFIDENCE)

    @property
    def missed(self) -> int:
        """Changes that were let pass, or called faster."""
        return self.changed - self.found - self.changed_open

    @property
    def holds(self) -> bool:
        """Whether it is as required: at most 1 false alarm in 1,000, and 99 of 100 changes found."""
        return self.alarms <= MOST_FALSE_ALARMS * self.unchanged and self.found >= LEAST_FOUND * self.changed


def rule_for(trace: Trace) -> Rule:
    """The gate's, with the least tolerance there is: nothing but its inference keeps alarms down."""
    return Rule(LEAST_TOLERANCE, CHANGE - 1, MOST_FALSE_ALARMS, trace.looks)


def gate(candidate: Array, baseline: Array, trace: Trace) -> Said:
    """Ours."""
    made = decide(candidate, baseline, rule_for(trace))
    return Said(made.outcome == "regress", made.outcome == "improve", made.outcome == "inconclusive", made.pairs)


def compare_fail(expression: str) -> Method:
    """``pytest --benchmark-compare --benchmark-compare-fail=expression``; it knows slower only."""
    from pytest_benchmark.utils import parse_compare_fail

    check: Any = parse_compare_fail(expression)
    figures: dict[str, Any] = {"mean": np.mean, "median": np.median, "min": np.min}
    figure = figures[check.field]

    def says(candidate: Array, baseline: Array, trace: Trace) -> Said:
        now, before = figure(candidate, axis=1).tolist(), figure(baseline, axis=1).tolist()
        both = zip(now, before, strict=True)
        fails = [bool(check.fails({check.field: one}, {check.field: other})) for one, other in both]
        return _said(np.array(fails), np.zeros(len(fails), dtype=bool), candidate)

    return Method(f"pytest-benchmark {expression}", "sequence", says)


def mann_whitney(alpha: float, order: Literal["pairs", "sequence"]) -> Method:
    """scipy's, two-sided; which side is slower is said by the rank sum."""

    def says(candidate: Array, baseline: Array, trace: Trace) -> Said:
        from scipy.stats import mannwhitneyu

        found = mannwhitneyu(candidate, baseline, axis=1, method="asymptotic")
        differs = found.pvalue < alpha
        above = found.statistic > candidate.shape[1] * baseline.shape[1] / 2
        return _said(differs & above, differs & ~above, candidate)

    how = "interleaved" if order == "pairs" else "one after the other"
    return Method(f"Mann-Whitney {alpha:g}, {how}", order, says)


def _said(slower: NDArray[np.bool_], faster: NDArray[np.bool_], candidate: Array) -> Said:
    never = np.zeros(len(slower), dtype=bool)
    return Said(slower, faster, never, np.full(len(slower), candidate.shape[1]))


GATE = Method("waveproof gate", "pairs", gate)


def methods() -> tuple[Method, ...]:
    """All, ours first."""
    return (
        GATE,
        *(compare_fail(expression) for expression in ("mean:5%", "median:5%", "min:5%", "median:2%")),
        *(mann_whitney(alpha, "sequence") for alpha in (0.05, 0.001)),
        *(mann_whitney(alpha, "pairs") for alpha in (0.05, 0.001)),
    )


def quality_on(trace: Trace, chosen: Sequence[Method], unchanged: int, changed: int, seed: int = 0) -> list[Quality]:
    """Each method on comparisons without a change and on comparisons with one; the same draws for all of an order.

    Args:
        trace: the kind.
        chosen: methods.
        unchanged: comparisons of a side with itself.
        changed: comparisons with a side that takes 5 % longer.
        seed: of all draws, together with the trace's name.
    """
    draw = np.random.default_rng([seed, *trace.name.encode()])
    times = trace.looks[-1]
    counts: defaultdict[tuple[str, float], Counter[str]] = defaultdict(Counter)
    for factor, comparisons in ((1.0, unchanged), (CHANGE, changed)):
        for start in range(0, comparisons, BATCH):
            size = min(BATCH, comparisons - start)
            pairs = in_pairs(trace, draw, size, times, factor)
            sequence = in_sequence(trace, draw, size, times, factor)
            sides = {"pairs": (pairs.candidate, pairs.baseline), "sequence": sequence}
            for method in chosen:
                said = method.says(*sides[method.order], trace)
                counts[method.name, factor].update({name: int(one.sum()) for name, one in vars(said).items()})

    def quality(method: Method) -> Quality:
        alike, apart = counts[method.name, 1.0], counts[method.name, CHANGE]
        return Quality(
            trace.name,
            method.name,
            times,
            used=alike["used"] / unchanged,
            unchanged=unchanged,
            alarms=alike["slower"] + alike["faster"],
            unchanged_open=alike["open"],
            changed=changed,
            found=apart["slower"],
            changed_open=apart["open"],
        )

    return [quality(method) for method in chosen]


def qualities(
    comparisons: int, traces: Iterable[Trace] = TRACES, seed: int = 0, changed: int = 0
) -> tuple[list[Quality], float]:
    """All methods on the kinds, and the seconds that it took.

    Args:
        comparisons: without a change, of each kind.
        traces: kinds.
        seed: of all draws.
        changed: comparisons with a change; a fifth of the others, and 500 at least, where not given.
    """
    started = time.monotonic()
    found = changed or max(500, comparisons // 5)
    chosen = methods()
    made = [one for trace in traces for one in quality_on(trace, chosen, comparisons, found, seed)]
    return made, time.monotonic() - started
