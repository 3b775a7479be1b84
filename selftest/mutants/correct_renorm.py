"""Right implementations of family ``renorm`` by different algorithms: what the suite must not reject.

The first half is also what the planted faults beside this file are faults of.
"""

from __future__ import annotations

import heapq

import numpy as np
import torch


def require_rows(matrix: torch.Tensor) -> None:
    """ValueError unless ``matrix`` is [B, V]."""
    if matrix.dim() != 2:
        raise ValueError(f"expected two dimensions [B, V], got {matrix.dim()}")


def per_row(limit: float | torch.Tensor, batch: int) -> torch.Tensor:
    """[B, 1]: a scalar, one value or one value a row; ValueError for any other number of values."""
    values = limit.reshape(-1) if isinstance(limit, torch.Tensor) else torch.tensor([limit])
    if values.numel() not in (1, batch):
        raise ValueError(f"expected 1 or {batch} limits, got {values.numel()}")
    return values.expand(batch)[:, None]


def tokens_to_keep(top_k: int | torch.Tensor, batch: int, vocab_size: int) -> torch.Tensor:
    """int64[B, 1], from 1 to V."""
    k = per_row(top_k, batch).long()
    return torch.where((k <= 0) | (k > vocab_size), vocab_size, k)


def mass_to_keep(top_p: float | torch.Tensor, batch: int) -> torch.Tensor:
    """float32[B, 1]; ValueError where a scalar is NaN or not above 0."""
    if not isinstance(top_p, torch.Tensor) and not top_p > 0:
        raise ValueError(f"top_p must be above 0, got {top_p}")
    return per_row(top_p, batch).float()


def at_least_kth(values: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """bool[B, V]: not smaller than the k-th largest of the row; k is int64[B, 1]."""
    if values.numel() == 0:
        return values > 0
    return values >= torch.sort(values, dim=-1, descending=True).values.gather(1, k - 1)


def first_k(values: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """bool[B, V]: the k largest of the row, among equals the lowest indices."""
    order = torch.sort(values, dim=-1, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(values.shape[1]).expand_as(order).contiguous())
    return rank < k


def until_mass(probs: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """bool[B, V]: tokens whose larger ones weigh less than p, ties included; p is float32[B, 1]."""
    if probs.numel() == 0:
        return probs > 0
    ordered = torch.sort(probs.double(), dim=-1, descending=True).values
    before = torch.cumsum(ordered, -1) - ordered
    last = ((before < p) | (p >= 1.0)).sum(-1, keepdim=True).clamp(min=1)
    return probs >= ordered.gather(1, last - 1).float()


def renormalise(probs: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """The kept values over their sum, zero elsewhere, as a new float32[B, V]."""
    masked = torch.where(kept, probs.double(), 0.0)
    return (masked / masked.sum(-1, keepdim=True)).float()


def top_k_threshold(probs: torch.Tensor, top_k: int | torch.Tensor) -> torch.Tensor:
    """Sort, compare with the k-th value, divide in float64."""
    require_rows(probs)
    return renormalise(probs, at_least_kth(probs, tokens_to_keep(top_k, *probs.shape)))


def top_p_threshold(probs: torch.Tensor, top_p: float | torch.Tensor) -> torch.Tensor:
    """Sort, sum up, compare with the last value that is needed, divide in float64."""
    require_rows(probs)
    return renormalise(probs, until_mass(probs, mass_to_keep(top_p, probs.shape[0])))


def scaled_logits(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """float32[B, V]: logits / temperature."""
    require_rows(logits)
    return logits.float() / per_row(temperature, logits.shape[0])


def require_path(path: str) -> None:
    """ValueError unless ``path`` is one of the verifier's."""
    if path not in ("dense", "sparse"):
        raise ValueError(f"path must be 'dense' or 'sparse', got {path!r}")


def target_probs_threshold(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, path: str
) -> torch.Tensor:
    """Both paths alike: top-k on logits, softmax in float64, top-p."""
    require_path(path)
    scaled = scaled_logits(logits, temperature)
    kept = at_least_kth(scaled, tokens_to_keep(top_k, *logits.shape))
    probs = torch.softmax(scaled.double().masked_fill(~kept, -torch.inf), -1)
    return top_p_threshold(probs.float(), top_p)


# Other algorithms -----------------------------------------------------------------------------------------------------


def top_k_stable_sort(probs: torch.Tensor, top_k: int | torch.Tensor) -> torch.Tensor:
    """Variant ``exact-k``: scatters the first k of a stable sort, in float32 throughout."""
    require_rows(probs)
    kept = torch.where(first_k(probs, tokens_to_keep(top_k, *probs.shape)), probs, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def top_k_heap(probs: torch.Tensor, top_k: int | torch.Tensor) -> torch.Tensor:
    """Variant ``exact-k``: a heap a row, in Python floats."""
    require_rows(probs)
    batch, vocab_size = probs.shape
    renormed = torch.zeros(batch, vocab_size)
    for row, k in enumerate(tokens_to_keep(top_k, batch, vocab_size)[:, 0].tolist()):
        values = probs[row].tolist()
        # The pair orders equals by their index.
        chosen = [column for _, column in heapq.nsmallest(k, [(-value, column) for column, value in enumerate(values)])]
        mass = sum(values[column] for column in chosen)
        for column in chosen:
            renormed[row, column] = values[column] / mass if mass > 0 else 0.0
    return renormed


def top_k_reciprocal(probs: torch.Tensor, top_k: int | torch.Tensor) -> torch.Tensor:
    """``torch.kthvalue`` from below, one reciprocal, products: one rounding more than a division."""
    require_rows(probs)
    if probs.numel() == 0:
        return torch.zeros(probs.shape)
    batch, vocab_size = probs.shape
    smallest = vocab_size + 1 - tokens_to_keep(top_k, batch, vocab_size)[:, 0]
    pivots = torch.stack([torch.kthvalue(row, int(rank)).values for row, rank in zip(probs, smallest, strict=True)])
    kept = torch.where(probs >= pivots[:, None], probs, 0.0)
    return kept * kept.sum(-1, keepdim=True).reciprocal()


def top_p_numpy(probs: torch.Tensor, top_p: float | torch.Tensor) -> torch.Tensor:
    """Variant ``exact-p``: numpy's stable sort and float64 sums, one row at a time."""
    require_rows(probs)
    renormed = np.zeros(tuple(probs.shape), np.float64)
    limits = mass_to_keep(top_p, probs.shape[0]).double().numpy()[:, 0]
    with np.errstate(all="ignore"):
        for row, (values, p) in enumerate(zip(probs.double().numpy(), limits, strict=True)):
            order = np.argsort(-values, kind="stable")
            mass = np.cumsum(values[order])
            needed = len(order) if p >= 1.0 else min(len(order), int(np.searchsorted(mass, p)) + 1)
            chosen = order[:needed]
            renormed[row, chosen] = values[chosen] / values[chosen].sum()
    return torch.from_numpy(renormed).float()


def top_p_bisection(probs: torch.Tensor, top_p: float | torch.Tensor) -> torch.Tensor:
    """Variant ``threshold``: bisects the boundary's bit pattern, without a sort."""
    require_rows(probs)
    p = mass_to_keep(top_p, probs.shape[0]).double()
    patterns = probs.contiguous().view(torch.int32).long()
    low = torch.zeros_like(p, dtype=torch.long)
    high = patterns.clamp(min=0).amax(-1, keepdim=True) if probs.numel() else low
    for _ in range(32 if probs.numel() else 0):
        middle = (low + high + 1) // 2
        reaches = torch.where(patterns >= middle, probs.double(), 0.0).sum(-1, keepdim=True) >= p
        low, high = torch.where(reaches, middle, low), torch.where(reaches, high, middle - 1)
    return renormalise(probs, (patterns >= low) | (p >= 1.0))


def target_probs_selection(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, path: str
) -> torch.Tensor:
    """Variant ``any-k``: ``torch.topk`` and scatter, whichever of equal logits it picks."""
    require_path(path)
    scaled = scaled_logits(logits, temperature)
    law = torch.zeros(logits.shape, dtype=torch.float32)
    for row, k in enumerate(tokens_to_keep(top_k, *logits.shape)[:, 0].tolist()):
        values, columns = torch.topk(scaled[row], k)
        law[row, columns] = top_p_threshold(torch.softmax(values, 0)[None], per_row(top_p, len(law))[row])[0]
    return law
