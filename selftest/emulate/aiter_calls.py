"""Calls of AITER's MLA entry points with small tensors, for the tests of the emulated device."""

from __future__ import annotations

from typing import Any

import torch

HEAD = 576
VALUE = 512
SCALE = 192**-0.5
"""Softmax scale of a 128 + 64 query head."""


def decode(
    heads: int,
    query_length: int = 1,
    batch: int = 3,
    kv_length: int = 75,
    splits: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype | None = None,
    page_size: int = 1,
    seed: int = 1,
) -> dict[str, Any]:
    """Named arguments of ``mla_decode_stage1_asm_fwd``, not persistent: every request has the same lengths.

    Outputs hold NaN. fp8 calls carry scales of 1, bf16 calls none.
    """
    generator = torch.Generator().manual_seed(seed)
    kv_dtype = kv_dtype or dtype
    tokens, pages = batch * query_length, batch * -(-kv_length // page_size)
    scale = torch.ones(1) if kv_dtype.itemsize == 1 else None
    return {
        "Q": torch.randn(tokens, heads, HEAD, generator=generator).to(dtype),
        "KV": torch.randn(pages + 9, page_size, 1, HEAD, generator=generator).to(kv_dtype),
        "qo_indptr": torch.arange(batch + 1, dtype=torch.int32) * query_length,
        "kv_indptr": torch.arange(batch + 1, dtype=torch.int32) * (pages // batch),
        "kv_page_indices": torch.randperm(pages + 9, generator=generator)[:pages].to(torch.int32),
        "kv_last_page_lens": torch.ones(batch, dtype=torch.int32),
        "num_kv_splits_indptr": torch.arange(batch + 1, dtype=torch.int32) * splits,
        "work_meta_data": None,
        "work_indptr": None,
        "work_info_set": None,
        "max_seqlen_q": query_length,
        "softmax_scale": SCALE,
        "splitData": torch.full((tokens, splits, heads, VALUE), float("nan")),
        "splitLse": torch.full((tokens, splits, heads, 1), float("nan")),
        "output": torch.full((tokens, heads, VALUE), float("nan"), dtype=torch.bfloat16),
        "q_scale": scale if dtype.itemsize == 1 else None,
        "kv_scale": scale,
    }


def persistent(heads: int, parts: int = 80, **named: Any) -> dict[str, Any]:
    """The same for the persistent kernels: ``parts`` workgroups take their work from metadata on the device."""
    call = decode(heads, **named)
    call["num_kv_splits_indptr"] = None
    call["work_indptr"] = torch.zeros(parts + 1, dtype=torch.int32)
    call["work_info_set"] = torch.zeros(parts, 8, dtype=torch.int32)
    return call


def prefill(heads: int, query_length: int = 20, splits: int = 1, **named: Any) -> dict[str, Any]:
    """Named arguments of ``mla_prefill_asm_fwd``."""
    call = decode(heads, query_length, splits=splits, **named)
    unknown = (
        "num_kv_splits_indptr",
        "work_meta_data",
        "work_indptr",
        "work_info_set",
        "output",
        "q_scale",
        "kv_scale",
    )
    return {name: value for name, value in call.items() if name not in unknown}


def attention(q: torch.Tensor, kv: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """One query token against one request's KV in float64.

    Args:
        q: [heads, 576].
        kv: [tokens, 576].
        scale: of the scores.

    Returns:
        float64[heads, 512] and the natural logarithm of the sum of exponentials, float64[heads].
    """
    keys = kv.double()
    scores = q.double() @ keys.T * scale
    return torch.softmax(scores, -1) @ keys[:, :VALUE], torch.logsumexp(scores, -1)
