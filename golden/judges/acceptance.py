"""Acceptance of draft tokens by their position in the draft, from a server's counters: it must not rise.

In a chain the token at position i is accepted only if the one at i - 1 was. So of one set of drafts the count at i can
never exceed that at i - 1, nor the first count the number of drafts. Counters of a live server are not read at one
instant, though, and an operator may add them up over several engines. The test is therefore statistical and leans to
the honest side: given their sum, the later count is taken for binomial(sum, 1/2), the edge of what is lawful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from scipy import stats

from waveproof.golden.judges.served import Finding, Verdict


@dataclass(frozen=True)
class Acceptance:
    """A server's counters of speculative decoding; None or empty where it exposes none."""

    drafts: float | None = None
    """Drafts that were verified."""
    drafted: float | None = None
    """Draft tokens in them."""
    accepted: float | None = None
    per_position: tuple[float, ...] = ()
    """Accepted draft tokens by position, from the first."""
    mean_length: float | None = None
    """Tokens emitted a verification step, a gauge (sglang)."""

    def since(self, before: Acceptance) -> Acceptance:
        """What was counted after ``before``; as it stands where the counters had been reset in between."""
        pairs = ((self.drafts, before.drafts), (self.drafted, before.drafted), (self.accepted, before.accepted))
        if any(now is not None and then is not None and now < then for now, then in pairs):
            return self
        drafts, drafted, accepted = (None if now is None else now - (then or 0.0) for now, then in pairs)
        then = (*before.per_position, *[0.0] * len(self.per_position))
        counts = tuple(now - then[place] for place, now in enumerate(self.per_position))
        return Acceptance(drafts, drafted, accepted, per_position=counts, mean_length=self.mean_length)


def acceptance_falls(check: str, counted: Acceptance, alpha: float) -> Finding:
    """Whether acceptance falls, or stays, along a draft, and whether anything was accepted and rejected at all."""
    counts = counted.per_position
    if not counts:
        return Finding(check, Verdict.INCONCLUSIVE, _without_positions(counted))
    ladder = counts if counted.drafts is None else (counted.drafts, *counts)
    rises = [(_rise(earlier, later), place) for place, (earlier, later) in enumerate(pairwise(ladder))]
    p_value, place = min(rises, default=(1.0, 0))
    p_value = min(1.0, p_value * max(len(rises), 1))
    told = f"accepted by position {_listed(counts)}" + (
        "" if counted.drafts is None else f" of {counted.drafts:.0f} drafts"
    )
    n = int(sum(counts))
    if p_value < alpha:
        name = "number of drafts" if counted.drafts is not None and place == 0 else "position before"
        position = place - (counted.drafts is not None) + 1
        return Finding(
            check,
            Verdict.UNFAITHFUL,
            f"{told}: position {position} exceeds the {name}",
            alpha=alpha,
            p_value=p_value,
            n=n,
        )
    if not n:
        return Finding(
            check, Verdict.INCONCLUSIVE, f"{told}: no draft token was accepted", alpha=alpha, p_value=p_value, n=n
        )
    if counted.drafted is not None and counted.drafted <= n:
        return Finding(
            check, Verdict.INCONCLUSIVE, f"{told}: no draft token was rejected", alpha=alpha, p_value=p_value, n=n
        )
    return Finding(check, Verdict.FAITHFUL, told, alpha=alpha, p_value=p_value, n=n)


def _rise(earlier: float, later: float) -> float:
    """p-value of a later count that is above an earlier one."""
    if later <= earlier:
        return 1.0
    return float(stats.binom.sf(round(later) - 1, round(earlier + later), 0.5))


def _without_positions(counted: Acceptance) -> str:
    if counted.mean_length is not None:
        return f"metrics tell no acceptance by position, only {counted.mean_length:.3g} tokens a step"
    if counted.drafted:
        return (
            f"no acceptance by position is told, only {counted.accepted or 0:.0f} of {counted.drafted:.0f} draft tokens"
        )
    return "no metrics of speculative decoding are exposed"


def _listed(counts: Sequence[float]) -> str:
    return ", ".join(f"{count:.0f}" for count in counts)
