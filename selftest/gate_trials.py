"""What a gate must get right, as rules that any gate can be held against, quickly.

:mod:`waveproof.perf.gate_quality` measures rates at the gate's own alpha, for which it needs thousands of
comparisons. To tell a wrong gate from a right one a few hundred do: the rules here hold at any alpha, so they are
tried at a large one. A rule is broken where what is seen has a probability below :data:`DOUBT` for a gate that keeps
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from waveproof.perf.measure import BadSamples, PairedSamples
from waveproof.perf.records import Ruling
from waveproof.perf.sign_flips import Array, Rule, decide
from waveproof.perf.traces import BASE, Trace, in_pairs, steady, trace_of

Decider = Callable[[Array, Array, Rule], NDArray[np.str_]]
"""Outcomes of m comparisons: of candidate and baseline [m, n]."""
Judge = Callable[[PairedSamples], Ruling]

DOUBT = 1e-6
LEVEL = Rule(0.0, 0.002, 0.05, (10, 20, 30))
"""A large alpha, nothing tolerated, and next to nothing that passes early."""
MANY_LOOKS = Rule(0.0, 0.002, 0.2, (8, 10, 12, 14, 16, 18, 20))
COARSE = Trace("coarse", "1 % apart, a clock that ticks at 5 %", steady, tick=0.05 * BASE)
"""Most differences are 0."""
TROUBLED = (
    *(trace_of(name) for name in ("ramp", "walk", "bimodal", "sticky", "heavy_tailed", "throttling", "warmed")),
    COARSE,
)


@dataclass(frozen=True)
class Trial:
    """What was seen of one rule."""

    rule: str
    seen: int
    of: int
    rate: float
    """What the rule allows, at most; where ``at_least``, at least."""
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether a gate that keeps the rule may look like this."""
        from scipy.stats import binom

        low, high = binom.cdf(self.seen, self.of, self.rate), binom.sf(self.seen - 1, self.of, self.rate)
        return float(low if self.at_least else high) >= DOUBT


def ours(candidate: Array, baseline: Array, rule: Rule) -> NDArray[np.str_]:
    """The gate's outcomes."""
    return decide(candidate, baseline, rule).outcome


def trials(gate: Decider, comparisons: int = 60, coins: bool = True, seed: int = 0) -> tuple[Trial, ...]:
    """All rules that can be tried by counting.

    Args:
        gate: whose outcomes are counted.
        comparisons: of each kind of trace.
        coins: whether the order within pairs is drawn, as the design demands; without, the candidate is always first.
        seed: of all draws.
    """
    draw = np.random.default_rng(seed)

    def outcomes(kind: str | Trace, rule: Rule, factor: float = 1.0) -> NDArray[np.str_]:
        trace = trace_of(kind) if isinstance(kind, str) else kind
        pairs = in_pairs(trace, draw, comparisons, rule.looks[-1], factor, coins)
        return gate(pairs.candidate, pairs.baseline, rule)

    def alarms(found: Sequence[NDArray[np.str_]]) -> tuple[int, int]:
        flat = np.concatenate(found)
        return int(((flat == "regress") | (flat == "improve")).sum()), len(flat)

    def count(outcome: str, found: Sequence[NDArray[np.str_]]) -> tuple[int, int]:
        flat = np.concatenate(found)
        return int((flat == outcome).sum()), len(flat)

    usual, wide, few = Rule(0.005), Rule(0.03, 0.08, 0.05), Rule(0.005, 0.05, 0.05, (10, 20))
    to_find = (("steady", usual), ("ramp", usual), ("heavy_tailed", Rule(0.005, looks=(40, 160))))
    slower = [outcomes(name, rule, 1.05) for name, rule in to_find]
    faster = [outcomes(name, rule, 1 / 1.05) for name, rule in to_find]
    tolerated = [outcomes("steady", wide, factor) for factor in (1.03, 1 / 1.03)]
    uncertain = [outcomes("bimodal", few, factor) for factor in (1.05, 1 / 1.05)]
    return (
        Trial("no false alarm", *alarms([outcomes(trace, LEVEL) for trace in TROUBLED]), LEVEL.alpha),
        Trial("looks share alpha", *alarms([outcomes("steady", MANY_LOOKS) for _ in range(6)]), MANY_LOOKS.alpha),
        Trial("alike passes", *count("pass", [outcomes("steady", usual)]), 0.99, True),
        Trial("slower is found", *count("regress", slower), 0.99, True),
        Trial("faster is found", *count("improve", faster), 0.99, True),
        Trial("the tolerated is let be", *alarms(tolerated), wide.alpha),
        Trial("a pass rules out", *count("pass", uncertain), few.alpha),
        Trial("slow more often is found", *count("regress", [_often_slow(gate, draw, comparisons, True)]), 0.99, True),
        Trial("slow less often is found", *count("improve", [_often_slow(gate, draw, comparisons, False)]), 0.99, True),
    )


def _often_slow(gate: Decider, draw: np.random.Generator, comparisons: int, candidate: bool) -> NDArray[np.str_]:
    """Two calls of five of one side take half as long again, in steady times."""
    plain, slow = steady(draw, comparisons, 80), steady(draw, comparisons, 80)
    slow = slow * np.where(draw.random(slow.shape) < 0.4, 1.5, 1.0)
    return gate(slow, plain, Rule(0.005)) if candidate else gate(plain, slow, Rule(0.005))


def broken_rules(gate: Decider, coins: bool = True) -> list[str]:
    """Names of the rules that a gate breaks."""
    return [trial.rule for trial in trials(gate, coins=coins) if not trial.holds]


def like_pairs(**changes: Any) -> Any:
    """Forty pairs without a change, some fields of which are put in place of the right ones, unchecked."""
    samples = in_pairs(trace_of("steady"), np.random.default_rng(5), 1, 40).samples(0)
    return SimpleNamespace(**{**vars(samples), **changes})


def leaves_behind(slower: float, behind: float, pairs: int = 160) -> PairedSamples:
    """A candidate that is slower by a share, and whose call slows down the next one by another, as one that empties
    caches does. With twice as much behind both sides take as long on average.
    """
    draw = np.random.default_rng(6)
    first = draw.random(pairs) < 0.5
    candidates = np.stack([first, ~first], axis=1).ravel()
    times = steady(draw, 1, 2 * pairs)[0] * np.where(candidates, 1 + slower, 1)
    times[1:] *= np.where(candidates[:-1], 1 + behind, 1)
    candidate, baseline = (tuple(float(one) for one in times[candidates == side]) for side in (True, False))
    return PairedSamples(candidate, baseline, tuple(bool(one) for one in first), 6)


def not_to_be_judged() -> dict[str, Any]:
    """Samples that a gate must refuse, by what is wrong with them."""
    right = like_pairs()
    bad = {
        f"{side} {value}": like_pairs(**{side: (*getattr(right, side)[:-1], value)})
        for side in ("candidate", "baseline")
        for value in (math.nan, math.inf, 0.0, -1e-3)
    }
    return {
        **bad,
        "one time less": like_pairs(baseline=right.baseline[:-1]),
        "one coin less": like_pairs(candidate_first=right.candidate_first[:-1]),
        "no pairs": like_pairs(candidate=(), baseline=(), candidate_first=()),
        "candidate always first": like_pairs(candidate_first=(True,) * 40),
        "taking turns": like_pairs(candidate_first=(True, False) * 20),
        "two and two": like_pairs(candidate_first=(True, True, False, False) * 10),
        "ABBA BAAB": like_pairs(candidate_first=(True, False, False, True, False, True, True, False) * 5),
    }


def let_through(judge: Judge) -> list[str]:
    """What of :func:`not_to_be_judged` a gate judges all the same."""
    found = []
    for name, samples in not_to_be_judged().items():
        try:
            judge(samples)
        except BadSamples:
            continue
        found.append(name)
    return found
