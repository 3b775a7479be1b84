"""AITER's Python host code (``aiter/mla.py``) on the emulated device.

``import aiter`` asks ``rocminfo`` for the GPU and compiles extensions with ``hipcc``; neither is there. So the package
is put into ``sys.modules`` as a skeleton with its path, and the modules that are wanted are imported below it,
unmodified. What they call of AITER's compiled modules goes to :mod:`waveproof.kernels.runtimes.emulate.aiter_host`;
their Triton kernels go wherever Triton's active driver or its interpreter takes them.

One architecture in a process: ``aiter.dtypes`` reads it at import.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from waveproof.kernels.runtimes.compile import DEVICES
from waveproof.kernels.runtimes.emulate import aiter_host
from waveproof.kernels.runtimes.emulate.hip_runtime import Launcher
from waveproof.kernels.runtimes.emulate.host_build import aiter_installation


class AiterPackageUnavailable(RuntimeError):
    """AITER's Python code cannot be loaded in this process; the message says why."""


_launchers: list[Launcher] = []
"""Those of the open :func:`emulated_mla` contexts, the innermost last."""


@contextlib.contextmanager
def emulated_mla(arch: str, launcher: Launcher) -> Iterator[ModuleType]:
    """The module ``aiter.mla``, for calls with CPU tensors while the context is open.

    ``mla_decode_fwd`` and ``mla_prefill_fwd`` are AITER's own; their assembly kernels go to ``launcher``, and what they
    create with ``device="cuda"`` is created on the CPU.

    Args:
        arch: ``gfx942`` or ``gfx950``, the same in all calls of a process.
        launcher: runs a launch, see :class:`waveproof.kernels.runtimes.emulate.hip_runtime.HipLaunch`.

    Raises:
        AiterPackageUnavailable: another architecture, or AITER itself, was imported before.
        HostBuildUnavailable: AITER is not installed; inside, at the first launch: no compiler, and so on.
        AiterRefused: inside, where the C++ entry point refuses.
    """
    module = _mla(arch)
    _launchers.append(launcher)
    try:
        with _CudaIsCpu():
            yield module
    finally:
        _launchers.pop()


class _CudaIsCpu(TorchFunctionMode):
    """``device="cuda"``, which host code writes where a tensor's device would do, means where the tensors are."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        device = named.get("device")
        if device is not None and torch.device(device).type == "cuda":
            named["device"] = torch.device("cpu")
        return func(*args, **named)


@functools.cache
def _mla(arch: str) -> ModuleType:
    install(arch)
    return importlib.import_module("aiter.mla")


def install(arch: str) -> ModuleType:
    """Put the skeleton of AITER for an architecture into ``sys.modules``; a second call gives the same.

    Sets AITER's variables ``GPU_ARCHS`` and ``CU_NUM``, by which it knows a device without asking ``rocminfo``
    (``aiter/jit/utils/chip_info.py``).

    Raises:
        AiterPackageUnavailable: AITER, or a skeleton for another architecture, is imported already.
        HostBuildUnavailable: AITER is not installed.
    """
    present = sys.modules.get("aiter")
    if isinstance(present, _Skeleton) and present.arch == arch:
        return present
    if present is not None:
        what = f"a skeleton for {present.arch}" if isinstance(present, _Skeleton) else str(present.__file__)
        raise AiterPackageUnavailable(f"aiter is imported already ({what}); {arch} needs a process of its own")
    installation = aiter_installation()
    os.environ["GPU_ARCHS"] = arch
    os.environ["CU_NUM"] = str(DEVICES[arch].multi_processor_count)
    skeleton = _Skeleton(arch)
    skeleton.__path__ = [str(installation.package)]
    skeleton.__spec__ = importlib.util.spec_from_file_location(
        "aiter", installation.package / "__init__.py", submodule_search_locations=skeleton.__path__
    )
    sys.modules["aiter"] = skeleton
    try:
        with _build_machinery():
            skeleton.dtypes = importlib.import_module("aiter.utility.dtypes")
    except ImportError as error:
        del sys.modules["aiter"]
        raise AiterPackageUnavailable(f"a module of AITER {installation.version} does not import: {error}") from error
    return skeleton


@contextlib.contextmanager
def _build_machinery() -> Iterator[None]:
    """Stand-ins for what ``aiter/jit/utils/chip_info.py`` imports as top-level modules, while it is imported.

    ``cpp_extension`` fails at import without ``hipconfig``; of it, only the function that finds ``rocminfo`` is wanted.
    ``torch_guard`` makes torch operators of the two functions that tell the device, for torch.compile's sake; torch
    2.13 cannot take these away again and prints a traceback when the process ends.
    """
    cpp_extension, torch_guard = ModuleType("cpp_extension"), ModuleType("torch_guard")
    cpp_extension.executable_path = _executable_path  # type: ignore[attr-defined]
    torch_guard.torch_compile_guard = lambda: lambda function: function  # type: ignore[attr-defined]
    stand_ins = {module.__name__: module for module in (cpp_extension, torch_guard)}
    before = {name: sys.modules[name] for name in stand_ins if name in sys.modules}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]
        sys.modules.update(before)


def _executable_path(executable: str) -> NoReturn:
    raise FileNotFoundError(f"AITER asked for {executable}: set GPU_ARCHS and CU_NUM to what it wants to know")


class _Skeleton(ModuleType):
    """Stands for the package: its path, its logger, and the compiled functions that the emulated device has."""

    dtypes: ModuleType

    def __init__(self, arch: str) -> None:
        super().__init__("aiter")
        self.arch = arch
        self.logger = logging.getLogger("aiter")

    def getLogger(self) -> logging.Logger:
        """As AITER's, without the handler that it adds."""
        return self.logger

    def mla_decode_stage1_asm_fwd(self, *arguments: Any, **named: Any) -> None:
        """AITER's C++ function of that name."""
        aiter_host.launch(self.arch, aiter_host.DECODE, _launcher(), *arguments, **named)

    def mla_prefill_asm_fwd(self, *arguments: Any, **named: Any) -> None:
        """AITER's C++ function of that name."""
        aiter_host.launch(self.arch, aiter_host.PREFILL, _launcher(), *arguments, **named)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"aiter.{name} is not part of the emulated device; of AITER's compiled functions it has "
            f"{aiter_host.DECODE} and {aiter_host.PREFILL}"
        )


def _launcher() -> Launcher:
    if not _launchers:
        raise AiterPackageUnavailable("AITER launches outside of emulated_mla(): there is nothing to launch on")
    return _launchers[-1]
