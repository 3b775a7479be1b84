"""Provider ``sglang``: prefill with a key and a value for each head, and the merge of two attention states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waveproof.kernels.providers.registry import Implementation
from waveproof.kernels.providers.sglang_attention import (
    ATTENTION_RUNTIMES,
    EXTEND,
    EXTEND_KERNELS,
    KERNELS,
    attention,
)

if TYPE_CHECKING:
    import torch

Pair = tuple["torch.Tensor", "torch.Tensor"]


def mla_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    sm_scale: float,
    causal: bool,
    k_scale: float,
    v_scale: float,
) -> Pair:
    """``extend_attention_fwd`` without a prefix: what ``forward_extend`` does with a key for each query."""
    import torch
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    if kv_indptr.tolist() != qo_indptr.tolist():
        raise ValueError("extend_attention_fwd takes K and V row for row with Q; here the requests have other keys")
    if (k_scale, v_scale) != (1.0, 1.0):
        raise ValueError(
            f"k_scale {k_scale} and v_scale {v_scale} must be 1.0: extend_attention_fwd scales a prefix only"
        )
    new = (qo_indptr[1:] - qo_indptr[:-1]).tolist()
    out = q.new_empty((*q.shape[:2], v.shape[-1]))
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    extend_attention_fwd(
        q,
        k.contiguous(),
        v.contiguous(),
        out,
        k[:0],
        v[:0],
        qo_indptr.long(),
        torch.zeros_like(kv_indptr),
        qo_indptr[:0].long(),
        None,
        causal,
        None,
        max(new),
        1.0,
        1.0,
        sm_scale,
        lse_extend=lse,
        extend_seq_lens_cpu=new,
    )
    return out, lse


def mla_prefill_dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    sm_scale: float,
    causal: bool,
    k_scale: float,
    v_scale: float,
) -> Pair:
    """``dense_prefill_attention_fwd``, to which ``forward_extend`` goes where keys are more than queries.

    The cast of all three to e4m3 which ``_forward_extend_dense_one_shot`` puts before it on gfx950 is left out: what is
    asked for here is attention to K and V as they are.
    """
    import torch
    from sglang.kernels.ops.attention.extend_attention import dense_prefill_attention_fwd

    longest = int((qo_indptr[1:] - qo_indptr[:-1]).max())
    out = q.new_empty((*q.shape[:2], v.shape[-1]))
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    dense_prefill_attention_fwd(
        q,
        k.contiguous(),
        v.contiguous(),
        out,
        qo_indptr.long(),
        kv_indptr,
        longest,
        sm_scale=sm_scale,
        k_scale=k_scale,
        v_scale=v_scale,
        is_causal=causal,
        lse=lse,
    )
    return out, lse


def merge_state(out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor) -> Pair:
    """``merge_state_triton``."""
    from sglang.kernels.ops.attention.merge_state import merge_state_triton

    return merge_state_triton(out_a, lse_a, out_b, lse_b)


IMPLEMENTATIONS = (
    attention("sglang", "mla_prefill", "sglang_prefill:mla_prefill", EXTEND, EXTEND_KERNELS, keys_are_queries=True),
    attention(
        "sglang_dense",
        "mla_prefill",
        "sglang_prefill:mla_prefill_dense",
        "extend_attention.py:dense_prefill_attention_fwd",
        ("triton:_fwd_kernel_dense_prefill",),
    ),
    Implementation(
        "sglang",
        "merge_state",
        "natural",
        ATTENTION_RUNTIMES,
        "waveproof.kernels.providers.sglang_prefill:merge_state",
        packages=("sglang", "triton"),
        distribution="sglang",
        origin=f"{KERNELS}/merge_state.py:merge_state_triton",
        launches=True,
        runs_as=("triton:merge_state_kernel",),
    ),
)
