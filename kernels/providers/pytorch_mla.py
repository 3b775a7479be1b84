"""Provider ``torch``: family ``mla`` in plain torch, float32, on any device, keys taken in blocks.

What a deployment can fall back to when no kernel takes its shapes; memory is bounded by the block, not by the context.
"""

from __future__ import annotations

import torch

from waveproof.kernels.providers.registry import Implementation

BLOCK_KEYS = 2048
LATENT_RANK = 512


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
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [T, H, 576] of all requests on their cached latents; out [T, H, 512], natural lse float32[T, H]."""
    out, lse = _results(q, LATENT_RANK)
    for begin, end, pages, last in _requests(qo_indptr, kv_indptr, kv_indices, kv_last_page_len):
        kv = _tokens(kv_cache, pages, last)[:, None]
        out[begin:end], lse[begin:end] = _attention(
            q[begin:end], kv, kv[..., :LATENT_RANK], sm_scale * q_scale * kv_scale, kv_scale, True
        )
    return out, lse


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
) -> tuple[torch.Tensor, torch.Tensor]:
    """New queries [T, H, 576] on a cached prefix and on the new tokens' latents [T, 1, 576]; out [T, H, 512], lse."""
    out, lse = _results(q, LATENT_RANK)
    for begin, end, pages, last in _requests(qo_indptr, kv_indptr, kv_indices, kv_last_page_len):
        prefix = _tokens(kv_cache, pages, last).float() * kv_scale
        kv = torch.cat([prefix, kv_new[begin:end, 0].float()])[:, None]
        out[begin:end], lse[begin:end] = _attention(q[begin:end], kv, kv[..., :LATENT_RANK], sm_scale, 1.0, True)
    return out, lse


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
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [T, H, 192] on keys [S, H, 192] and values [S, H, 128] of their request; out [T, H, 128], lse."""
    out, lse = _results(q, v.shape[2])
    queries, keys = qo_indptr.tolist(), kv_indptr.tolist()
    for request in range(len(queries) - 1):
        mine, theirs = slice(*queries[request : request + 2]), slice(*keys[request : request + 2])
        out[mine], lse[mine] = _attention(q[mine], k[theirs], v[theirs], sm_scale * k_scale, v_scale, causal)
    return out, lse


def merge_state(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to two sets of keys from attention to each; a side of LSE -inf counts for nothing."""
    lse = torch.logaddexp(lse_a, lse_b)
    out = torch.zeros(out_a.shape, dtype=torch.float32, device=out_a.device)
    for side, own in ((out_a, lse_a), (out_b, lse_b)):
        weight = torch.exp(own - lse)[..., None]
        out += torch.where(own[..., None] == -torch.inf, 0.0, weight * side.float())
    return out.to(out_a.dtype), lse


def _results(q: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.bfloat16 if q.dtype.itemsize == 1 else q.dtype
    out = torch.zeros(*q.shape[:2], width, dtype=dtype, device=q.device)
    return out, torch.full(q.shape[:2], -torch.inf, device=q.device)


def _requests(
    qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, kv_indices: torch.Tensor, kv_last_page_len: torch.Tensor
) -> list[tuple[int, int, torch.Tensor, int]]:
    """First and last query, pages and tokens in the last page of each request."""
    queries, pages, last = qo_indptr.tolist(), kv_indptr.tolist(), kv_last_page_len.tolist()
    return [
        (queries[at], queries[at + 1], kv_indices[pages[at] : pages[at + 1]].long(), last[at])
        for at in range(len(last))
    ]


def _tokens(kv_cache: torch.Tensor, pages: torch.Tensor, last: int) -> torch.Tensor:
    size = kv_cache.shape[1]
    return kv_cache[pages].flatten(0, 2)[: max(len(pages) - 1, 0) * size + (last if len(pages) else 0)]


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sm_scale: float, v_scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [n, H, Dk], k [m, H or 1, Dk], v [m, H or 1, D] in any dtype; float32 out [n, H, D], lse [n, H]."""
    queries, tokens, heads = len(q), len(k), q.shape[1]
    seen = torch.arange(queries, device=q.device) + (tokens - queries + 1) if causal else tokens
    limit = torch.as_tensor(seen, device=q.device).expand(queries)[None, :, None]
    query = q.float().transpose(0, 1)
    top = torch.full((heads, queries, 1), -torch.inf, device=q.device)
    total, out = torch.zeros_like(top), torch.zeros(heads, queries, v.shape[2], device=q.device)
    for start in range(0, tokens, BLOCK_KEYS):
        key = k[start : start + BLOCK_KEYS].float().transpose(0, 1)
        value = v[start : start + BLOCK_KEYS].float().transpose(0, 1)
        place = torch.arange(start, start + key.shape[1], device=q.device)
        scores = (query @ key.transpose(1, 2) * sm_scale).masked_fill(place >= limit, -torch.inf)
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        finite = torch.where(higher == -torch.inf, 0.0, higher)
        weights, shrink = torch.exp(scores - finite), torch.exp(top - finite)
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = out * shrink + weights @ value
        top = higher
    out = torch.where(total > 0, out / total, 0.0) * v_scale
    lse = torch.where(total > 0, top + torch.log(total), -torch.inf)
    return out.transpose(0, 1), lse[..., 0].T


_RUNTIMES = ("cpu", "hip", "cuda")
_MODULE = "waveproof.kernels.providers.pytorch_mla"

IMPLEMENTATIONS = (
    Implementation("torch", "mla_decode", "wide", _RUNTIMES, f"{_MODULE}:mla_decode"),
    Implementation("torch", "mla_prefill_absorbed", "wide", _RUNTIMES, f"{_MODULE}:mla_decode"),
    Implementation("torch", "mla_extend", "wide", _RUNTIMES, f"{_MODULE}:mla_extend"),
    Implementation("torch", "mla_prefill", "wide", _RUNTIMES, f"{_MODULE}:mla_prefill"),
    Implementation("torch", "merge_state", "natural", _RUNTIMES, f"{_MODULE}:merge_state"),
)
