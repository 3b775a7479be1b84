"""Small Triton kernels for interpreted_checks, each with one thing to show. Imports Triton."""

# A kernel's parameters are Triton's to type.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def convert(source, target, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    tl.store(target + lane, tl.load(source + lane).to(target.dtype.element_ty))


@triton.jit
def convert_toward_zero(source, target, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    tl.store(target + lane, tl.load(source + lane).to(target.dtype.element_ty, fp_downcast_rounding="rtz"))


@triton.jit
def positive(source, target, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    tl.store(target + lane, (tl.load(source + lane) > 0).to(target.dtype.element_ty))


@triton.jit
def elementwise(left, right, target, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    a = tl.load(left + lane)
    b = tl.load(right + lane)
    tl.store(target + lane, a * b)
    tl.store(target + LANES + lane, a + b)
    tl.store(target + 2 * LANES + lane, a - b)
    tl.store(target + 3 * LANES + lane, ((a < b) & (b > a)).to(target.dtype.element_ty))
    tl.store(target + 4 * LANES + lane, tl.abs(a))


@triton.jit
def product(left, right, target, SIZE: tl.constexpr):
    row = tl.arange(0, SIZE)
    tile = row[:, None] * SIZE + row[None, :]
    tl.store(target + tile, tl.dot(tl.load(left + tile), tl.load(right + tile)))


@triton.jit
def scaled_product(left, right, scale, target, SIZE: tl.constexpr):
    row = tl.arange(0, SIZE)
    tile = row[:, None] * SIZE + row[None, :]
    a = tl.load(left + tile)
    b = tl.load(right + tile)
    tl.store(target + tile, tl.dot_scaled(a, None, "bf16", b, tl.load(scale + row[:, None]), "e4m3"))


@triton.jit
def running(source, sums, index, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    number = tl.load(source + lane)
    tl.store(sums + lane, tl.cumsum(number, axis=0))
    tl.store(index, tl.argmax(number, axis=0))


@triton.jit
def accumulate(target, source, LANES: tl.constexpr):
    tl.atomic_add(target + tl.zeros((LANES,), tl.int32), tl.load(source + tl.arange(0, LANES)))


@triton.jit
def square(target, number):
    tl.store(target, number * number)


@triton.jit
def double_strided(source, target, rows, columns, s0, s1, t0, t1, LANES: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, LANES)
    mask = lane < columns
    number = tl.load(source + row * s0 + lane * s1, mask=mask)
    tl.store(target + row * t0 + lane * t1, number * 2, mask=mask)


@triton.jit
def store_at(target, offset):
    tl.store(target + offset, 7.0)


@triton.jit
def double_row_in_32_bits(source, target, vocabulary, LANES: tl.constexpr):
    offset = tl.program_id(0) * vocabulary + tl.program_id(1) * LANES + tl.arange(0, LANES)
    tl.store(target + offset, tl.load(source + offset) * 2)


@triton.jit
def double_row_in_64_bits(source, target, vocabulary, LANES: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * vocabulary + tl.program_id(1) * LANES + tl.arange(0, LANES)
    tl.store(target + offset, tl.load(source + offset) * 2)


@triton.jit
def store_offset(target, vocabulary, LANES: tl.constexpr):
    tl.store(target + tl.arange(0, LANES), tl.program_id(0) * vocabulary + tl.arange(0, LANES))


@triton.jit
def mark(target, columns):
    tl.store(target + tl.program_id(0) * columns + tl.program_id(1), tl.num_programs(0) * 100 + tl.program_id(1))
