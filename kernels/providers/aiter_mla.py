"""Provider ``aiter``: its assembly MLA, through AITER's own Python entry points.

What of ``mla_decode_fwd`` is called is its form without metadata (not *persistent*): the metadata and reduce kernels of
the persistent form are HIP C++ that is compiled on a ROCm machine. The number of KV splits is left to AITER, as sglang
leaves it (``sglang/srt/layers/attention/aiter_backend.py``, ``_kernel_num_kv_splits``).

**No LSE.** Both functions return one, of memory that no kernel writes: ``mla_decode_fwd`` only allocates ``final_lse``
in this form, and the prefill objects leave ``attn_lse`` as it was (amd-aiter 0.1.7.post2.dev18, aiter/mla.py).

**Three implementations of decode**, served by one function, since other code objects run: ``aiter`` with 16 heads,
whose object holds 128 rows of queries, eight for each head; ``aiter_128`` with 128 heads and so one query;
``aiter_fp8`` with 8-bit queries, which rounds the weights to 8 bits. What is declared here is right; what AITER accepts
beyond it, and answers wrongly, is found by the tests of what is not declared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waveproof.kernels.providers.registry import Implementation

if TYPE_CHECKING:
    import torch


def mla_decode(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    sm_scale: float,
    q_scale: float,
    kv_scale: float,
) -> torch.Tensor:
    """``aiter.mla.mla_decode_fwd``: q [T, H, 576] to [T, H, 512], bfloat16 where q has 8 bits, else of its dtype."""
    import torch
    from aiter.mla import mla_decode_fwd

    out = q.new_empty((*q.shape[:2], 512), dtype=torch.bfloat16 if q.itemsize == 1 else q.dtype)
    mla_decode_fwd(
        q,
        kv_cache,
        out,
        qo_indptr,
        kv_indptr,
        kv_indices,
        kv_last_page_len,
        int(qo_indptr.diff().max()),
        sm_scale=sm_scale,
        q_scale=torch.tensor([q_scale], dtype=torch.float32, device=q.device),
        kv_scale=torch.tensor([kv_scale], dtype=torch.float32, device=q.device),
    )
    return out


def mla_prefill_absorbed(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    sm_scale: float,
    q_scale: float,
    kv_scale: float,
) -> torch.Tensor:
    """``aiter.mla.mla_prefill_fwd``: q [T, H, 576] to [T, H, 512] of its dtype; it has no argument for scales."""
    from aiter.mla import mla_prefill_fwd

    out = q.new_empty((*q.shape[:2], 512))
    mla_prefill_fwd(
        q,
        kv_cache,
        out,
        qo_indptr,
        kv_indptr,
        kv_indices,
        kv_last_page_len,
        int(qo_indptr.diff().max()),
        sm_scale,
    )
    return out


HEADS = (16, 128)
"""For which there are code objects (csrc/py_itfs_cu/asm_mla.cu: ``gqa_ratio``)."""
LONGEST_QUERY = 8
"""Of 16 heads: ``mla_dec_stage1_bf16_a16w16_subQ128_mqa16.co`` computes 128 rows, and one workgroup is launched."""
LONGEST_QUERY_FP8 = 2
"""asm_mla.cu takes up to four; the gfx950 object for three and four is wrong
(:data:`waveproof.fixtures.mla_findings.SPLIT_LOST`)."""

_REDUCE = "triton:_fwd_kernel_stage2_asm?"
"""Sums up the splits, where there are several."""
DECODE_KERNELS = ("asm:mla_[ad]*", _REDUCE)
"""``mla_dec_*`` for one query of a request, ``mla_a16w16_*`` for several."""
PREFILL_KERNELS = ("asm:mla_pfl_*",)

_MODULE = "waveproof.kernels.providers.aiter_mla"


def _implementation(
    provider: str,
    operator: str,
    dtypes: tuple[str, ...],
    heads: tuple[int, ...],
    runs_as: tuple[str, ...],
    longest_query: int = 0,
    narrow: bool = False,
) -> Implementation:
    return Implementation(
        provider,
        operator,
        "narrow" if narrow else "wide",
        ("emulate", "hip"),
        f"{_MODULE}:{operator}",
        packages=("aiter", "triton"),
        distribution="amd-aiter",
        origin=f"aiter/mla.py:{'mla_decode_fwd' if operator == 'mla_decode' else 'mla_prefill_fwd'}",
        launches=True,
        runs_as=runs_as,
        assembly=True,
        heads_apart=True,
        omits=("lse",),
        heads=heads,
        dtypes=dtypes,
        longest_query=longest_query,
        page_sizes=(1,),
        contiguous=True,
        equal_queries=narrow,
        most_requests=int(narrow),
    )


_BF16 = ("bfloat16/bfloat16",)
_FP8 = ("float8_e4m3fn/float8_e4m3fn", "float8_e4m3fnuz/float8_e4m3fnuz")

IMPLEMENTATIONS = (
    _implementation("aiter", "mla_decode", _BF16, (16,), DECODE_KERNELS, LONGEST_QUERY),
    _implementation("aiter_128", "mla_decode", _BF16, (128,), DECODE_KERNELS, 1),
    _implementation(
        "aiter_fp8", "mla_decode", _FP8, HEADS, ("asm:mla_a8w8_*", _REDUCE), LONGEST_QUERY_FP8, narrow=True
    ),
    _implementation("aiter", "mla_prefill_absorbed", _BF16, HEADS, PREFILL_KERNELS),
)
