# mypy: allow-untyped-defs
"""Kernels and launchers with a planted waste of the device, for ``selftest/mutants/resources.py``.

Launched in the processes of ``fixtures/resources/process.py`` only: imports Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import triton
import triton.language as tl

from waveproof.fixtures.resources.device_tensors import FP32, shaped
from waveproof.fixtures.resources.sglang_attention import gqa_decode

WIDTH = 64


@triton.jit
def attend(q, k, v, out, keys, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, SPREAD: tl.constexpr):
    """Attention of 16 queries: scores, running maximum and sum, weighted values."""
    rows, columns = tl.arange(0, 16), tl.arange(0, WIDTH)
    query = tl.load(q + rows[:, None] * WIDTH + columns[None, :])
    largest = tl.full((16,), float("-inf"), tl.float32)
    total = tl.zeros((16,), tl.float32)
    sums = tl.zeros((16, WIDTH), tl.float32)
    for first in range(0, keys, BLOCK_N):
        at = (first + tl.arange(0, BLOCK_N))[:, None] * WIDTH + columns[None, :]
        key, value = tl.load(k + at), tl.load(v + at)
        scores = tl.dot(query, key.T) * SPREAD
        higher = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(largest - higher)
        sums = sums * fade[:, None] + tl.dot(weights.to(value.dtype), value)
        total = total * fade + tl.sum(weights, 1)
        largest = higher
    tl.store(out + rows[:, None] * WIDTH + columns[None, :], sums / total[:, None])


@triton.jit
def attend_lane_by_lane(q, k, v, out, keys, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, SPREAD: tl.constexpr):
    """Its products are sums over a broadcast product: no matrix instruction."""
    rows, columns = tl.arange(0, 16), tl.arange(0, WIDTH)
    query = tl.load(q + rows[:, None] * WIDTH + columns[None, :]).to(tl.float32)
    total = tl.zeros((16,), tl.float32)
    sums = tl.zeros((16, WIDTH), tl.float32)
    for one in range(0, keys):
        key = tl.load(k + one * WIDTH + columns).to(tl.float32)
        value = tl.load(v + one * WIDTH + columns).to(tl.float32)
        weight = tl.exp(tl.sum(query * key[None, :], 1) * SPREAD)
        sums += weight[:, None] * value[None, :]
        total += weight
    tl.store(out + rows[:, None] * WIDTH + columns[None, :], sums / total[:, None])


@triton.jit
def attend_twice(q, k, v, out, keys, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, SPREAD: tl.constexpr):
    """Carries a second accumulator of 16 x 64 in fp32."""
    rows, columns = tl.arange(0, 16), tl.arange(0, WIDTH)
    query = tl.load(q + rows[:, None] * WIDTH + columns[None, :])
    total = tl.zeros((16,), tl.float32)
    sums = tl.zeros((16, WIDTH), tl.float32)
    squares = tl.zeros((16, WIDTH), tl.float32)
    for first in range(0, keys, BLOCK_N):
        at = (first + tl.arange(0, BLOCK_N))[:, None] * WIDTH + columns[None, :]
        key, value = tl.load(k + at), tl.load(v + at)
        weights = tl.exp(tl.dot(query, key.T) * SPREAD)
        sums += tl.dot(weights.to(value.dtype), value)
        squares += tl.dot((weights * weights).to(value.dtype), value)
        total += tl.sum(weights, 1)
    tl.store(out + rows[:, None] * WIDTH + columns[None, :], (sums + squares) / total[:, None])


@triton.jit
def add(x, y, out, BLOCK: tl.constexpr):
    """A streaming kernel: what is loaded is stored at once."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) + tl.load(y + at))


@triton.jit
def add_renamed(x, y, out, BLOCK: tl.constexpr):
    """The same with other names of variables, and comments."""
    # One block for each program.
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x + place)
    tl.store(out + place, left + tl.load(y + place))


@triton.jit
def add_and_keep(x, y, out, BLOCK: tl.constexpr):
    """The same with another tensor alive across the reduction."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, second = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, (first + second) / tl.sum(first * second))


@triton.jit(noinline=True)
def called(value):
    """A function that is called and not inlined: a call needs a stack."""
    return tl.exp(value) + 1.0


@triton.jit
def add_by_call(x, y, out, BLOCK: tl.constexpr):
    """The same with a factor from a call."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    factor = called(tl.load(x))
    tl.store(out + at, tl.load(x + at) * factor + tl.load(y + at))


@triton.jit
def square(matrix, SIZE: tl.constexpr):
    """A product of two tiles of SIZE x SIZE in fp32."""
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    values = tl.load(matrix + at)
    tl.store(matrix + at, tl.dot(values, values))


@triton.jit
def undefined_name(x, y, out, BLOCK: tl.constexpr):
    """Refused by Triton."""
    tl.store(out + tl.arange(0, BLOCK), nowhere)  # type: ignore[name-defined]  # noqa: F821


@triton.jit
def unknown_instruction(x, y, out, BLOCK: tl.constexpr):
    """Refused by the assembler."""
    values = tl.load(x + tl.arange(0, BLOCK))
    values = tl.inline_asm_elementwise("v_bogus $0, $1", "=v,v", [values], tl.float32, is_pure=True, pack=1)
    tl.store(out + tl.arange(0, BLOCK), values)


def attention(arch: str, kernel: str = "attend", block_n: int = 32, num_warps: int = 1, num_stages: int = 1) -> None:
    """Launch one of the kernels above as a launcher would."""
    tensors = [shaped(1024, WIDTH) for _ in range(3)]
    globals()[kernel][(1,)](
        *tensors, shaped(16, WIDTH, dtype=FP32), 1024, WIDTH=WIDTH, BLOCK_N=block_n, SPREAD=0.125,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def streaming(arch: str, kernel: str = "add", block: int = 1024, num_warps: int = 4) -> None:
    """Launch one of the kernels on a vector."""
    vectors = [shaped(65536, dtype=FP32) for _ in range(3)]
    globals()[kernel][(65536 // block,)](*vectors, block, num_warps=num_warps)


def product(arch: str, size: int, num_warps: int) -> None:
    """Launch :func:`square`."""
    square[(1,)](shaped(size, size, dtype=FP32), size, num_warps=num_warps)


def abort(arch: str) -> None:
    """Take the process down, as LLVM does where it meets what it cannot select."""
    import os
    import sys

    sys.stderr.write("LLVM ERROR: Cannot select: intrinsic %llvm.amdgcn.planted\n")
    sys.stderr.flush()
    os.abort()


class Retuned:
    """A kernel of a launcher that launches it with other options than the launcher asks for."""

    def __init__(self, kernel: Any, changes: dict[str, int]) -> None:
        self.kernel = kernel
        self.changes = changes

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """What the launcher calls."""
        return lambda *given, **options: self.kernel[grid](*given, **{**options, **self.changes})


def upstream(arch: str, **changes: int) -> None:
    """sglang's decode of grouped queries, the launch of its first stage changed."""
    from sglang.kernels.ops.attention import decode_attention

    kept = decode_attention._fwd_grouped_kernel_stage1
    vars(decode_attention)["_fwd_grouped_kernel_stage1"] = Retuned(kept, changes)
    try:
        gqa_decode(arch, heads=8, kv_heads=1, width=128, batch=4)
    finally:
        vars(decode_attention)["_fwd_grouped_kernel_stage1"] = kept


def heads_of_a_block(arch: str, block_h: int) -> None:
    """The same with its constant for the heads of a block changed."""
    from sglang.kernels.ops.attention import decode_attention

    kept = decode_attention._GROUPED_BLOCK_H
    vars(decode_attention)["_GROUPED_BLOCK_H"] = block_h
    try:
        gqa_decode(arch, heads=8, kv_heads=1, width=128, batch=4)
    finally:
        vars(decode_attention)["_GROUPED_BLOCK_H"] = kept


def empty(arch: str) -> torch.Tensor:
    """A launcher that launches nothing, as one that took a fallback in torch."""
    return torch.empty(1)


def absent_launcher(arch: str) -> None:
    """Asks for a launcher that the package does not have."""
    vars(import_module("triton.language_of_another_release"))["launch"]()


def broken_upstream(arch: str) -> None:
    """Upstream's own code asks for what is not there."""
    source = compile("from triton import not_in_this_release", "/site-packages/sglang/srt/layers/moe.py", "exec")
    exec(source, {})
