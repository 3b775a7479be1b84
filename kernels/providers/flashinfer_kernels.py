"""Provider ``flashinfer``: the CUDA kernels that sglang calls on NVIDIA GPUs, source of CUDA goldens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waveproof.kernels.providers.registry import Implementation

if TYPE_CHECKING:
    import torch


def top_k_renorm_prob(probs: torch.Tensor, top_k: int | torch.Tensor) -> torch.Tensor:
    """``flashinfer.sampling.top_k_renorm_probs``: float32[B, V] to float32[B, V]."""
    from flashinfer.sampling import top_k_renorm_probs

    return top_k_renorm_probs(probs, top_k)


def top_p_renorm_prob(probs: torch.Tensor, top_p: float | torch.Tensor) -> torch.Tensor:
    """``flashinfer.sampling.top_p_renorm_probs``: float32[B, V] to float32[B, V]."""
    from flashinfer.sampling import top_p_renorm_probs

    return top_p_renorm_probs(probs, top_p)


IMPLEMENTATIONS = tuple(
    Implementation(
        "flashinfer",
        operator,
        "threshold",
        ("cuda",),
        f"waveproof.kernels.providers.flashinfer_kernels:{operator}",
        packages=("flashinfer",),
        distribution="flashinfer-python",
        origin=f"flashinfer/sampling.py:{upstream}",
    )
    for operator, upstream in (
        ("top_k_renorm_prob", "top_k_renorm_probs"),
        ("top_p_renorm_prob", "top_p_renorm_probs"),
    )
)
