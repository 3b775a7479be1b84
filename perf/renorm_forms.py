"""Top-k renormalisation in plain torch, in the forms that a serving engine might fall back to.

Both keep exactly k values, whoever of equals comes first, and take one k or one a row; the provider ``torch`` keeps all
ties. On rows without ties at the boundary the three agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from waveproof.kernels.providers import pytorch


def by_topk(probs: torch.Tensor, top_k: int | torch.Tensor) -> torch.Tensor:
    """``torch.topk`` and a scatter. With one k a row it must know the largest, so on a GPU the host waits for it.

    Args:
        probs: float32[B, V].
        top_k: int, or int32/int64[B], all in 1..V.

    Returns:
        float32[B, V].
    """
    most = int(top_k.max()) if isinstance(top_k, torch.Tensor) else top_k
    values, columns = torch.topk(probs, most, dim=-1)
    return _scattered(probs, _first(values, top_k), columns)


def by_sort(probs: torch.Tensor, top_k: int | torch.Tensor) -> torch.Tensor:
    """A full sort, a mask, a division, and everything put back in its place: shapes as :func:`by_topk`."""
    values, columns = torch.sort(probs, dim=-1, descending=True)
    return _scattered(probs, _first(values, top_k), columns)


def _first(values: torch.Tensor, top_k: int | torch.Tensor) -> torch.Tensor:
    """Falling values of each row, zero after the first top_k."""
    limit = top_k[:, None] if isinstance(top_k, torch.Tensor) else top_k
    ranks = torch.arange(values.shape[1], device=values.device)
    return values.masked_fill(ranks[None] >= limit, 0.0)


def _scattered(probs: torch.Tensor, kept: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(probs).scatter_(1, columns, kept / kept.sum(-1, keepdim=True))


FORMS: Mapping[str, Callable[[torch.Tensor, int | torch.Tensor], torch.Tensor]] = {
    "provider torch": pytorch.top_k_renorm_prob,
    "torch.topk, scatter": by_topk,
    "full sort, scatter": by_sort,
}
"""The baseline first."""
