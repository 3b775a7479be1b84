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


def seeded_chain_verify(
    candidates: torch.Tensor,
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor,
    temperature: torch.Tensor,
    draft_temperature: torch.Tensor,
    seed: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``flashinfer.sampling.chain_speculative_sampling``, which draws its own random numbers.

    Written from its documentation: no machine with CUDA has run it yet.
    """
    import torch
    from flashinfer.sampling import chain_speculative_sampling

    found = chain_speculative_sampling(
        torch.softmax(draft_logits.float() / draft_temperature[:, None, None], -1),
        candidates[:, 1:].int().contiguous(),
        torch.softmax(target_logits.float() / temperature[:, None, None], -1),
        generator=torch.Generator(candidates.device).manual_seed(seed),
    )
    # Counters of accepted and emitted tokens come with the tokens in some releases; what stands is not -1 in any.
    tokens = (found[0] if isinstance(found, (tuple, list)) else found).int()
    return (tokens != -1).sum(-1).int() - 1, tokens


_RENORM = tuple(
    Implementation(
        "flashinfer",
        operator,
        "threshold",
        ("cuda",),
        f"waveproof.kernels.providers.flashinfer_kernels:{operator}",
        packages=("flashinfer",),
        distribution="flashinfer-python",
        origin=f"flashinfer/sampling.py:{upstream}",
        runs_as=(f"flashinfer:{kernel}*",),
    )
    for operator, upstream, kernel in (
        ("top_k_renorm_prob", "top_k_renorm_probs", "*TopK"),
        ("top_p_renorm_prob", "top_p_renorm_probs", "*TopPRenorm"),
    )
)

IMPLEMENTATIONS = (
    *_RENORM,
    Implementation(
        "flashinfer",
        "seeded_chain_verify",
        "sampled",
        ("cuda",),
        "waveproof.kernels.providers.flashinfer_kernels:seeded_chain_verify",
        packages=("flashinfer",),
        distribution="flashinfer-python",
        origin="flashinfer/sampling.py:chain_speculative_sampling",
        runs_as=("flashinfer", "torch:softmax?", "torch:random?"),
    ),
)
