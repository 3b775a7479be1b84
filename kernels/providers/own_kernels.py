"""Provider ``waveproof``: our own Triton kernels, which find the boundary value by search instead of a sort."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waveproof.kernels.providers.registry import Implementation

if TYPE_CHECKING:
    import torch


def top_k_renorm_prob(probs: torch.Tensor, top_k: int | torch.Tensor) -> torch.Tensor:
    """``waveproof.kernels.own.renorm.top_k_renorm_prob``: float32[B, V] to float32[B, V]."""
    from waveproof.kernels.own import renorm

    return renorm.top_k_renorm_prob(probs, top_k)


def top_p_renorm_prob(probs: torch.Tensor, top_p: float | torch.Tensor) -> torch.Tensor:
    """``waveproof.kernels.own.renorm.top_p_renorm_prob``: float32[B, V] to float32[B, V]."""
    from waveproof.kernels.own import renorm

    return renorm.top_p_renorm_prob(probs, top_p)


def target_probs(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, path: str
) -> torch.Tensor:
    """torch's softmax and our two kernels: the dense path, logits [B, V] to float32[B, V]."""
    import torch

    from waveproof.kernels.own import renorm

    if path != "dense":
        raise ValueError(f"path must be 'dense', got {path!r}")
    probs = torch.softmax(logits.float() / temperature[:, None], -1)
    return renorm.top_p_renorm_prob(renorm.top_k_renorm_prob(probs, top_k), top_p)


_RUNTIMES = ("interpret", "compile", "emulate", "hip", "cuda")
_MODULE = "waveproof.kernels.providers.own_kernels"
_ORIGIN = "waveproof/kernels/own/renorm.py"

IMPLEMENTATIONS = tuple(
    Implementation(
        "waveproof",
        operator,
        "threshold",
        _RUNTIMES,
        f"{_MODULE}:{operator}",
        packages=("triton",),
        origin=f"{_ORIGIN}:{operator}",
        launches=True,
        runs_as=("triton:renorm_kernel", *(("torch:softmax?",) if operator == "target_probs" else ())),
        whole_row_programs=operator != "target_probs",
        paths=paths,
    )
    for operator, paths in (
        ("top_k_renorm_prob", ()),
        ("top_p_renorm_prob", ()),
        ("target_probs", (("dense", "threshold"),)),
    )
)
