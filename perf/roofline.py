"""The time that no right implementation can stay below, by the bytes *and* the products that its result is made of.

**Peaks** (:data:`PEAKS`) are dense: NVIDIA's headline figures for tensor cores hold "with sparsity" (two of four
weights are zero and skipped), and are halved here. A figure that no public source has is None, and then nothing is
concluded from arithmetic. Peaks are at the highest clock, which a device under load seldom holds: a floor is a lower
bound, and a share of it says how far away a kernel is, not how far it could get.

**FLOP** (:func:`needed_flop`) are counted from the contract, two for each multiply-add of the definition: each query
with the keys that it sees, for scores and for values. What a kernel does on padding or on hidden keys does not count.
Renormalising and merging have no products of matrices; memory alone sets their floor.

**Bytes** are those of :mod:`waveproof.golden.judges.memory_floor`, whose floor through each level of the memory is one
of the candidates here::

    seconds >= max(bytes through L2, through the next level, through HBM, FLOP / peak of the matrix cores)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from waveproof.fixtures.products import Product
from waveproof.golden.judges import memory_floor
from waveproof.golden.judges.judgement import Judgement
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.mla import DEEPSEEK

MATRIX = "matrix"
"""What sets a floor that is not the memory's."""
NOT_FASTER = "not faster than the matrix cores allow"
TWO_WAYS = "peak is units x FLOP a clock x clock"
NARROWER = "half the width, twice the rate"
"""Rules of :func:`judge_peak`."""

WIDTHS = (("bfloat16", "float16", 0.99, 1.01), ("bfloat16", "fp8", 1.99, 2.01), ("fp8", "mxfp4", 1.99, 3.5))
"""Two precisions, and how many times as fast the second may be. B300's 4-bit units are wider than their share."""

PRECISIONS = ("bfloat16", "float16", "fp8", "mxfp4", "float32")
"""Of multiplication. ``float32`` is that of the vector units; 4-bit floats are OCP's MX or NVIDIA's, at one peak."""

_SHEET = "data sheet (peak theoretical, without structured sparsity)"
_CDNA4 = "AMD CDNA 4 architecture white paper"
_HALVED = "tensor-core figures stand there with sparsity and are halved"


class NoPeak(LookupError):
    """No public source says how fast this product is at that; the message says what is known."""


@dataclass(frozen=True)
class Peak:
    """What a product can multiply, FLOP/s, dense; None where no source says."""

    product: str
    flop_per_second: dict[str, float | None]
    """By :data:`PRECISIONS`."""
    source: str
    per_clock: dict[str, int] | None = None
    """FLOP of one compute unit in one clock, where an architecture document says: a second way to the same figures."""
    clock: float = 0.0
    """Hz, highest; 0 where unknown."""


def _peaks(bf16: float | None, fp8: float | None, mxfp4: float | None, fp32: float | None) -> dict[str, float | None]:
    return dict(zip(PRECISIONS, (bf16, bf16, fp8, mxfp4, fp32), strict=True))


def _per_clock(bf16: int, fp8: int, mxfp4: int, fp32: int) -> dict[str, int]:
    return dict(zip(PRECISIONS, (bf16, bf16, fp8, mxfp4, fp32), strict=True))


_CDNA3_CLOCK = _per_clock(2048, 4096, 0, 256)
"""CDNA 3 white paper, table of the compute unit's peak per clock; no 4-bit floats (0)."""
_CDNA4_CLOCK = _per_clock(4096, 8192, 16384, 256)
"""CDNA 4 white paper; AMD at ISSCC 2026 for fp8: 8,192 where CDNA 3 had 4,096."""
_HOPPER_CLOCK = _per_clock(4096, 8192, 0, 256)
"""NVIDIA H100 architecture white paper: 4 tensor cores of 1,024 dense 16-bit FLOP in a multiprocessor; 128 lanes."""

PEAKS: tuple[Peak, ...] = (
    Peak(
        "MI300A", _peaks(980.6e12, 1961.2e12, None, 122.6e12),
        f"AMD Instinct MI300A {_SHEET}; AMD CDNA 3 white paper", _CDNA3_CLOCK, 2.1e9,
    ),
    Peak(
        "MI300X", _peaks(1307.4e12, 2614.9e12, None, 163.4e12),
        f"AMD Instinct MI300X {_SHEET}; AMD CDNA 3 white paper", _CDNA3_CLOCK, 2.1e9,
    ),
    Peak("MI308X", _peaks(None, None, None, None), "no public data sheet, and no clock is published"),
    Peak(
        "MI325X", _peaks(1307.4e12, 2614.9e12, None, 163.4e12),
        f"AMD Instinct MI325X {_SHEET}; AMD CDNA 3 white paper", _CDNA3_CLOCK, 2.1e9,
    ),
    Peak(
        "MI350X", _peaks(2306.9e12, 4613.7e12, 9227.5e12, 144.2e12),
        f"AMD Instinct MI350X {_SHEET}; {_CDNA4}", _CDNA4_CLOCK, 2.2e9,
    ),
    Peak(
        "MI355X", _peaks(2516.6e12, 5033.2e12, 10066.3e12, 157.3e12),
        f"AMD Instinct MI355X {_SHEET}; {_CDNA4}", _CDNA4_CLOCK, 2.4e9,
    ),
    Peak(
        "H200", _peaks(989.5e12, 1979e12, None, 67e12),
        f"NVIDIA H200 data sheet (SXM): 1,979 and 3,958 TFLOP/s, {_HALVED}", _HOPPER_CLOCK, 1.98e9,
    ),
    Peak(
        "B200", _peaks(2250e12, 4500e12, 9000e12, 75e12),
        f"NVIDIA Blackwell data sheet, HGX B200, per GPU: 4.5, 9 and 18 PFLOP/s, {_HALVED}",
    ),
    Peak(
        "B300", _peaks(2250e12, 4500e12, 15000e12, 75e12),
        f"NVIDIA HGX B300 data sheet, 8 GPUs: 36 and 72 PFLOP/s, {_HALVED}. 4-bit dense: its editions have 105 and 108 "
        "PFLOP/s for 8, the chip's own announcement 15 for one: the largest, so that a floor stays one",
    ),
)  # fmt: skip
BY_PRODUCT = {one.product: one for one in PEAKS}


def peak_of(product: str, precision: str) -> float | None:
    """FLOP/s, dense; None where no source says, for a product that is not known too.

    Raises:
        NoPeak: there is no such precision.
    """
    if precision not in PRECISIONS:
        raise NoPeak(f"no precision {precision!r}; there are: {', '.join(PRECISIONS)}")
    row = BY_PRODUCT.get(product)
    return None if row is None else row.flop_per_second[precision]


def precision_of(call: Call) -> str:
    """The fastest arithmetic that a right implementation may use for a call: that of its narrowest tensor of floats.

    A kernel may round 16-bit queries to a cache's 8 bits (variant ``narrow``), so that a floor goes by the cache.
    """
    floats = [one for one in call.arguments.values() if isinstance(one, torch.Tensor) and one.is_floating_point()]
    if not floats:
        return "float32"
    return _PRECISION_BY_SIZE[min(one.element_size() for one in floats)]


_PRECISION_BY_SIZE = {1: "fp8", 2: "bfloat16", 4: "float32", 8: "float32"}


def fastest(product: Product, precision: str) -> float | None:
    """FLOP/s that no kernel can exceed: the published peak, or compute units x FLOP a clock x highest clock if that is
    more. NVIDIA's data sheets count Hopper's tensor cores at 1.83 GHz; a driver lets them run at 1.98.

    Raises:
        NoPeak: there is no such precision.
    """
    published = peak_of(product.name, precision)
    if published is None:
        return None
    row = BY_PRODUCT[product.name]
    clocked = row.per_clock[precision] * product.cu_num * row.clock if row.per_clock else 0.0
    return max(published, clocked)


@dataclass(frozen=True)
class Floor:
    """The least time of a call on a product."""

    seconds: float
    by: str
    """``HBM``, ``L2``, ``Infinity Cache`` or ``matrix``: what sets it."""
    bytes: int
    flop: int
    precision: str
    matrix_seconds: float | None
    """Of the products alone; None where no peak is published."""
    memory_seconds: float

    @property
    def intensity(self) -> float:
        """FLOP for each byte; 0 where nothing is multiplied."""
        return self.flop / self.bytes if self.bytes else 0.0

    def share(self, seconds: float) -> float:
        """How much of the floor a time reaches: 1 at the floor, 0.5 at twice the time."""
        return self.seconds / seconds if seconds > 0 else math.inf


def floor(call: Call, product: Product, precision: str = "", cold: bool = False) -> Floor:
    """The floor of a call.

    Args:
        call: of an operator whose bytes are counted (``memory_floor.COUNTED``).
        product: the device.
        precision: of :data:`PRECISIONS`; :func:`precision_of` if empty.
        cold: whether no input lies in a cache.

    Raises:
        NoFloor: what the operator must read depends on its values.
        NoPeak: there is no such precision.
    """
    moved = memory_floor.least_bytes(call)
    precision = precision or precision_of(call)
    peak, flop = fastest(product, precision), needed_flop(call)
    seconds, by = memory_floor.least_seconds(moved, product, cold)
    multiplied = None if peak is None else flop / peak
    if multiplied is not None and multiplied > seconds:
        return Floor(multiplied, MATRIX, moved.total, flop, precision, multiplied, seconds)
    return Floor(seconds, by, moved.total, flop, precision, multiplied, seconds)


def needed_flop(call: Call) -> int:
    """Two for each multiply-add of the definition; 0 for operators without products of matrices."""
    return 2 * _MULTIPLY_ADDS.get(call.operator, lambda call: 0)(call)


def _latent(call: Call) -> int:
    q, page = call.tensor("q"), call.tensor("kv_cache").shape[1]
    queries, pages = call.tensor("qo_indptr").long().diff(), call.tensor("kv_indptr").long().diff()
    last = call.tensor("kv_last_page_len").long()
    cached = torch.where(pages > 0, (pages - 1) * page + last, 0)
    # An extend's own tokens come after the cache; elsewhere they are in it.
    keys = cached + queries if call.operator == "mla_extend" else cached
    # Scores over the whole width, values over all but the rotary part.
    return int(q.shape[1]) * _seen(queries, keys, True) * (int(q.shape[2]) + DEEPSEEK.kv_lora_rank)


def _per_head(call: Call) -> int:
    q, v = call.tensor("q"), call.tensor("v")
    queries, keys = call.tensor("qo_indptr").long().diff(), call.tensor("kv_indptr").long().diff()
    seen = _seen(queries, keys, bool(call.arguments.get("causal", True)))
    return int(q.shape[1]) * seen * (int(q.shape[2]) + int(v.shape[2]))


def _seen(queries: torch.Tensor, keys: torch.Tensor, causal: bool) -> int:
    """Pairs of a query and a key that it sees, over all requests; masks are aligned at the last query and key."""
    pairs = 0
    for count, length in zip(queries.tolist(), keys.tolist(), strict=True):
        if not causal:
            pairs += count * length
            continue
        # Query i of count sees length - (count - 1 - i) keys, none where that is not positive.
        rows = min(count, length)
        pairs += rows * length - rows * (rows - 1) // 2
    return pairs


_MULTIPLY_ADDS = {
    "mla_decode": _latent,
    "mla_prefill_absorbed": _latent,
    "mla_extend": _latent,
    "mla_prefill": _per_head,
}
"""Operators that multiply matrices."""


def judge_share(
    seconds: float, call: Call, product: Product, cold: bool = False, kernels: int = 1, where: str = ""
) -> list[Judgement]:
    """Whether a time lies above the floors of memory and of the matrix cores: one below is not that of the work.

    Args:
        seconds: of the call, on the device's clock.
        call: what was timed.
        product: the device.
        cold: whether no input lay in a cache.
        kernels: that the time is of; two ticks of the clock are allowed for each.
        where: for messages.

    Raises:
        NoFloor: what the operator must read depends on its values.
    """
    moved = memory_floor.least_bytes(call)
    least = floor(call, product, cold=cold)
    judgements = [memory_floor.judge_not_faster(seconds, moved, product, cold, kernels, where)]
    if least.matrix_seconds is None or not least.flop:
        return judgements
    allowed = seconds + 2 * memory_floor.TICK * kernels
    holds = math.isfinite(allowed) and least.matrix_seconds <= allowed
    rate = least.flop / seconds / 1e12 if seconds > 0 else math.inf
    need = f"{least.matrix_seconds * 1e6:.3g} us"
    judgements.append(
        Judgement(
            NOT_FASTER,
            holds,
            figure=least.matrix_seconds * 1e6,
            bound=allowed * 1e6 if math.isfinite(allowed) else 0.0,
            unit="us",
            derivation=f"{least.flop:.4g} FLOP by the definition, at {least.precision}'s dense peak of {product.name}",
            message=""
            if holds
            else f"{where + ': ' if where else ''}{seconds * 1e6:.3g} us for {least.flop:.3g} FLOP is {rate:.4g} "
            f"TFLOP/s, and {product.name} needs {need} at its {least.precision} peak: not all keys were multiplied, "
            "or the time is not that of the work",
            expected=f"at least {need}",
            got=f"{seconds * 1e6:.3g} us",
        )
    )
    return judgements


def judge_peak(peak: Peak, product: Product) -> list[Judgement]:
    """Whether published figures are what the units can do, dense: a figure with sparsity is twice that.

    Tensor cores of NVIDIA are published at a lower clock than the highest: from 0.9 to 1 time is taken. Without
    figures of an architecture only the figures of one product are held against each other.
    """
    judgements = []
    for wide, narrow, least, most in WIDTHS:
        slower, faster = peak.flop_per_second[wide], peak.flop_per_second[narrow]
        if slower and faster:
            times = faster / slower
            message = f"{peak.product}: {narrow} at {times:.3g} times the rate of {wide}, {least:g} to {most:g} are due"
            holds = least <= times <= most
            judgements.append(Judgement(NARROWER, holds, times, most, message="" if holds else message))
    for precision, each in (peak.per_clock or {}).items():
        published, due = peak.flop_per_second[precision], product.cu_num * each * peak.clock
        share = (published or 0.0) / due if due else float(bool(published))
        least = 0.9 if product.gfx.startswith("sm_") else 0.998
        holds = least < share < 1.002 if due else not share
        told = f"{peak.product}, {precision}: {(published or 0) / 1e12:,.1f} TFLOP/s published"
        message = (
            "" if holds else f"{told}, and {product.cu_num} units do {due / 1e12:,.1f} at {peak.clock / 1e9:g} GHz"
        )
        judgements.append(Judgement(TWO_WAYS, holds, abs(share - 1) if due else share, 0.002, message=message))
    return judgements


def ridge(product: Product, precision: str) -> float | None:
    """FLOP a byte at which the matrix cores, not the HBM, become the limit; None without a published peak."""
    peak = fastest(product, precision)
    return None if peak is None else peak / product.bytes_per_second
