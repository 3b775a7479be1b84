"""Provider ``waveproof`` of family ``mla``: padding of heads, and AITER's assembly MLA for any number of heads by it.

Up to 16 heads go to AITER's objects for 16, more to those for 128. Its bf16 decode object for 128 heads does not hide
later tokens from earlier queries (:data:`waveproof.fixtures.mla_findings.NOT_CAUSAL`), so several queries of more than
16 heads are decoded sixteen heads at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waveproof.kernels.providers.aiter_mla import DECODE_KERNELS, PREFILL_KERNELS
from waveproof.kernels.providers.registry import Implementation

if TYPE_CHECKING:
    import torch


def pad_heads(x: torch.Tensor, target: int, mode: str) -> torch.Tensor:
    """``waveproof.kernels.own.padded_heads.pad_heads``: [T, H, D] to [T, target, D]."""
    from waveproof.kernels.own import padded_heads

    return padded_heads.pad_heads(x, target, mode)


def unpad_heads(x: torch.Tensor, heads: int, mode: str) -> torch.Tensor:
    """``waveproof.kernels.own.padded_heads.unpad_heads``: [T, target, ...] to [T, heads, ...]."""
    from waveproof.kernels.own import padded_heads

    return padded_heads.unpad_heads(x, heads, mode)


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
    """AITER's ``mla_decode_fwd`` on zero-padded heads: q bf16[T, H, 576], H up to 128, to bf16[T, H, 512].

    Raises:
        ValueError: pages of several tokens, more than eight queries a request, more than 128 heads, another dtype than
            bfloat16, or a pool beyond 4 GiB.
    """
    import torch

    from waveproof.kernels.own.padded_heads import padded
    from waveproof.kernels.providers import aiter_mla

    longest = int(qo_indptr.diff().max())
    _require(q, kv_cache)
    if longest > aiter_mla.LONGEST_QUERY:
        raise ValueError(
            f"{longest} queries of a request: AITER's decode computes {aiter_mla.LONGEST_QUERY} of 16 heads"
        )

    def by_sixteen(q: torch.Tensor, *rest: Any) -> torch.Tensor:
        return torch.cat([aiter_mla.mla_decode(heads.contiguous(), *rest) for heads in q.split(16, 1)], 1)

    decode = padded(aiter_mla.mla_decode, aiter_mla.HEADS)
    if q.shape[1] > 16 and longest > 1:
        decode = padded(by_sixteen, range(16, 129, 16))
    out = decode(
        q.contiguous(), kv_cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, sm_scale, q_scale, kv_scale
    )
    return _without_blind_queries(out, qo_indptr, kv_indptr)


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
    """AITER's ``mla_prefill_fwd`` on zero-padded heads: q bf16[T, H, 576], H up to 128, to bf16[T, H, 512].

    Raises:
        ValueError: pages of several tokens, more than 128 heads, another dtype than bfloat16, or a pool beyond 4 GiB.
    """
    from waveproof.kernels.own.padded_heads import padded
    from waveproof.kernels.providers import aiter_mla

    _require(q, kv_cache)
    out = padded(aiter_mla.mla_prefill_absorbed, aiter_mla.HEADS)(
        q.contiguous(), kv_cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, sm_scale, q_scale, kv_scale
    )
    return _without_blind_queries(out, qo_indptr, kv_indptr)


def _require(q: torch.Tensor, kv_cache: torch.Tensor) -> None:
    """Refuse what AITER's host takes and its kernels do not compute (ROCm/aiter#2996 for pages).

    The kernels reach the pool by buffer instructions, whose offsets have 32 bits: tokens beyond 4 GiB are others.
    """
    import torch

    if kv_cache.shape[1] != 1:
        raise ValueError(f"pages of {kv_cache.shape[1]} tokens: AITER's kernels read the first token of each page")
    if (q.dtype, kv_cache.dtype) != (torch.bfloat16, torch.bfloat16):
        raise ValueError(f"q is {q.dtype}, kv_cache {kv_cache.dtype}: both must be bfloat16")
    size = kv_cache.numel() * kv_cache.element_size()
    if size > 2**32:
        raise ValueError(f"kv_cache has {size} bytes: AITER's kernels reach the first {2**32}")


def _without_blind_queries(out: torch.Tensor, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor) -> torch.Tensor:
    """Zeros for queries that see no token, for which AITER leaves NaN; nothing waits for the device."""
    import torch

    request = torch.searchsorted(
        qo_indptr, torch.arange(len(out), device=out.device, dtype=qo_indptr.dtype), right=True
    )
    before_end = qo_indptr[request] - torch.arange(len(out), device=out.device)
    blind = kv_indptr.diff()[request - 1] < before_end
    return out.masked_fill_(blind[:, None, None], 0.0)


_MODULE = "waveproof.kernels.providers.padded_mla"
_ORIGIN = "waveproof/kernels/own/padded_heads.py"

IMPLEMENTATIONS = (
    *(
        Implementation(
            "waveproof",
            operator,
            "exact",
            ("cpu", "hip", "cuda"),
            f"{_MODULE}:{operator}",
            origin=f"{_ORIGIN}:{operator}",
        )
        for operator in ("pad_heads", "unpad_heads")
    ),
    *(
        Implementation(
            "waveproof",
            operator,
            "wide",
            ("emulate", "hip"),
            f"{_MODULE}:{operator}",
            packages=("aiter", "triton"),
            distribution="amd-aiter",
            origin=f"{_ORIGIN}:padded around {origin}",
            launches=True,
            runs_as=runs_as,
            assembly=True,
            heads_apart=True,
            omits=("lse",),
            heads=tuple(range(1, 129)),
            dtypes=("bfloat16/bfloat16",),
            longest_query=8 if operator == "mla_decode" else 0,
            page_sizes=(1,),
        )
        for operator, origin, runs_as in (
            ("mla_decode", "aiter/mla.py:mla_decode_fwd", DECODE_KERNELS),
            ("mla_prefill_absorbed", "aiter/mla.py:mla_prefill_fwd", PREFILL_KERNELS),
        )
    ),
)
