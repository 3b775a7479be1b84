"""What a served model's answers prove: the law that a step should have had, and what is found on the way to it.

Pure functions over collected answers (``answers.py`` beside this file); ``fixtures/servers/check.py`` collects. The
judges of whole checks lie beside this file, in ``served_checks.py``.

**Which law do returned logprobs describe?** A request at temperature T samples from softmax(z / T), filtered. vLLM
returns log softmax(z) by default (``--logprobs-mode raw_logprobs``), llama.cpp too, sglang log softmax(z / T) unless
SGLANG_RETURN_ORIGINAL_LOGPROB is set; none of them applies top-k before. The same prompt asked at T = 1 and T = 0.5
tells: differences of logprobs stay (*raw*) or double (*processed*).

**What is known of the sampled law**, given the K largest entries of one step:

=================================  =========================================================================
processed, or T = 1, no filter     the entries as they are; what lies outside is one symbol of the rest's mass
raw, T != 1, whole vocabulary      entries / T, normalised
raw, T != 1, K < V                 the outside's mass at T is unknown (it depends on how the rest is spread), but
                                   ratios among the entries are exact: the law *given that the token is one of
                                   them* is entries / T, normalised. Betting on it only when the token is inside
                                   is a martingale: E[factor] = P(out) 1 + P(in) E[factor | in] = 1. A leak to the
                                   outside is then not seen; ask at T = 1 or with top-k for that.
top_k = k < K                      the k largest, / T where raw, normalised: all of it is known, whatever V.
                                   A tie of the k-th with the next leaves two lawful sets: the step is skipped.
=================================  =========================================================================

Whether a step is skipped, and what is bet, depends only on what is known before its token: that keeps the test valid.
vLLM adds the sampled token to a table where it is not among the K largest, which is no such thing; it is taken out
again. Where symbols are texts and two of the largest share one, an entry is lost, the table sums to less than it
should, and the step is skipped when it shows (fewer entries than were asked for, and not all of the mass).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum

from waveproof.golden.judges.answers import ZERO_PROBABILITY, ServedToken

SUM_TOLERANCE = 0.02
"""How far above 1 a table's probabilities may sum. A logprob in bfloat16 is off by up to 2^-9 of itself, so that the
sum is off by 2^-9 times the entropy: 0.02 at 10 nats, the entropy of a uniform law over 22,000 tokens."""

MASS_TOLERANCE = 1e-3
"""How far below 1 the sum over a whole vocabulary may be: float32 logprobs, plus the printed digits."""

TIE = 1e-6
"""Logprobs this close are one: float32 spacing at 8 to 16 nats."""

SLOPE_TOLERANCE = 0.1
"""How far from 1 or 2 the slope of ``described_by`` may be. Four logprobs make a ratio of two differences; each is off
by up to 0.02 nats in bfloat16 (``SUM_TOLERANCE``), so that a difference of a nat leaves the slope off by up to 0.08."""

FLAT = (MASS_TOLERANCE / SLOPE_TOLERANCE) ** 2
"""Sum of squared differences of logprobs, nats^2, below which a table tells no slope. No difference is then above 0.01
nats, and an error of ``MASS_TOLERANCE`` in one could move the slope by ``SLOPE_TOLERANCE``. Nothing hangs on it there:
raw or processed, the laws at any two temperatures from 0.5 up are within 0.01 nats of each other."""


class Verdict(str, Enum):
    """What a check came to."""

    FAITHFUL = "faithful"
    UNFAITHFUL = "unfaithful"
    INCONCLUSIVE = "inconclusive"
    SERVER_FAULT = "server fault"
    NOTE = "for information"


@dataclass(frozen=True)
class Finding:
    """One check's verdict and what it rests on."""

    check: str
    verdict: Verdict
    evidence: str
    _: KW_ONLY
    alpha: float | None = None
    """False-alarm rate that the verdict was given at; None where no chance is involved."""
    p_value: float | None = None
    """Of the most telling test, before division of alpha; for a martingale, 1 / its highest wealth."""
    n: int = 0
    """Tokens or requests that were judged."""
    figures: Mapping[str, float] = field(default_factory=dict)


class Described(str, Enum):
    """Which law the returned logprobs are of."""

    RAW = "raw"
    PROCESSED = "processed"


class BadTable(ValueError):
    """A step's logprobs are no probabilities: NaN, or a sum above 1."""


@dataclass(frozen=True)
class KnownLaw:
    """What is known of the law that one step's token should be drawn from."""

    logprobs: Mapping[str, float]
    """Symbol -> natural-log probability."""
    complete: bool
    """Whether nothing outside has any probability."""
    conditional: bool = False
    """Whether the law is the one given that the token is among the symbols, tokens outside not being judged."""


def table(step: ServedToken, asked: int) -> dict[str, float]:
    """Returned entries of positive probability, the largest first, without a token that is there for being sampled.

    Raises:
        BadTable: they are no probabilities.
    """
    entries = dict(step.top)
    if any(math.isnan(value) for value in entries.values()) or (step.logprob is not None and math.isnan(step.logprob)):
        raise BadTable("NaN among the returned logprobs")
    if step.listed > asked and entries.get(step.symbol, math.inf) <= min(entries.values()):
        del entries[step.symbol]
    found = {symbol: value for symbol, value in entries.items() if value > ZERO_PROBABILITY}
    if entries and not found:
        raise BadTable("no returned logprob is a number (all null or minus infinity)")
    total = mass(found.values())
    if total > 1.0 + SUM_TOLERANCE:
        raise BadTable(f"the returned probabilities of one step sum to {total:.4g}")
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def mass(logprobs: Iterable[float]) -> float:
    """Sum of probabilities; infinite where one overflows."""
    try:
        return math.fsum(math.exp(value) for value in logprobs)
    except OverflowError:
        return math.inf


def described_by(pairs: Iterable[tuple[Mapping[str, float], Mapping[str, float]]]) -> tuple[Described | None, float]:
    """Which law a server's logprobs describe.

    Args:
        pairs: tables of the same prompt's first step, at temperature 1 and at 0.5.

    Returns:
        The law, None where it is neither; and the slope of logprob differences at 0.5 over those at 1: 1 raw,
        2 processed. A server whose tables are flat shows no difference and counts as processed, with slope NaN.
    """
    products = squares = 0.0
    for one, half in pairs:
        shared = [symbol for symbol in one if symbol in half]
        if shared:
            first = shared[0]
            for symbol in shared[1:]:
                difference = one[symbol] - one[first]
                products += difference * (half[symbol] - half[first])
                squares += difference * difference
    if squares < FLAT:
        return Described.PROCESSED, math.nan
    slope = products / squares
    for law, expected in ((Described.RAW, 1.0), (Described.PROCESSED, 2.0)):
        if abs(slope - expected) < SLOPE_TOLERANCE:
            return law, slope
    return None, slope


def known_law(
    entries: Mapping[str, float], described: Described, temperature: float, top_k: int, asked: int
) -> KnownLaw | None:
    """The law that a step's token should be drawn from, as far as its table tells; None where it must be skipped.

    Args:
        entries: of ``table``, the largest first.
        described: which law they are of.
        temperature: that was asked for, above 0.
        top_k: that was asked for, 0 for off.
        asked: how many entries were asked for.
    """
    total = mass(entries.values())
    whole = total >= 1.0 - (MASS_TOLERANCE if len(entries) < asked else TIE)
    if not entries or (len(entries) < asked and not whole and len(entries) != top_k):
        return None
    kept = dict(entries)
    if top_k:
        values = list(entries.values())
        if len(values) > top_k and values[top_k - 1] - values[top_k] < TIE:
            return None
        if len(values) < top_k and not whole:
            return None
        kept = dict(list(entries.items())[:top_k])
    elif not whole and (described is Described.PROCESSED or temperature == 1.0):
        return KnownLaw(kept if total <= 1.0 else _normalised(kept, 1.0), complete=False)
    power = 1.0 / temperature if described is Described.RAW else 1.0
    return KnownLaw(_normalised(kept, power), complete=True, conditional=not top_k and not whole)


def _normalised(logprobs: Mapping[str, float], power: float) -> dict[str, float]:
    """Logprobs of the law proportional to p^power."""
    high = max(logprobs.values()) * power
    scaled = {symbol: value * power for symbol, value in logprobs.items()}
    total = high + math.log(math.fsum(math.exp(value - high) for value in scaled.values()))
    return {symbol: value - total for symbol, value in scaled.items()}


def is_listed(step: ServedToken, entries: Mapping[str, float]) -> bool:
    """Whether a step's token is one of its table's entries, and not another token that shares an entry's text."""
    if step.symbol not in entries:
        return False
    return step.logprob is None or abs(step.logprob - entries[step.symbol]) <= SUM_TOLERANCE
