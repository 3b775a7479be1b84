"""AITER's Python host code (``aiter/mla.py``) on the emulated device.

``import aiter`` asks ``rocminfo`` for the GPU and compiles extensions with ``hipcc``; neither is there. So the package
is a skeleton with its path, and the modules that are wanted are imported below it, unmodified. What they call of
AITER's compiled modules goes to :mod:`waveproof.kernels.runtimes.emulate.aiter_host`; their Triton kernels go wherever
Triton's active driver or its interpreter takes them.

After :func:`offer` an ordinary ``import aiter`` in this process finds the skeleton, as upstream host code and adapters
write it.

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
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from waveproof.kernels.runtimes.compile import DEVICES
from waveproof.kernels.runtimes.emulate import aiter_host
from waveproof.kernels.runtimes.emulate.hip_runtime import Launcher
from waveproof.kernels.runtimes.emulate.host_build import AiterInstallation, HostBuildUnavailable, aiter_installation


class AiterPackageUnavailable(RuntimeError):
    """AITER's Python code cannot be loaded in this process; the message says why."""


_launchers: list[Launcher] = []
"""That of the process, if :func:`offer` was given one, then those of the open :func:`emulated_mla` contexts."""


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
    module: ModuleType = install(arch).mla
    _launchers.append(launcher)
    try:
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


def offer(arch: str, launcher: Launcher | None = None) -> None:
    """Let ``import aiter`` in this process find the skeleton where AITER is installed; a second call does nothing.

    Args:
        arch: ``gfx942`` or ``gfx950``.
        launcher: runs assembly kernels outside of :func:`emulated_mla`; without one they raise.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder(arch))
    if launcher is not None:
        _launchers.insert(0, launcher)


def install(arch: str) -> _Skeleton:
    """Import the skeleton of AITER for an architecture; a second call gives the same.

    Sets AITER's variables ``GPU_ARCHS`` and ``CU_NUM``, by which it knows a device without asking ``rocminfo``
    (``aiter/jit/utils/chip_info.py``).

    Raises:
        AiterPackageUnavailable: AITER, or a skeleton for another architecture, is imported already or offered.
        HostBuildUnavailable: AITER is not installed.
    """
    aiter_installation()
    if "aiter" not in sys.modules:
        offer(arch)
    skeleton = importlib.import_module("aiter")
    if isinstance(skeleton, _Skeleton) and skeleton.arch == arch:
        return skeleton
    what = f"a skeleton for {skeleton.arch}" if isinstance(skeleton, _Skeleton) else str(skeleton.__file__)
    raise AiterPackageUnavailable(f"aiter is imported already ({what}); {arch} needs a process of its own")


class _Finder(MetaPathFinder, Loader):
    """Finds ``aiter`` before the import system does, and makes a skeleton of it."""

    def __init__(self, arch: str) -> None:
        self.arch = arch

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != "aiter":
            return None
        try:
            installation = aiter_installation()
        except HostBuildUnavailable:
            return None  # upstream asks by importing whether there is an AITER: the answer is an ImportError
        return importlib.util.spec_from_file_location(
            "aiter",
            installation.package / "__init__.py",
            loader=self,
            submodule_search_locations=[str(installation.package)],
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Skeleton(self.arch)

    def exec_module(self, module: ModuleType) -> None:
        assert isinstance(module, _Skeleton)
        module.fill(aiter_installation())


def _name_a_target(arch: str) -> None:
    """Give Triton a driver that knows its target, and nothing else, where Triton is only interpreted and has none.

    AITER's Triton launchers choose their configuration by it (``aiter/ops/triton/utils/_triton/arch_info.py``).
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    try:
        driver.active  # noqa: B018
    except RuntimeError:
        target = GPUTarget("hip", arch, DEVICES[arch].warp_size)
        driver.set_active(SimpleNamespace(get_current_target=lambda: target))


def _where_cuda_is_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        with _CudaIsCpu():
            return function(*args, **named)

    return wrapper


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
    mla: ModuleType

    def __init__(self, arch: str) -> None:
        super().__init__("aiter")
        self.arch = arch
        self.logger = logging.getLogger("aiter")

    def fill(self, installation: AiterInstallation) -> None:
        """Import what ``import aiter`` brings and the emulated device needs.

        Raises:
            AiterPackageUnavailable: a module does not import.
        """
        os.environ["GPU_ARCHS"] = self.arch
        os.environ["CU_NUM"] = str(DEVICES[self.arch].multi_processor_count)
        try:
            with _build_machinery():
                self.dtypes = importlib.import_module("aiter.utility.dtypes")
            self.mla = importlib.import_module("aiter.mla")
        except ImportError as error:
            raise AiterPackageUnavailable(
                f"a module of AITER {installation.version} does not import: {error}"
            ) from error
        _name_a_target(self.arch)
        for name in ("mla_decode_fwd", "mla_prefill_fwd"):
            setattr(self.mla, name, _where_cuda_is_cpu(getattr(self.mla, name)))

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
