"""The HIP runtime of the emulated device (``hip/hip_runtime.cpp``), driven from Python.

A launch that C++ code asks for through ``hipModuleLaunchKernel`` arrives here as a :class:`HipLaunch`. Device addresses
are host addresses: a tensor on the CPU is device memory already, and ``hipMalloc`` takes from the host.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MOST_WORK_ITEMS = 1024
"""Of a workgroup, on every AMD GPU (hipDeviceProp_t.maxThreadsPerBlock)."""


@dataclass(frozen=True)
class Allocation:
    """Memory from ``hipMalloc`` that had not been freed at a launch."""

    address: int
    bytes: int


@dataclass(frozen=True)
class HipLaunch:
    """One ``hipModuleLaunchKernel``."""

    arch: str
    code_object: Path | None
    """None for a module from ``hipModuleLoadData``."""
    image: bytes = field(repr=False)
    """The code object, an ELF file."""
    kernel: str
    """Symbol of the kernel, without ``.kd``."""
    grid: tuple[int, int, int]
    """Workgroups."""
    block: tuple[int, int, int]
    """Work-items of a workgroup."""
    shared_bytes: int
    """LDS beside what the kernel descriptor asks for."""
    kernarg: bytes = field(repr=False)
    stream: int
    """0 for the default stream."""
    allocations: tuple[Allocation, ...] = ()
    buffers: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False)
    """Tensors that the host entry point was called with, by parameter name: the memory that the kernel may touch,
    beside ``allocations``."""


Launcher = Callable[[HipLaunch], None]
"""Runs a launch to its end; what it raises comes out of the host entry point."""


class FailureKind(Enum):
    """What of the runtime ended a call of host code."""

    NONE = 0
    HIP = 1
    """A HIP function failed. AITER ends the process with exit status 0 then (``HIP_CALL`` in aiter_hip_common.h)."""
    ASSERTION = 2
    """An assertion of the host code. On a device it aborts the process."""


class _Allocation(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


class _Launch(ctypes.Structure):
    """``WaveproofLaunch`` of ``hip/waveproof_hip.h``."""

    _fields_ = (
        ("path", ctypes.c_char_p),
        ("image", ctypes.c_void_p),
        ("image_bytes", ctypes.c_size_t),
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("kernarg", ctypes.c_void_p),
        ("kernarg_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("allocations", ctypes.POINTER(_Allocation)),
        ("allocation_count", ctypes.c_size_t),
    )


class _Device(ctypes.Structure):
    """``WaveproofDevice`` of ``hip/waveproof_hip.h``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("gcn_arch_name", ctypes.c_char_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("compute_units", ctypes.c_int),
        ("warp_size", ctypes.c_int),
        ("most_work_items", ctypes.c_int),
        ("memory_bytes", ctypes.c_size_t),
        ("shared_bytes", ctypes.c_size_t),
    )


_LAUNCHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Launch))


class HipRuntime:
    """A loaded runtime library. One launcher and one device at a time; not for several threads at once."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.waveproof_end_log.restype = ctypes.c_char_p

    def set_device(self, arch: str) -> None:
        """Make the device one of the architecture, as :data:`waveproof.kernels.runtimes.compile.DEVICES` has it."""
        from waveproof.kernels.runtimes.compile import DEVICES

        device = DEVICES[arch]
        self.library.waveproof_set_device(
            ctypes.byref(
                _Device(
                    name=device.name.encode(),
                    gcn_arch_name=device.gcnArchName.encode(),
                    major=device.major,
                    minor=device.minor,
                    compute_units=device.multi_processor_count,
                    warp_size=device.warp_size,
                    most_work_items=MOST_WORK_ITEMS,
                    memory_bytes=device.total_memory,
                    shared_bytes=device.shared_memory_per_block,
                )
            )
        )

    @contextlib.contextmanager
    def launching(self, arch: str, buffers: Mapping[str, torch.Tensor], launcher: Launcher) -> Iterator[None]:
        """Send launches to ``launcher`` while the context is open; what it raises is raised on leaving the context."""
        raised: list[BaseException] = []

        def receive(pointer: ctypes._Pointer[_Launch]) -> int:
            # An exception cannot pass through C++ from here: it waits until the host code has ended.
            try:
                launcher(_read(pointer.contents, arch, buffers))
            except BaseException as error:
                raised.append(error)
                return 1
            return 0

        callback = _LAUNCHER(receive)
        self.set_device(arch)
        self.library.waveproof_set_launcher(callback)
        try:
            yield
        except Exception:
            if not raised:
                raise
        finally:
            self.library.waveproof_set_launcher(None)
        if raised:
            self.take_failure()
            raise raised[0]

    @contextlib.contextmanager
    def log(self) -> Iterator[Callable[[], str]]:
        """Keep what C++ writes to ``std::cout``; the function that comes out gives it, after the context."""
        text = ""
        self.library.waveproof_begin_log()
        try:
            yield lambda: text
        finally:
            text = self.library.waveproof_end_log().decode(errors="replace")

    def take_failure(self) -> tuple[FailureKind, str]:
        """What the runtime last failed with, and its text; forgotten after that."""
        text = ctypes.create_string_buffer(4096)
        kind = self.library.waveproof_take_failure(text, ctypes.c_size_t(len(text)))
        return FailureKind(kind), text.value.decode(errors="replace")


def _read(launch: _Launch, arch: str, buffers: Mapping[str, torch.Tensor]) -> HipLaunch:
    path = launch.path.decode()
    grid, block = tuple(launch.grid), tuple(launch.block)
    return HipLaunch(
        arch=arch,
        code_object=Path(path) if path else None,
        image=ctypes.string_at(launch.image, launch.image_bytes),
        kernel=launch.kernel.decode(),
        grid=(grid[0], grid[1], grid[2]),
        block=(block[0], block[1], block[2]),
        shared_bytes=launch.shared_bytes,
        kernarg=ctypes.string_at(launch.kernarg, launch.kernarg_bytes),
        stream=launch.stream or 0,
        allocations=tuple(
            Allocation(launch.allocations[index].address, launch.allocations[index].bytes)
            for index in range(launch.allocation_count)
        ),
        buffers=buffers,
    )
