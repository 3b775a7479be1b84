"""Right implementations of family ``mla`` by different algorithms: what the suite must not reject.

The pieces from which they are made are also what the planted faults beside this file are faults of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from waveproof.selftest.mutants.mla_steps import (
    VALUES,
    Paged,
    Problem,
    Ragged,
    RaggedSteps,
    Result,
    Steps,
    attend,
    attend_ragged,
    extending,
    mixed,
    output_dtype,
    paged,
    ragged,
    scaled_scores,
)

TILE = 64


# By tiles, with a maximum that grows ----------------------------------------------------------------------------------


def some_keys(problem: Problem, keys: slice) -> Problem:
    """The same queries on some of the keys."""
    return replace(problem, k=problem.k[keys], v=problem.v[keys], visible=problem.visible[:, keys])


def as_e4m3(weights: torch.Tensor) -> torch.Tensor:
    """Rounded to the nearest e4m3fn."""
    return weights.to(torch.float8_e4m3fn).float()


def shrinkage(before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """What sums below a maximum are multiplied with when the maximum grows; both -inf where nothing was visible yet."""
    return torch.where(now == -torch.inf, 1.0, torch.exp(before - torch.where(now == -torch.inf, 0.0, now)))


def by_tiles(
    problem: Problem,
    tile: int = TILE,
    narrow: Callable[[torch.Tensor], torch.Tensor] | None = None,
    shrink: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = shrinkage,
    keep: Callable[[torch.Tensor], torch.Tensor] = lambda sums: sums,
    lowest: float = -torch.inf,
) -> Result:
    """Attention tile by tile.

    Args:
        problem: with at least one key.
        tile: keys at a time.
        narrow: rounds weights before they meet V, after their sum was taken; if not given, to 16 bits.
        shrink: of (maximum before, maximum now).
        keep: what becomes of the output's sums between tiles.
        lowest: the maximum at first.
    """
    queries, heads = problem.q.shape[:2]
    top = torch.full((queries, heads, 1), lowest)
    total, out = torch.zeros_like(top), torch.zeros(queries, heads, problem.v.shape[-1])
    for first in range(0, len(problem.k), tile):
        part = some_keys(problem, slice(first, first + tile))
        scores = scaled_scores(part)
        now = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - torch.where(now == -torch.inf, 0.0, now))
        factor = shrink(top, now)
        total = total * factor + weights.sum(-1, keepdim=True)
        met = narrow(weights) if narrow else weights.to(problem.narrow).float()
        out = keep(out * factor + mixed(met, part.v))
        top = now
    some = total > 0
    lse = torch.where(some, top + torch.log(total), -torch.inf)
    return torch.where(some, out / torch.where(some, total, 1.0), 0.0), lse[..., 0]


# Split KV -------------------------------------------------------------------------------------------------------------


def natural_merge(outs: torch.Tensor, lses: torch.Tensor) -> Result:
    """Attention [n, H, D] to all parts from attention [parts, n, H, D] to each and LSE [parts, n, H]."""
    top = lses.amax(0)
    top = torch.where(top == -torch.inf, 0.0, top)
    shares = torch.exp(lses - top)
    total = shares.sum(0)
    # Selected, not multiplied with 0: what stands beside an LSE of -inf may be NaN.
    out = torch.where(shares[..., None] > 0, outs * shares[..., None], 0.0).sum(0)
    return torch.where(total[..., None] > 0, out / total[..., None], 0.0), top + torch.log(total)


def cuts(keys: int, parts: int) -> list[slice]:
    """As many parts of nearly equal size as there are keys for."""
    size = -(-keys // parts)
    return [slice(first, first + size) for first in range(0, keys, size)]


def by_splits(
    problem: Problem,
    parts: int = 4,
    merge: Callable[[torch.Tensor, torch.Tensor], Result] = natural_merge,
    cut: Callable[[int, int], Sequence[slice]] = cuts,
) -> Result:
    """Attention to parts of the keys, merged."""
    solved = [by_tiles(some_keys(problem, keys)) for keys in cut(len(problem.k), parts)]
    return merge(torch.stack([out for out, _ in solved]), torch.stack([lse for _, lse in solved]))


# Decode ---------------------------------------------------------------------------------------------------------------


@paged
def decode_whole(call: Paged) -> Result:
    """Float32, all keys of a request at once, in one softmax."""
    return attend(call)


@paged
def decode_by_tiles(call: Paged) -> Result:
    """64 keys at a time with a growing maximum; weights rounded to 16 bits."""
    return attend(call, Steps(solve=by_tiles))


@paged
def decode_by_splits(call: Paged) -> Result:
    """The keys of a request in four parts by tiles, merged by their LSE."""
    return attend(call, Steps(solve=by_splits))


@paged
def decode_batch_dependent(call: Paged) -> Result:
    """As many parts as the batch leaves free: right, with other roundings in another batch."""
    parts = max(1, 8 // max(1, len(call.qo_indptr) - 1))
    return attend(call, Steps(solve=lambda problem: by_splits(problem, parts)))


@paged
def decode_narrow(call: Paged) -> Result:
    """Variant ``narrow``: weights rounded to e4m3, relative to the maximum so far."""
    return attend(call, Steps(solve=lambda problem: by_tiles(problem, narrow=as_e4m3)))


@paged
def decode_without_lse(call: Paged) -> torch.Tensor:
    """Declares that it gives no LSE."""
    return attend(call)[0]


@paged
def decode_one_query(call: Paged) -> Result:
    """Declares 16 or 128 heads, one query, pages of one token, bfloat16, and refuses all else by name."""
    heads, lengths = call.q.shape[1], call.qo_indptr.diff()
    if heads not in (16, 128):
        raise ValueError(f"{heads} heads; 16 and 128 are computed")
    if call.page_size != 1:
        raise ValueError(f"pages of {call.page_size} tokens; pages of 1 are computed")
    if len(lengths) and int(lengths.max()) > 1:
        raise ValueError(f"{int(lengths.max())} queries in a request; 1 is computed")
    if {call.q.dtype, call.kv_cache.dtype} != {torch.bfloat16}:
        raise TypeError(f"q of {call.q.dtype} on a cache of {call.kv_cache.dtype}; bfloat16 on bfloat16 is computed")
    return attend(call, Steps(solve=by_tiles))


@paged
def decode_numpy(call: Paged) -> Result:
    """NumPy's float64, query by query and head by head."""
    q = call.q.double().numpy() * call.q_scale
    out, lse = np.zeros((*q.shape[:2], VALUES)), np.full(q.shape[:2], -np.inf)
    starts, pages, lasts = (x.tolist() for x in (call.qo_indptr, call.kv_indptr, call.kv_last_page_len))
    for request, last in enumerate(lasts):
        own = call.kv_indices[pages[request] : pages[request + 1]].tolist()
        cache = call.kv_cache[own, :, 0].double().numpy() * call.kv_scale
        tokens = list(cache.reshape(-1, cache.shape[-1]))[: (len(own) - 1) * call.page_size + last if own else 0]
        queries = range(starts[request], starts[request + 1])
        for query in queries:
            seen = np.array(tokens[: max(0, len(tokens) - (queries.stop - 1 - query))])
            for head in range(q.shape[1] if len(seen) else 0):
                scores = seen @ q[query, head] * call.sm_scale
                powers = np.exp(scores - scores.max())
                out[query, head] = powers @ seen[:, :VALUES] / powers.sum()
                lse[query, head] = scores.max() + np.log(powers.sum())
    return torch.from_numpy(out).to(output_dtype(call.q)), torch.from_numpy(lse).float()


# Prefill --------------------------------------------------------------------------------------------------------------


@extending
def extend_whole(call: Paged) -> Result:
    """Prefix and new tokens in one softmax."""
    return attend(call)


@extending
def extend_merged(call: Paged) -> Result:
    """Prefix and new tokens apart, merged by their LSE."""

    def prefix_and_new(keys: int, parts: int) -> list[slice]:
        return [slice(keys - parts), slice(keys - parts, keys)]

    def apart(problem: Problem) -> Result:
        new = len(problem.q)
        return by_splits(problem, new, cut=prefix_and_new) if len(problem.k) > new else by_tiles(problem)

    return attend(call, Steps(solve=apart))


@ragged
def prefill_whole(call: Ragged) -> Result:
    """Float32, one softmax."""
    return attend_ragged(call)


@ragged
def prefill_by_tiles(call: Ragged) -> Result:
    """32 keys at a time with a growing maximum; weights rounded to 16 bits."""
    return attend_ragged(call, RaggedSteps(solve=lambda problem: by_tiles(problem, 32)))


@ragged
def prefill_by_torch(call: Ragged) -> Result:
    """``scaled_dot_product_attention`` in float64 for the output; LSE of the scores."""

    def fused(problem: Problem) -> Result:
        q, k, v = (x.double().transpose(0, 1)[None] for x in (problem.q, problem.k, problem.v))
        attention = torch.nn.functional.scaled_dot_product_attention
        out = attention(q, k, v, problem.visible, scale=problem.scale)[0].transpose(0, 1).float()
        lse = torch.logsumexp(scaled_scores(problem).double(), -1).float()
        return torch.where(lse[..., None] > -torch.inf, out, 0.0), lse

    return attend_ragged(call, RaggedSteps(solve=fused))


# Merge ----------------------------------------------------------------------------------------------------------------


def merge_by_maximum(out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor) -> Result:
    """Weights below the larger LSE, in float32; +inf, too, says that a side has no keys (FlashAttention 2)."""
    lses = torch.stack([lse_a, lse_b])
    out, lse = natural_merge(torch.stack([out_a, out_b]).float(), torch.where(lses == torch.inf, -torch.inf, lses))
    return out.to(out_a.dtype), lse


def merge_by_sigmoid(out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor) -> Result:
    """The share of the first side is a sigmoid of the difference; in float64."""
    lse_a, lse_b = (torch.where(lse == torch.inf, -torch.inf, lse) for lse in (lse_a, lse_b))
    empty_a, empty_b = (lse == -torch.inf for lse in (lse_a, lse_b))
    share = torch.sigmoid((lse_a.double() - lse_b.double()).nan_to_num(nan=0.0))[..., None]
    a = torch.where(empty_a[..., None], 0.0, out_a.double())
    b = torch.where(empty_b[..., None], 0.0, out_b.double())
    return (a * share + b * (1 - share)).to(out_a.dtype), torch.logaddexp(lse_a.double(), lse_b.double()).float()


# Padding --------------------------------------------------------------------------------------------------------------


def require_padding(heads: int, target: int, mode: str) -> None:
    """ValueError unless that many heads can be made into the target in that way."""
    if mode not in ("zero", "repeat", "tile"):
        raise ValueError(f"mode must be zero, repeat or tile, got {mode!r}")
    if heads > target:
        raise ValueError(f"{heads} heads do not fit into {target}")
    if mode == "repeat" and (not heads or target % heads):
        raise ValueError(f"{heads} heads repeated do not make {target}")


def place_of_heads(heads: int, target: int, mode: str) -> torch.Tensor:
    """int64[heads]: where the real heads are."""
    return torch.arange(heads) * (target // heads if mode == "repeat" else 1)


def pad_by_index(x: torch.Tensor, target: int, mode: str) -> torch.Tensor:
    """Takes each head of the result from where it comes from, zeros by a mask."""
    heads = x.shape[1]
    require_padding(heads, target, mode)
    source = torch.arange(target)
    source = source * heads // target if mode == "repeat" else source % heads
    padded = x[:, source].contiguous()
    if mode == "zero":
        padded[:, heads:] = 0
    return padded


def pad_by_copy(x: torch.Tensor, target: int, mode: str) -> torch.Tensor:
    """Copies into a cleared buffer, as often as it takes."""
    tokens, heads, size = x.shape
    require_padding(heads, target, mode)
    padded = torch.zeros(tokens, target, size, dtype=x.dtype)
    if mode == "repeat":
        padded.view(tokens, heads, target // heads, size).copy_(x[:, :, None])
    else:
        for first in range(0, target if mode == "tile" else heads, heads):
            width = min(heads, target - first)
            padded[:, first : first + width] = x[:, :width]
    return padded


def unpad_by_index(x: torch.Tensor, heads: int, mode: str) -> torch.Tensor:
    """Takes the real heads by their places."""
    require_padding(heads, x.shape[1], mode)
    return x[:, place_of_heads(heads, x.shape[1], mode)]


def unpad_by_slice(x: torch.Tensor, heads: int, mode: str) -> torch.Tensor:
    """A copy of a slice, with a step where heads were repeated."""
    require_padding(heads, x.shape[1], mode)
    step = x.shape[1] // heads if mode == "repeat" else 1
    return x[:, : heads * step : step].clone()
