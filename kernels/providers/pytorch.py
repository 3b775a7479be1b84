"""Provider ``torch``: the family in plain torch, on any device, as a fallback that is always there.

This is the shape of the cure that ended the ``NameError: top_k_renorm_prob`` on ROCm: find the boundary value, mask,
divide. Limits that lie on a device are never read back, so nothing here waits for it.
"""

from __future__ import annotations

import torch

from waveproof.kernels.providers.registry import Implementation

LARGEST_SELECTION = 1024
"""top_k up to which selecting beats sorting; above it ``torch.topk`` itself sorts."""


def top_k_renorm_prob(probs: torch.Tensor, top_k: int | torch.Tensor) -> torch.Tensor:
    """Keep the top_k largest of each row, ties with the last of them included, and divide by their sum.

    Args:
        probs: float32[B, V].
        top_k: int, or int32/int64[B] or [1]; k <= 0 and k >= V keep everything.

    Returns:
        float32[B, V]; a row that sums to zero gives NaN.

    Raises:
        ValueError: probs is not [B, V], or top_k has neither 1 nor B values.
    """
    _require_rows(probs)
    batch, vocab_size = probs.shape
    if probs.numel() == 0:
        return torch.empty_like(probs, dtype=torch.float32)
    probs = probs.float()
    if isinstance(top_k, torch.Tensor):
        k = _require_per_row(top_k, batch, "top_k").long()
    else:
        k = torch.tensor([min(top_k, vocab_size)]).expand(batch)
    unfiltered = (k <= 0) | (k >= vocab_size)
    # The largest k of a tensor on a device is not asked for: that would wait for the device.
    largest = int(torch.where(unfiltered, 1, k).max()) if k.device.type == "cpu" else vocab_size
    k, unfiltered = k.to(probs.device)[:, None], unfiltered.to(probs.device)[:, None]
    if largest <= LARGEST_SELECTION:
        descending = torch.topk(probs, largest, dim=-1).values
    else:
        descending = torch.sort(probs, dim=-1, descending=True).values
    pivot = descending.gather(1, (k - 1).clamp(0, descending.shape[1] - 1))
    pivot = torch.where(unfiltered, 0.0, pivot)
    kept = torch.where(probs >= pivot, probs, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def top_p_renorm_prob(probs: torch.Tensor, top_p: float | torch.Tensor) -> torch.Tensor:
    """Keep the largest of each row whose larger ones weigh less than top_p, ties included, and divide by their sum.

    Args:
        probs: float32[B, V].
        top_p: float above 0, or float32[B] or [1]; 1 and more keep everything.

    Returns:
        float32[B, V]; a row that sums to zero gives NaN.

    Raises:
        ValueError: probs is not [B, V], top_p is NaN or not above 0, or has neither 1 nor B values.
    """
    _require_rows(probs)
    batch = probs.shape[0]
    if probs.numel() == 0:
        return torch.empty_like(probs, dtype=torch.float32)
    probs = probs.float()
    if isinstance(top_p, torch.Tensor):
        p = _require_per_row(top_p, batch, "top_p").to(probs.dtype)[:, None]
    else:
        if not top_p > 0:
            raise ValueError(f"top_p must be above 0, got {top_p!r}")
        p = torch.full_like(probs[:, :1], top_p)
    descending = torch.sort(probs, dim=-1, descending=True).values
    before = torch.cumsum(descending, dim=-1) - descending
    # The first token always stays; p >= 1 keeps all, whatever the rounding of the prefix sums says.
    last = ((before < p) | (p >= 1.0)).sum(-1, keepdim=True).clamp(min=1)
    pivot = descending.gather(1, last - 1)
    kept = torch.where(probs >= pivot, probs, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def target_probs(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, path: str
) -> torch.Tensor:
    """softmax(logits / temperature), then top-k, then top-p, renormalised between.

    Args:
        logits: float32, bfloat16 or float16 [B, V].
        temperature: float32[B], above 0.
        top_k: int32/int64[B], as in :func:`top_k_renorm_prob`.
        top_p: float32[B], as in :func:`top_p_renorm_prob`.
        path: ``dense`` filters probabilities; ``sparse`` masks logits below the k-th first.

    Returns:
        float32[B, V].

    Raises:
        ValueError: another path, or as the two operators above.
    """
    _require_rows(logits)
    scaled = logits.float() / _require_per_row(temperature, logits.shape[0], "temperature").float()[:, None]
    if path == "dense":
        return top_p_renorm_prob(top_k_renorm_prob(torch.softmax(scaled, -1), top_k), top_p)
    if path != "sparse":
        raise ValueError(f"path must be 'dense' or 'sparse', got {path!r}")
    vocab_size = logits.shape[1]
    k = _require_per_row(top_k, logits.shape[0], "top_k").long()
    k = torch.where((k <= 0) | (k > vocab_size), vocab_size, k)
    pivot = torch.sort(scaled, dim=-1, descending=True).values.gather(1, (k - 1)[:, None])
    return top_p_renorm_prob(torch.softmax(scaled.masked_fill(scaled < pivot, -torch.inf), -1), top_p)


def _require_rows(tensor: torch.Tensor) -> None:
    if tensor.ndim != 2:
        raise ValueError(f"expected [B, V], got shape {list(tensor.shape)}")


def _require_per_row(tensor: torch.Tensor, batch: int, name: str) -> torch.Tensor:
    flat = tensor.reshape(-1)
    if flat.numel() not in (1, batch):
        raise ValueError(f"{name} must have 1 or {batch} values, got {flat.numel()}")
    return flat.expand(batch)


_RUNTIMES = ("cpu", "hip", "cuda")
_MODULE = "waveproof.kernels.providers.pytorch"

IMPLEMENTATIONS = (
    Implementation("torch", "top_k_renorm_prob", "threshold", _RUNTIMES, f"{_MODULE}:top_k_renorm_prob"),
    Implementation("torch", "top_p_renorm_prob", "threshold", _RUNTIMES, f"{_MODULE}:top_p_renorm_prob"),
    Implementation(
        "torch",
        "target_probs",
        "threshold",
        _RUNTIMES,
        f"{_MODULE}:target_probs",
        paths=(("dense", "threshold"), ("sparse", "threshold")),
    ),
)
