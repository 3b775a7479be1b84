r"""What can be concluded from pairs whose order was drawn by a coin, for many comparisons at once.

**Randomisation inference** (R. A. Fisher, *The Design of Experiments*, 1935, section 21). In pair i two calls are made
one after the other; a fair coin decides which of them is the candidate's. Let it be true that it makes no difference
whose call it is. Then the two times of a pair are what they are, whatever law, drift, mode or clock made them, and
only the *sign* of :math:`l_i = \log(c_i / b_i)` is left to chance: :math:`l_i = s_i |l_i|` with independent fair
signs. Every statistic therefore has a known law, given all the times. Nothing is assumed of the times: they may be
dependent, of different laws, without moments. What is assumed is of the *design*: that the coins are fair and
independent of what happens, and that whose call it was does not change a later pair (no cache or clock state is
left behind that differs between the sides). Where it might, only the signs of blocks that are long against the memory
are trusted: :func:`in_blocks`.

**Effect and interval** (M. Hollander, D. A. Wolfe and E. Chicken, *Nonparametric Statistical Methods*, 3rd edition,
sections 3.1 to 3.3). The Hodges-Lehmann estimate is the median of the Walsh averages :math:`(l_i + l_j)/2`, i <= j.
The signed-rank statistic of :math:`l - \theta` is the number of Walsh averages above :math:`\theta`, so the shifts
that the exact two-sided test at ``alpha`` does not reject are those between the k-th smallest and the k-th largest
Walsh average, where k is the largest with :math:`P(T \le k - 1) \le` ``alpha``/2 and T is the sum of those ranks 1
... n whose coin shows heads. At shift 0 this is exact by design; at another shift it takes in addition that the
candidate is that many times as slow in every call (a multiplicative shift).

**Ties and zeros.** A clock that ticks makes equal and zero differences. The *closed* interval keeps its level then
(G. E. Noether, "Wilcoxon confidence intervals for location parameters in the discrete case", JASA 62, 1967): add
symmetric noise of size epsilon to the differences; coverage is exact for each epsilon, the ends are continuous in the
differences, and in the limit the closed interval can only gain. Hence a shift is excluded only where it lies strictly
outside.

**How often it is slow** (Q. McNemar, Psychometrika 12, 1947). A candidate that falls into a slow mode in one call of
ten hardly moves a median. So calls are called slow above a threshold that depends on all times of both sides together,
hence not on the coins. Of the pairs in which exactly one call is slow it is the candidate's with probability 1/2: an
exact binomial test. The candidate's times are divided by 1 + tolerance first, which can only lower its count, so that
equal sides still alarm at most at the stated rate.

**Looks.** With L looks each test is made at ``alpha``/L (Bonferroni): whatever the rule for stopping at one of them, at
most ``alpha`` in all. Who stops elsewhere, after a glance at the times, takes a look that nobody counted. The two
questions share ``alpha`` by :data:`SHARE_OF_SLOW`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SHARE_OF_SLOW = 0.2
"""Of alpha that is spent on how often a side is slow; the rest is spent on the shift."""
LEANING = (0.1, 0.01)
"""One-sided probabilities of the slow pairs below which nothing passes: at an early look, where more pairs can be had,
and at the last one. They spend no alpha, for not to pass is no alarm."""
MOST_PAIRS = 1000
"""The law of the statistic and the Walsh averages take time and memory as the square and more of the pairs."""
ROUNDING = 1e-12
"""Of log ratios: a change of exactly the tolerance is let pass, and one of exactly what is to be found is not."""
CELLS = 2_000_000
"""Of Walsh averages that are held at a time."""


class BadRule(ValueError):
    """A rule that cannot be followed; the message holds the value and the bound."""


@dataclass(frozen=True)
class Rule:
    """When what is said.

    Raises:
        BadRule: a value lies outside of its range.
    """

    tolerance: float
    """A relative change that is let pass, both ways: 0.02 lets the ratio be 1/1.02 to 1.02."""
    detectable: float = 0.05
    """The relative change that a pass rules out."""
    alpha: float = 0.001
    """The probability of an alarm, slower and faster together, where the sides do not differ."""
    looks: tuple[int, ...] = (20, 40, 80)
    """Numbers of pairs after which it is judged."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise BadRule(f"alpha = {self.alpha}: it lies between 0 and 1")
        if not 0 <= self.tolerance < self.detectable < 10:
            raise BadRule(
                f"tolerance = {self.tolerance}, detectable = {self.detectable}: 0 <= tolerance < detectable; where "
                "runs without a change differ that much, state a larger change to be found"
            )
        if not self.looks or list(self.looks) != sorted(set(self.looks)) or self.looks[0] < 2:
            raise BadRule(f"looks = {self.looks}: numbers of pairs that rise, from 2")
        if self.looks[-1] > MOST_PAIRS:
            raise BadRule(f"looks = {self.looks}: at most {MOST_PAIRS} pairs")

    @property
    def alpha_shift(self) -> float:
        """Of one two-sided test of the shift at one look."""
        return self.alpha * (1 - SHARE_OF_SLOW) / len(self.looks)

    @property
    def alpha_slow(self) -> float:
        """Of one two-sided test of how often a side is slow, at one look."""
        return self.alpha * SHARE_OF_SLOW / len(self.looks)

    def looks_at(self, pairs: int) -> tuple[int, ...]:
        """The looks that so many pairs allow; what lies beyond the last is looked at in its place."""
        return (*(look for look in self.looks[:-1] if look < pairs), pairs)


@dataclass(frozen=True)
class Decisions:
    """Of m comparisons; each array has m entries."""

    outcome: NDArray[np.str_]
    """``pass``, ``regress``, ``improve`` or ``inconclusive``."""
    pairs: NDArray[np.int64]
    """After how many pairs."""
    low: Array
    """Of log(candidate / baseline)."""
    effect: Array
    high: Array
    slow: NDArray[np.int64]
    """[m, 2] pairs in which only the candidate, and only the baseline, is slow."""
    by_shift: NDArray[np.bool_]
    """Whether a ``regress`` or ``improve`` is the shift's; otherwise it is only that one side is slow more often."""


@lru_cache(maxsize=256)
def critical_rank(pairs: int, alpha: float) -> int:
    """The k of the interval between the k-th smallest and the k-th largest Walsh average; 0 where there is none.

    The law of T by recursion over ranks: half of it stays, half of it moves up by the rank. All terms are positive,
    so sums of 64-bit floats lose nothing that counts.
    """
    sums = np.zeros(pairs * (pairs + 1) // 2 + 1)
    sums[0] = 1.0
    for rank in range(1, pairs + 1):
        sums[rank:] = (sums[rank:] + sums[:-rank]) / 2
        sums[:rank] /= 2
    return int(np.searchsorted(np.cumsum(sums), alpha / 2, side="right"))


def pairs_for_an_interval(alpha: float) -> int:
    """The fewest pairs that can exclude anything: all signs alike have probability 2 / 2**n."""
    return int(np.ceil(1 - np.log2(alpha)))


def shift_intervals(logs: Array, alpha: float) -> tuple[Array, Array, Array]:
    """Lower end, Hodges-Lehmann estimate and upper end of each row.

    Args:
        logs: [m, n] logarithms of candidate over baseline.
        alpha: two-sided; the ends are infinite where n is below :func:`pairs_for_an_interval`.

    Raises:
        BadRule: there are more pairs than :data:`MOST_PAIRS`.
    """
    m, n = logs.shape
    if n > MOST_PAIRS:
        raise BadRule(f"{n} pairs: at most {MOST_PAIRS} are judged at once")
    first, second = np.triu_indices(n)
    count = len(first)
    rank = critical_rank(n, alpha)
    places = sorted({max(rank - 1, 0), (count - 1) // 2, count // 2, min(count - rank, count - 1)})
    ends = np.empty((3, m))
    step = max(1, CELLS // count)
    for start in range(0, m, step):
        rows = logs[start : start + step]
        walsh = np.partition((rows[:, first] + rows[:, second]) / 2, places, axis=1)
        ends[0, start : start + step] = walsh[:, rank - 1] if rank else -np.inf
        ends[1, start : start + step] = (walsh[:, (count - 1) // 2] + walsh[:, count // 2]) / 2
        ends[2, start : start + step] = walsh[:, count - rank] if rank else np.inf
    return ends[0], ends[1], ends[2]


def slow_pairs(candidate: Array, baseline: Array, factor: float, above: float) -> NDArray[np.int64]:
    """[m, 2]: in how many pairs only the candidate, and only the baseline, is slow.

    Args:
        candidate: [m, n] seconds.
        baseline: [m, n] seconds.
        factor: by which the candidate's times are divided before they are compared with the threshold.
        above: a call is slow that takes more than 1 + ``above`` times the median of both sides.
    """
    threshold = (1 + above) * np.median(np.concatenate([candidate, baseline], axis=1), axis=1, keepdims=True)
    slow, other = candidate / factor > threshold, baseline > threshold
    return np.stack([(slow & ~other).sum(axis=1), (~slow & other).sum(axis=1)], axis=1)


def carried_over(candidate: Array, baseline: Array, candidate_first: NDArray[np.bool_]) -> float:
    """How likely it is that a pair's first call seems to depend so much on whose call was the last before it.

    Where calls leave nothing behind, the coin of the pair before says nothing of this pair. A candidate that empties
    caches slows down what follows, the baseline mostly, and seems the faster for it. Within pairs of one order, first
    call over second is compared by ranks between both coins of the pair before (H. B. Mann and D. R. Whitney, 1947).

    Args:
        candidate: [n] seconds.
        baseline: [n] seconds.
        candidate_first: [n] the coins.
    """
    from scipy.stats import mannwhitneyu

    logs = np.where(candidate_first, 1, -1) * (np.log(candidate) - np.log(baseline))
    after_candidate = ~candidate_first[:-1]
    for order in (True, False):
        if (candidate_first == order).any():
            logs[candidate_first == order] -= np.median(logs[candidate_first == order])
    one, other = logs[1:][after_candidate], logs[1:][~after_candidate]
    if not len(one) or not len(other) or np.ptp(logs) < ROUNDING:
        return 1.0
    return float(mannwhitneyu(one, other).pvalue)


def at_least_so_many(counts: NDArray[np.int64]) -> Array:
    """P(X >= counts[:, 0]) where X is the number of heads of counts.sum(axis=1) fair coins."""
    from scipy.stats import binom

    tail: Array = binom.sf(counts[:, 0] - 1, counts.sum(axis=1), 0.5)
    return tail


def decide(candidate: Array, baseline: Array, rule: Rule) -> Decisions:
    """Judge m comparisons of up to n pairs each: look by look, until each is decided.

    Args:
        candidate: [m, n] positive finite seconds; pairs in the order in which they were measured.
        baseline: [m, n] of the other call of each pair.
        rule: when what is said.
    """
    m, n = candidate.shape
    logs = np.log(candidate) - np.log(baseline)
    made = Decisions(
        np.full(m, "inconclusive", dtype="<U12"), np.zeros(m, np.int64), np.zeros(m), np.zeros(m), np.zeros(m),
        np.zeros((m, 2), np.int64), np.zeros(m, np.bool_),
    )  # fmt: skip
    left = np.arange(m)
    for look in rule.looks_at(n):
        low, effect, high = shift_intervals(logs[left, :look], rule.alpha_shift)
        sides, scale = (candidate[left, :look], baseline[left, :look]), 1 + rule.tolerance
        worse = at_least_so_many(slow_pairs(*sides, scale, 2 * rule.detectable))
        better = at_least_so_many(slow_pairs(*sides, 1 / scale, 2 * rule.detectable)[:, ::-1])
        tolerated, found = np.log1p(rule.tolerance) + ROUNDING, np.log1p(rule.detectable) - ROUNDING
        leaning = LEANING[1] if look == max(n, rule.looks[-1]) else LEANING[0]
        regress = (low > tolerated) | (worse <= rule.alpha_slow / 2)
        improve = ~regress & ((high < -tolerated) | (better <= rule.alpha_slow / 2))
        within = (low > -found) & (high < found) & (np.minimum(worse, better) > leaning)
        outcome = np.select([regress, improve, within], ["regress", "improve", "pass"], "inconclusive")
        made.outcome[left], made.pairs[left] = outcome, look
        made.low[left], made.effect[left], made.high[left] = low, effect, high
        made.slow[left] = slow_pairs(*sides, 1.0, 2 * rule.detectable)
        made.by_shift[left] = np.where(regress, low > tolerated, high < -tolerated)
        left = left[outcome == "inconclusive"]
        if not len(left):
            break
    return made


def pairs_to_decide(low: float, effect: float, high: float, pairs: int, rule: Rule) -> int:
    """How many pairs would decide if the effect stayed where it is: the interval narrows as the root of the pairs.

    The interval has to fit between the effect and the nearest bound that it must clear for some outcome.
    """
    tolerated, found = float(np.log1p(rule.tolerance)), float(np.log1p(rule.detectable))
    room = max(found - abs(effect), abs(effect) - tolerated)
    half = max(high - effect, effect - low)
    if not np.isfinite(half):
        return pairs_for_an_interval(rule.alpha_shift)
    return max(pairs + 1, int(np.ceil(pairs * (half / room) ** 2)))


def in_blocks(values: Sequence[float], size: int) -> Array:
    """[n // size] geometric means of blocks of ``size`` successive times; what is left over at the end is dropped.

    The mean log ratio of a block changes its sign if all of the block's coins are turned over, so signs of blocks are
    fair coins under the same design, and still are where one coin was drawn for the whole block.
    """
    whole = len(values) // size * size
    logs = np.log(np.asarray(values[:whole], dtype=float)).reshape(-1, size)
    means: Array = np.exp(logs.mean(axis=1))
    return means
