"""Providers ``aiter_triton`` and ``aiter_sparse``: AITER's Triton attention on latents, and with keys of 192.

Of what amd-aiter ships under ``aiter/ops/triton``, three take these shapes and run: ``mla_decode_rope`` (here without
its rotary embedding), ``extend_attention`` (576/512 and 192/128), and ``unified_attention_sparse_mla``, which attends
to chosen tokens and is asked for all that a query sees. ``mha`` takes 192/128 too, but Triton 3.9 refuses its module:
the autotuning keys of ``_triton_kernels/flash_attn_triton_amd/bwd.py`` name arguments that the kernels do not have.
``prefill_attention`` is for values as wide as keys.

None gives an LSE or takes a scale of 8-bit inputs, and none but the last knows pages: what a function has no argument
for is refused here, since leaving it out would change the question.
"""

from __future__ import annotations

import itertools
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
    """``decode_attention_fwd_grouped_rope`` without rope: q [T, H, 576] to [T, H, 512], one query a request."""
    import torch
    from aiter.ops.triton.mla_decode_rope import decode_attention_fwd_grouped_rope

    _require_no_scale(q_scale=q_scale, kv_scale=kv_scale)
    if bool((qo_indptr.diff() != 1).any()):
        raise ValueError(f"qo_indptr = {qo_indptr.tolist()}: the function takes one query a request")
    keys, values = _token_buffers(kv_cache)
    splits = 16  # sglang's on ROCm (srt/arg_groups/platform_hook.py: triton_attention_num_kv_splits)
    out = q.new_empty((*q.shape[:2], 512))
    partial = q.new_empty((*q.shape[:2], splits, 512 + 1), dtype=torch.float32)
    decode_attention_fwd_grouped_rope(
        q,
        keys,
        values,
        out,
        kv_indptr,
        kv_indices,
        None,
        512,
        64,
        None,
        None,
        partial,
        splits,
        sm_scale,
    )
    return out


def mla_extend(
    q: torch.Tensor,
    kv_new: torch.Tensor,
    kv_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    sm_scale: float,
    kv_scale: float,
) -> torch.Tensor:
    """``aiter.ops.triton.extend_attention.extend_attention_fwd``: q [T, H, 576] to [T, H, 512]."""
    from aiter.ops.triton.extend_attention import extend_attention_fwd

    _require_no_scale(kv_scale=kv_scale)
    keys, values = _token_buffers(kv_cache)
    out = q.new_empty((*q.shape[:2], 512))
    extend_attention_fwd(
        q,
        kv_new,
        kv_new[..., :512],
        out,
        keys,
        values,
        qo_indptr,
        kv_indptr,
        kv_indices,
        None,
        True,
        None,
        int(qo_indptr.diff().max()),
        sm_scale,
    )
    return out


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
) -> torch.Tensor:
    """``extend_attention_fwd``: q [T, H, 192] to [T, H, 128]; of more keys than queries the first are its prefix."""
    import torch
    from aiter.ops.triton.extend_attention import extend_attention_fwd

    _require_no_scale(k_scale=k_scale, v_scale=v_scale)
    queries, starts, ends = qo_indptr.diff().tolist(), kv_indptr[:-1].tolist(), kv_indptr[1:].tolist()
    prefixes = [end - start - count for count, start, end in zip(queries, starts, ends, strict=True)]
    if min(prefixes) < 0:
        raise ValueError(f"{queries} queries, {-min(prefixes)} more than keys: the function takes a key for each query")
    places = torch.arange(k.shape[0], dtype=torch.int32, device=q.device)
    split = list(zip(starts, prefixes, ends, strict=True))
    prefix = torch.cat([places[start : start + length] for start, length, _ in split])
    new = torch.cat([places[start + length : end] for start, length, end in split])
    out = q.new_empty((*q.shape[:2], v.shape[-1]))
    extend_attention_fwd(
        q,
        k[new],
        v[new],
        out,
        k,
        v,
        qo_indptr,
        torch.tensor([0, *itertools.accumulate(prefixes)], dtype=torch.int32, device=q.device),
        prefix,
        None,
        bool(causal),
        None,
        max(queries),
        sm_scale,
    )
    return out


def sparse_mla(
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
    """``unified_attention_sparse_mla`` on all tokens that a query sees: q [T, H, 576] to [T, H, 512]."""
    from aiter.ops.triton.unified_attention_sparse_mla import unified_attention_sparse_mla

    _require_no_scale(q_scale=q_scale, kv_scale=kv_scale)
    chosen, lengths = _seen_by_each_query(kv_cache.shape[1], qo_indptr, kv_indptr, kv_indices, kv_last_page_len)
    out = q.new_empty((*q.shape[:2], 512))
    unified_attention_sparse_mla(
        q,
        kv_cache,
        out,
        qo_indptr,
        int(qo_indptr.diff().max()),
        lengths,
        chosen.shape[1],
        sm_scale,
        chosen,
        kv_indices[None],
        512,
    )
    return out


def _seen_by_each_query(
    page_size: int,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_len: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Places in the pool of the tokens that a query sees, int32[T, longest] with -1 behind them; tokens, int32[B]."""
    import torch

    pages, device = kv_indptr.diff(), kv_indices.device
    lengths = torch.where(pages > 0, (pages - 1) * page_size + kv_last_page_len, 0).int()
    rows = []
    for count, page, length in zip(qo_indptr.diff().tolist(), kv_indptr.tolist(), lengths.tolist(), strict=False):
        token = torch.arange(length, device=device)
        places = kv_indices[page + token // page_size] * page_size + token % page_size
        rows += [places[: max(0, length - count + query + 1)] for query in range(count)]
    chosen = torch.full((len(rows), max([1, *map(len, rows)])), -1, dtype=torch.int32, device=device)
    for row, seen in zip(chosen, rows, strict=True):
        row[: len(seen)] = seen
    return chosen, lengths


def _require_no_scale(**scales: float) -> None:
    for name, scale in scales.items():
        if scale != 1.0:
            raise ValueError(f"{name} = {scale}: the function takes no scale")


def _token_buffers(kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys [tokens, 1, 576] and values [tokens, 1, 512] in one memory."""
    if kv_cache.shape[1] != 1:
        raise ValueError(
            f"kv_cache has pages of {kv_cache.shape[1]} tokens: the function takes an index for each token"
        )
    keys = kv_cache.flatten(0, 1)
    return keys, keys[..., :512]


_MODULE = "waveproof.kernels.providers.aiter_triton_mla"
_TRITON = "aiter/ops/triton"
_SIXTEEN_BIT = ("bfloat16/bfloat16", "float16/float16")


def _implementation(
    provider: str,
    operator: str,
    function: str,
    origin: str,
    runs_as: tuple[str, ...],
    heads: tuple[int, ...] = (),
    longest_query: int = 0,
    page_sizes: tuple[int, ...] = (1,),
) -> Implementation:
    return Implementation(
        provider,
        operator,
        "wide",
        ("interpret", "compile", "emulate", "hip"),
        f"{_MODULE}:{function}",
        packages=("aiter", "triton"),
        distribution="amd-aiter",
        origin=f"{_TRITON}/{origin}",
        launches=True,
        runs_as=runs_as,
        heads_apart=True,
        omits=("lse",),
        heads=heads,
        dtypes=_SIXTEEN_BIT,
        longest_query=longest_query,
        page_sizes=page_sizes,
    )


_EXTEND = "extend_attention.py:extend_attention_fwd"
_EXTEND_KERNELS = ("triton:_fwd_kernel|_fwd_kernel_logit_cap_*",)
"""Its name goes on with the values of its constants, the logit cap first (``repr`` of ``triton.jit``)."""
_SPARSE = "unified_attention_sparse_mla.py:unified_attention_sparse_mla"
_SPARSE_HEADS = tuple(range(16, 129, 16))
"""It launches ``T * (H // 16)`` programs of 16 heads."""
_SPARSE_PAGES = (1, 16, 32, 64)
"""A page is a tile, so powers of two."""

IMPLEMENTATIONS = (
    _implementation(
        "aiter_triton",
        "mla_decode",
        "mla_decode",
        "mla_decode_rope.py:decode_attention_fwd_grouped_rope",
        ("triton:_fwd_grouped_kernel_stage1_rope", "triton:_fwd_kernel_stage2"),
        longest_query=1,
    ),
    _implementation("aiter_triton", "mla_extend", "mla_extend", _EXTEND, _EXTEND_KERNELS),
    _implementation("aiter_triton", "mla_prefill", "mla_prefill", _EXTEND, _EXTEND_KERNELS, page_sizes=()),
    *(
        _implementation(
            "aiter_sparse",
            operator,
            "sparse_mla",
            _SPARSE,
            ("triton:_kernel_unified_attention_sparse_mla_2d*",),
            _SPARSE_HEADS,
            page_sizes=_SPARSE_PAGES,
        )
        for operator in ("mla_decode", "mla_prefill_absorbed")
    ),
)
