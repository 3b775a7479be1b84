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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from waveproof.kernels.runtimes import triton_ir
from waveproof.kernels.runtimes.amdgcn_resources import Resources
from waveproof.kernels.runtimes.pretence import (
    DEVICES,
    CompileFailed,
    Device,
    DeviceTensor,
    PretenceUnavailable,
    plain,
    pretend,
)
from waveproof.kernels.runtimes.triton_ir import Overflow

__all__ = [
    "DEVICES",
    "CompileFailed",
    "CompileUnavailable",
    "CompiledLaunch",
    "Device",
    "NeedsValues",
    "OnDevice",
    "clear_launches",
    "int32_overflows",
    "launches",
    "on_device",
    "plain",
    "prepare",
    "ttir",
]

CompileUnavailable = PretenceUnavailable
"""The runtime cannot be used here, or not for this."""


class NeedsValues(RuntimeError):
    """Host code read a value of a meta tensor, which has none; the message names the torch function."""


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
    function: str
    """The Python function; ``kernel`` may have its constants in the name."""
    defined: str
    """File below ``site-packages`` and line of the function: ``sglang/kernels/.../merge_state.py:9``."""
    code_bytes: int
    """Of the instructions; 0 if unknown."""


def prepare(arch: str) -> None:
    """Make this process compile for ``arch``. Call it before sglang or AITER is imported; a second call does nothing.

    Raises:
        CompileUnavailable: see :func:`waveproof.kernels.runtimes.pretence.pretend`; or this process emulates.
    """
    device = pretend(arch)
    if _prepared:
        return
    from waveproof.kernels.runtimes import compile_driver

    compile_driver.install(arch, device, _record)
    _OnDeviceFactories().__enter__()
    _prepared.append(arch)


_prepared: list[str] = []

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


class OnDevice(DeviceTensor):
    """A tensor (meta or CPU) that host code takes for one on the GPU. Results of torch functions on it are too."""

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
