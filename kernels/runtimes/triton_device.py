"""Triton on an AMD GPU that is not there: what the drivers of the runtimes ``compile`` and ``emulate`` share.

Imports Triton, so only :func:`waveproof.kernels.runtimes.compile.prepare` and
:func:`waveproof.kernels.runtimes.emulate.triton_driver.prepare` import it.

Two seams of Triton 3.9 are used. The *active driver* (``triton/runtime/driver.py``) names the target and builds the
object that is called to launch. ``triton.compiler.compile``, which ``JITFunction.create_binder`` looks up for each
kernel, is wrapped: it is the one place that sees every compilation, fresh or from the cache, and its errors.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import triton.compiler
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

from waveproof.kernels.runtimes.pretence import CompileFailed, Device, PretenceUnavailable

_MOST_WORK_ITEMS = 1024
"""Per workgroup, the limit of HIP on every AMD GPU (hipDeviceProp_t.maxThreadsPerBlock)."""

Grid = tuple[int, int, int]
Launcher = Callable[[Grid, Sequence[Any]], None]
"""Called with the grid and the arguments, constants included, where a real launcher would run the kernel."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel with what it is given at a launch; members of tuples are parameters of their own."""

    name: str
    """As in Triton's IR; members of a tuple: ``name.0``."""
    kind: str
    """Type as Triton spells it: ``*fp32``, ``i32``, ``constexpr``."""
    value: Any
    path: tuple[int, ...]
    """Position, and positions within tuples: the key of ``ASTSource.attrs``."""


def parameters(signature: Mapping[str, Any], arguments: Sequence[Any]) -> list[Parameter]:
    """The parameters of a launch in order, tuples flattened.

    Raises:
        ValueError: another number of arguments than of parameters.
    """
    return [
        parameter
        for (name, kind), value, position in zip(signature.items(), arguments, range(len(arguments)), strict=True)
        for parameter in _flat(name, kind, value, (position,))
    ]


def _flat(name: str, kind: Any, value: Any, path: tuple[int, ...]) -> Iterator[Parameter]:
    if isinstance(kind, tuple):
        for index, (inner, member) in enumerate(zip(kind, value, strict=True)):
            yield from _flat(f"{name}.{index}", inner, member, (*path, index))
    else:
        yield Parameter(name, kind, value, path)


def install(arch: str, device: Device, torch_device: torch.device, launcher: Callable[[Any], Launcher]) -> None:
    """Make Triton compile for ``arch``; ``launcher`` makes what launches a ``CompiledKernel``, once for each.

    Compilation raises :class:`CompileFailed` where the compiler only printed an error, too.

    Raises:
        PretenceUnavailable: this process has a device already.
    """
    if _installed:
        raise PretenceUnavailable("Triton has a device in this process already; start another one")
    compiled: dict[str, Any] = {}
    upstream = triton.compiler.compile

    def compile_checked(src: Any, target: Any = None, options: Any = None, **kwargs: Any) -> Any:
        kernel = _compile(upstream, arch, src, target, options, kwargs)
        compiled[kernel.hash] = kernel
        return kernel

    triton.compiler.compile = compile_checked
    driver.set_active(_Driver(arch, device, torch_device, lambda metadata: launcher(compiled[metadata.hash])))
    _installed.append(arch)


_installed: list[str] = []


class _Driver(DriverBase):
    """What ``triton.runtime.jit`` and host launchers ask of a driver."""

    def __init__(
        self, arch: str, device: Device, torch_device: torch.device, launcher: Callable[[Any], Launcher]
    ) -> None:
        super().__init__()
        self.target = GPUTarget("hip", arch, device.warp_size)
        self.utils = _Utilities(device)
        self.torch_device = torch_device
        self.launcher_cls = lambda src, metadata: _hip_launcher(launcher(metadata))

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError(f"no launcher in C++ is built here, so {ty} has no type there")

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return self.torch_device

    def get_benchmarker(self) -> NoReturn:
        raise PretenceUnavailable(
            "the launcher picks its configuration by timing several (triton.autotune); without a device there is no "
            "telling which one it would be"
        )


class _Utilities:
    """The part of a driver that is C in a real one (``triton/backends/amd/driver.c``)."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def get_device_properties(self, index: int) -> dict[str, int | str]:
        # Clocks and bus width are left out: nothing chooses by them, and asking should fail rather than mislead.
        return {
            "arch": self.device.gcnArchName,
            "max_shared_mem": self.device.shared_memory_per_block,
            "multiprocessor_count": self.device.multi_processor_count,
            "warpSize": self.device.warp_size,
        }

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        # Module, function, registers, spills, most work-items: the first four are passed on and never looked at here.
        return 0, 0, 0, 0, _MOST_WORK_ITEMS

    def unload_module(self, module: int) -> None:
        pass


def _hip_launcher(launcher: Launcher) -> Callable[..., None]:
    """In the form in which ``JITFunction.run`` calls it (``triton/backends/amd/driver.py``, ``HIPLauncher``)."""

    def launch(
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        function: int,
        packed_metadata: Any,
        launch_metadata: Any,
        enter_hook: Any,
        exit_hook: Any,
        *arguments: Any,
    ) -> None:
        launcher((int(grid_x), int(grid_y), int(grid_z)), arguments)

    return launch


def _compile(upstream: Callable[..., Any], arch: str, src: Any, target: Any, options: Any, rest: dict[str, Any]) -> Any:
    with standard_error() as printed:
        try:
            kernel = upstream(src, target=target, options=options, **rest)
        except Exception as error:
            failure: Exception | None = error
        else:
            failure = None
    # LLVM reports some errors (an inline assembly constraint that cannot be met, for one) only on standard error, and
    # the back end then returns code without the instruction as if nothing had been wrong.
    complaints = [line.strip() for line in printed() if re.search(r"\berror:", line)]
    if failure is None and not complaints:
        return kernel
    if failure is None:
        # Triton has cached the code by now, and a cached kernel comes without the complaint.
        for path in kernel.metadata_group.values():
            Path(path).unlink(missing_ok=True)
    message = "\n".join([*([str(failure)] if failure else []), *complaints])
    raise CompileFailed(src.name, arch, message) from failure


@contextlib.contextmanager
def standard_error() -> Iterator[Callable[[], list[str]]]:
    """Copy what is written to file descriptor 2; the function that comes out gives its lines, after the context.

    Through ``tee`` in a process of its own, so that the last words of a compiler that aborts still come through.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "stderr"
        original = os.dup(2)
        tee = subprocess.Popen(["tee", str(copy)], stdin=subprocess.PIPE, stdout=original)
        assert tee.stdin is not None
        os.dup2(tee.stdin.fileno(), 2)
        tee.stdin.close()
        lines: list[str] = []
        try:
            yield lambda: lines
        finally:
            os.dup2(original, 2)
            os.close(original)
            tee.wait()
            lines += copy.read_text(errors="replace").splitlines()
