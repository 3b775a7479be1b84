"""Attention to two disjoint sets of keys from attention to each, in float64 (FlashInfer, arXiv 2501.01005, 3.1)."""

from __future__ import annotations

import torch

SIDES = ("out_a", "lse_a", "out_b", "lse_b")
"""Arguments of ``merge_state``."""
WEIGHT_ROUNDINGS = 6
"""Operations on a weight beside the difference of two LSE; see :func:`weight_error`."""


def merge(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The merged output float64[T, H, D] and natural LSE float64[T, H].

    A side without keys (LSE -inf; also +inf, which FlashAttention 2 returns for none) counts for nothing, whatever its
    output holds; two such sides give 0 and -inf.
    """
    a, b = (torch.where(lse.double() == torch.inf, -torch.inf, lse.double()) for lse in (lse_a, lse_b))
    total = torch.logaddexp(a, b)
    parts = []
    for out, lse in ((out_a, a), (out_b, b)):
        weight = torch.where(lse == -torch.inf, 0.0, torch.exp(lse - total))[..., None]
        parts.append(torch.where(weight == 0, 0.0, weight * out.double()))
    return parts[0] + parts[1], total


def weight_error(
    out_a: torch.Tensor,
    lse_a: torch.Tensor,
    out_b: torch.Tensor,
    lse_b: torch.Tensor,
    *,
    step: float,
    roundings: int = WEIGHT_ROUNDINGS,
) -> torch.Tensor:
    """Absolute error float64[T, H, D] of a merge whose weights, relative to their sum, are off as follows.

    A weight is ``e**(lse_x - lse)``: the difference of two LSE rounds once, relative to the larger of them, and
    exponential, factor log2(e), sum, division and product round ``roundings`` times in all.

    Args:
        out_a: [T, H, D], attention to the first set.
        lse_a: float32[T, H], its natural LSE.
        out_b: [T, H, D], attention to the second set.
        lse_b: float32[T, H], its natural LSE.
        step: relative error of one operation.
        roundings: as above.
    """
    sizes, _ = merge(out_a.double().abs(), lse_a, out_b.double().abs(), lse_b)
    largest = torch.maximum(*(torch.where(x.isfinite(), x.double().abs(), 0.0) for x in (lse_a, lse_b)))
    return ((roundings + 4.0 * largest.clamp(min=1.0)) * step)[..., None] * sizes
