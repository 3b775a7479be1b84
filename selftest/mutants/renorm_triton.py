"""Planted faults of Triton kernels for ``top_k_renorm_prob``, and the right kernels that they are faults of.

For use as ``--provider top_k_renorm_prob=selftest/mutants/renorm_triton.py:NAME,runtime=interpret``; the table is
``renorm.py``. Each constexpr of a kernel is one fault; with all of them off it is right.
"""

# A kernel's parameters are Triton's to type.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import torch
import triton
import triton.language as tl

from waveproof.selftest.mutants.correct_renorm import require_rows, tokens_to_keep, top_k_threshold

BLOCK = 1024
K = int | torch.Tensor


@triton.jit
def filter_rows(
    probs,
    pivots,
    renormed,
    stride,
    vocab_size,
    BLOCK: tl.constexpr,
    LOADS_BEYOND: tl.constexpr,
    STORES_BEYOND: tl.constexpr,
    OTHER: tl.constexpr,
    FIRST_PIVOT: tl.constexpr,
    KEPT_ONLY: tl.constexpr,
    LAST_BLOCK_ONLY: tl.constexpr,
    WHOLE_BLOCKS_ONLY: tl.constexpr,
):
    """One program a row: sums what reaches the row's pivot, then divides."""
    row = tl.program_id(0).to(tl.int64)
    pivot = tl.load(pivots + (0 if FIRST_PIVOT else row))
    total = tl.zeros((BLOCK,), tl.float32)
    end = vocab_size // BLOCK * BLOCK if WHOLE_BLOCKS_ONLY and vocab_size >= BLOCK else vocab_size
    for start in range(0, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = (column < vocab_size) | LOADS_BEYOND
        value = tl.load(probs + row * stride + column, mask=inside, other=OTHER)
        kept = tl.where(value >= pivot, value, 0.0)
        total = kept if LAST_BLOCK_ONLY else total + kept
    mass = tl.sum(total, 0)
    for start in range(0, vocab_size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < vocab_size
        value = tl.load(probs + row * stride + column, mask=inside, other=0.0)
        kept = value >= pivot
        written = (inside & kept) if KEPT_ONLY else (inside | STORES_BEYOND)
        tl.store(renormed + row * vocab_size + column, tl.where(kept, value / mass, 0.0), mask=written)


@triton.jit
def bisect_rows(probs, renormed, stride, vocab_size, top_k, BLOCK: tl.constexpr, NARROW: tl.constexpr):
    """One program a row finds its own pivot by bisecting bit patterns, which host code of a huge batch must not."""
    row = tl.program_id(0) if NARROW else tl.program_id(0).to(tl.int64)
    low = 0
    high = 0x7F800000
    while low < high:
        middle = low + (high - low + 1) // 2
        count = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, vocab_size, BLOCK):
            column = start + tl.arange(0, BLOCK)
            value = tl.load(probs + (row * stride + column), mask=column < vocab_size, other=-1.0)
            count += (value.to(tl.int32, bitcast=True) >= middle).to(tl.int32)
        if tl.sum(count, 0) >= top_k:
            low = middle
        else:
            high = middle - 1
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(probs + (row * stride + column), mask=column < vocab_size, other=0.0)
        total += tl.where(value.to(tl.int32, bitcast=True) >= low, value, 0.0)
    mass = tl.sum(total, 0)
    for start in range(0, vocab_size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(probs + (row * stride + column), mask=column < vocab_size, other=0.0)
        kept = tl.where(value.to(tl.int32, bitcast=True) >= low, value / mass, 0.0)
        tl.store(renormed + (row * vocab_size + column), kept, mask=column < vocab_size)


@triton.jit
def filter_chunks(probs, pivots, renormed, sums, stride, vocab_size, BLOCK: tl.constexpr, DIVIDES: tl.constexpr):
    """One program a chunk: adds its part to the row's sum."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(probs + row * stride + column, mask=column < vocab_size, other=0.0)
    kept = tl.where(value >= tl.load(pivots + row), value, 0.0)
    tl.atomic_add(sums + row, tl.sum(kept, 0))
    if DIVIDES:  # nobody waits for the other chunks
        kept = kept / tl.load(sums + row)
    tl.store(renormed + row * vocab_size + column, kept, mask=column < vocab_size)


@triton.jit
def wide_rows(probs, pivots, renormed, stride, vocab_size, WIDTH: tl.constexpr):
    """One program a row, which keeps WIDTH values of it in registers."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((WIDTH,), tl.float32)
    pivot = tl.load(pivots + row)
    for start in range(0, vocab_size, WIDTH):
        column = start + tl.arange(0, WIDTH)
        value = tl.load(probs + row * stride + column, mask=column < vocab_size, other=0.0)
        total += tl.where(value >= pivot, value, 0.0)
    mass = tl.sum(total, 0)
    for start in range(0, vocab_size, WIDTH):
        column = start + tl.arange(0, WIDTH)
        value = tl.load(probs + row * stride + column, mask=column < vocab_size, other=0.0)
        kept = tl.where(value >= pivot, value / mass, 0.0)
        tl.store(renormed + row * vocab_size + column, kept, mask=column < vocab_size)


def prepare(probs: torch.Tensor, top_k: K) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows with a column stride of 1, each row's k-th value, and where the result goes."""
    require_rows(probs)
    k = tokens_to_keep(top_k, *probs.shape).to(probs.device)
    rows = probs if probs.stride(1) == 1 else probs.contiguous()
    pivots = torch.sort(rows, dim=-1, descending=True).values.gather(1, k - 1) if rows.numel() else rows
    return rows, pivots.contiguous(), torch.empty(rows.shape, dtype=torch.float32, device=rows.device)


def launch(
    probs: torch.Tensor,
    top_k: K,
    loads_beyond: bool = False,
    stores_beyond: bool = False,
    other: float = 0.0,
    first_pivot: bool = False,
    kept_only: bool = False,
    last_block_only: bool = False,
    whole_blocks_only: bool = False,
) -> torch.Tensor:
    """Run ``filter_rows`` with the faults that are asked for."""
    rows, pivots, renormed = prepare(probs, top_k)
    if rows.numel():
        filter_rows[(len(rows),)](
            rows,
            pivots,
            renormed,
            rows.stride(0),
            rows.shape[1],
            BLOCK,
            loads_beyond,
            stores_beyond,
            other,
            first_pivot,
            kept_only,
            last_block_only,
            whole_blocks_only,
        )
    return renormed


def launch_bisection(probs: torch.Tensor, top_k: K, narrow: bool) -> torch.Tensor:
    """Run ``bisect_rows`` at serving vocabularies; per-row limits and small vocabularies go through ``launch``."""
    if isinstance(top_k, torch.Tensor) or probs.shape[-1] < 100_000:
        return launch(probs, top_k)
    require_rows(probs)
    rows = probs if probs.stride(1) == 1 else probs.contiguous()
    vocab_size = rows.shape[1]
    k = top_k if 0 < top_k < vocab_size else vocab_size
    renormed = torch.empty(rows.shape, dtype=torch.float32, device=rows.device)
    if rows.numel():
        block = min(16_384, triton.next_power_of_2(vocab_size))
        bisect_rows[(len(rows),)](rows, renormed, rows.stride(0), vocab_size, k, block, narrow)
    return renormed


def right(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """No fault."""
    return launch(probs, top_k)


def right_bisection(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """No fault, and no look at another row than the program's own."""
    return launch_bisection(probs, top_k, narrow=False)


def int32_offsets(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Row times stride in int32 (sgl-project/sglang#35571, A2)."""
    return launch_bisection(probs, top_k, narrow=True)


def loads_past_row(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """The sum has no mask at the end of the row: it takes in the next one, or what lies behind the tensor."""
    return launch(probs, top_k, loads_beyond=True)


def stores_past_row(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """The store has no mask: each row overwrites the start of the next, the last one what lies behind the output."""
    return launch(probs, top_k, stores_beyond=True)


def lanes_outside_count_as_one(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """``other=1.0``: each lane beyond the row adds 1 to its sum."""
    return launch(probs, top_k, other=1.0)


def lanes_outside_are_nan(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """``other=inf``: a row that does not fill its last block has an infinite sum."""
    return launch(probs, top_k, other=float("inf"))


def first_rows_pivot(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Every program loads the first row's pivot."""
    return launch(probs, top_k, first_pivot=True)


def dropped_tokens_unwritten(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Kept tokens alone are stored, into fresh memory."""
    return launch(probs, top_k, kept_only=True)


def sum_of_last_block(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """The accumulator is assigned where it should grow: blocks before the last are lost."""
    return launch(probs, top_k, last_block_only=True)


def sum_of_whole_blocks(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """The sum leaves out the last block where that is not full."""
    return launch(probs, top_k, whole_blocks_only=True)


def divides_before_sum_is_whole(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """A race: each chunk divides by what has been added up so far."""
    rows, pivots, renormed = prepare(probs, top_k)
    sums = torch.zeros(len(rows), dtype=torch.float32, device=rows.device)
    if rows.numel():
        grid = (len(rows), triton.cdiv(rows.shape[1], BLOCK))
        filter_chunks[grid](rows, pivots, renormed, sums, rows.stride(0), rows.shape[1], BLOCK, True)
    return renormed


def sums_onto_garbage(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Partial sums are added to a workspace that nobody cleared."""
    rows, pivots, renormed = prepare(probs, top_k)
    sums = torch.empty(len(rows), dtype=torch.float32, device=rows.device)
    if rows.numel():
        grid = (len(rows), triton.cdiv(rows.shape[1], BLOCK))
        filter_chunks[grid](rows, pivots, renormed, sums, rows.stride(0), rows.shape[1], BLOCK, False)
    return renormed / sums[:, None]


def falls_back_to_torch(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Right, and no kernel runs: a silent fallback."""
    return top_k_threshold(probs, top_k)


def spills(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """16,384 values of a row in one wavefront's registers: right, and at a serving vocabulary it spills."""
    rows, pivots, renormed = prepare(probs, top_k)
    if rows.numel():
        width = min(16_384, triton.next_power_of_2(rows.shape[1]))
        grid = (len(rows),)
        wide_rows[grid](rows, pivots, renormed, rows.stride(0), rows.shape[1], width, num_warps=1)
    return renormed
