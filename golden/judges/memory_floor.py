"""The time below which no right implementation can stay: bytes that must move, through memories with a peak.

A call that is *faster* than that has not read what it must. (ROCm/aiter#2996: a decode kernel that ignored the page
size read one row of each page, and took 23 us where 4 ms were due.)

**Bytes** (:func:`least_bytes`) are counted from the contract, not from an implementation: each distinct input byte that
the result depends on once, whoever shares it, and each output byte once. Results that an implementation may leave out,
workspaces and split partial sums count nothing.

**Seconds** (:func:`least_seconds`). A kernel starts with empty registers, LDS and L1 (the caches of a compute unit do
not hold data from one kernel to the next; AMDGPU backend, "Memory Model gfx942": an acquire at its start invalidates
L1). So all bytes come through the L2, and of n bytes at most C can already lie in caches of size C::

    seconds >= n / bandwidth(L2)
    seconds >= (n - size(L2)) / bandwidth(next level)
    seconds >= (n - size of all caches) / bandwidth(HBM)

The largest of these is the floor. Where caches are known not to hold the inputs (``cold``: something larger ran in
between, as the other layers of a model do), all input bytes come from HBM; outputs may still lie in caches when the
kernel ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from waveproof.golden.judges.judgement import Judgement
from waveproof.kernels.operators.contract import Call

RULE = "not faster than the memory allows"

TICK = 10e-9
"""Seconds: the device's clock ticks at 100 MHz (ROCm, ``hipDeviceAttributeWallClockRate``), and a duration is off by as
much at each end."""


class NoFloor(LookupError):
    """The contract of this operator does not say what must be read."""


class Level(Protocol):
    """A cache, see ``fixtures.products.Cache``."""

    @property
    def name(self) -> str:
        """As its maker calls it."""

    @property
    def memory_bytes(self) -> int:
        """All instances together."""

    @property
    def bytes_per_second(self) -> float:
        """Peak; infinite where unknown."""


class Memory(Protocol):
    """A device's memory, see ``fixtures.products.Product``."""

    @property
    def name(self) -> str:
        """Of the product."""

    @property
    def bytes_per_second(self) -> float:
        """Peak of its HBM."""

    @property
    def caches(self) -> Sequence[Level]:
        """Nearest to the compute units first."""


@dataclass(frozen=True)
class LeastBytes:
    """What any right implementation moves at least."""

    read: int
    written: int

    @property
    def total(self) -> int:
        """Both."""
        return self.read + self.written


def least_bytes(call: Call) -> LeastBytes:
    """Bytes that a call must read and write at least, by the contract of its operator.

    Raises:
        NoFloor: nothing is known of this operator.
    """
    count = COUNTED.get(call.operator)
    if count is None:
        raise NoFloor(f"{call.operator}: what must be read depends on its values; known: {', '.join(COUNTED)}")
    return count(call)


def least_seconds(moved: LeastBytes, memory: Memory, cold: bool = False) -> tuple[float, str]:
    """The floor, and the level that sets it.

    Args:
        moved: least bytes.
        memory: the device's.
        cold: whether no input lies in a cache.
    """
    floors = []
    held = 0
    for level in memory.caches:
        floors.append((max(0, moved.total - held) / level.bytes_per_second, level.name))
        held += level.memory_bytes
    beyond = moved.read + max(0, moved.written - held) if cold else max(0, moved.total - held)
    floors.append((beyond / memory.bytes_per_second, "HBM"))
    return max(floors)


def judge_not_faster(
    seconds: float, moved: LeastBytes, memory: Memory, cold: bool = False, kernels: int = 1, where: str = ""
) -> Judgement:
    """Whether a call took at least as long as its bytes take.

    Args:
        seconds: during which a kernel of the call ran.
        moved: least bytes.
        memory: the device's.
        cold: whether no input lies in a cache.
        kernels: that the time is of; the clock's tick is allowed at both ends of each.
        where: for the message.
    """
    floor, level = least_seconds(moved, memory, cold)
    allowed = seconds + 2 * TICK * kernels
    if not math.isfinite(allowed):
        allowed = 0.0
    holds = floor <= allowed
    rate = moved.total / seconds / 1e12 if seconds > 0 else math.inf
    return Judgement(
        RULE,
        holds,
        figure=floor * 1e6,
        bound=allowed * 1e6,
        unit="us",
        derivation=f"{moved.read} bytes must be read and {moved.written} written, once each; through the {level} of "
        f"{memory.name} that takes {floor * 1e6:.3g} us{' with nothing in its caches' if cold else ''}; two ticks of "
        "10 ns are allowed for each kernel",
        message=""
        if holds
        else f"{where + ': ' if where else ''}{seconds * 1e6:.3g} us for {moved.total} bytes is {rate:.3g} TB/s, "
        f"and the {level} of {memory.name} needs {floor * 1e6:.3g} us: the kernel cannot "
        "have read all that its result depends on, or the time is not that of the work",
        expected=f"at least {floor * 1e6:.3g} us",
        got=f"{seconds * 1e6:.3g} us",
    )


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _paged_rows(call: Call) -> int:
    """Distinct rows of the pool that some request with a query sees."""
    cache = call.tensor("kv_cache")
    page = cache.shape[1]
    starts, pages = call.tensor("kv_indptr").long(), call.tensor("kv_indices").long()
    queries = call.tensor("qo_indptr").long().diff()
    longest: dict[int, int] = {}
    for request, last in enumerate(call.tensor("kv_last_page_len").tolist()):
        used = pages[int(starts[request]) : int(starts[request + 1])].tolist()
        if not int(queries[request]) or not used:
            continue
        for index, number in enumerate(used):
            tokens = last if index == len(used) - 1 else page
            longest[number] = max(longest.get(number, 0), tokens)
    return sum(longest.values())


def _latent(call: Call) -> LeastBytes:
    q, cache = call.tensor("q"), call.tensor("kv_cache")
    rows = _paged_rows(call) * cache.shape[-1] * cache.element_size()
    extends = "kv_new" in call.arguments
    lengths, queries = call.tensor("kv_indptr").long().diff(), call.tensor("qo_indptr").long().diff()
    # A query that sees no key need not be read; its output is written nevertheless.
    reading = int(q.shape[0]) if extends else int(queries[lengths > 0].sum())
    new = _size(call.tensor("kv_new")) if extends else 0
    out = q.shape[0] * q.shape[1] * 512 * max(2, q.element_size())
    return LeastBytes(reading * q.shape[1] * q.shape[2] * q.element_size() + rows + new, out)


def _per_head(call: Call) -> LeastBytes:
    q, k, v = (call.tensor(name) for name in ("q", "k", "v"))
    lengths, queries = call.tensor("kv_indptr").long().diff(), call.tensor("qo_indptr").long().diff()
    # Bottom-right alignment: the last query of a request sees all its keys, causal or not.
    keys = int(lengths[queries > 0].sum())
    each = k.shape[1] * (k.shape[2] * k.element_size() + v.shape[2] * v.element_size())
    reading = int(queries[lengths > 0].sum()) * q.shape[1] * q.shape[2] * q.element_size()
    return LeastBytes(reading + keys * each, q.shape[0] * q.shape[1] * v.shape[2] * q.element_size())


def _merge(call: Call) -> LeastBytes:
    read = 0
    for side in "ab":
        out, lse = call.tensor(f"out_{side}"), call.tensor(f"lse_{side}")
        # A side without keys has no weight, and need not be read.
        read += _size(lse) + int(torch.isfinite(lse).sum()) * out.shape[-1] * out.element_size()
    return LeastBytes(read, _size(call.tensor("out_a")))


def _rows(name: str) -> Callable[[Call], LeastBytes]:
    def count(call: Call) -> LeastBytes:
        matrix = call.tensor(name)
        return LeastBytes(_size(matrix), matrix.numel() * 4)

    return count


COUNTED: dict[str, Callable[[Call], LeastBytes]] = {
    "mla_decode": _latent,
    "mla_prefill_absorbed": _latent,
    "mla_extend": _latent,
    "mla_prefill": _per_head,
    "merge_state": _merge,
    "top_k_renorm_prob": _rows("probs"),
    "top_p_renorm_prob": _rows("probs"),
    "target_probs": _rows("logits"),
}
"""Operators whose contract says what must be read, with what counts it."""
