"""The global address space of the emulated device: host buffers at made-up addresses, each access checked exactly.

A buffer stays where the host has it; the device sees it at a virtual address of its own. Each buffer *straddles a
4 GiB boundary* with gigabytes of nothing on both sides: an index that runs away, a null pointer or an address whose
upper half missed its carry meets no other buffer but a fault.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from waveproof.kernels.runtimes.emulate.fault import Access, AccessViolation
from waveproof.kernels.runtimes.emulate.registers import LANES, Array

_SPACING = 1 << 34
_FIRST = 0x7F_0000_0000
_ALIGNMENT = 4096

Addresses = npt.NDArray[np.uint64]


@dataclass(eq=False)
class Allocation:
    """One buffer."""

    name: str
    base: int
    """Virtual address of the first byte."""
    data: npt.NDArray[np.uint8]
    """The host's bytes, not a copy."""
    read_only: bool = False
    itemsize: int = 1
    """Bytes of an element, for messages."""
    uninitialised: bool = False
    """Whether the host has not written it; of interest to :mod:`.watch` only."""
    shape: tuple[int, ...] = ()
    """Of the host's array, in elements, for messages; empty for a plain run of bytes."""
    dtype: str = ""
    words: npt.NDArray[np.uint32] = field(init=False)
    halves: npt.NDArray[np.uint16] = field(init=False)

    def __post_init__(self) -> None:
        self.size = self.data.size
        self.words = self.data[: self.size & ~3].view(np.uint32)
        self.halves = self.data[: self.size & ~1].view(np.uint16)
        self.base64 = np.uint64(self.base)

    def describe(self, offset: int) -> str:
        """A byte offset in words: inside or how far outside, and the element."""
        kind = f"{self.dtype}{list(self.shape)}, " if self.shape and self.dtype else ""
        number, count = offset // self.itemsize, self.size // self.itemsize
        element = f"element {number} of {count}"
        if not 0 <= offset < self.size:
            far = f"{-offset} bytes before" if offset < 0 else f"{offset - self.size} bytes beyond the end of"
            far = "right beyond the end of" if offset == self.size else far
            return f"{far} {self.name} ({kind}{self.size} bytes), which would be {element}"
        if len(self.shape) > 1:
            element += f", index {[int(i) for i in np.unravel_index(number, self.shape)]}"
        return f"byte {offset} of {self.name} ({kind}{self.size} bytes), {element}"


@dataclass
class Traffic:
    """Exact counts of bytes that lanes asked for (no caches, no coalescing)."""

    loaded: int = 0
    stored: int = 0
    scalar_loaded: int = 0


class AccessWatch(Protocol):
    """Looks on at accesses."""

    def access(self, allocation: Allocation, offset: Array, size: int, write: bool) -> None:
        """``size`` bytes at each of these offsets in a buffer are read or written."""


class Memory:
    """The address space. Not thread-safe."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        """By address."""
        self._bases: list[int] = []
        self._next = _FIRST
        self.traffic = Traffic()
        self.watch: AccessWatch | None = None
        """Told of every access that was made."""

    def add(self, name: str, array: Array, read_only: bool = False, uninitialised: bool = False) -> int:
        """Give a host array a device address; the device reads and writes the array's own memory.

        Args:
            name: for messages.
            array: C-contiguous.
            read_only: whether a store to it is a fault.
            uninitialised: whether its content is undefined, as of ``torch.empty``; a read before a write is then
                reported by a :class:`~waveproof.kernels.runtimes.emulate.watch.Watch`.

        Returns:
            The virtual address of the first byte, a multiple of 4096.

        Raises:
            ValueError: the array is not C-contiguous, or not writeable though ``read_only`` is false.
        """
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not C-contiguous (strides {array.strides})")
        if not array.flags.writeable and not read_only:
            raise ValueError(f"{name} is not writeable; add it with read_only=True")
        data = array.reshape(-1).view(np.uint8)
        self._next = -(-(self._next + _SPACING) >> 32) << 32
        base = self._next - (max(data.size // 2, 1) + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        self._next += data.size
        self.allocations.append(
            Allocation(name, base, data, read_only, array.itemsize, uninitialised, array.shape, array.dtype.name)
        )
        self._bases.append(base)
        return base

    def remove(self, base: int) -> None:
        """Forget the buffer that starts at ``base``; its addresses are not given again."""
        at = self._bases.index(base)
        del self._bases[at], self.allocations[at]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forget, at the end, the buffers that were added within, and give their addresses again.

        So equal launches see equal addresses, and a process of many launches stays within the 48 bits that a buffer
        descriptor holds. A program that is to stay must be loaded before (:meth:`Machine.program`).
        """
        last, following = (self._bases[-1] if self._bases else -1), self._next
        try:
            yield
        finally:
            first = bisect.bisect_right(self._bases, last)
            del self._bases[first:], self.allocations[first:]
            self._next = following

    def find(self, address: int) -> Allocation | None:
        """The buffer that holds the byte at ``address``."""
        at = bisect.bisect_right(self._bases, address) - 1
        if at < 0:
            return None
        found = self.allocations[at]
        return found if address < found.base + found.size else None

    def load(self, address: Addresses, size: int, hint: list[Allocation]) -> list[Array]:
        """Read ``size`` bytes at each address.

        Args:
            address: any shape.
            size: 1, 2 or a multiple of 4.
            hint: kept by the caller between calls: the buffer that was hit last.

        Returns:
            uint32 arrays of the address's shape, one a dword; bytes and halfwords zero-extended.

        Raises:
            AccessViolation: an access leaves its buffer; ``row`` is its flat index in ``address``.
        """
        self.traffic.loaded += address.size * size
        single = self._single(address, size, hint)
        if single is not None:
            if self.watch is not None:
                self.watch.access(*single, size, False)
            return _read(*single, size)
        parts = self._parts(address, size, "load")
        result = [np.empty(address.shape, np.uint32) for _ in range(max(1, size // 4))]
        for allocation, where in parts:
            if self.watch is not None:
                self.watch.access(allocation, address[where] - allocation.base64, size, False)
            for target, value in zip(result, _read(allocation, address[where] - allocation.base64, size), strict=True):
                target[where] = value
        return result

    def store(self, address: Addresses, values: list[Array], size: int, hint: list[Allocation]) -> None:
        """Write ``size`` bytes at each address; of several lanes at one address the last in order wins.

        Args:
            address: any shape.
            values: uint32 arrays of the same shape, one a dword; bytes and halfwords in the low bits.
            size: 1, 2 or a multiple of 4.
            hint: as for :meth:`load`.

        Raises:
            AccessViolation: an access leaves its buffer, or the buffer is read-only. Nothing is written then.
        """
        self.traffic.stored += address.size * size
        single = self._single(address, size, hint)
        if single is not None:
            self._check_writable(single[0], address, slice(None))
            if self.watch is not None:
                self.watch.access(*single, size, True)
            _write(*single, values, size)
            return
        parts = self._parts(address, size, "store")
        for allocation, where in parts:
            self._check_writable(allocation, address, where)
        for allocation, where in parts:
            if self.watch is not None:
                self.watch.access(allocation, address[where] - allocation.base64, size, True)
            _write(allocation, address[where] - allocation.base64, [value[where] for value in values], size)

    def load_scalar(self, address: Addresses, dwords: int, hint: list[Allocation]) -> Array:
        """Read consecutive dwords at each of [n] dword-aligned addresses: uint32 [n, dwords].

        Raises:
            AccessViolation: as :meth:`load`.
        """
        self.traffic.scalar_loaded += address.size * 4 * dwords
        single = self._single(address, 4 * dwords, hint)
        if single is not None:
            if self.watch is not None:
                self.watch.access(*single, 4 * dwords, False)
            start = (single[1] >> np.uint64(2)).astype(np.intp)
            return single[0].words[start[:, None] + np.arange(dwords)]
        return np.stack(self.load(address, 4 * dwords, hint), axis=1)

    def _single(self, address: Addresses, size: int, hint: list[Allocation]) -> tuple[Allocation, Addresses] | None:
        """The buffer that all accesses hit, and the offsets in it."""
        if not address.size:
            return None
        if hint:
            found = hint[0]
            offset = address - found.base64
            if found.size >= size and int(offset.max()) <= found.size - size and found in self.allocations:
                return found, offset
        first = self.find(int(address.flat[0]))
        if first is None:
            return None
        offset = address - first.base64
        if first.size < size or int(offset.max()) > first.size - size:
            return None
        hint[:] = [first]
        return first, offset

    def _parts(self, address: Addresses, size: int, what: str) -> list[tuple[Allocation, Array]]:
        """Which accesses go to which buffer."""
        bases = np.array(self._bases, np.uint64)
        owner = np.searchsorted(bases, address, side="right") - 1
        parts = []
        for index in np.unique(owner):
            where = owner == index
            if index < 0:
                self._refuse(address, where, size, what)
            allocation = self.allocations[index]
            bad = where & (address - allocation.base64 > np.uint64(max(allocation.size - size, 0)))
            if allocation.size < size:
                bad = where
            if bad.any():
                self._refuse(address, bad, size, what)
            parts.append((allocation, where))
        return parts

    def _refuse(self, address: Addresses, bad: Array, size: int, what: str) -> None:
        at = int(np.flatnonzero(bad)[0])
        where = int(address.flat[at])
        lanes = int(bad.sum())
        more = f" ({lanes} lanes do)" if lanes > 1 else ""
        raise AccessViolation(
            Access(f"{what} of {size} bytes at {self.describe(where, size)}{more}", "global", where, size, at)
        )

    def _check_writable(self, allocation: Allocation, address: Addresses, where: Array | slice) -> None:
        if allocation.read_only:
            at = 0 if isinstance(where, slice) else int(np.flatnonzero(where)[0])
            there = int(address.flat[at])
            raise AccessViolation(
                Access(f"store to read-only memory at {self.describe(there)}", "global", there, 0, at)
            )

    def describe(self, address: int, size: int = 1) -> str:
        """An address in words: the element of the buffer, or its distance from the nearest one.

        Args:
            address: of the first byte.
            size: bytes from there, to say how many of them lie beyond the end.
        """
        if address < 1 << 16:
            return f"{address:#x}: a null pointer{f' plus {address}' if address else ''}"
        at = bisect.bisect_right(self._bases, address) - 1
        near = [a for a in self.allocations[max(at, 0) : at + 2]]
        if not near:
            return f"{address:#x}: no buffer is mapped"
        closest = min(near, key=lambda a: max(a.base - address, address - a.base - a.size + 1, 0))
        offset = address - closest.base
        beyond = offset + size - closest.size
        tail = f", {beyond} of the {size} bytes lie beyond the end" if 0 < beyond < size and offset >= 0 else ""
        return f"{address:#x}: {closest.describe(offset)}{tail}"


def _aligned(offset: Addresses, allocation: Allocation, unit: int) -> Array | None:
    """Offsets in units, None if one is misaligned."""
    if int(np.bitwise_or.reduce(offset, axis=None)) & (unit - 1):
        return None
    return (offset >> np.uint64(unit.bit_length() - 1)).astype(np.intp)


def _read(allocation: Allocation, offset: Addresses, size: int) -> list[Array]:
    if size == 1:
        return [allocation.data.take(offset.astype(np.intp)).astype(np.uint32)]
    if size == 2:
        index = _aligned(offset, allocation, 2)
        if index is not None:
            return [allocation.halves.take(index).astype(np.uint32)]
        start = offset.astype(np.intp)
        return [allocation.data[start].astype(np.uint32) | allocation.data[start + 1].astype(np.uint32) << np.uint32(8)]
    index = _aligned(offset, allocation, 4)
    if index is not None:
        # take with mode="clip" does without the copy that bounds checking would make; bounds are known to hold.
        return [allocation.words.take(index if not j else index + j, mode="clip") for j in range(size // 4)]
    start = offset.astype(np.intp)
    octets = [allocation.data[start + j].astype(np.uint32) for j in range(size)]
    return [
        octets[j] | octets[j + 1] << np.uint32(8) | octets[j + 2] << np.uint32(16) | octets[j + 3] << np.uint32(24)
        for j in range(0, size, 4)
    ]


def _write(allocation: Allocation, offset: Addresses, values: list[Array], size: int) -> None:
    index = _aligned(offset, allocation, min(size, 4))
    if index is None:
        start = offset.astype(np.intp)
        for j in range(size):
            allocation.data[start + j] = (values[j // 4] >> np.uint32(8 * (j % 4))).astype(np.uint8)
    elif size == 1:
        allocation.data[index] = values[0].astype(np.uint8)
    elif size == 2:
        allocation.halves[index] = values[0].astype(np.uint16)
    else:
        for j, value in enumerate(values):
            allocation.words[index + j if j else index] = value


def lane_of(violation: AccessViolation, mask: Array | None) -> AccessViolation:
    """Turn the flat index in ``access.row`` into row and lane; ``mask`` [n, 64] says which accesses were made."""
    access = violation.access
    if access.row is not None:
        flat = access.row if mask is None else int(np.flatnonzero(mask)[access.row])
        access.row, access.lane = divmod(flat, LANES)
    return violation
