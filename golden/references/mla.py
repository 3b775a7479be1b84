"""Attention in float64 on the CPU, latent (MLA) or with a key for each head, at any length in bounded memory.

A cached token of latent attention is one row of 576: its first 512 values are key and value at once, the last 64 are
the rotary part of the key. All heads of a query share the row. Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.

Keys are taken in blocks with a running maximum (Milakov and Gimelshein, arXiv 1805.02867), so that neither the scores
of a long context nor its keys in float64 are ever held at once. Own error: the model of
:mod:`waveproof.golden.judges.mla` with float64's unit roundoff, see :func:`own_error`; a second method, in extended
precision and another order, is :mod:`waveproof.golden.references.mla_extended`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise

import torch

from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.mla import NARROW, WIDE

HEAD_SIZE = 576
VALUE_SIZE = 512
BLOCK_CELLS, BLOCK_KEYS = 1 << 22, 1 << 13
"""Scores and keys in a block: 32 MiB each in float64, of which a few are alive at a time."""
FAINT = 2.0**-9
"""Smallest positive value of e4m3fn: weights below it, the largest being 1, may vanish when they are rounded to it."""


@dataclass(frozen=True)
class Attended:
    """What queries get from the tokens that they see, and what the error model needs to know of them."""

    output: torch.Tensor
    """float64[queries, heads, D], D being 512 for latents."""
    lse: torch.Tensor
    """float64[queries, heads]: natural logarithm of the sum of exponentials of the scaled scores."""
    spread: torch.Tensor
    """float64[queries, heads, D]: mean of the *absolute* values under the weights."""
    magnitude: torch.Tensor
    """float64[queries, heads]: the largest ``scale * sum |q_d| |k_d|`` of a visible token: what rounding errors of a
    score are in proportion to."""
    visible: torch.Tensor
    """int64[queries]: tokens that a query sees."""
    concentration: torch.Tensor
    """float64[queries, heads]: root of the sum of squared weights; 1 where one token has it all."""
    value_norm: torch.Tensor
    """float64[queries, heads]: root of the sum of (weight * norm of the value) squared."""
    value_along: torch.Tensor
    """float64[queries, heads]: root of the sum of (weight * <value, output>) squared."""
    mean_norm: torch.Tensor
    """float64[queries, heads]: mean of the norms of the values under the weights."""
    mean_along: torch.Tensor
    """float64[queries, heads]: mean of |<value, output>| under the weights."""
    total: torch.Tensor
    """float64[queries, heads]: sum of exponentials relative to the largest."""
    faint: torch.Tensor
    """float64[queries, heads, D]: the part of ``spread`` that comes from weights below :data:`FAINT` of the largest."""
    values_seen: torch.Tensor
    """float64[queries, heads, D]: sum of the absolute values of all visible tokens."""
    seen_norm: torch.Tensor
    """float64[queries, heads]: root of the sum of squared norms of all visible values."""
    seen_along: torch.Tensor
    """float64[queries, heads]: root of the sum of <value, output> squared over all visible tokens."""


def attend(q: torch.Tensor, kv: torch.Tensor, scale: float, narrow: bool = True) -> Attended:
    """The last ``queries`` tokens of one request attend causally to its cached latents.

    Args:
        q: [queries, heads, 576], any real dtype; taken as exact.
        kv: [tokens, 576] in the order of the sequence, the queries' own tokens among them. Queries before the first
            token (more queries than tokens) see none.
        scale: of the scores.
        narrow: as in :func:`attend_keys`.
    """
    queries, tokens = q.shape[0], kv.shape[0]
    visible = torch.arange(tokens - queries + 1, tokens + 1).clamp(min=0)
    return attend_keys(q, kv[:, None], kv[:, None, :VALUE_SIZE], scale, visible, narrow)


def attend_keys(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, visible: torch.Tensor, narrow: bool = True
) -> Attended:
    """Each query attends to the first ``visible`` keys.

    Args:
        q: [queries, heads, Dk], any real dtype; taken as exact, as are k and v.
        k: [tokens, heads or 1, Dk].
        v: [tokens, heads or 1, D].
        scale: of the scores.
        visible: int64[queries].
        narrow: whether what the model of 8-bit weights needs (``faint``, ``values_seen``, ``seen_*``) is wanted; it
            holds NaN otherwise, and costs a third of the time.
    """
    queries, heads = q.shape[:2]
    if k.shape[1] == 1:
        every = visible.repeat_interleave(heads)
        flat = _attend(q.reshape(queries * heads, q.shape[2]), k[:, 0], v[:, 0], scale, every, narrow)
        parts = {name: value.reshape(queries, heads, *value.shape[1:]) for name, value in flat.items()}
    else:
        each = [_attend(q[:, head], k[:, head], v[:, head], scale, visible, narrow) for head in range(heads)]
        parts = {name: torch.stack([one[name] for one in each], 1) for name in each[0]}
    return Attended(visible=visible, **parts)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, visible: torch.Tensor, narrow: bool
) -> dict[str, torch.Tensor]:
    """Rows of queries [R, Dk] on one set of keys."""
    rows, width = len(q), v.shape[1]
    query = q.double()

    def columns(count: int = 0) -> torch.Tensor:
        return torch.zeros((rows, count) if count else (rows,), dtype=torch.float64)

    top = torch.full((rows,), -torch.inf, dtype=torch.float64)
    total, magnitude, squares, norms, mean, along, mean_along = (columns() for _ in range(7))
    seen, seen_along = columns(), columns()
    output, spread, faint, values_seen = (columns(width) for _ in range(4))
    for live, hidden, key, value in _blocks(visible, k, v):
        at = query[live]
        scores = (at @ key.T * scale).masked_fill_(hidden, -torch.inf)
        sizes = (at.abs() @ key.abs().T).masked_fill_(hidden, 0.0)
        magnitude[live] = torch.maximum(magnitude[live], sizes.amax(1) * abs(scale))
        higher = torch.maximum(top[live], scores.amax(1))  # finite: each live row sees a key of this block
        shrink = torch.exp(top[live] - higher)
        weights = torch.exp(scores - higher[:, None])
        square = value.square().sum(1)
        total[live] = total[live] * shrink + weights.sum(1)
        output[live] = output[live] * shrink[:, None] + weights @ value
        spread[live] = spread[live] * shrink[:, None] + weights @ value.abs()
        squares[live] = squares[live] * shrink.square() + weights.square().sum(1)
        norms[live] = norms[live] * shrink.square() + weights.square() @ square
        mean[live] = mean[live] * shrink + weights @ square.sqrt()
        top[live] = higher
        if narrow:
            shown = (~hidden).double()
            values_seen[live] += shown @ value.abs()
            seen[live] += shown @ square
    some = torch.where(total > 0, total, 1.0)
    output, spread = output / some[:, None], spread / some[:, None]
    for live, hidden, key, value in _blocks(visible, k, v):
        scores = (query[live] @ key.T * scale).masked_fill_(hidden, -torch.inf)
        weights = torch.exp(scores - top[live, None])
        towards = (output[live] @ value.T).square().masked_fill_(hidden, 0.0)
        along[live] += (weights.square() * towards).sum(1)
        mean_along[live] += (weights * towards.sqrt()).sum(1)
        if narrow:
            seen_along[live] += towards.sum(1)
            faint[live] += torch.where(weights < FAINT, weights, 0.0) @ value.abs()
    wide = {
        "output": output,
        "lse": torch.where(total > 0, top + torch.log(some), -torch.inf),
        "spread": spread,
        "magnitude": magnitude,
        "concentration": squares.sqrt() / some,
        "value_norm": norms.sqrt() / some,
        "value_along": along.sqrt() / some,
        "mean_norm": mean / some,
        "mean_along": mean_along / some,
        "total": total,
    }
    eight_bit = {
        "faint": faint / some[:, None],
        "values_seen": values_seen,
        "seen_norm": seen.sqrt(),
        "seen_along": seen_along.sqrt(),
    }
    if not narrow:
        eight_bit = {name: torch.full_like(value, torch.nan) for name, value in eight_bit.items()}
    return wide | eight_bit


def _blocks(
    visible: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Blocks of keys: the rows that see any of it, which of it each does not see, keys and values in float64."""
    tokens = int(visible.max()) if len(visible) else 0
    step = max(1, min(BLOCK_KEYS, BLOCK_CELLS // max(len(visible), 1)))
    for start in range(0, tokens, step):
        live = torch.nonzero(visible > start)[:, 0]
        key = k[start : min(start + step, tokens)].double()
        hidden = torch.arange(start, start + len(key))[None] >= visible[live, None]
        yield live, hidden, key, v[start : start + len(key)].double()


def own_error(expected: Attended, head_size: int = HEAD_SIZE) -> torch.Tensor:
    """Largest absolute error of ``expected.output`` [queries, heads, D], by the model of the judges in float64.

    Scores are off by ``g(head_size + 4) magnitude``, the sums over n weights by ``g(4 n + 16)`` and ``g(n)``.
    """
    step = 2.0**-53
    count = expected.visible[:, None].double()
    score = (head_size + 4) * step * expected.magnitude
    return (2.0 * score + (5.0 * count + 16.0) * step)[..., None] * 1.01 * expected.spread


# Calls ----------------------------------------------------------------------------------------------------------------


def join(parts: list[Attended]) -> Attended:
    """Queries of several requests, one after the other."""
    return Attended(
        **{field.name: torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Attended)}
    )


def latents(call: Call, request: int) -> torch.Tensor:
    """float64[tokens, 576]: the cached tokens of a request in the order of the sequence, scale applied."""
    cache = call.tensor("kv_cache")
    begin, end = call.tensor("kv_indptr")[request : request + 2].tolist()
    last, size = int(call.tensor("kv_last_page_len")[request]), cache.shape[1]
    tokens = (end - begin - 1) * size + last if end > begin else 0
    pages = call.tensor("kv_indices")[begin:end].long()
    if call.embedding is not None and call.embedding.pool:
        pages = pages - call.embedding.row  # the call's own tensor is the end of the pool
    return cache[pages].reshape(-1, cache.shape[-1])[:tokens].double() * call.number("kv_scale")


def reference(call: Call, variant: str = WIDE) -> Attended:
    """What a call of an attention operator of family ``mla`` should give, and what judging the variant needs.

    Raises:
        KeyError: another operator.
    """
    return _REFERENCES[call.operator](call, variant == NARROW)


def _paged(call: Call, narrow: bool) -> Attended:
    q, bounds = call.tensor("q"), call.tensor("qo_indptr").tolist()
    sm_scale, q_scale = call.number("sm_scale"), call.number("q_scale")
    queries = [q[begin:end].double() * q_scale for begin, end in pairwise(bounds)]
    return join([attend(query, latents(call, request), sm_scale, narrow) for request, query in enumerate(queries)])


def _extend(call: Call, narrow: bool) -> Attended:
    q, new, bounds = call.tensor("q"), call.tensor("kv_new"), call.tensor("qo_indptr").tolist()
    sm_scale = call.number("sm_scale")
    parts = []
    for request, (begin, end) in enumerate(pairwise(bounds)):
        kv = torch.cat([latents(call, request), new[begin:end, 0].double()])
        parts.append(attend(q[begin:end], kv, sm_scale, narrow))
    return join(parts)


def _per_head(call: Call, narrow: bool) -> Attended:
    q, k, v = call.tensor("q"), call.tensor("k"), call.tensor("v")
    bounds, keys = call.tensor("qo_indptr").tolist(), call.tensor("kv_indptr").tolist()
    parts = []
    for request in range(len(bounds) - 1):
        begin, end, first, last = bounds[request], bounds[request + 1], keys[request], keys[request + 1]
        tokens, queries = last - first, end - begin
        visible = torch.arange(tokens - queries + 1, tokens + 1).clamp(min=0)
        if not call.arguments["causal"]:
            visible = torch.full((queries,), tokens)
        key, value = (
            k[first:last].double() * call.number("k_scale"),
            v[first:last].double() * call.number("v_scale"),
        )
        parts.append(attend_keys(q[begin:end], key, value, call.number("sm_scale"), visible, narrow))
    return join(parts)


_REFERENCES = {
    "mla_decode": _paged,
    "mla_prefill_absorbed": _paged,
    "mla_extend": _extend,
    "mla_prefill": _per_head,
}
