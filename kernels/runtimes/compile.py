"""The ``compile`` runtime: unmodified upstream host launchers through Triton's AMD back end, without a GPU.

:func:`prepare` makes a fresh process look like one with an AMD GPU of the given architecture, as far as launchers look,
and gives Triton a driver that records each launch where a real one would run it. So the launchers choose block sizes,
warps and grids as they do on the device, and what they choose is compiled to machine code. Nothing is executed: outputs
hold no values.

Tensors are best put on torch's ``meta`` device: a shape costs neither memory nor time, whatever its size, while strides
and the alignment of addresses (Triton specialises on it) are those of a real tensor. Host code that asks for a value
raises :class:`NeedsValues`; the caller may then come back with small tensors on the CPU, which are treated alike.

One process per architecture, since upstream reads the architecture at import. A compiler that aborts (LLVM's
``report_fatal_error``, an assertion) or hangs takes the process with it: run this in a process of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from waveproof.kernels.runtimes import triton_ir
from waveproof.kernels.runtimes.amdgcn_resources import Resources
from waveproof.kernels.runtimes.triton_ir import Overflow


class CompileUnavailable(RuntimeError):
    """The runtime cannot be used here, or not for this; the message says why and what would help."""


class CompileFailed(RuntimeError):
    """The compiler refused a kernel, or reported an error and went on all the same."""

    def __init__(self, kernel: str, arch: str, message: str) -> None:
        super().__init__(f"{kernel} does not compile for {arch}: {message}")
        self.kernel = kernel
        self.arch = arch
        self.message = message


class NeedsValues(RuntimeError):
    """Host code read a value of a meta tensor, which has none; the message names the torch function."""


@dataclass(frozen=True)
class Device:
    """What upstream asks of a device. Names as in ``torch.cuda.get_device_properties`` on ROCm."""

    name: str
    gcnArchName: str
    major: int
    minor: int
    multi_processor_count: int
    """Compute units."""
    total_memory: int
    """Bytes."""
    shared_memory_per_block: int
    """Bytes of LDS."""
    warp_size: int = 64


DEVICES: Mapping[str, Device] = {
    "gfx942": Device("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 9, 4, 304, 192 << 30, 64 << 10),
    "gfx950": Device("AMD Instinct MI355X", "gfx950:sramecc+:xnack-", 9, 5, 256, 288 << 30, 160 << 10),
}
"""AMD's data sheets of the MI300X (304 CUs, 192 GB) and the MI355X (256 CUs, 288 GB); LDS per compute unit from the
CDNA3 and CDNA4 instruction set architecture documents (64 KiB, 160 KiB)."""


@dataclass(frozen=True)
class CompiledLaunch:
    """One launch that a host launcher asked for, with what was compiled for it."""

    kernel: str
    arch: str
    grid: tuple[int, int, int]
    num_warps: int
    num_stages: int
    signature: dict[str, str]
    """Type of each parameter as Triton spells it: ``*fp32``, ``i32``, ``constexpr``. Members of a tuple: ``name.0``."""
    specialization: dict[str, dict[str, int]]
    """What the compiler was allowed to assume of a parameter, such as ``tt.divisibility``: 16."""
    constexprs: dict[str, int | float | str | bool | None]
    """Values compiled in, integers that Triton folded because they are 1 included; other objects by their name."""
    scalars: dict[str, int | float]
    """Values of the other scalar parameters at this launch."""
    resources: Resources
    code_sha256: str
    """Of the code object."""
    compilation: str
    """Triton's cache key of the compilation."""


def prepare(arch: str) -> None:
    """Make this process compile for ``arch``. Call it before sglang or AITER is imported; a second call does nothing.

    Raises:
        CompileUnavailable: unknown architecture, Triton or its AMD back end missing, TRITON_INTERPRET set, upstream
            imported already, or the process prepared for another architecture.
    """
    if arch not in DEVICES:
        raise CompileUnavailable(f"unknown architecture {arch!r}; known: {', '.join(DEVICES)}")
    if _prepared:
        if _prepared[0] != arch:
            raise CompileUnavailable(f"this process compiles for {_prepared[0]}; start another one for {arch}")
        return
    early = sorted({"sglang", "aiter"} & sys.modules.keys())
    if early:
        raise CompileUnavailable(f"{', '.join(early)} imported before prepare(); the architecture is read at import")
    try:
        import triton
        from triton.backends import backends
    except ImportError as error:
        raise CompileUnavailable(f"triton cannot be imported ({error}); python -m pip install triton==3.9.0") from error
    if "amd" not in backends:
        raise CompileUnavailable(
            f"triton {triton.__version__} has no AMD back end (it has {', '.join(backends) or 'none'}); "
            "python -m pip install triton==3.9.0"
        )
    if triton.knobs.runtime.interpret:
        raise CompileUnavailable(
            f"TRITON_INTERPRET={os.environ.get('TRITON_INTERPRET')} makes triton.jit interpret kernels instead of "
            "compiling them; unset it"
        )
    from waveproof.kernels.runtimes import compile_driver

    _pretend(DEVICES[arch])
    compile_driver.install(arch, DEVICES[arch], _record)
    _OnDeviceFactories().__enter__()
    _prepared.append(arch)


_prepared: list[str] = []


def _pretend(device: Device) -> None:
    # sglang.srt.utils.is_hip, and AITER, ask whether torch is a ROCm build ...
    torch.version.hip = "7.0.0"
    # ... and is_cuda that it is not one for CUDA: a ROCm build has None here, a CUDA machine would not.
    torch.version.cuda = None
    # sglang.srt.utils.is_gfx95_supported reads gcnArchName at import, launchers read multi_processor_count.
    torch.cuda.get_device_properties = lambda *args, **kwargs: device  # type: ignore[assignment]
    # Launchers of attention and GEMM kernels branch on it; on ROCm it is the major and minor number of the gfx name.
    torch.cuda.get_device_capability = lambda *args, **kwargs: (device.major, device.minor)
    # torch.cuda.is_available stays false: it leads to calls into a HIP runtime that is not there.


_LAUNCHES: list[CompiledLaunch] = []
_TTIR: dict[str, str] = {}
"""Triton IR by compilation, kept beside the launches so that these stay small enough to be sent and stored."""


def _record(launch: CompiledLaunch, ttir: str) -> None:
    _TTIR[launch.compilation] = ttir
    _LAUNCHES.append(launch)


def launches() -> list[CompiledLaunch]:
    """Launches since the start or the last :func:`clear_launches`, in order; those of cached kernels are among them."""
    return list(_LAUNCHES)


def clear_launches() -> None:
    """Forget the launches so far. Compiled kernels are kept."""
    _LAUNCHES.clear()


def ttir(launch: CompiledLaunch) -> str:
    """The kernel in Triton IR, after Triton's target independent passes."""
    return _TTIR[launch.compilation]


def int32_overflows(launch: CompiledLaunch) -> list[Overflow]:
    """Offsets that overflow their 32-bit integers at this launch: see :mod:`waveproof.kernels.runtimes.triton_ir`."""
    return triton_ir.int32_overflows(ttir(launch), launch.grid, launch.scalars)


class OnDevice(torch.Tensor):
    """A tensor (meta or CPU) that host code takes for one on the GPU. Results of torch functions on it are too."""

    is_cuda = property(lambda self: True)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function; what torch says of a meta tensor without values becomes :class:`NeedsValues`."""
        try:
            return super().__torch_function__(func, types, args, kwargs or {})
        except (RuntimeError, TypeError) as error:  # NotImplementedError is a RuntimeError
            # torch has no class of its own for this; all its messages speak of a meta tensor, kernel or function.
            if isinstance(error, NeedsValues) or "meta" not in str(error).lower():
                raise
            name = getattr(func, "__name__", str(func))
            raise NeedsValues(f"torch {name} needs the values of a meta tensor: {error}") from error


class _OnDeviceFactories(TorchFunctionMode):
    """What host code makes on the device of its inputs, ``torch.empty(device=x.device)``, is on the device as well."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return on_device(result) if type(result) is torch.Tensor and result.is_meta else result


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """The same storage as a tensor that passes for one on the GPU; ``tensor`` is on ``meta`` or the CPU."""
    return tensor.as_subclass(OnDevice)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same storage as an ordinary tensor, still on ``meta`` or the CPU."""
    return tensor.as_subclass(torch.Tensor)
