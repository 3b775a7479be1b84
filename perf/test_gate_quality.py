"""The gate's error rates on every kind of trace, and what others do on the same: a part of ``waveproof perf quality``.

Each assertion states its law. Draws are seeded, so a failure is one of the gate and not of chance.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from waveproof.perf.gate_quality import (
    GATE,
    LEAST_FOUND,
    MOST_FALSE_ALARMS,
    compare_fail,
    mann_whitney,
    quality_on,
)
from waveproof.perf.traces import TRACES, Trace, in_sequence, trace_of

pytestmark = [pytest.mark.rocm, pytest.mark.perf]

UNCHANGED, CHANGED = 600, 200
DOUBT = 1e-4


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
def test_gate_keeps_its_error_rates(trace: Trace) -> None:
    """600 comparisons without a change and 200 with +5 %.

    The number of false alarms is binomial with a rate of at most 1 in 1,000, that of changes found with a rate of at
    least 0.99, that of changes passed with a rate of at most 1 in 1,000: each bound is one that such a number exceeds
    with a probability below 1e-4.
    """
    (found,) = quality_on(trace, (GATE,), UNCHANGED, CHANGED, seed=1)
    alarms_allowed = int(binom.isf(DOUBT, UNCHANGED, MOST_FALSE_ALARMS))
    due = int(binom.ppf(DOUBT, CHANGED, LEAST_FOUND))
    assert found.alarms <= alarms_allowed, f"{found.alarms} of {UNCHANGED} A/A comparisons alarm"
    assert found.found >= due, f"{found.found} of {CHANGED} found after {found.times} pairs, {due} are due"
    assert found.missed <= int(binom.isf(DOUBT, CHANGED, MOST_FALSE_ALARMS)), f"{found.missed} changes passed"
    assert found.unchanged_open <= 0.05 * UNCHANGED, f"{found.unchanged_open} of {UNCHANGED} A/A are left open"


@pytest.mark.parametrize(
    ("method", "trace"),
    [
        (compare_fail("mean:5%"), "heavy_tailed"),
        (compare_fail("median:5%"), "ramp"),
        (compare_fail("min:5%"), "throttling"),
        (mann_whitney(0.001, "sequence"), "recorded_busy"),
        (mann_whitney(0.001, "pairs"), "warmed"),
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_the_same_trace_misleads_another_method(method: object, trace: str) -> None:
    """More false alarms than 1 in 1,000 can be: the traces are not harmless. 8 of 600 or more have probability 3e-7."""
    (found,) = quality_on(trace_of(trace), (method,), UNCHANGED, 100, seed=1)  # type: ignore[arg-type]
    assert found.alarms >= 8


def test_figures_given_to_the_check_of_pytest_benchmark_are_its_own() -> None:
    """Its Stats, filled time by time, and numpy agree, and so do the verdicts."""
    from pytest_benchmark.stats import Stats
    from pytest_benchmark.utils import parse_compare_fail

    trace = trace_of("recorded_idle")
    candidate, baseline = in_sequence(trace, np.random.default_rng(2), 40, 80, 1.05)
    for expression in ("mean:5%", "median:5%", "min:5%"):
        said = compare_fail(expression).says(candidate, baseline, trace).slower
        check = parse_compare_fail(expression)
        for number in range(40):
            rows = []
            for times in (candidate[number], baseline[number]):
                stats = Stats()
                for one in times:
                    stats.update(float(one))
                rows.append(stats.as_dict())
            assert bool(check.fails(*rows)) == said[number]
