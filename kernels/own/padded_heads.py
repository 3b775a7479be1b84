"""Attention heads padded to a number that a kernel takes.

Attention is computed for each head on its own, so heads may be added as long as nobody looks at them: the real heads of
a kernel that keeps heads apart do not change by a bit. That is what a model whose heads a GPU fall between the sizes of
a fast kernel needs (Kimi K3 under TP8: 12 heads, where AITER's assembly MLA takes 16 or 128) to stay on it.

With zeros the added heads cost no reading beyond the padded tensor; their softmax is uniform, so nothing overflows.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

ZERO, REPEAT, TILE = "zero", "repeat", "tile"
MODES = (ZERO, REPEAT, TILE)

_WITH_HEADS = frozenset({"q", "k", "v"})
"""Arguments of attention whose dimension 1 may be heads of the queries."""


def pad_heads(x: torch.Tensor, target: int, mode: str = ZERO) -> torch.Tensor:
    """Give queries, keys or values more heads.

    Args:
        x: [T, H, ...] with H heads, any dtype and strides, on any device; not changed.
        target: heads afterwards, at least H.
        mode: what the added heads hold. ``zero``: zeros, behind the real heads. ``repeat``: head h becomes the
            target / H heads from h * target / H on. ``tile``: all real heads over and over, cut at the target.

    Returns:
        [T, target, ...] of x's dtype, contiguous, in memory of its own.

    Raises:
        ValueError: fewer than two dimensions or no head, a target below H, ``repeat`` where H does not divide the
            target, an unknown mode.
    """
    heads = _heads_of(x)
    if target < heads:
        raise ValueError(f"target = {target}: {heads} heads cannot be padded to fewer")
    _check_mode(mode, heads, target)
    padded = x.new_empty((x.shape[0], target, *x.shape[2:]))
    if mode == REPEAT:
        times = target // heads
        padded.unflatten(1, (heads, times)).copy_(x.unsqueeze(2).expand(-1, -1, times, *x.shape[2:]))
        return padded
    padded[:, :heads] = x
    if mode == ZERO:
        padded[:, heads:] = 0
    else:
        for first in range(heads, target, heads):
            padded[:, first : first + heads] = x[:, : target - first]
    return padded


def unpad_heads(x: torch.Tensor, heads: int, mode: str = ZERO) -> torch.Tensor:
    """The real heads of what a kernel gave for padded ones: the inverse of :func:`pad_heads`.

    Args:
        x: [T, target, ...], output or LSE, any dtype and strides, on any device; not changed.
        heads: real heads, 1 to target.
        mode: as they were padded.

    Returns:
        [T, heads, ...] of x's dtype, contiguous, in memory of its own: the padded tensor can be freed.

    Raises:
        ValueError: fewer than two dimensions, no real head or more than there are, ``repeat`` where they do not divide
            the target, an unknown mode.
    """
    target = _heads_of(x)
    if not 1 <= heads <= target:
        raise ValueError(f"heads = {heads}: x has {target}, of which 1 to {target} can be real")
    _check_mode(mode, heads, target)
    real = x[:, :: target // heads] if mode == REPEAT else x[:, :heads]
    return real.clone(memory_format=torch.contiguous_format)


def padded(attention: Callable[..., Any], takes: Sequence[int], mode: str = ZERO) -> Callable[..., Any]:
    """Attention for any number of heads up to the largest in ``takes``, by one that takes only these.

    Args:
        attention: a function of an argument ``q`` [T, H, D], and of ``k`` and ``v`` if it has a key and a value for
            each head; returns a tensor [T, H, ...] or a tuple of them (output, LSE).
        takes: numbers of heads that it takes.
        mode: see :func:`pad_heads`.

    Returns:
        A function of the same signature. It pads ``q``, and ``k`` and ``v`` where they have as many heads, to the
        smallest number in ``takes`` that holds them, and gives the real heads of each result. Heads that ``attention``
        takes as they are go to it untouched.

    Raises:
        ValueError: ``takes`` is empty or holds a number below 1. The function: more heads than any in ``takes``, or
            what :func:`pad_heads` refuses.
        TypeError: ``attention`` has no argument ``q``.
    """
    sizes = sorted(set(takes))
    if not sizes or sizes[0] < 1:
        raise ValueError(f"takes = {tuple(takes)}: attention must take some number of heads, each at least 1")
    signature = inspect.signature(attention)
    if "q" not in signature.parameters:
        raise TypeError(f"{attention!r} has no argument q; it has: {', '.join(signature.parameters)}")

    @functools.wraps(attention)
    def with_any_heads(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        heads = _heads_of(bound.arguments["q"])
        target = next((size for size in sizes if size >= heads), None)
        if target is None:
            raise ValueError(f"q has {heads} heads: {sizes[-1]} are the most that can be padded to")
        if target == heads:
            return attention(*arguments, **named)
        for name in _WITH_HEADS & bound.arguments.keys():
            value = bound.arguments[name]
            if _heads_of(value) == heads:
                bound.arguments[name] = pad_heads(value, target, mode)
        result = attention(*bound.args, **bound.kwargs)
        if isinstance(result, torch.Tensor):
            return unpad_heads(result, heads, mode)
        return tuple(unpad_heads(one, heads, mode) for one in result)

    return with_any_heads


def _heads_of(x: torch.Tensor) -> int:
    if x.dim() < 2 or x.shape[1] < 1:
        raise ValueError(f"x is of shape {tuple(x.shape)}: it must be [T, H, ...] with at least one head")
    return int(x.shape[1])


def _check_mode(mode: str, heads: int, target: int) -> None:
    if mode not in MODES:
        raise ValueError(f"mode = {mode!r}: it must be one of {', '.join(MODES)}")
    if mode == REPEAT and target % heads:
        raise ValueError(f"mode = {mode!r}: {heads} heads do not divide the {target} that there are to be")
