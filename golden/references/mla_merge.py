"""Attention to two disjoint sets of keys from attention to each, in float64 (FlashInfer, arXiv 2501.01005, 3.1)."""

from __future__ import annotations

import torch


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
