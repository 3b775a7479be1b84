"""A Triton driver for an AMD GPU that is not there: kernels are compiled and launches recorded, nothing runs.

Imports Triton, so only :func:`waveproof.kernels.runtimes.compile.prepare` imports it.

Two seams of Triton 3.9 are used. The *active driver* (``triton/runtime/driver.py``) names the target and builds the
object that is called to launch. ``triton.compiler.compile``, which ``JITFunction.create_binder`` looks up for each
kernel, is wrapped: it is the one place that sees every compilation, fresh or from the cache, and its errors.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
import triton.compiler
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

from waveproof.kernels.runtimes.amdgcn_resources import read_resources
from waveproof.kernels.runtimes.compile import CompiledLaunch, CompileFailed, CompileUnavailable, Device

_MOST_WORK_ITEMS = 1024
"""Per workgroup, the limit of HIP on every AMD GPU (hipDeviceProp_t.maxThreadsPerBlock)."""

Record = Callable[[CompiledLaunch, str], None]


def install(arch: str, device: Device, record: Record) -> None:
    """Make Triton compile for ``arch`` and hand each launch, with the kernel's Triton IR, to ``record``."""
    compiled: dict[str, Any] = {}
    upstream = triton.compiler.compile

    def compile_recorded(src: Any, target: Any = None, options: Any = None, **kwargs: Any) -> Any:
        kernel = _compile(upstream, arch, src, target, options, kwargs)
        compiled[kernel.hash] = kernel
        return kernel

    triton.compiler.compile = compile_recorded
    driver.set_active(_RecordingDriver(arch, device, compiled, record))


class _RecordingDriver(DriverBase):
    """What ``triton.runtime.jit`` and host launchers ask of a driver."""

    def __init__(self, arch: str, device: Device, compiled: dict[str, Any], record: Record) -> None:
        super().__init__()
        self.target = GPUTarget("hip", arch, device.warp_size)
        self.utils = _Utilities(device)
        self.launcher_cls = lambda src, metadata: _Launcher(arch, compiled[metadata.hash], record)

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
        return torch.device("meta")

    def get_benchmarker(self) -> NoReturn:
        raise CompileUnavailable(
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


class _Launcher:
    """Called where a real launcher would run the kernel."""

    def __init__(self, arch: str, kernel: Any, record: Record) -> None:
        self.arch = arch
        self.kernel = kernel
        self.record = record
        self.resources = read_resources(kernel.asm["amdgcn"], kernel.metadata.shared)

    def __call__(
        self,
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
        source, metadata = self.kernel.src, self.kernel.metadata
        parameters = [
            parameter
            for (name, kind), value, position in zip(
                source.signature.items(), arguments, range(len(arguments)), strict=True
            )
            for parameter in _flat(name, kind, value, (position,))
        ]
        launch = CompiledLaunch(
            kernel=metadata.name,
            arch=self.arch,
            grid=(int(grid_x), int(grid_y), int(grid_z)),
            num_warps=metadata.num_warps,
            num_stages=metadata.num_stages,
            signature={name: kind for name, kind, _, _ in parameters},
            specialization={
                name: {key: int(figure) for key, figure in source.attrs[path]}
                for name, _, _, path in parameters
                if source.attrs.get(path)
            },
            constexprs={name: _constant(value) for name, kind, value, _ in parameters if kind == "constexpr"},
            scalars={
                name: float(value) if re.match("fp|bf", kind) else int(value)
                for name, kind, value, _ in parameters
                if re.match(r"[iu]\d|fp|bf", kind)
            },
            resources=self.resources,
            code_sha256=hashlib.sha256(self.kernel.asm["hsaco"]).hexdigest(),
            compilation=self.kernel.hash,
        )
        self.record(launch, self.kernel.asm["ttir"])


def _flat(name: str, kind: Any, value: Any, path: tuple[int, ...]) -> Iterator[tuple[str, str, Any, tuple[int, ...]]]:
    """Parameters with the members of tuples one by one, named as Triton names them in its IR."""
    if isinstance(kind, tuple):
        for index, (inner, member) in enumerate(zip(kind, value, strict=True)):
            yield from _flat(f"{name}.{index}", inner, member, (*path, index))
    else:
        yield name, kind, value, path


def _constant(value: Any) -> int | float | str | bool | None:
    value = getattr(value, "value", value)  # tl.constexpr
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "__name__", None) or str(value)


def _compile(upstream: Callable[..., Any], arch: str, src: Any, target: Any, options: Any, rest: dict[str, Any]) -> Any:
    with _standard_error() as printed:
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
def _standard_error() -> Iterator[Callable[[], list[str]]]:
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
