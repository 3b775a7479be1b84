"""Judge a sampler by its samples: both error rates stated, before anything is drawn and with each verdict.

**Two ways to be wrong.** A test of a random sample may reject a right implementation (a *false alarm*, rate ``alpha``)
or let a wrong one pass (a *miss*, rate 1 - ``power``). The first is chosen. The second depends on how wrong the
implementation is, so a p-value without it says little. Every :class:`Evidence` therefore names the smallest deviation
(``detectable``) that its test finds with the stated ``power``, and every test has two design twins, to be asked before
a sample is paid for: which deviation do so many samples find (:func:`detectable_bias`, :func:`detectable_distance`),
and how many samples does a deviation need (:func:`samples_needed`, :func:`uniforms_needed`)?

**Alarms add up.** A thousand tests at 1e-3 alarm about once a run, and a red run that is nobody's fault teaches people
to run it again. A :class:`~.budget.Budget` holds what a whole run may spend, hands each test its alpha, and can be
printed.

**The likelihood-ratio test** (:func:`g_test`). With c_i draws of outcome i of probability p_i among n,
G = 2 sum c_i ln(c_i / (n p_i)), which tends to a chi-square of k - 1 degrees of freedom. What keeps that true:

* Cells whose expectation is below :data:`LEAST_EXPECTED` are merged, in the order of their expectation, until each
  merged cell reaches it. The order knows nothing of the counts, so this costs no validity, but a shift *within* a
  merged cell is not seen: ``Evidence.merged`` is the probability that lies in such cells.
* G is divided by Williams' factor (Biometrika 63 (1976) 33-37), which mends its mean to the order of 1/n. Measured
  where it is worst, 300 cells all exactly at the limit, 300,000 samples: false alarms 1.01 times alpha at 1e-2, 0.94
  times at 1e-3, 1.07 times at 1e-4 (without the factor: twice and more).
* Rare outcomes get a test of their own, which is exact: were n draws to show an outcome as rare as the rarest one
  seen? It has a tenth of alpha, G the rest, and ``p_value`` is the smaller of both after that weighting. An impossible
  outcome that occurred is its limit: p = 0. (G alone would merge that outcome with others and forget it.)

**What it detects.** Under another law q, G is about noncentral chi-square with noncentrality 2 n KL(q || p), and by
Pinsker's inequality KL >= 2 TV^2, whatever the direction of q. So TV = sqrt(lambda / (4 n)), lambda being the
noncentrality that is found with the wanted power, is a bound over *all* directions among the (merged) cells. It is
attained by raising half of the mass by a common factor and lowering the other half; every other direction is found
more easily. To be sure of every direction among the outcomes themselves, add ``merged`` (``detectable_anywhere``).

**Two samples** (:func:`two_sample_g`, :func:`two_sample_dkw`) have no law to start from and compare two
implementations, say an engine with speculation on and off. The same bounds hold with n_a n_b / (n_a + n_b) for n,
since by Pinsker 2 n_a KL(p_a || m) + 2 n_b KL(p_b || m) >= 4 TV^2 n_a n_b / (n_a + n_b), m being the mixture.

**Uniforms** (:func:`dkw_test`): probability-integral transforms, or the coins themselves. P(sup |F_n - F| > e) <=
2 exp(-2 n e^2) for every n (Dvoretzky, Kiefer, Wolfowitz; the constant 2 is Massart's, Ann. Probab. 18 (1990)
1269-1283); the p-value is the exact one, which lies below. A law at sup-distance d moves the distribution function by
d at one point, where Hoeffding's inequality bounds how far the sample falls short, so ``detectable`` holds for every n.

A p-value of one of these is honest for *one* look at a sample of a size fixed before. To watch a stream and stop when
it looks bad, use :mod:`waveproof.golden.judges.martingale`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

LEAST_EXPECTED = 10.0
"""Expectation below which a cell is merged with others."""
RARE_SHARE = 0.1
"""Of alpha, for the test of the rarest outcome."""
POWER = 0.99

Floats = NDArray[np.float64]


CASE_ALPHA = 1e-6
"""False-alarm rate of one case of the suite: a run has hundreds of them, and is red by chance once in thousands."""


class UnusableSample(ValueError):
    """Counts, probabilities or uniforms that no test can be made of."""


@dataclass(frozen=True)
class Evidence:
    """What one test found, with both of its error rates."""

    method: str
    n: int
    """Draws; of both samples together where there are two."""
    statistic: float
    df: int
    """Degrees of freedom; 0 where the method has none, or nothing is left to compare."""
    p_value: float
    alpha: float
    """False-alarm rate."""
    detectable: float
    """Deviation that is found with ``power``: total variation among the (merged) cells, or sup-distance (DKW)."""
    power: float
    merged: float = 0.0
    """Probability of the outcomes that share a cell with others: a shift within a cell is not seen."""

    @property
    def rejects(self) -> bool:
        """Whether the sample speaks against the law."""
        return self.p_value < self.alpha

    @property
    def detectable_anywhere(self) -> float:
        """Total variation that is found with ``power`` wherever it lies, within merged cells too; at most 1."""
        return min(1.0, self.detectable + self.merged)


def g_test(counts: ArrayLike, probs: ArrayLike, alpha: float, power: float = POWER) -> Evidence:
    """Whether counts are draws from a law.

    Args:
        counts: whole numbers [k], of independent draws.
        probs: [k], summing to 1 within 1e-6; zeros are outcomes that must not occur.
        alpha: false-alarm rate.
        power: that ``detectable`` is stated for.

    Raises:
        UnusableSample: not two vectors of one length, a negative, broken or not finite entry, no law.
    """
    observed, law = _counts(counts, "counts"), _law(probs)
    if observed.shape != law.shape:
        raise UnusableSample(f"counts of {observed.size} outcomes where probs has {law.size}: one each is due")
    n = int(observed.sum())
    cells = merged_cells(n * law)
    expected, found = np.bincount(cells, n * law), np.bincount(cells, observed)
    df = max(len(expected) - 1, 0)
    rare = _rarest_p_value(observed, law)
    if rare == 0.0:
        statistic, p_value = math.inf, 0.0
    elif df:
        raw = stats.power_divergence(found, expected, lambda_="log-likelihood").statistic
        statistic = float(raw) / (1.0 + (n * float((1.0 / expected).sum()) - 1.0) / (6.0 * n * df))
        p_value = _weighted(float(stats.chi2.sf(statistic, df)), rare)
    else:
        statistic, p_value = 0.0, _weighted(1.0, rare)
    found_with_power = detectable_from(df, n, alpha, power)
    return Evidence("G", n, statistic, df, p_value, alpha, found_with_power, power, _merged_mass(cells, law))


def two_sample_g(counts_a: ArrayLike, counts_b: ArrayLike, alpha: float, power: float = POWER) -> Evidence:
    """Whether two vectors of counts [k] are draws from one law, which is not known.

    Cells are merged by what is expected of the smaller sample given the sum of both, on which the test is conditional.

    Raises:
        UnusableSample: not two vectors of one length, or a negative, broken or not finite entry.
    """
    samples = np.stack(_paired(_counts(counts_a, "counts_a"), _counts(counts_b, "counts_b")))
    sizes, total = samples.sum(1), samples.sum(0)
    n = float(sizes.sum())
    share = total / max(n, 1.0)
    cells = merged_cells(float(sizes.min()) * share)
    table = np.stack([np.bincount(cells, sample) for sample in samples])
    df = max(table.shape[1] - 1, 0)
    statistic, p_value = 0.0, 1.0
    if df:
        raw = stats.chi2_contingency(table, correction=False, lambda_="log-likelihood").statistic
        rows, columns = (n * float((1.0 / sums).sum()) - 1.0 for sums in (sizes, table.sum(0)))
        statistic = float(raw) / (1.0 + rows * columns / (6.0 * n * df))
        p_value = float(stats.chi2.sf(statistic, df))
    effective = float(sizes.prod()) / n if n else 0.0
    found_with_power = detectable_from(df, effective, alpha, power, share=1.0)
    merged = _merged_mass(cells, share)
    return Evidence("two-sample G", int(n), statistic, df, p_value, alpha, found_with_power, power, merged)


def detectable_bias(probs: ArrayLike, n: int, alpha: float, power: float = POWER) -> float:
    """Total variation, in any direction among the merged cells, that :func:`g_test` of n draws finds with ``power``."""
    cells = merged_cells(n * _law(probs))
    return detectable_from(int(cells.max(initial=0)), n, alpha, power)


def samples_needed(probs: ArrayLike, total_variation: float, alpha: float, power: float = POWER) -> int:
    """Draws with which :func:`g_test` finds a total variation (0 to 1, exclusive) among its cells with ``power``.

    Raises:
        UnusableSample: a law of one possible outcome, which has no direction to be wrong in but the impossible.
    """
    law = _law(probs)
    df = int((law > 0.0).sum()) - 1
    if df < 1:
        raise UnusableSample("a law of one possible outcome: no number of draws shows a bias among possible outcomes")
    if not 0.0 < total_variation < 1.0:
        raise UnusableSample(f"total variation {total_variation} is not between 0 and 1")
    # Merging only lowers the degrees of freedom, so that without it is enough; bisect to what is needed.
    enough = math.ceil(_noncentrality(df, (1.0 - RARE_SHARE) * alpha, power) / (4.0 * total_variation**2))
    few = 0
    while enough - few > 1:
        middle = (enough + few) // 2
        if detectable_bias(law, middle, alpha, power) <= total_variation:
            enough = middle
        else:
            few = middle
    return enough


def dkw_test(uniforms: ArrayLike, alpha: float, power: float = POWER) -> Evidence:
    """Whether independent numbers [n] are uniform on [0, 1]; ``statistic`` is the sup-distance.

    Raises:
        UnusableSample: a number outside [0, 1], or not a vector.
    """
    sample = _unit_numbers(uniforms)
    n = len(sample)
    tested = stats.ks_1samp(sample, stats.uniform.cdf, method="exact") if n else None
    return Evidence(
        "DKW",
        n,
        float(tested.statistic) if tested else 0.0,
        0,
        float(tested.pvalue) if tested else 1.0,
        alpha,
        detectable_distance(n, alpha, power),
        power,
    )


def two_sample_dkw(uniforms_a: ArrayLike, uniforms_b: ArrayLike, alpha: float, power: float = POWER) -> Evidence:
    """Whether two samples of numbers in [0, 1] come from one law; ``statistic`` is the sup-distance.

    Raises:
        UnusableSample: a number outside [0, 1], or not vectors.
    """
    a, b = _unit_numbers(uniforms_a), _unit_numbers(uniforms_b)
    n = len(a) + len(b)
    tested = stats.ks_2samp(a, b) if len(a) and len(b) else None
    return Evidence(
        "two-sample DKW",
        n,
        float(tested.statistic) if tested else 0.0,
        0,
        float(tested.pvalue) if tested else 1.0,
        alpha,
        detectable_distance(len(a) * len(b) / n if n else 0.0, alpha, power),
        power,
    )


def detectable_distance(n: float, alpha: float, power: float = POWER) -> float:
    """Sup-distance that :func:`dkw_test` of n uniforms finds with ``power``; 1 where there is none."""
    return min(1.0, _distance_scale(alpha, power) / math.sqrt(n)) if n else 1.0


def uniforms_needed(distance: float, alpha: float, power: float = POWER) -> int:
    """Uniforms with which :func:`dkw_test` finds a sup-distance (above 0) with ``power``."""
    return math.ceil((_distance_scale(alpha, power) / distance) ** 2)


def most_false_alarms(runs: int, alpha: float, confidence: float = 0.999) -> int:
    """Most alarms among independent right runs that a rate of alpha explains with ``confidence``."""
    return int(stats.binom.ppf(confidence, runs, alpha))


def merged_cells(expected: Floats) -> NDArray[np.int64]:
    """Which cell each outcome [k] belongs to, numbered without gaps from the smallest expectation up.

    What is left over in the end, too little for a cell, joins the last one. Outcomes of expectation 0 go to cell 0,
    to whose sums they add nothing. Which of equals share a cell is drawn from a fixed seed: outcomes are often listed
    as they were first seen, those of one sample before those of the other, and cells that follow such a list are
    biased.
    """
    order = np.lexsort((np.random.default_rng(0).permutation(len(expected)), expected))
    cells = np.zeros(len(expected), np.int64)
    running = np.cumsum(expected[order])
    start, cell, before = 0, 0, 0.0
    while start < len(order):
        # A rounding of the sums must not leave a cell of exactly the limit below it.
        end = int(np.searchsorted(running, before + LEAST_EXPECTED * (1.0 - 1e-9)))
        if end >= len(order):
            cells[order[start:]] = max(cell - 1, 0)
            break
        cells[order[start : end + 1]] = cell
        start, cell, before = end + 1, cell + 1, float(running[end])
    return cells


def detectable_from(df: int, n: float, alpha: float, power: float, share: float = 1.0 - RARE_SHARE) -> float:
    """Total variation that a chi-square test of ``df`` degrees of freedom finds with ``power`` among ``n`` draws.

    Args:
        df: degrees of freedom; below 1 nothing is found but what cannot occur, and the answer is 1.
        n: draws; of two samples their product over their sum.
        alpha: false-alarm rate of the whole test.
        power: probability to find it.
        share: of alpha that goes to this test.
    """
    if df < 1 or n <= 0.0:
        return 1.0
    return min(1.0, math.sqrt(_noncentrality(df, share * alpha, power) / (4.0 * n)))


def _noncentrality(df: int, alpha: float, power: float) -> float:
    """Of the chi-square that exceeds its central twin's critical value with the power."""
    return float(special.chndtrinc(stats.chi2.isf(alpha, df), df, 1.0 - power))


def _distance_scale(alpha: float, power: float) -> float:
    """Massart's critical distance and Hoeffding's shortfall at one point, both times the root of n."""
    return math.sqrt(math.log(2.0 / alpha) / 2.0) + math.sqrt(-math.log(1.0 - power) / 2.0)


def _rarest_p_value(counts: Floats, law: Floats) -> float:
    """Probability that as many draws show any outcome that is at most as probable as the rarest one seen."""
    seen = law[counts > 0]
    if not len(seen):
        return 1.0
    mass = min(1.0, float(law[law <= seen.min()].sum()))
    return 1.0 if mass == 1.0 else abs(math.expm1(float(counts.sum()) * math.log1p(-mass)))


def _weighted(common: float, rare: float) -> float:
    return min(1.0, common / (1.0 - RARE_SHARE), rare / RARE_SHARE)


def _merged_mass(cells: NDArray[np.int64], law: Floats) -> float:
    possible = law > 0.0
    members = np.bincount(cells[possible], minlength=int(cells.max(initial=0)) + 1)
    return float(law[possible & (members[cells] > 1)].sum())


def _counts(counts: ArrayLike, name: str) -> Floats:
    vector = _vector(counts, name)
    if (vector < 0).any() or (vector != np.floor(vector)).any():
        raise UnusableSample(
            f"{name} holds {vector[(vector < 0) | (vector != np.floor(vector))][0]}, which is no count"
        )
    return vector


def _law(probs: ArrayLike) -> Floats:
    law = _vector(probs, "probs")
    if (law < 0).any() or abs(law.sum() - 1.0) > 1e-6:
        raise UnusableSample(f"probs is no law: smallest {law.min(initial=0.0):.9g}, sum {law.sum():.9g}")
    return law / law.sum()


def _unit_numbers(uniforms: ArrayLike) -> Floats:
    vector = _vector(uniforms, "uniforms")
    outside = (vector < 0) | (vector > 1)
    if outside.any():
        raise UnusableSample(f"uniforms holds {vector[outside][0]:.9g}, which lies outside [0, 1]")
    return vector


def _vector(values: ArrayLike, name: str) -> Floats:
    vector = np.asarray(values, np.float64)
    if vector.ndim != 1:
        raise UnusableSample(f"{name} has {vector.ndim} dimensions: a vector is due")
    if not np.isfinite(vector).all():
        raise UnusableSample(f"{name} holds {vector[~np.isfinite(vector)][0]}: finite numbers are due")
    return vector


def _paired(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    if a.shape != b.shape:
        raise UnusableSample(f"counts of {a.size} and of {b.size} outcomes: one of each are due")
    return a, b
