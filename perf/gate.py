"""The gate: what one comparison comes to, and why.

Four questions, each with its own rule and its own error rates:

* :func:`judge_pairs`: two sides measured in turns in one process. Alarms where they do not differ: at most ``alpha``,
  whatever the times do (:mod:`waveproof.perf.sign_flips` says why, and of what this is true). A pass at a change of
  ``detectable`` or more: at most ``alpha`` too, if that change is by a factor in every call.
* :func:`judge_ratio`: whether a fast path is at least so many times as fast as the slow one in the same run.
* :func:`judge_unpaired`: tonight's times against times that were stored. Nothing was randomised between two nights, so
  no error rate can be proven; what is assumed is said there.
* :func:`judge_exact`: counts. Two runs of the same versions give the same figure, so any change is real.

``regress`` and ``improve`` state a change beyond the tolerance. ``pass`` states that a change of ``detectable`` or more
is ruled out. What states neither is ``inconclusive``, with the number of pairs that would decide. A candidate below the
floor that memory and arithmetic set is never let pass: such a time is of work that was not done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from waveproof.perf.intervals import MedianInterval, TooFewRepeats, highest_rate, median_interval
from waveproof.perf.measure import BadSamples
from waveproof.perf.records import RATIO, SECONDS, Measurement, Ruling, version_changes
from waveproof.perf.sign_flips import (
    BadRule,
    Decisions,
    Rule,
    at_least_so_many,
    carried_over,
    decide,
    in_blocks,
    pairs_for_an_interval,
    pairs_to_decide,
    shift_intervals,
)

if TYPE_CHECKING:
    from waveproof.perf.measure import PairedSamples
    from waveproof.perf.records import Outcome

NO_COIN = 1e-5
"""An order of calls less likely than this, by its number of ``candidate first`` or by how often it differs from the
order of up to :data:`COIN_LAGS` pairs before, was not drawn by fair coins. One that was is refused once in 20,000 runs,
at most."""
COIN_LAGS = 4
"""Balanced plans repeat or turn over after two pairs (ABAB BABA) or four (ABBA BAAB)."""
CARRIED = 1e-3
"""Calls leave something behind where a dependence on the call before is less likely than this."""


class NotRandomised(BadSamples):
    """The order within pairs was not drawn by coins, so the inference has nothing to stand on."""


class NotComparable(ValueError):
    """Two figures that are not of one case, quantity and place; the message holds both."""


def judge_pairs(
    samples: PairedSamples,
    case: str,
    tolerance: float,
    detectable: float = 0.05,
    alpha: float = 0.001,
    looks: Sequence[int] = (20, 40, 80),
    floor_seconds: float = 0.0,
    block: int = 1,
) -> Ruling:
    """Candidate against baseline of one run.

    The looks are walked through as if the pairs came in one by one: the first that decides counts, so that measuring
    on would not have changed the answer. Pairs beyond the last look are looked at in its place.

    Args:
        samples: pairs in the order of measuring, each in an order drawn by a coin. Where the sides' calls per sample
            differ, the rates are exact only for the medians of symmetric noise.
        case: for the ruling.
        tolerance: a relative change that is let pass: see :mod:`waveproof.perf.thresholds`.
        detectable: the relative change that a pass rules out.
        alpha: of an alarm where the sides do not differ, both directions, both questions and all looks together.
        looks: numbers of pairs (of blocks, where ``block`` is above 1).
        floor_seconds: less than this the work cannot take on this device; 0 where that is not known.
        block: so many successive pairs make one observation: where a call leaves behind a state (caches, clocks) that
            changes later calls and differs between the sides. With single pairs such a state is looked for, and where
            it is found nothing passes and nothing is called faster.

    Raises:
        BadSamples: times are not positive and finite, or numbers differ.
        NotRandomised: the order within pairs is not one of fair coins.
        BadRule: tolerance, detectable, alpha or looks are out of range.
    """
    rule = Rule(tolerance, detectable, alpha, tuple(looks))
    _check(samples)
    if block < 1:
        raise BadSamples(f"block = {block}: a block has a pair at least")
    candidate, baseline = in_blocks(samples.candidate, block), in_blocks(samples.baseline, block)
    if not len(candidate):
        raise BadSamples(f"{len(samples.candidate)} pairs make no block of {block}")
    _check_coins(samples.candidate_first[: len(candidate) * block : block])
    made = decide(candidate[None, :], baseline[None, :], rule)
    outcome = cast("Outcome", str(made.outcome[0]))
    pairs, low, effect, high = int(made.pairs[0]), float(made.low[0]), float(made.effect[0]), float(made.high[0])
    seen = (
        f"{_percent(effect)} ({_percent(low)} to {_percent(high)}) after {pairs} {'pairs' if block == 1 else 'blocks'}"
    )
    reason = _why(made, seen, rule)
    tick = samples.resolution / min(np.median(candidate), np.median(baseline))
    if outcome == "pass" and max(-low, high) + tick >= math.log1p(detectable):
        outcome, reason = "inconclusive", f"the clock cannot tell {100 * tick:.2g} %: longer samples are needed; {seen}"
    coins = np.array(samples.candidate_first[:pairs], dtype=bool)
    if block == 1 and carried_over(candidate[:pairs], baseline[:pairs], coins) < CARRIED:
        outcome = outcome if outcome == "regress" else "inconclusive"
        reason = f"calls change what the next one takes: measure cold, or in longer blocks; {reason}"
    # Not the median: a candidate that skips its work in one call of ten is right in the others.
    outcome, reason = _above_floor(outcome, reason, min(samples.candidate) + samples.resolution, floor_seconds)
    exponents = (math.exp(effect), math.exp(low), math.exp(high))
    return Ruling(case, SECONDS.name, outcome, *exponents, 1 - alpha, tolerance, reason)


def judge_ratio(samples: PairedSamples, case: str, at_least: float, alpha: float = 0.001) -> Ruling:
    """Whether the candidate is at least so many times as fast as the baseline: the fast path against its fallback.

    All pairs are judged at once. The interval is exact where the baseline takes a constant multiple of the
    candidate's time, or where the log ratios are symmetric about their median. The ruling's effect is ``at_least``
    over the measured ratio, so that above 1 the fast path is slower than it has to be.

    Args:
        samples: the fast path as candidate, the slow one as baseline.
        case: for the ruling.
        at_least: the ratio of slow over fast that is due.
        alpha: of calling the ratio high enough, or too low, where it is not; together.

    Raises:
        BadSamples: times are not positive and finite, numbers differ, or ``at_least`` is not positive.
        NotRandomised: the order within pairs is not one of fair coins.
    """
    if not (math.isfinite(at_least) and at_least > 0):
        raise BadSamples(f"{case}: at_least = {at_least}: a ratio is positive and finite")
    _check(samples)
    _check_coins(samples.candidate_first)
    logs = np.log(samples.baseline) - np.log(samples.candidate)
    low, effect, high = (float(one[0]) for one in shift_intervals(logs[None, :], alpha))
    seen = f"{math.exp(effect):.3g} times as fast ({math.exp(low):.3g} to {math.exp(high):.3g}) in {len(logs)} pairs"
    outcome: Outcome
    if low >= math.log(at_least):
        outcome, reason = "pass", f"at least {at_least:g} times as fast is shown: {seen}"
    elif high < math.log(at_least):
        outcome, reason = "regress", f"less than {at_least:g} times as fast: {seen}"
    else:
        outcome, reason = "inconclusive", f"whether it is {at_least:g} times as fast is not shown: {seen}"
        if not math.isfinite(low):
            reason += f"; {pairs_for_an_interval(alpha)} pairs at least can show anything"
    due = math.log(at_least)
    exponents = (math.exp(due - effect), math.exp(due - high), math.exp(due - low))
    return Ruling(case, RATIO.name, outcome, *exponents, 1 - alpha, 0.0, reason)


def judge_exact(measured: Measurement, baseline: Measurement, against: str = "baseline") -> Ruling:
    """A count against its baseline: of the same versions any change is real, of others none can be judged.

    The effect is infinite where a count that was 0 is not 0 any more.

    Raises:
        NotComparable: they are not of one case, quantity and place, or the quantity is not exact.
    """
    _check_key(measured, baseline)
    if not (measured.quantity.exact and baseline.quantity.exact):
        raise NotComparable(f"{measured.case}: {measured.quantity.name} is not exact: judge_unpaired is for times")
    now, before = measured.values[0], baseline.values[0]
    effect = measured.quantity.worsening(before, now)
    unit = "" if measured.quantity.unit == "1" else f" {measured.quantity.unit}"
    figures = f"{measured.quantity.name} {before:.15g} -> {now:.15g}{unit}"
    outcome: Outcome
    if changed := version_changes(baseline.place.versions, measured.place.versions):
        outcome, reason = "stale", f"the {against} is of other versions ({', '.join(changed)}): {figures}"
    elif now == before:
        outcome, reason = "pass", f"unchanged: {figures}"
    else:
        outcome = "regress" if effect > 1 else "improve"
        reason = f"{'worse' if effect > 1 else 'better'}, and exact: {figures}"
    return Ruling(measured.case, measured.quantity.name, outcome, effect, effect, effect, 1.0, 0.0, reason, against)


def judge_unpaired(
    measured: Measurement,
    baseline: Measurement,
    tolerance: float,
    alpha: float = 0.001,
    detectable: float = 0.05,
    against: str = "baseline",
    floor_seconds: float = 0.0,
) -> Ruling:
    """Tonight's figures against those that were stored.

    **What is assumed.** Nothing was randomised between two nights: a machine that is warmer tonight looks like a
    slower kernel. So ``tolerance`` has to hold how much medians differ from one night to another where nothing
    changed (calibrated by A/A runs on different nights), and figures within a run are taken as independent. Then the
    interval of the ratio of medians covers with 1 - alpha or more: each median's interval is made of order statistics
    and covers with 1 - alpha/2. With drift or sticky modes within a run it is too narrow, and no rate is promised.
    Where the two can be measured in one run, :func:`judge_pairs` is the gate.

    Raises:
        NotComparable: they are not of one case, quantity and place; or the quantity is exact; or a median is 0.
        BadRule: tolerance, detectable or alpha are out of range.
    """
    _check_key(measured, baseline)
    Rule(tolerance, detectable, alpha)
    quantity = measured.quantity
    if quantity.exact:
        raise NotComparable(f"{measured.case}: {quantity.name} is exact: judge_exact is for counts")
    if not min(*measured.values, *baseline.values) > 0:
        raise NotComparable(f"{measured.case}: {quantity.name} = 0: a ratio of medians needs positive figures")
    now, then = (_median(one.values, 1 - alpha / 2) for one in (measured, baseline))
    ratios = (now.median / then.median, now.low / then.high, now.high / then.low)
    effect, low, high = ratios if not quantity.higher_is_better else (1 / ratios[0], 1 / ratios[2], 1 / ratios[1])
    covers = max(0.0, now.coverage + then.coverage - 1)
    seen = f"{_percent(math.log(effect))} ({_percent(math.log(low))} to {_percent(math.log(high))})"
    seen += f", medians {then.median:.4g} -> {now.median:.4g} {quantity.unit}"
    outcome: Outcome
    if changed := version_changes(baseline.place.versions, measured.place.versions):
        outcome, reason = "stale", f"the {against} is of other versions ({', '.join(changed)}): {seen}"
    elif covers < 1 - alpha - 1e-12:
        counts = f"{len(measured.values)} and {len(baseline.values)} figures"
        outcome, reason = "inconclusive", f"{counts} cannot cover with {1 - alpha:g}: more repeats; {seen}"
    elif low > 1 + tolerance:
        outcome, reason = "regress", f"worse by more than the tolerance of {100 * tolerance:g} %: {seen}"
    elif high < 1 / (1 + tolerance):
        outcome, reason = "improve", f"better by more than the tolerance of {100 * tolerance:g} %: {seen}"
    elif low > 1 / (1 + detectable) and high < 1 + detectable:
        outcome, reason = "pass", f"a change of {100 * detectable:g} % or more is ruled out: {seen}"
    else:
        outcome, reason = "inconclusive", f"neither a change nor its absence is shown: {seen}"
    if quantity.unit == "s":
        outcome, reason = _above_floor(outcome, reason, now.median, floor_seconds)
    return Ruling(measured.case, quantity.name, outcome, effect, low, high, covers, tolerance, reason, against)


def pairs_needed(spread: float, effect: float, tolerance: float, alpha: float = 0.001, power: float = 0.99) -> int:
    """Pairs after which one look finds a change, where log ratios are normal.

    The normal approximation ``((z_alpha/2 + z_power) spread / room)**2``, more by pi/3, for the signed-rank test has
    3/pi of the efficiency of the t test under this law (Hollander, Wolfe and Chicken, section 3.11), and by
    ``z_alpha/2**2 / 2`` for the spread is not known (W. C. Guenther, The American Statistician 35, 1981). For real log
    ratios, which have tails and modes, :func:`waveproof.perf.thresholds.pairs_to_find` tries it.

    Args:
        spread: standard deviation of a pair's log ratio.
        effect: the relative change: 0.05 is 5 %.
        tolerance: what is let pass.
        alpha: two-sided, of this look.
        power: the probability of finding it.

    Raises:
        BadRule: the effect is not above the tolerance, or the spread is not positive.
    """
    from scipy.stats import norm

    if not (spread > 0 and effect > tolerance >= 0):
        figures = f"spread = {spread}, effect = {effect}, tolerance = {tolerance}"
        raise BadRule(f"{figures}: the spread is positive and the effect above the tolerance")
    room = math.log1p(effect) - math.log1p(tolerance)
    quantile, other = float(norm.isf(alpha / 2)), float(norm.isf(1 - power))
    needed = math.pi / 3 * ((quantile + other) * spread / room) ** 2 + quantile**2 / 2
    return max(math.ceil(needed), pairs_for_an_interval(alpha))


def _check(samples: PairedSamples) -> None:
    sizes = (len(samples.candidate), len(samples.baseline), len(samples.candidate_first))
    if not sizes[0] or len(set(sizes)) != 1:
        raise BadSamples(
            f"{sizes[0]} times, {sizes[1]} of the baseline, {sizes[2]} coins: as many each, and one at least"
        )
    for side, values in (("candidate", samples.candidate), ("baseline", samples.baseline)):
        for pair, value in enumerate(values):
            if not (math.isfinite(value) and value > 0):
                raise BadSamples(f"{side}, pair {pair}: {value} s: times are positive and finite")


def _check_coins(candidate_first: Sequence[bool]) -> None:
    coins = np.array(candidate_first, dtype=bool)
    changed = [(f"the order changed from {lag} before", coins[lag:] != coins[:-lag]) for lag in range(1, COIN_LAGS + 1)]
    for what, heads in (("the candidate was first", coins), *changed):
        count, of = int(heads.sum()), len(heads)
        tails = at_least_so_many(np.array([[count, of - count], [of - count, count]]))
        if 2 * float(tails.min()) < NO_COIN:
            raise NotRandomised(
                f"{what} in {count} of {of}: no order that fair coins draw, so drift can pass for a change"
            )


def _check_key(measured: Measurement, baseline: Measurement) -> None:
    if measured.key != baseline.key or measured.quantity != baseline.quantity:
        raise NotComparable(f"{measured.key} against {baseline.key}: one case, quantity and place")


def _median(values: Sequence[float], coverage: float) -> MedianInterval:
    """Where there are too few for the coverage, smallest to largest and what that covers."""
    try:
        return median_interval(values, coverage)
    except TooFewRepeats:
        return MedianInterval(float(np.median(values)), min(values), max(values), 1 - 2.0 ** (1 - len(values)))


def _why(made: Decisions, seen: str, rule: Rule) -> str:
    """What the one decision rests on: the shift, how often a side is slow, or how many pairs are missing."""
    outcome, pairs = made.outcome[0], int(made.pairs[0])
    low, effect, high = (float(end[0]) for end in (made.low, made.effect, made.high))
    only, other = (int(count) for count in made.slow[0])
    slow = f"slow, more than {200 * rule.detectable:g} % above the median, is only the candidate in {only}"
    slow += f" and only the baseline in {other}"
    if outcome == "pass":
        slow += f" of {pairs} pairs, so that up to {100 * highest_rate(only, pairs):.0f} % of its calls may be"
        return f"a change of {100 * rule.detectable:g} % or more of the typical call is ruled out: {seen}; {slow}"
    if outcome != "inconclusive" and made.by_shift[0]:
        word = "slower" if outcome == "regress" else "faster"
        return f"{word} by more than the tolerance of {100 * rule.tolerance:g} %: {seen}"
    if outcome != "inconclusive":
        word = "more" if outcome == "regress" else "less"
        return f"slow {word} often: {slow} of {pairs} pairs; typical call: {seen}"
    if not math.isfinite(low):
        needed = pairs_for_an_interval(rule.alpha_shift)
        return f"{pairs} pairs cannot exclude anything at alpha = {rule.alpha:g}: {needed} at least"
    if low > -math.log1p(rule.detectable) and high < math.log1p(rule.detectable):
        return f"{slow} of {pairs} pairs, too uneven to pass and too few to tell: measure more; typical call: {seen}"
    needed = pairs_to_decide(low, effect, high, pairs, rule)
    return f"neither a change nor its absence is shown: {seen}; about {needed} pairs would decide"


def _above_floor(outcome: Outcome, reason: str, seconds: float, floor_seconds: float) -> tuple[Outcome, str]:
    """What is below the floor is never let pass, and stays slower where it is slower all the same."""
    if not seconds < floor_seconds:
        return outcome, reason
    below = f"faster than memory allows: {seconds:.3g} s, the floor is {floor_seconds:.3g} s; {reason}"
    return outcome if outcome == "regress" else "improve", below


def _percent(log_ratio: float) -> str:
    if not math.isfinite(log_ratio):
        return "any change"
    return f"{100 * math.expm1(log_ratio):+.2f} %"
