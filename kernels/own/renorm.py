"""Top-k and top-p renormalisation for ROCm without a sort: one launch, one program a row, mostly two reads of the row.

**What is searched.** Finite float32 values that are not negative are ordered as their bit patterns are, read as
integers (IEEE 754-2019, section 3.4: the exponent stands above the significand). So the boundary value is an integer
t below 2^31, and with G(t) = how many values (top-k) or how much mass (top-p) lie at or above pattern t, it is the
largest t with G(t) >= k or G(t) >= top_p. Kept is what is >= t: the ``threshold`` variant, ties with the boundary stay.

**How.**

1. *Survey.* One read of the row. Column c belongs to lane c mod LANES; each lane lists the four largest values it met.
   A bisection over the lists, in registers, gives the best boundary they allow, which is never above the true one. If
   no lane's fourth value reaches it, no lane dropped a value that does: it is *the* boundary, and the kept mass is
   known too. That is so whenever no lane holds four of the kept values.
2. *Narrowing*, otherwise. The true boundary lies between the one found and the largest fourth value. One read weighs
   what reaches this upper end, which settles ties there, splits the rest of the bracket by PIVOTS patterns at once, and
   lists again each lane's four largest values below the upper end. The first split goes down from the upper end in
   steps of two octaves, since probabilities are near it; each later one leaves a ninth of the patterns.
3. *Write.* One read, one write, every element of the output.

**Reads of the row.** 2 without a filter, and whenever no lane holds four kept values: at 4,096 lanes and with tokens at
random places that is 99 % of all rows with 350 kept tokens and half of those with 1,100. 3 to 4 for thousands of kept
tokens and for ties at the boundary, 4 to 7 for tens of thousands (measured; normal and Zipf laws, V = 151,936), and
never more than MAX_READS. Four bytes an element for each read, four written; nothing else goes through memory.

**Rounding.** Counts are integers and a boundary is found by comparing patterns, so the kept set of top-k is exact. A
mass is a float32 sum of ceil(V / LANES) terms in each lane and a tree over lanes and lists; a term that joins never
lowers such a sum, so every search converges. It is well inside gamma_{d(V)} with d(V) = ceil(V / 64) + 6
(`waveproof.kernels.operators.renorm`). Values are divided by the sum, not multiplied by its reciprocal, so that a lone
token gets exactly 1.

**Degenerate rows.** A row that sums to zero becomes zeros: no law is made up for it. A row with NaN, inf or a negative
value, one whose sum exceeds float32, and one whose own top_p is NaN become NaN throughout. -0.0 counts as 0.0, and
subnormal values count. Programs share nothing, so no row can change another, and equal rows give equal bits wherever
they stand.

The module imports triton, so what is to run in Triton's interpreter needs ``TRITON_INTERPRET=1`` before the import.
"""

from __future__ import annotations

import contextlib
import math
import operator

import torch
import triton
import triton.language as tl

MAX_LANES = 4096
"""Columns that are looked at together: 16 KiB in flight a workgroup, and each lane sees 1/4096 of the row."""

PIVOTS = 8
"""Patterns that one narrowing read tries. Sixteen save a read now and then, but spill registers on both architectures
(Triton 3.9: a workgroup of 16 wavefronts has 128 a thread) and double the comparisons."""

MAX_READS = 14
"""Reads of a row, at most: survey, a split by octaves, ten splits into nine (9^10 > 2^31), the last pattern, write."""

_MAX_FINITE = tl.constexpr(0x7F7FFFFF)
_NEGATIVE_ZERO = tl.constexpr(0x80000000)
_TWO_OCTAVES = tl.constexpr(1 << 24)  # a float32's exponent starts at bit 23


@triton.jit
def _enlist(
    pattern: tl.tensor, first: tl.tensor, second: tl.tensor, third: tl.tensor, fourth: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The four largest of five patterns, lane by lane, in falling order."""
    fourth = tl.maximum(fourth, tl.minimum(third, pattern))
    third = tl.maximum(third, tl.minimum(second, pattern))
    second = tl.maximum(second, tl.minimum(first, pattern))
    first = tl.maximum(first, pattern)
    return first, second, third, fourth


@triton.jit
def _gather(first: tl.tensor, second: tl.tensor, third: tl.tensor, fourth: tl.tensor) -> tl.tensor:
    """The four lists as one tensor of int32 patterns, each lane's in its own thread."""
    return tl.join(tl.join(first, second), tl.join(third, fourth)).to(tl.int32, bitcast=True)


@triton.jit
def _survey(
    row_ptr: tl.tensor, stride_column: tl.tensor, length: tl.tensor, LANES: tl.constexpr
) -> tuple[tl.tensor, ...]:
    """One read: the sum of the row, its largest pattern, each lane's four largest, the largest fourth of them.

    Patterns are compared unsigned: NaN, inf and whatever is negative then exceed every finite value, and show up in
    the largest.
    """
    first = tl.zeros((LANES,), tl.uint32)
    second = tl.zeros((LANES,), tl.uint32)
    third = tl.zeros((LANES,), tl.uint32)
    fourth = tl.zeros((LANES,), tl.uint32)
    mass = tl.zeros((LANES,), tl.float32)
    for start in range(0, length, LANES):
        columns = start + tl.arange(0, LANES)
        value = tl.load(row_ptr + columns.to(tl.int64) * stride_column, mask=columns < length, other=0.0)
        pattern = value.to(tl.uint32, bitcast=True)
        pattern = tl.where(pattern == _NEGATIVE_ZERO, 0, pattern)
        first, second, third, fourth = _enlist(pattern, first, second, third, fourth)
        mass += value
    return tl.sum(mass, axis=0), tl.max(first, axis=0), _gather(first, second, third, fourth), tl.max(fourth, axis=0)


@triton.jit
def _narrow(
    row_ptr: tl.tensor,
    stride_column: tl.tensor,
    length: tl.tensor,
    pivots: tl.tensor,
    high: tl.tensor,
    COUNT: tl.constexpr,
    LANES: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """One read of a legal row: G at `pivots` and at `high`, the mass from `high` up, and lists of what is below."""
    first = tl.zeros((LANES,), tl.int32)
    second = tl.zeros((LANES,), tl.int32)
    third = tl.zeros((LANES,), tl.int32)
    fourth = tl.zeros((LANES,), tl.int32)
    mass = tl.zeros((LANES,), tl.float32)
    if COUNT:
        above = tl.zeros((LANES,), tl.int32)
        reached = tl.zeros((pivots.shape[0], LANES), tl.int32)
    else:
        above = tl.zeros((LANES,), tl.float32)
        reached = tl.zeros((pivots.shape[0], LANES), tl.float32)
    for start in range(0, length, LANES):
        columns = start + tl.arange(0, LANES)
        value = tl.load(row_ptr + columns.to(tl.int64) * stride_column, mask=columns < length, other=0.0)
        pattern = tl.maximum(value.to(tl.int32, bitcast=True), 0)  # -0.0 is the smallest int32
        mass += tl.where(pattern >= high, value, 0.0)
        spread = value[None, :]
        reaches = spread.to(tl.int32, bitcast=True) >= pivots[:, None]
        if COUNT:
            above += tl.where(pattern >= high, 1, 0)
            reached += tl.where(reaches, 1, 0)
        else:
            reached += tl.where(reaches, spread, 0.0)
        listed = tl.where(pattern < high, pattern, 0)
        first, second, third, fourth = _enlist(listed, first, second, third, fourth)
    mass_above = tl.sum(mass, axis=0)
    weight_above = tl.sum(above, axis=0) if COUNT else mass_above
    listed = _gather(first, second, third, fourth)
    return tl.sum(reached, axis=1), weight_above, mass_above, listed, tl.max(fourth, axis=0)


@triton.jit
def _bisect(
    listed: tl.tensor,
    weight_above: tl.tensor,
    target: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    COUNT: tl.constexpr,
) -> tl.tensor:
    """The largest boundary in [low, high) that the listed values allow; `low` if they allow none.

    Ends early when a single listed value lies in the bracket: any boundary between it and the next keeps the same.
    """
    reach_low = listed.numel
    reach_high = 0
    while (high - low > 1) & (reach_low - reach_high > 1):
        middle = low + ((high - low) >> 1)
        reaches = listed >= middle
        count = tl.sum(tl.where(reaches, 1, 0))
        weight = count if COUNT else tl.sum(tl.where(reaches, listed.to(tl.float32, bitcast=True), 0.0))
        enough = weight_above + weight >= target
        low = tl.where(enough, middle, low)
        reach_low = tl.where(enough, count, reach_low)
        high = tl.where(enough, high, middle)
        reach_high = tl.where(enough, reach_high, count)
    return low


@triton.jit
def _boundary(
    row_ptr: tl.tensor,
    stride_column: tl.tensor,
    length: tl.tensor,
    target: tl.tensor,
    largest: tl.tensor,
    listed: tl.tensor,
    deepest: tl.tensor,
    COUNT: tl.constexpr,
    PIVOTS: tl.constexpr,
    LANES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The boundary's pattern and the mass that is kept, for a legal row whose lists are those of the survey."""
    low = tl.full((), 1, tl.int32)  # the smallest positive pattern: zeros add no mass, kept or not
    low = _bisect(listed, target * 0, target, low, largest + 1, COUNT)  # nothing lies above these lists
    high = deepest
    kept = -1.0  # not known yet
    if high < low:  # no lane dropped a value that reaches `low`
        kept = tl.sum(tl.where(listed >= low, listed.to(tl.float32, bitcast=True), 0.0))
    widest = tl.full((), _TWO_OCTAVES, tl.int32)
    while kept < 0:  # the boundary is in [low, high]
        step = tl.minimum((high - low + PIVOTS) // (PIVOTS + 1), widest)
        widest = high
        pivots = tl.maximum(high - step * (tl.arange(0, PIVOTS) + 1), low)
        reached, weight_above, mass_above, listed, deepest = _narrow(
            row_ptr, stride_column, length, pivots, high, COUNT, LANES
        )
        # A bracket of one pattern is not asked again: this read may have rounded otherwise than the lists did.
        if (weight_above >= target) | (high <= low):
            low = high
            kept = mass_above
        else:
            ceiling = tl.min(tl.where(reached >= target, high, pivots), axis=0)
            low = tl.max(tl.where(reached >= target, pivots, low), axis=0)
            low = _bisect(listed, weight_above, target, low, ceiling, COUNT)
            if deepest < low:
                kept = mass_above + tl.sum(tl.where(listed >= low, listed.to(tl.float32, bitcast=True), 0.0))
            high = tl.maximum(tl.minimum(ceiling - 1, deepest), low)
    return low, kept


@triton.jit(do_not_specialize=["limit"])
def renorm_kernel(
    probs_ptr: tl.tensor,
    renormed_ptr: tl.tensor,
    limit: tl.tensor,
    stride_row: tl.tensor,
    stride_column: tl.tensor,
    stride_limit: tl.tensor,
    length: tl.tensor,
    COUNT: tl.constexpr,
    PER_ROW: tl.constexpr,
    PIVOTS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Filter and renormalise row ``program_id(0)``.

    `limit` is k (COUNT) or top_p, or with PER_ROW a pointer to one of them a row. Strides are in elements; the output
    is contiguous.
    """
    row = tl.program_id(0).to(tl.int64)
    row_ptr = probs_ptr + row * stride_row
    if PER_ROW:
        limit = tl.load(limit + row * stride_limit)
    kept, largest, listed, deepest = _survey(row_ptr, stride_column, length, LANES)
    legal = (largest <= _MAX_FINITE) & (kept < float("inf"))
    if COUNT:
        target = tl.minimum(limit, length).to(tl.int32)
        filtered = (limit > 0) & (limit < length)
    else:
        limit = tl.full((), limit, tl.float32)
        legal &= limit == limit
        target = tl.maximum(limit, 0.0)
        filtered = (target < 1.0) & (target <= kept)
    boundary = tl.full((), 1, tl.int32)
    if legal & filtered:
        boundary, kept = _boundary(
            row_ptr,
            stride_column,
            length,
            target,
            largest.to(tl.int32),
            listed,
            deepest.to(tl.int32),
            COUNT,
            PIVOTS,
            LANES,
        )

    out_ptr = renormed_ptr + row * length
    for start in range(0, length, LANES):
        columns = start + tl.arange(0, LANES)
        value = tl.load(row_ptr + columns.to(tl.int64) * stride_column, mask=columns < length, other=0.0)
        renormed = tl.where(value.to(tl.int32, bitcast=True) >= boundary, value / kept, 0.0)
        renormed = tl.where(legal, renormed, float("nan"))
        tl.store(out_ptr + columns, renormed, mask=columns < length)


def launch_shape(length: int) -> tuple[int, int]:
    """LANES and warps for rows of `length`: at most four columns a thread with AMD's 64 threads a wavefront."""
    lanes = max(64, min(MAX_LANES, triton.next_power_of_2(length)))
    return lanes, max(1, lanes // 256)


def top_k_renorm_prob(probs: torch.Tensor, top_k: int | torch.Tensor) -> torch.Tensor:
    """Keep what is not smaller than each row's `top_k`-th largest value, and renormalise.

    Args:
        probs: [B, V] float32, any strides, not changed.
        top_k: one for all rows, or an integer tensor of 1 or B elements on the device of `probs`. k <= 0 and k >= V
            filter nothing.

    Returns:
        [B, V] float32, contiguous: the kept values over their sum, zero elsewhere. The module says what becomes of
        degenerate rows.

    Raises:
        ValueError: `probs` is not two-dimensional float32; `top_k` is neither an integer nor such a tensor.
    """
    _check_probs(probs)
    if isinstance(top_k, torch.Tensor):
        if top_k.dtype == torch.bool or top_k.is_floating_point() or top_k.is_complex():
            raise ValueError(f"top_k is a tensor of {top_k.dtype}: it must be of an integer dtype")
        _check_limits("top_k", top_k, probs)
        return _launch(probs, top_k, count=True)
    try:
        k = operator.index(top_k)
    except TypeError:
        raise ValueError(f"top_k = {top_k!r} is a {type(top_k).__name__}: it must be an integer") from None
    if isinstance(top_k, bool):
        raise ValueError(f"top_k = {top_k!r} is a bool: it must be an integer")
    return _launch(probs, max(0, min(k, probs.shape[1])), count=True)


def top_p_renorm_prob(probs: torch.Tensor, top_p: float | torch.Tensor) -> torch.Tensor:
    """Keep each value whose strictly larger ones hold less than `top_p` of mass, and renormalise.

    The mass is absolute, not a share of the row's sum. A row's largest value always stays.

    Args:
        probs: [B, V] float32, any strides, not changed.
        top_p: one for all rows, or a floating-point tensor of 1 or B elements on the device of `probs`; rounded to
            float32. From 1 on it filters nothing. A tensor is not read on the host: elements not above 0 keep the
            largest value only, and NaN makes its row NaN.

    Returns:
        [B, V] float32, contiguous: the kept values over their sum, zero elsewhere. The module says what becomes of
        degenerate rows.

    Raises:
        ValueError: `probs` is not two-dimensional float32; `top_p` is a number that is NaN or not above 0, or neither a
            number nor such a tensor.
    """
    _check_probs(probs)
    if isinstance(top_p, torch.Tensor):
        if not top_p.is_floating_point():
            raise ValueError(f"top_p is a tensor of {top_p.dtype}: it must be of a floating-point dtype")
        _check_limits("top_p", top_p, probs)
        return _launch(probs, top_p, count=False)
    try:
        p = math.nan if isinstance(top_p, (bool, str)) else float(top_p)
    except (TypeError, ValueError):
        p = math.nan
    if not p > 0.0:
        raise ValueError(f"top_p = {top_p!r}: it must be a number above 0")
    return _launch(probs, min(p, 1.0), count=False)


def _check_probs(probs: torch.Tensor) -> None:
    if not isinstance(probs, torch.Tensor) or probs.dim() != 2:
        got = f"a tensor of shape {tuple(probs.shape)}" if isinstance(probs, torch.Tensor) else repr(type(probs))
        raise ValueError(f"probs is {got}: it must be a tensor of two dimensions [B, V]")
    if probs.dtype != torch.float32:
        raise ValueError(f"probs is a tensor of {probs.dtype}: it must be of torch.float32")
    if probs.shape[1] > 2**31 - 1 - MAX_LANES:
        raise ValueError(f"probs has rows of {probs.shape[1]} values: columns are counted in 31 bits")


def _check_limits(name: str, limits: torch.Tensor, probs: torch.Tensor) -> None:
    rows = probs.shape[0]
    if limits.numel() not in (1, rows):
        raise ValueError(f"{name} has {limits.numel()} elements for {rows} rows: it must have 1 or {rows}")
    if limits.device != probs.device:
        raise ValueError(f"{name} is on {limits.device} and probs on {probs.device}: they must share a device")


def _launch(probs: torch.Tensor, limit: float | torch.Tensor, *, count: bool) -> torch.Tensor:
    rows, length = probs.shape
    renormed = torch.empty((rows, length), dtype=torch.float32, device=probs.device)
    if renormed.numel() == 0:
        return renormed
    stride_limit = 0
    if isinstance(limit, torch.Tensor):
        limit = limit.reshape(-1)
        stride_limit = limit.stride(0) if limit.numel() > 1 else 0
    lanes, warps = launch_shape(length)
    # Triton launches on the current device, which need not be the one that the tensors are on.
    on_cuda = probs.device.type == "cuda"
    with torch.cuda.device(probs.device) if on_cuda else contextlib.nullcontext():
        renorm_kernel[(rows,)](
            probs,
            renormed,
            limit,
            probs.stride(0),
            probs.stride(1),
            stride_limit,
            length,
            COUNT=count,
            PER_ROW=isinstance(limit, torch.Tensor),
            PIVOTS=PIVOTS,
            LANES=lanes,
            num_warps=warps,
        )
    return renormed
