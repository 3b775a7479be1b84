"""Provider ``sglang``: the kernels that verify draft tokens, through its own launchers.

They fill three buffers of the caller: ``accept_index``, where each accepted slot stands among the candidates of the
whole batch, ``predicts``, the token after each accepted slot (what lies elsewhere in it is not written), and
``accept_token_num``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waveproof.kernels.providers.registry import Implementation

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

Verified = tuple["torch.Tensor", "torch.Tensor"]


def chain_verify(
    candidates: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
    block_verification: bool,
) -> Verified:
    """``chain_speculative_sampling_triton`` with the thresholds that ``--speculative-use-rejection-sampling`` needs."""
    import torch
    from sglang.kernels.ops.speculative.reject_sampling import chain_speculative_sampling_triton

    batch, slots = candidates.shape
    slot_index, first_child, next_sibling = chain_links(batch, slots, candidates.device)
    predicts = torch.empty(batch * slots, dtype=torch.int32, device=candidates.device)
    accept_index = torch.empty((batch, slots), dtype=torch.int32, device=candidates.device)
    accept_token_num = torch.empty(batch, dtype=torch.int32, device=candidates.device)
    chain_speculative_sampling_triton(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accept_token_num,
        candidates=candidates,
        retrive_index=slot_index,
        retrive_next_token=first_child,
        retrive_next_sibling=next_sibling,
        uniform_samples=coins,
        uniform_samples_for_final_sampling=final_coins.contiguous(),
        target_probs=target_probs,
        draft_probs=draft_probs,
        threshold_single=1.0,
        threshold_acc=1.0,
        deterministic=True,
        block_verification=block_verification,
    )
    return accept_token_num, tokens_of(predicts, accept_index, accept_token_num)


def target_only_verify(
    candidates: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_probs: torch.Tensor,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
    threshold_single: float,
    threshold_acc: float,
    depth: int,
) -> Verified:
    """``tree_speculative_sampling_target_only``, compiled by sglang where CUDA is; nothing on HIP is bound to it."""
    import torch
    from sglang.kernels.ops.speculative.sampling import tree_speculative_sampling_target_only

    batch, nodes = candidates.shape
    slot_index, _, _ = chain_links(batch, nodes, candidates.device)
    predicts = torch.zeros(batch * nodes, dtype=torch.int32, device=candidates.device)
    accept_index = torch.full((batch, depth), -1, dtype=torch.int32, device=candidates.device)
    accept_token_num = torch.empty(batch, dtype=torch.int32, device=candidates.device)
    target_probs = target_probs.contiguous()
    tree_speculative_sampling_target_only(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accept_token_num,
        candidates=candidates.contiguous(),
        retrive_index=slot_index,
        retrive_next_token=retrieve_next_token.contiguous(),
        retrive_next_sibling=retrieve_next_sibling.contiguous(),
        uniform_samples=coins.contiguous(),
        uniform_samples_for_final_sampling=final_coins.contiguous(),
        target_probs=target_probs,
        draft_probs=torch.zeros_like(target_probs),  # where the kernel marks the children that it refused
        threshold_single=threshold_single,
        threshold_acc=threshold_acc,
        deterministic=True,
    )
    return accept_token_num, tokens_of(predicts, accept_index, accept_token_num)


def tree_verify_greedy(
    candidates: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
    depth: int,
) -> Verified:
    """``verify_tree_greedy_triton``, which sglang itself launches on Intel GPUs."""
    from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_triton

    links = retrieve_next_token, retrieve_next_sibling
    return greedily(verify_tree_greedy_triton, candidates, links, target_predict, depth)


def tree_verify_greedy_on_gpu(
    candidates: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
    depth: int,
) -> Verified:
    """``verify_tree_greedy_func``: on CUDA and HIP a kernel that sglang compiles from ``speculative/tree.cuh``."""
    from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_func

    links = retrieve_next_token, retrieve_next_sibling
    return greedily(verify_tree_greedy_func, candidates, links, target_predict, depth)


def greedily(
    walk: Callable[..., object],
    candidates: torch.Tensor,
    links: tuple[torch.Tensor, torch.Tensor],
    target_predict: torch.Tensor,
    depth: int,
) -> Verified:
    """One of sglang's walks down a tree, with the buffers that it fills; ``links`` are first child and next sibling."""
    import torch

    batch, nodes = candidates.shape
    slot_index, _, _ = chain_links(batch, nodes, candidates.device)
    predicts = torch.zeros(batch * nodes, dtype=torch.int32, device=candidates.device)
    accept_index = torch.full((batch, depth), -1, dtype=torch.int32, device=candidates.device)
    accept_token_num = torch.empty(batch, dtype=torch.int32, device=candidates.device)
    first_child, next_sibling = links
    walk(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accept_token_num,
        candidates=candidates.contiguous(),
        retrieve_index=slot_index,
        retrieve_next_token=first_child.contiguous(),
        retrieve_next_sibling=next_sibling.contiguous(),
        target_predict=target_predict.contiguous(),
    )
    return accept_token_num, tokens_of(predicts, accept_index, accept_token_num)


def seeded_chain_verify(
    candidates: torch.Tensor,
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor,
    temperature: torch.Tensor,
    draft_temperature: torch.Tensor,
    seed: int,
) -> Verified:
    """``blockwise_rejection_triton``, at the first step of a server with that random seed."""
    import torch
    from sglang.kernels.ops.speculative.dspark.blockwise_rejection import (
        blockwise_rejection_triton,
        make_rejection_noise,
    )

    accepted, last, _ = blockwise_rejection_triton(
        candidates=candidates.contiguous(),
        target_logits=target_logits.reshape(-1, target_logits.shape[-1]).contiguous(),
        draft_logits=draft_logits.contiguous(),
        target_temperatures=temperature,
        draft_temperatures=draft_temperature,
        noise=make_rejection_noise(seed, candidates.device),
    )
    slot = torch.arange(candidates.shape[1], device=candidates.device)
    drafts = torch.where(slot < accepted[:, None], candidates.roll(-1, 1), -1)
    return accepted.clone(), torch.where(slot == accepted[:, None], last[:, None], drafts).int()


def chain_links(batch: int, slots: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Place of each slot in the batch, its first child in a chain and its next sibling, int64[B, S]."""
    import torch

    slot_index = torch.arange(batch * slots, dtype=torch.int64, device=device).view(batch, slots)
    first_child = torch.arange(1, slots + 1, dtype=torch.int64, device=device).repeat(batch, 1)
    first_child[:, -1] = -1
    return slot_index, first_child, torch.full_like(slot_index, -1)


def tokens_of(predicts: torch.Tensor, accept_index: torch.Tensor, accept_token_num: torch.Tensor) -> torch.Tensor:
    """The token after each accepted slot, the root's first, then -1; int32 of ``accept_index``'s shape."""
    import torch

    slot = torch.arange(accept_index.shape[1], device=predicts.device)
    written = slot <= accept_token_num[:, None]
    return torch.where(written, predicts[torch.where(written, accept_index, 0).long()], -1)


_SIMULATED = ("interpret", "compile", "emulate")
_GPU = ("hip", "cuda")
_OPS = "sglang/kernels/ops/speculative"


def _implementation(
    operator: str,
    variant: str,
    runtimes: tuple[str, ...],
    origin: str,
    load: str = "",
    launches: bool = True,
    runs_as: tuple[str, ...] = (),
) -> Implementation:
    return Implementation(
        "sglang",
        operator,
        variant,
        runtimes,
        f"waveproof.kernels.providers.sglang_verify:{load or operator}",
        packages=("sglang", "triton"),
        distribution="sglang",
        origin=f"{_OPS}/{origin}",
        launches=launches,
        runs_as=runs_as,
    )


IMPLEMENTATIONS = (
    _implementation(
        "chain_verify",
        "half-open",
        (*_SIMULATED, *_GPU),
        "reject_sampling.py:chain_speculative_sampling_triton",
        runs_as=("triton:speculative_sampling_*",),
    ),
    _implementation(
        "target_only_verify",
        "half-open",
        ("cuda",),
        "sampling.py:tree_speculative_sampling_target_only",
        launches=False,
    ),
    _implementation(
        "tree_verify_greedy",
        "first-match",
        _SIMULATED,
        "spec_tree.py:verify_tree_greedy_triton",
        runs_as=("triton:verify_tree_greedy_kernel_triton",),
    ),
    _implementation(
        "tree_verify_greedy",
        "first-match",
        _GPU,
        "spec_tree.py:verify_tree_greedy_func",
        "tree_verify_greedy_on_gpu",
        launches=False,
    ),
    # Not interpreted: Triton's interpreter runs no function of libdevice, and the residual takes log1p from there.
    _implementation(
        "seeded_chain_verify",
        "sampled",
        ("compile", "emulate", *_GPU),
        "dspark/blockwise_rejection.py:blockwise_rejection_triton",
        runs_as=(
            "triton:_stats_kernel",
            "triton:_rejection_kernel",
            "triton:_resample_kernel",
            "triton:_insert_kernel",
        ),
    ),
)
