"""Which head stands where after padding, by index: what a padding helper of any provider is held to."""

from __future__ import annotations

import torch


def places(heads: int, target: int, mode: str) -> list[int]:
    """For each of ``target`` heads the real head that it holds; -1 for zeros.

    Raises:
        ValueError: fewer than ``heads``, an unknown mode, or ``repeat`` where heads do not divide the target.
    """
    if target < heads or heads < 1:
        raise ValueError(f"{heads} heads cannot be padded to {target}")
    if mode == "zero":
        return [*range(heads), *[-1] * (target - heads)]
    if mode == "tile":
        return [head % heads for head in range(target)]
    if mode != "repeat":
        raise ValueError(f"mode must be zero, repeat or tile, got {mode!r}")
    if target % heads:
        raise ValueError(f"{heads} heads do not divide {target}")
    return [head // (target // heads) for head in range(target)]


def padded_heads(x: torch.Tensor, target: int, mode: str) -> torch.Tensor:
    """x [T, H, ...] with ``target`` heads, see :func:`places`."""
    result = x.new_zeros((x.shape[0], target, *x.shape[2:]))
    for place, head in enumerate(places(x.shape[1], target, mode)):
        if head >= 0:
            result[:, place] = x[:, head]
    return result


def unpadded_heads(x: torch.Tensor, heads: int, mode: str) -> torch.Tensor:
    """The first copy of each real head in x [T, target, ...]."""
    where = places(heads, x.shape[1], mode)
    return torch.stack([x[:, where.index(head)] for head in range(heads)], 1)
