"""Multi-head latent attention with absorbed weights, in float64 on the CPU.

A cached token is one row of 576: its first 512 values are both key and value ("compressed KV"), the last 64 are the
rotary part of the key. All heads of a query share the row. Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

HEAD_SIZE = 576
VALUE_SIZE = 512


@dataclass(frozen=True)
class Attended:
    """What queries get from the tokens that they see, and what the error model needs to know of them."""

    output: torch.Tensor
    """float64[queries, heads, 512]."""
    lse: torch.Tensor
    """float64[queries, heads]: natural logarithm of the sum of exponentials of the scaled scores."""
    spread: torch.Tensor
    """float64[queries, heads, 512]: mean of the *absolute* values under the weights."""
    magnitude: torch.Tensor
    """float64[queries, heads]: the largest ``scale * sum |q_d| |k_d|`` of a visible token: what rounding errors of a
    score are in proportion to."""
    visible: torch.Tensor
    """int64[queries]: tokens that a query sees."""


def attend(q: torch.Tensor, kv: torch.Tensor, scale: float) -> Attended:
    """The last ``queries`` tokens of one request attend causally to its cache.

    Args:
        q: [queries, heads, 576], any real dtype; taken as exact.
        kv: [tokens, 576] in the order of the sequence, the queries' own tokens among them.
        scale: of the scores.

    Raises:
        ValueError: fewer tokens than queries: a query would see nothing.
    """
    queries, tokens = q.shape[0], kv.shape[0]
    if tokens < queries:
        raise ValueError(f"{queries} queries on {tokens} tokens: each query needs its own token at least")
    query, key = q.double(), kv.double()
    visible = torch.arange(tokens - queries + 1, tokens + 1)
    hidden = torch.arange(tokens)[None, None] >= visible[:, None, None]
    scores = torch.einsum("qhd,kd->qhk", query, key) * scale
    scores = scores.masked_fill(hidden, -torch.inf)
    weights = torch.softmax(scores, -1)
    value = key[:, :VALUE_SIZE]
    sizes = torch.einsum("qhd,kd->qhk", query.abs(), key.abs()) * abs(scale)
    return Attended(
        weights @ value,
        torch.logsumexp(scores, -1),
        weights @ value.abs(),
        sizes.masked_fill(hidden, 0).amax(-1),
        visible,
    )
