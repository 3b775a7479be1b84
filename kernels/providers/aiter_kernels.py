"""Provider ``aiter``: its HIP renorm, which is compiled from the shipped C++ template at the first call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waveproof.kernels.providers.registry import Implementation

if TYPE_CHECKING:
    import torch


def top_k_renorm_prob(probs: torch.Tensor, top_k: int | torch.Tensor) -> torch.Tensor:
    """``aiter.ops.sampling.top_k_renorm_probs``: float32[B, V] to float32[B, V].

    A per-row tensor goes in beside a scalar of 0, as the function's own signature has it.
    """
    import torch
    from aiter.ops.sampling import top_k_renorm_probs

    if isinstance(top_k, torch.Tensor):
        return top_k_renorm_probs(probs, top_k.to(torch.int32), 0)
    return top_k_renorm_probs(probs, None, top_k)


IMPLEMENTATIONS = (
    Implementation(
        "aiter",
        "top_k_renorm_prob",
        "threshold",
        ("hip",),
        "waveproof.kernels.providers.aiter_kernels:top_k_renorm_prob",
        packages=("aiter",),
        distribution="amd-aiter",
        origin="aiter/ops/sampling.py:top_k_renorm_probs",
        runs_as=("hip:TopKRenormProbKernel",),
    ),
)
