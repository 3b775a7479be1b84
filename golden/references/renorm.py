"""Float64 references for family ``renorm``: which tokens are kept, with which weights, and how far a result may lie
off.

Everything is computed on the CPU with torch in float64 from the exact values of the inputs; the kept set of top-k is
decided on the inputs as they are. The error model stands in :mod:`waveproof.kernels.operators.renorm`. The second
method that these functions are checked by (counting instead of sorting, Python's ``fractions``) is in ``selftest``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from waveproof.kernels.operators.contract import Call, Value
from waveproof.kernels.operators.renorm import (
    SMALLEST_NORMAL,
    TARGET_PROBS,
    TOP_K_RENORM_PROB,
    TOP_P_RENORM_PROB,
    gamma,
    mass_band,
    softmax_tolerance,
    summation_depth,
    value_tolerance,
)


@dataclass(frozen=True)
class Expected:
    """What a filtered and renormalised distribution may be. All tensors are [B, V] unless said otherwise."""

    weights: torch.Tensor
    """float64 probabilities before filtering; only their ratios matter."""
    certain: torch.Tensor
    """bool: kept by every correct implementation."""
    possible: torch.Tensor
    """bool: kept by some correct implementation; differs from ``certain`` only inside the stated band."""
    tolerance: torch.Tensor
    """float64: relative error that a kept value may have."""
    fewest: torch.Tensor
    """int64[B]: tokens that must be kept at least."""
    most: torch.Tensor
    """int64[B]: tokens that may be kept at most."""
    degenerate: torch.Tensor
    """bool[B]: rows that are no distribution; their result is open."""
    ties_together: bool
    """Whether tokens of equal weight are all kept or all dropped (variant ``threshold``)."""
    derivation: str

    @property
    def value(self) -> torch.Tensor:
        """float64 reference with the certain tokens kept."""
        kept = torch.where(self.certain, self.weights, 0.0)
        return kept / kept.sum(-1, keepdim=True)

    @property
    def low(self) -> torch.Tensor:
        """float64: smallest legal value of each element, whatever else is kept."""
        mass = torch.where(self.possible, self.weights, 0.0).sum(-1, keepdim=True)
        low = torch.where(self.certain, self.weights, 0.0) / mass * (1.0 - self.tolerance) - SMALLEST_NORMAL
        return self._open_where_degenerate(low.clamp(min=0.0), 0.0)

    @property
    def high(self) -> torch.Tensor:
        """float64: largest legal value of each element, whatever else is kept."""
        mass = torch.where(self.certain, self.weights, 0.0).sum(-1, keepdim=True)
        high = self.weights / mass * (1.0 + self.tolerance) + SMALLEST_NORMAL
        return self._open_where_degenerate(torch.where(self.possible, high, 0.0), torch.inf)

    def _open_where_degenerate(self, bound: torch.Tensor, value: float) -> torch.Tensor:
        return torch.where(self.degenerate[:, None], value, bound)


def reference(call: Call, variant: str) -> Expected:
    """The reference for a call of one of the family's operators.

    Raises:
        KeyError: the operator is not of this family.
    """
    return _REFERENCES[call.operator](call, variant)


def top_k(call: Call, variant: str) -> Expected:
    """Keep the ``top_k`` largest of each row of ``probs``; see the contract for the variants."""
    probs = _tensor(call.arguments["probs"])
    k = _per_row(call.arguments["top_k"], probs.shape[0]).long()
    weights, degenerate = probs.double(), _degenerate(probs)
    kept = top_k_mask(weights, k, variant)
    vocab_size = probs.shape[1]
    limit = _limit(k, vocab_size)
    return Expected(
        weights,
        kept,
        kept,
        _tolerance(kept),
        fewest=limit,
        most=kept.sum(-1),
        degenerate=degenerate,
        ties_together=variant == "threshold",
        derivation=_derivation(vocab_size),
    )


def top_p(call: Call, variant: str) -> Expected:
    """Keep the largest of each row of ``probs`` until their mass reaches ``top_p``, at least one."""
    probs = _tensor(call.arguments["probs"])
    p = _per_row(call.arguments["top_p"], probs.shape[0]).double()
    weights, degenerate = probs.double(), _degenerate(probs)
    total = weights.sum(-1)
    vocab_size = probs.shape[1]
    band = mass_band(vocab_size) + (1.0 - total).abs()
    before = mass_before(weights, stable=variant != "threshold")
    certain, possible = _within(before, before, p, band)
    return Expected(
        weights,
        certain,
        possible,
        _tolerance(possible),
        fewest=torch.ones_like(p, dtype=torch.long),
        most=torch.full_like(p, vocab_size, dtype=torch.long),
        degenerate=degenerate,
        ties_together=variant == "threshold",
        derivation=_derivation(vocab_size) + "; boundary token open within gamma of 2 more plus |1 - row sum|",
    )


def target_probs(call: Call, variant: str) -> Expected:
    """softmax(logits / temperature), then top-k, then top-p.

    Two tokens whose probabilities agree within the softmax's own error may change places, so the kept set is certain
    only outside that band; tokens of equal logits stay equal.
    """
    logits = _tensor(call.arguments["logits"])
    batch, vocab_size = logits.shape
    temperature = _per_row(call.arguments["temperature"], batch).double()[:, None]
    k = _per_row(call.arguments["top_k"], batch).long()
    p = _per_row(call.arguments["top_p"], batch).double()
    # -inf is a masked token (a grammar's, say); a row without any token left is no distribution.
    degenerate = ~((logits < torch.inf).all(-1) & torch.isfinite(logits).any(-1))
    scaled = logits.double() / temperature
    peak = scaled.amax(-1, keepdim=True)
    error = softmax_tolerance(scaled.abs() + peak.abs(), peak - scaled)
    error = torch.where(torch.isfinite(scaled), error, 0.0)
    weights = torch.softmax(scaled, -1)

    limit = _limit(k, vocab_size)
    ordered, order = torch.sort(scaled, dim=-1, descending=True, stable=True)
    boundary = ordered.gather(1, (limit - 1)[:, None])
    boundary_error = error.gather(1, order.gather(1, (limit - 1)[:, None]))
    slack = error + boundary_error
    unfiltered = (limit >= vocab_size)[:, None]
    certain_k = unfiltered | (scaled > boundary + slack)
    possible_k = unfiltered | (scaled >= boundary - slack)
    if variant != "any-k":
        # Nothing else lies in the band: then the tie rule decides, and it is as certain as on exact inputs.
        alone = ((possible_k & ~certain_k) == (scaled == boundary)).all(-1, keepdim=True)
        exact = top_k_mask(scaled, k, variant)
        certain_k = torch.where(alone, exact, certain_k)
        possible_k = torch.where(alone, exact, possible_k)

    lightest = torch.where(possible_k, weights, torch.inf).amin(-1)
    missing = (limit - certain_k.sum(-1)).clamp(min=0)
    mass_low = torch.where(certain_k, weights, 0.0).sum(-1) + missing * lightest
    mass_high = torch.where(possible_k, weights, 0.0).sum(-1)
    before = mass_before(weights, stable=variant == "exact-k")
    band = gamma(3 * (summation_depth(vocab_size) + 3)) + 2.0 * (weights * error).sum(-1)
    certain_p, possible_p = _within(before / mass_low[:, None], before / mass_high[:, None], p, band)
    certain, possible = certain_k & certain_p, possible_k & possible_p
    certain = certain | (weights >= weights.amax(-1, keepdim=True)) & (possible.sum(-1, keepdim=True) == 1)
    no_top_p = p >= 1.0
    mean_error = (weights * error).sum(-1, keepdim=True) / mass_low[:, None].clamp(max=1.0)
    return Expected(
        weights,
        certain,
        possible,
        error + mean_error + gamma(3 * (summation_depth(vocab_size) + 3)),
        fewest=torch.where(no_top_p, limit, torch.ones_like(limit)),
        most=torch.where(
            torch.tensor(variant == "threshold"), possible.sum(-1), torch.minimum(limit, possible.sum(-1))
        ),
        degenerate=degenerate,
        ties_together=variant == "threshold",
        derivation="softmax ((|x| + |m|) / T + 3 |x - m| / T + 8) u, then three sums and divisions of "
        f"{summation_depth(vocab_size)} + 3 float32 roundings each",
    )


def top_k_mask(values: torch.Tensor, k: torch.Tensor, variant: str) -> torch.Tensor:
    """bool[B, V]: the k largest of each row of ``values`` [B, V], ties as the variant says; ``k`` int64[B]."""
    limit = _limit(k, values.shape[1])
    if values.shape[1] == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    ordered, order = torch.sort(values, dim=-1, descending=True, stable=True)
    if variant == "threshold":
        return values >= ordered.gather(1, (limit - 1)[:, None])
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(values.shape[1]).expand_as(order).contiguous())
    return rank < limit[:, None]


def mass_before(weights: torch.Tensor, stable: bool) -> torch.Tensor:
    """float64[B, V]: mass of the tokens that come before each one in descending order.

    With ``stable`` equal tokens come in order of index; else none of them comes before another.
    """
    ordered, order = torch.sort(weights, dim=-1, descending=True, stable=True)
    prefix = torch.cumsum(ordered, -1) - ordered
    if not stable:
        # The first of a run of equals has what all of them have: carry it through the run.
        starts = torch.ones_like(ordered, dtype=torch.bool)
        starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        position = torch.arange(ordered.shape[1]).expand_as(order)
        first = torch.where(starts, position, 0).cummax(-1).values
        prefix = prefix.gather(1, first)
    return torch.empty_like(prefix).scatter_(1, order, prefix)


def _within(
    before_high: torch.Tensor, before_low: torch.Tensor, p: torch.Tensor, band: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Certainly and possibly kept by top-p, from an upper and a lower bound of the mass before each token."""
    p, band = p[:, None], band[:, None]
    unfiltered = p >= 1.0
    certain = unfiltered | (before_high < p - band) | (before_high <= 0.0)
    possible = unfiltered | (before_low < p + band) | (before_low <= 0.0)
    return certain, possible


def _limit(k: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """int64[B]: how many tokens k asks for; k <= 0 and k >= V mean all."""
    return torch.where((k <= 0) | (k >= vocab_size), vocab_size, k)


def _tolerance(kept: torch.Tensor) -> torch.Tensor:
    """float64[B, V]: what a value may be off by when these tokens, bool[B, V], are kept at most."""
    vocab_size = kept.shape[1]
    rows = [value_tolerance(vocab_size, int(count)) for count in kept.sum(-1)]
    return torch.tensor(rows, dtype=torch.float64)[:, None].expand(kept.shape)


def _derivation(vocab_size: int) -> str:
    return (
        f"gamma of 3 float32 roundings and those of the sum: {summation_depth(vocab_size)} at V = {vocab_size}, or one "
        "fewer than the tokens kept"
    )


def _degenerate(probs: torch.Tensor) -> torch.Tensor:
    total = probs.double().sum(-1)
    return ~(torch.isfinite(probs).all(-1) & (probs >= 0).all(-1) & (total > SMALLEST_NORMAL))


def _tensor(value: Value) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value.detach().cpu()


def _per_row(value: Value, batch: int) -> torch.Tensor:
    tensor = value.detach().cpu().reshape(-1) if isinstance(value, torch.Tensor) else torch.tensor([value])
    return tensor.expand(batch) if tensor.numel() == 1 else tensor


_REFERENCES = {
    TOP_K_RENORM_PROB.name: top_k,
    TOP_P_RENORM_PROB.name: top_p,
    TARGET_PROBS.name: target_probs,
}
