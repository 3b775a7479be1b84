"""AITER's launches on the emulator: the tensors of a call become device memory, its argument block points to them.

The device has addresses of its own, each buffer far from the next, so that a kernel that leaves a tensor is found. The
tensors themselves are what the kernel reads and writes; nothing is copied but the argument block and the table of
pointers of a persistent launch.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from waveproof.kernels.runtimes.emulate import abi_aiter, loader
from waveproof.kernels.runtimes.emulate.hip_runtime import HipLaunch, Launcher
from waveproof.kernels.runtimes.emulate.launch import LaunchStats, Machine

OUTPUTS = frozenset({"splitData", "splitLse", "output"})
"""Parameters of the MLA entry points that a kernel may write ("following are output" in asm_mla.cu)."""


@dataclass(frozen=True)
class _Region:
    """Host memory of one or several arguments that overlap, as ``output`` and ``splitData`` do without a split."""

    name: str
    start: int
    end: int
    """Host address of the first byte, and after the last."""
    writable: bool


def launcher(machine: Machine, record: Callable[[HipLaunch, LaunchStats], None] | None = None) -> Launcher:
    """A launcher for MLA launches of :mod:`waveproof.kernels.runtimes.emulate.aiter_host` that runs them on a machine.

    Args:
        machine: of the architecture that is launched for.
        record: told of each launch that ended, with its counts.

    Calling the launcher raises what :meth:`Machine.launch` raises, and
    :class:`~waveproof.kernels.runtimes.emulate.abi_aiter.WrongArgumentBlock`.
    """
    loaded: dict[bytes, loader.CodeObject] = {}

    def run(launch: HipLaunch) -> None:
        code = loaded.get(launch.image)
        if code is None:
            name = launch.code_object.name if launch.code_object else launch.kernel
            code = loaded[launch.image] = loader.load(launch.image, name)
        mapped: dict[_Region, int] = {}
        try:
            for region in _regions(launch):
                mapped[region] = machine.memory.add(region.name, _bytes(region), read_only=not region.writable)
            table = _pointer_table(launch, mapped)
            kernarg = _translate(launch.kernarg, mapped)
            if table is not None:
                region, contents = table
                machine.memory.remove(mapped[region])
                mapped[region] = machine.memory.add(region.name, contents, read_only=True)
                kernarg = _translate(launch.kernarg, mapped)
            statistics = machine.launch(
                code, launch.grid, launch.block, kernarg, lds_bytes=launch.shared_bytes, kernel=launch.kernel
            )
        finally:
            for base in mapped.values():
                machine.memory.remove(base)
        if record is not None:
            record(launch, statistics)

    return run


def _regions(launch: HipLaunch) -> list[_Region]:
    """What the kernel may touch, without overlaps, in the order of addresses."""
    spans = [
        _Region(name, tensor.data_ptr(), tensor.data_ptr() + _extent(tensor), name in OUTPUTS)
        for name, tensor in launch.buffers.items()
        if tensor.numel()
    ]
    spans += [
        _Region(f"hipMalloc of {block.bytes} bytes", block.address, block.address + block.bytes, False)
        for block in launch.allocations
    ]
    merged: list[_Region] = []
    for span in sorted(spans, key=lambda region: (region.start, region.end)):
        if merged and span.start < merged[-1].end:
            before = merged.pop()
            end, writable = max(before.end, span.end), before.writable or span.writable
            merged.append(_Region(f"{before.name}, {span.name}", before.start, end, writable))
        else:
            merged.append(span)
    return merged


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def _bytes(region: _Region) -> npt.NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * (region.end - region.start)).from_address(region.start))


def _device_address(host: int, mapped: dict[_Region, int]) -> int | None:
    for region, base in mapped.items():
        if region.start <= host < region.end:
            return base + host - region.start
    return None


def _translate(kernarg: bytes, mapped: dict[_Region, int]) -> bytes:
    """The block with device addresses. One that belongs to no argument stays as it is, and faults where it is used."""
    block = bytearray(kernarg)
    host = abi_aiter.unpack(kernarg)
    for field in abi_aiter.FIELDS:
        address = _device_address(int(host[field.name]), mapped) if field.is_pointer else None
        if address is not None:
            struct.pack_into("<Q", block, field.offset, address)
    return bytes(block)


def _pointer_table(launch: HipLaunch, mapped: dict[_Region, int]) -> tuple[_Region, npt.NDArray[np.uint8]] | None:
    """What ``ptr_STP`` points to in a persistent launch, with device addresses in place of the host's.

    It is a table of two: work_indptr and work_info_set (asm_mla.cu; AITER's metadata kernel writes the same into
    ``work_meta_data``). None in an ordinary launch, where ``ptr_STP`` holds numbers of splits.
    """
    if "num_kv_splits_indptr" in launch.buffers:
        return None
    table = int(abi_aiter.unpack(launch.kernarg)["ptr_STP"])
    region = next((found for found in mapped if found.start <= table < found.end), None)
    if region is None:
        return None
    contents = bytearray(_bytes(region).tobytes())
    first = table - region.start
    for at in (first, first + 8):
        address = _device_address(int(struct.unpack_from("<Q", contents, at)[0]), mapped)
        if address is not None:
            struct.pack_into("<Q", contents, at, address)
    return region, np.frombuffer(contents, np.uint8)
