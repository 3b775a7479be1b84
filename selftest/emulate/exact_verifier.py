"""Verification of a chain of draft tokens in float64: token by token, or as a block.

Sources: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192), Algorithm 1;
Sun et al., "Block Verification Accelerates Speculative Decoding" (arXiv 2403.10444), Algorithm 2. A decision compares a
coin with a figure that a kernel computes in float32, so each comes with how far rounding can move that figure: where
every distance is larger, a correct float32 kernel must return the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from waveproof.kernels.operators.renorm import UNIT_ROUNDOFF, summation_depth

DIVISION_ROUNDINGS = 5
"""Unit roundoffs of a float32 division: OpenCL C 3.0, section 7.4, allows 2.5 ulp, and an ulp is up to two of them."""


@dataclass(frozen=True)
class Verified:
    """What became of one row."""

    accepted: int
    """Draft tokens that were accepted."""
    tokens: tuple[int, ...]
    """These, and the one sampled after them."""
    margin: float
    """Smallest distance of a decision, in units of what float32 may move it; above 1 nothing was close."""


@dataclass
class _Decisions:
    margin: float = float("inf")

    def less(self, left: float, right: float, uncertainty: float) -> bool:
        """Whether ``left < right``, remembering how close it was."""
        self.margin = min(self.margin, abs(left - right) / max(uncertainty, 1e-300))
        return left < right


def verify_tokens(
    target: torch.Tensor, draft: torch.Tensor, candidates: torch.Tensor, coins: torch.Tensor, last_coin: float
) -> Verified:
    """Accept token i with probability min(1, p/q), up to the first that is not.

    Args:
        target: float32 [n + 1, V], rows sum to 1.
        draft: float32 [n, V], the same.
        candidates: integers [n + 1]; the first is the root, which is not judged.
        coins: float32 [n] at least, in [0, 1).
        last_coin: for the token after the accepted ones.
    """
    decisions = _Decisions()
    accepted = 0
    while accepted < len(draft):
        token = candidates[accepted + 1]
        p, q = (float(law[accepted, token]) for law in (target, draft))
        threshold = float(coins[accepted]) * q
        if not decisions.less(threshold, p, UNIT_ROUNDOFF * threshold):
            break
        accepted += 1
    return _finished(decisions, target, draft, candidates, accepted, 1.0, 0.0, last_coin)


def verify_block(
    target: torch.Tensor, draft: torch.Tensor, candidates: torch.Tensor, coins: torch.Tensor, last_coin: float
) -> Verified:
    """Accept the longest prefix i whose coin is below h_i (Algorithm 2); arguments as of :func:`verify_tokens`."""
    decisions = _Decisions()
    prefix, prefixes = 1.0, []
    for step in range(len(draft)):
        token = candidates[step + 1]
        prefix = min(prefix * float(target[step, token]) / float(draft[step, token]), 1.0)
        prefixes.append(prefix)
    # The kernel asks from the longest prefix down, and only as far as it must.
    for length in range(len(draft), 0, -1):
        kept = prefixes[length - 1]
        slip = length * (1 + DIVISION_ROUNDINGS) * UNIT_ROUNDOFF * kept
        chance, uncertainty = kept, slip
        if length < len(draft) and 0.0 < kept < 1.0:
            p, q = target[length].double(), draft[length].double()
            mass = float((kept * p - q).clamp(min=0.0).sum())
            mass_slip = slip + _slip_of_sum(len(p), mass) + 2 * UNIT_ROUNDOFF * kept
            whole = mass + 1.0 - kept
            chance = mass / whole
            uncertainty = ((1.0 - kept) * mass_slip + mass * slip) / whole**2
            uncertainty += (2 + DIVISION_ROUNDINGS) * UNIT_ROUNDOFF * chance
        if decisions.less(float(coins[length - 1]), chance, uncertainty):
            return _finished(decisions, target, draft, candidates, length, kept, slip, last_coin)
    return _finished(decisions, target, draft, candidates, 0, 1.0, 0.0, last_coin)


def _slip_of_sum(count: int, total: float) -> float:
    return (summation_depth(count) + 1) * UNIT_ROUNDOFF * total


def _finished(
    decisions: _Decisions,
    target: torch.Tensor,
    draft: torch.Tensor,
    candidates: torch.Tensor,
    accepted: int,
    scale: float,
    slip: float,
    last_coin: float,
) -> Verified:
    """Sample the last token: from the target behind a whole chain, else from max(scale * p - q, 0)."""
    p = target[accepted].double()
    if accepted == len(draft):
        rest, rounding = p, 0.0
    else:
        rest, rounding = (scale * p - draft[accepted].double()).clamp(min=0.0), slip + 2 * UNIT_ROUNDOFF * scale
    cumulative = rest.cumsum(0).tolist()
    total = cumulative[-1]
    # Prefix sum and threshold are each off by a sum's roundings; the terms by their own.
    uncertainty = 2 * (_slip_of_sum(len(p), total) + rounding)
    threshold = last_coin * total
    last = next(at for at, mass in enumerate(cumulative) if mass > threshold)
    decisions.less(threshold, cumulative[last], uncertainty)
    if last:
        decisions.less(threshold, cumulative[last - 1], uncertainty)
    tokens = (*candidates[1 : accepted + 1].tolist(), last)
    return Verified(accepted, tokens, decisions.margin)
