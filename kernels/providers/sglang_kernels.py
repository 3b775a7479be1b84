"""Provider ``sglang``: its Triton renorm for ROCm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waveproof.kernels.providers.registry import Implementation

if TYPE_CHECKING:
    import torch


def top_k_renorm_prob(probs: torch.Tensor, top_k: int | torch.Tensor) -> torch.Tensor:
    """``top_k_renorm_probs_triton``: sglang binds ``top_k_renorm_prob`` to it on HIP."""
    from sglang.kernels.ops.sampling.renorm_triton import top_k_renorm_probs_triton

    return top_k_renorm_probs_triton(probs, top_k)


def top_p_renorm_prob(probs: torch.Tensor, top_p: float | torch.Tensor) -> torch.Tensor:
    """``top_p_renorm_probs_triton``: sglang binds ``top_p_renorm_prob`` to it on HIP."""
    from sglang.kernels.ops.sampling.renorm_triton import top_p_renorm_probs_triton

    return top_p_renorm_probs_triton(probs, top_p)


_RENORM = "sglang/kernels/ops/sampling/renorm_triton.py"
KERNELS = ("triton:_mask_and_partial_sum_kernel", "triton:_normalize_kernel")
_PIVOT = ("torch:sort?", "torch:scan?", "torch:topk?")
"""torch finds the pivot, from which the kernels go on (renorm_triton.py ``torch.sort``, ``torch.cumsum``)."""

IMPLEMENTATIONS = tuple(
    Implementation(
        "sglang",
        operator,
        "threshold",
        ("interpret", "compile", "emulate", "hip", "cuda"),
        f"waveproof.kernels.providers.sglang_kernels:{operator}",
        packages=("sglang", "triton"),
        distribution="sglang",
        origin=f"{_RENORM}:{upstream}",
        launches=True,
        runs_as=(*KERNELS, *_PIVOT),
    )
    for operator, upstream in (
        ("top_k_renorm_prob", "top_k_renorm_probs_triton"),
        ("top_p_renorm_prob", "top_p_renorm_probs_triton"),
    )
)
