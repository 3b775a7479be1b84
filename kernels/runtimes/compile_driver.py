"""Launches of Triton kernels compiled for an AMD GPU that is not there, recorded instead of run.

Imports Triton, so only :func:`waveproof.kernels.runtimes.compile.prepare` imports it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from waveproof.kernels.runtimes import triton_device
from waveproof.kernels.runtimes.amdgcn_resources import code_bytes, read_resources
from waveproof.kernels.runtimes.compile import CompiledLaunch
from waveproof.kernels.runtimes.pretence import Device

Record = Callable[[CompiledLaunch, str], None]


def install(arch: str, device: Device, record: Record) -> None:
    """Make Triton compile for ``arch`` and hand each launch, with the kernel's Triton IR, to ``record``."""
    triton_device.install(arch, device, torch.device("meta"), lambda kernel: _Launcher(arch, kernel, record))


class _Launcher:
    """Called where a real launcher would run the kernel."""

    def __init__(self, arch: str, kernel: Any, record: Record) -> None:
        self.arch = arch
        self.kernel = kernel
        self.record = record
        self.resources = read_resources(kernel.asm["amdgcn"], kernel.metadata.shared)
        self.code_bytes = code_bytes(kernel.asm["amdgcn"])

    def __call__(self, grid: triton_device.Grid, arguments: Sequence[Any]) -> None:
        source, metadata = self.kernel.src, self.kernel.metadata
        parameters = triton_device.parameters(source.signature, arguments)
        launch = CompiledLaunch(
            kernel=metadata.name,
            arch=self.arch,
            grid=grid,
            num_warps=metadata.num_warps,
            num_stages=metadata.num_stages,
            signature={parameter.name: parameter.kind for parameter in parameters},
            specialization={
                parameter.name: {key: int(figure) for key, figure in source.attrs[parameter.path]}
                for parameter in parameters
                if source.attrs.get(parameter.path)
            },
            constexprs={
                parameter.name: _constant(parameter.value) for parameter in parameters if parameter.kind == "constexpr"
            },
            scalars={
                name: float(value) if re.match("fp|bf", kind) else int(value)
                for name, kind, value in ((one.name, one.kind, one.value) for one in parameters)
                if re.match(r"[iu]\d|fp|bf", kind)
            },
            resources=self.resources,
            code_sha256=hashlib.sha256(self.kernel.asm["hsaco"]).hexdigest(),
            compilation=self.kernel.hash,
            function=source.fn.__name__,
            defined=_defined(source.fn),
            code_bytes=self.code_bytes,
        )
        self.record(launch, self.kernel.asm["ttir"])


def _defined(function: Any) -> str:
    """File and line of a JIT function, the file from its top-level package on."""
    code = function.fn.__code__
    depth = function.fn.__module__.count(".") + 1
    return f"{'/'.join(Path(code.co_filename).parts[-depth:])}:{code.co_firstlineno}"


def _constant(value: Any) -> int | float | str | bool | None:
    value = getattr(value, "value", value)  # tl.constexpr
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "__name__", None) or str(value)
