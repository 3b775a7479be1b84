"""Planted faults of ``top_p_renorm_prob``: each is right but for what its docstring says.

For use as ``--provider top_p_renorm_prob=selftest/mutants/renorm_top_p.py:NAME``; the table is ``renorm.py``.
"""

from __future__ import annotations

import torch

from waveproof.selftest.mutants.correct_renorm import (
    mass_to_keep,
    per_row,
    renormalise,
    require_rows,
    top_p_numpy,
    top_p_threshold,
    until_mass,
)

P = float | torch.Tensor


def zeros(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Nothing but zeros: public checks at atol = 1e-3 let it through from V = 32,000 on."""
    return torch.zeros_like(top_p_threshold(probs, top_p))


def unfiltered(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """No filter at all."""
    require_rows(probs)
    return top_p_threshold(probs, torch.ones_like(mass_to_keep(top_p, len(probs))))


def uniform_over_kept(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """The right tokens, all equally probable."""
    kept = (top_p_threshold(probs, top_p) > 0).float()
    return kept / kept.sum(-1, keepdim=True)


def unnormalised(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Masked and not divided."""
    return torch.where(top_p_threshold(probs, top_p) > 0, probs, 0.0)


def divided_by_top_p(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Divided by top_p instead of by the mass that was kept, which is a little more."""
    kept = torch.where(top_p_threshold(probs, top_p) > 0, probs, 0.0)
    return kept / mass_to_keep(top_p, len(probs))


def scale_thousandth(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Values 0.1 % too small."""
    return top_p_threshold(probs, top_p) * 0.999


def float32_prefix_without_exemption(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """``cumsum - p < top_p`` in float32, at top_p = 1 too: small tails vanish (flashinfer-ai/flashinfer#708, A7)."""
    require_rows(probs)
    p = mass_to_keep(top_p, len(probs))
    ordered, order = torch.sort(probs, dim=-1, descending=True)
    kept = torch.cumsum(ordered, -1) - ordered < p
    return renormalise(probs, torch.zeros_like(kept).scatter_(1, order, kept))


def ascending_complement(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """``cum > 1 - top_p`` in ascending order: at a tiny top_p nothing is kept (A7)."""
    require_rows(probs)
    p = mass_to_keep(top_p, len(probs))
    ordered, order = torch.sort(probs, dim=-1)
    kept = torch.cumsum(ordered, -1) > 1.0 - p
    return renormalise(probs, torch.zeros_like(kept).scatter_(1, order, kept) | (p >= 1.0))


def boundary_token_dropped(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """The token that takes the mass to top_p is left out (flashinfer-ai/flashinfer#2202, A7)."""
    require_rows(probs)
    p = mass_to_keep(top_p, len(probs))
    ordered, order = torch.sort(probs.double(), dim=-1, descending=True)
    kept = torch.cumsum(ordered, -1) <= p
    kept[:, :1] = True
    return renormalise(probs, torch.zeros_like(kept).scatter_(1, order, kept) | (p >= 1.0))


def one_token_more(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """The token after the one that reaches top_p is kept too."""
    require_rows(probs)
    kept = until_mass(probs, mass_to_keep(top_p, len(probs)))
    following = torch.where(kept, -torch.inf, probs).amax(-1, keepdim=True) if probs.numel() else probs
    return renormalise(probs, kept | (probs == following))


def top_token_unprotected(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Where the most probable token alone exceeds top_p nothing is kept (alibaba/rtp-llm#932, A8)."""
    require_rows(probs)
    p = mass_to_keep(top_p, len(probs))
    kept = until_mass(probs, p)
    if probs.numel():
        kept = kept & ~((probs.amax(-1, keepdim=True) > p) & (p < 1.0))
    return torch.where(kept.any(-1, keepdim=True), renormalise(probs, kept), 0.0)


def top_p_in_bfloat16(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """top_p is rounded to bfloat16: 0.95 becomes 0.949."""
    require_rows(probs)
    return top_p_threshold(probs, mass_to_keep(top_p, len(probs)).bfloat16().float())


def no_filter_above_0_998(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """top_p from 0.998 on is taken for 1."""
    require_rows(probs)
    p = mass_to_keep(top_p, len(probs))
    return top_p_threshold(probs, torch.where(p > 0.998, 1.0, p))


def bfloat16_prefix(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """The prefix mass is kept in bfloat16."""
    require_rows(probs)
    p = mass_to_keep(top_p, len(probs))
    ordered, order = torch.sort(probs, dim=-1, descending=True)
    kept = (torch.cumsum(ordered.double(), -1) - ordered).bfloat16() < p.bfloat16()
    kept[:, :1] = True
    return renormalise(probs, torch.zeros_like(kept).scatter_(1, order, kept) | (p >= 1.0))


def thousand_candidates(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Looks at the 1,024 most probable tokens only, unless top_p is 1."""
    require_rows(probs)
    p = mass_to_keep(top_p, len(probs))
    rank = torch.argsort(torch.argsort(probs, dim=-1, descending=True, stable=True), dim=-1)
    return renormalise(probs, until_mass(probs, p) & ((rank < 1024) | (p >= 1.0)))


def left_in_sorted_order(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Values in descending order, not scattered back."""
    return torch.sort(top_p_threshold(probs, top_p), dim=-1, descending=True).values


def exact_p_as_threshold(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Declares ``threshold`` and cuts ties off (A3)."""
    return top_p_numpy(probs, top_p)


def threshold_as_exact_p(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Declares ``exact-p`` and keeps ties (A3)."""
    return top_p_threshold(probs, top_p)


def ties_by_highest_index(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Declares ``exact-p`` and prefers the highest index among equals (A3)."""
    return top_p_numpy(probs.flip(-1), top_p).flip(-1)


def tie_rule_by_batch(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Keeps ties below 8 rows and cuts them off from 8 rows on (vllm-project/vllm#50979, A3)."""
    return top_p_threshold(probs, top_p) if len(probs) < 8 else top_p_numpy(probs, top_p)


def first_rows_p(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """The first row's top_p for every row."""
    require_rows(probs)
    p = mass_to_keep(top_p, len(probs))
    return top_p_threshold(probs, p[:1] if len(p) else p)


def largest_p_for_all(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """One row without a filter switches it off for its neighbours (kind: sgl-project/sglang#35697, A9)."""
    require_rows(probs)
    p = mass_to_keep(top_p, len(probs))
    return top_p_threshold(probs, torch.where((p >= 1.0).any(), 1.0, p))


def bad_row_spoils_batch(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """One NaN or inf reaches every row (flashinfer-ai/flashinfer#2402, A5)."""
    return top_p_threshold(probs + 0.0 * probs.sum(), top_p)


def raises_on_zero_row(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """A row that sums to zero raises for the whole batch (sgl-project/sglang#27618, A8)."""
    if (probs.sum(-1) == 0).any():
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    return top_p_threshold(probs, top_p)


def sorts_in_place(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Leaves its input sorted."""
    renormed = top_p_threshold(probs, top_p)
    if 0 not in probs.stride():
        probs.copy_(torch.sort(probs, dim=-1, descending=True).values)
    return renormed


def ignores_strides(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Takes rows to lie one after the other."""
    require_rows(probs)
    return top_p_threshold(torch.as_strided(probs, probs.shape, (probs.shape[1], 1)).clone(), top_p)


def drops_last_chunk(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Does not see the columns beyond the last whole 1,024, once there are so many."""
    require_rows(probs)
    whole = probs.shape[1] // 1024 * 1024 or probs.shape[1]
    return top_p_threshold(torch.where(torch.arange(probs.shape[1]) < whole, probs, 0.0), top_p)


def dropped_tokens_unwritten(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Writes kept tokens only, into fresh memory."""
    renormed = top_p_threshold(probs, top_p)
    output = torch.empty_like(renormed)
    output[renormed > 0] = renormed[renormed > 0]
    return output


def accepts_zero_top_p(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """top_p of 0, below 0 and NaN get an answer instead of a refusal."""
    if not isinstance(top_p, torch.Tensor) and not top_p > 0:
        top_p = 1e-6
    return top_p_threshold(probs, top_p)


def refuses_one_p_for_all(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """A tensor with one limit for all rows is legal and gets refused."""
    if isinstance(top_p, torch.Tensor) and top_p.numel() == 1 < len(probs):
        raise ValueError(f"top_p has 1 value, {len(probs)} rows")
    return top_p_threshold(probs, top_p)


def accepts_any_number_of_limits(probs: torch.Tensor, top_p: P) -> torch.Tensor:
    """Two limits for three rows: the last one is read again."""
    require_rows(probs)
    if isinstance(top_p, torch.Tensor) and 1 < top_p.numel() < len(probs):
        top_p = torch.cat([top_p, top_p[-1:].expand(len(probs) - top_p.numel())])
    return top_p_threshold(probs, per_row(top_p, len(probs)) if isinstance(top_p, torch.Tensor) else top_p)
