"""AITER's own MLA entry points on the emulated device: what they launch, or with which words they refuse.

The entry points are the C++ functions of the installed wheel, built by
:mod:`waveproof.kernels.runtimes.emulate.host_build`. Asked as an oracle (:func:`dispatch`) they launch nothing and the
answer is the code object, grid and argument block that they chose; with a launcher (:func:`launch`) the kernel runs.

Both architectures may be asked in one process. Nothing of torch is imported before the first call.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

from waveproof.kernels.runtimes.catalogue import ARCHES
from waveproof.kernels.runtimes.emulate.hip_runtime import FailureKind, HipLaunch, HipRuntime, Launcher
from waveproof.kernels.runtimes.emulate.host_build import MLA_MODULE, HostBuild, aiter_installation, host_build

DECODE = "mla_decode_stage1_asm_fwd"
PREFILL = "mla_prefill_asm_fwd"

_LOCK = threading.RLock()
"""The device, the launcher and the environment belong to the process."""


@dataclass(frozen=True)
class Dispatch:
    """What an entry point launches."""

    arch: str
    entry: str
    code_object: Path
    kernel: str
    grid: tuple[int, int, int]
    """Workgroups."""
    block: tuple[int, int, int]
    """Work-items of a workgroup."""
    shared_bytes: int
    kernarg: bytes = field(repr=False)
    """See :mod:`waveproof.kernels.runtimes.emulate.abi_aiter`; addresses are those of the tensors."""


@dataclass(frozen=True)
class Refusal:
    """An entry point that ended without a launch."""

    arch: str
    entry: str
    text: str
    """AITER's own words."""
    kind: str
    """What the process meets on a device: ``exception`` (of TORCH_CHECK or the C++ library), ``assertion`` (abort), or
    ``hip`` (a HIP call failed, and AITER ends the process with exit status 0)."""

    @property
    def words(self) -> str:
        """AITER's own words, behind the kind where the process does not go on."""
        return self.text if self.kind == "exception" else f"{self.kind}: {self.text}"


class AiterRefused(RuntimeError):
    """An entry point refused while it was to launch."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


class UnknownEntryPoint(LookupError):
    """The installed AITER's module has no function of that name."""


class UnexpectedLaunches(RuntimeError):
    """An entry point launched no kernel or several, where the oracle takes it to launch one."""


@dataclass(frozen=True)
class _Host:
    """The extension for one architecture, loaded."""

    arch: str
    runtime: HipRuntime
    entries: dict[str, Callable[..., None]]
    parameters: dict[str, tuple[str, ...]]
    code_objects: Path


def dispatch(arch: str, entry: str, *arguments: Any, **named: Any) -> Dispatch | Refusal:
    """Ask an entry point what it would launch; nothing runs and no tensor changes.

    Args:
        arch: ``gfx942`` or ``gfx950``.
        entry: :data:`DECODE` or :data:`PREFILL`.
        arguments: as of AITER's function of that name (``aiter/ops/attention.py``), tensors on the CPU.
        named: the same by name.

    Raises:
        HostBuildUnavailable: no compiler, no AITER, and so on.
        HostBuildFailed: the installed sources do not compile.
        UnknownEntryPoint: the module has no such function.
        TypeError: ``arguments`` do not fit the entry point's signature.
        UnexpectedLaunches: not one launch.
    """
    seen: list[HipLaunch] = []
    refusal = _call(arch, entry, seen.append, arguments, named)
    if refusal is not None:
        return refusal
    if len(seen) != 1 or seen[0].code_object is None:
        raise UnexpectedLaunches(f"{entry} on {arch} launched {[launch.kernel for launch in seen]}")
    chosen = seen[0]
    code_object = Path(os.path.normpath(seen[0].code_object))
    return Dispatch(
        arch, entry, code_object, chosen.kernel, chosen.grid, chosen.block, chosen.shared_bytes, chosen.kernarg
    )


def launch(arch: str, entry: str, launcher: Launcher, *arguments: Any, **named: Any) -> None:
    """Call an entry point and let ``launcher`` run what it launches; the other arguments as of :func:`dispatch`.

    Raises:
        AiterRefused: the entry point refused; its words are the message.
        Exception: what ``launcher`` raised, and what :func:`dispatch` raises.
    """
    refusal = _call(arch, entry, launcher, arguments, named)
    if refusal is not None:
        raise AiterRefused(refusal)


def _call(
    arch: str, entry: str, launcher: Launcher, arguments: tuple[Any, ...], named: dict[str, Any]
) -> Refusal | None:
    import torch

    with _LOCK:
        host = _load(arch)
        if entry not in host.entries:
            raise UnknownEntryPoint(f"AITER's module has no {entry!r}; it has {', '.join(host.entries)}")
        given = dict(zip(host.parameters[entry], arguments, strict=False)) | named
        buffers = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        host.runtime.take_failure()
        try:
            with _asm_dir(host.code_objects), host.runtime.log(), host.runtime.launching(arch, buffers, launcher):
                try:
                    host.entries[entry](*arguments, **named)
                except (RuntimeError, ValueError) as error:
                    raise _Ended(str(error)) from error
        except _Ended as ended:
            return _refusal(host, entry, ended.args[0])
    return None


class _Ended(Exception):
    """An exception from C++, as against one from the launcher."""


def _refusal(host: _Host, entry: str, message: str) -> Refusal:
    failure, text = host.runtime.take_failure()
    if failure is FailureKind.NONE:
        return Refusal(host.arch, entry, message, "exception")
    return Refusal(host.arch, entry, text, failure.name.lower())


@functools.cache
def _load(arch: str) -> _Host:
    if arch not in ARCHES:
        raise ValueError(f"unknown architecture {arch!r}; known: {', '.join(ARCHES)}")
    import torch  # noqa: F401  (its libraries have to be in the process before the extension)

    build = host_build(MLA_MODULE)
    # The last part of the name is the one of the module's init function.
    name = f"waveproof_aiter.{arch}.{build.module}"
    runtime = _runtime(build)
    loader = ExtensionFileLoader(name, str(build.extension(arch)))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    entries = {key: value for key, value in vars(module).items() if callable(value) and not key.startswith("_")}
    parameters = {key: _parameters(value) for key, value in entries.items()}
    return _Host(arch, runtime, entries, parameters, aiter_installation().code_objects(arch))


@functools.cache
def _runtime(build: HostBuild) -> HipRuntime:
    return HipRuntime(build.runtime)


def _parameters(function: Callable[..., None]) -> tuple[str, ...]:
    """Parameter names of a pybind11 function: the first line of its docstring is ``name(a: type, b: type = ...)``."""
    line = (function.__doc__ or "").partition("\n")[0]
    return tuple(re.findall(r"[(,] ?(\w+): ", line))


@contextlib.contextmanager
def _asm_dir(folder: Path) -> Iterator[None]:
    """Where AITER's launchers find code objects; ``aiter/jit/core.py`` sets it at import, with the slash at the end."""
    before = os.environ.get("AITER_ASM_DIR")
    os.environ["AITER_ASM_DIR"] = f"{folder}/"
    try:
        yield
    finally:
        if before is None:
            del os.environ["AITER_ASM_DIR"]
        else:
            os.environ["AITER_ASM_DIR"] = before
