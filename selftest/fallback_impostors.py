"""Providers of a "fast" decode that is none: results are right, and the way to them is what a guard must see.

Each takes the arguments of ``mla_decode``, in the order of its contract, and gives its output, bf16[T, H, 512].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def dispatches_to_slow(*arguments: Any) -> torch.Tensor:
    """The case study's fault: the dispatcher does not find the heads and takes the generic kernel."""
    from waveproof.kernels.providers import sglang_mla

    out, _ = sglang_mla.mla_decode(*arguments)
    return out


def launches_nothing(*arguments: Any) -> torch.Tensor:
    """Torch alone: nothing to count is no small count."""
    from waveproof.kernels.providers import pytorch_mla

    out, _ = pytorch_mla.mla_decode(*arguments)
    return out


def slow_first(*arguments: Any) -> torch.Tensor:
    """The fast kernel runs, after the slow one: its name alone proves nothing."""
    from waveproof.kernels.providers import padded_mla

    dispatches_to_slow(*arguments)
    return padded_mla.mla_decode(*arguments)


def dummy_and_torch(
    q: torch.Tensor, kv_cache: torch.Tensor, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor, kv_last_page_len: torch.Tensor, sm_scale: float, q_scale: float, kv_scale: float,
) -> torch.Tensor:  # fmt: skip
    """The fast kernel alone runs, on one key, and its result is thrown away: torch computes the one that counts."""
    import torch

    from waveproof.kernels.providers import padded_mla

    one_query, one_key = (torch.tensor([0, 1], dtype=torch.int32) for _ in range(2))
    padded_mla.mla_decode(
        q[:1].contiguous(), kv_cache, one_query, one_key, kv_indices[:1].contiguous(),
        kv_last_page_len[:1].contiguous(), sm_scale, q_scale, kv_scale,
    )  # fmt: skip
    return launches_nothing(
        q, kv_cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, sm_scale, q_scale, kv_scale
    )
