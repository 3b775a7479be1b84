"""Attention by a second method: extended precision (64 bits of mantissa on x86), all keys at once, sums sorted by size.

It shares nothing with :mod:`waveproof.golden.references.mla` but the definition, and is there to try that one.
"""

from __future__ import annotations

import numpy as np
import torch


class NoExtendedPrecision(RuntimeError):
    """numpy's longdouble is no wider than float64 on this machine."""


def attend_extended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, visible: int
) -> tuple[torch.Tensor, float]:
    """One head of one query.

    Args:
        q: [Dk].
        k: [tokens, Dk].
        v: [tokens, D].
        scale: of the scores.
        visible: the query sees the first so many keys, at least one.

    Returns:
        Output float64[D] and natural LSE, each rounded once from extended precision.

    Raises:
        NoExtendedPrecision: the platform has none.
    """
    if np.finfo(np.longdouble).nmant <= np.finfo(np.float64).nmant:
        raise NoExtendedPrecision("numpy.longdouble has no more bits than float64 here; x86-64 Linux has 64")
    key, value = (part[:visible].double().numpy().astype(np.longdouble) for part in (k, v))
    products = key * q.double().numpy().astype(np.longdouble)
    scores = _sorted_sum(products.T) * np.longdouble(scale)
    order = np.argsort(scores)  # the smallest weights first: their sum is not lost beside a large one
    weights = np.exp(scores[order] - scores[order[-1]])
    total = weights.sum()
    output = (weights[:, None] * value[order]).sum(0) / total
    lse = scores[order[-1]] + np.log(total)
    return torch.from_numpy(output.astype(np.float64)), float(lse)


def _sorted_sum(terms: np.ndarray) -> np.ndarray:
    """Sum over axis 0, the terms of each column by growing size."""
    order = np.argsort(np.abs(terms), axis=0)
    return np.take_along_axis(terms, order, axis=0).sum(0)
