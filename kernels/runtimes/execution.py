"""One face for all runtimes, as the process that runs kernels sees them.

Imported in worker processes only: what stands behind each name imports torch, triton and more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch


class RuntimeUnavailable(RuntimeError):
    """The runtime cannot be used here; the message says why and what to install."""


@dataclass(frozen=True)
class Execution:
    """How tensors enter and leave a runtime, and what it can tell of the launches in between."""

    runtime: str
    arch: str
    executes: bool
    device: torch.device
    wrap: Callable[[torch.Tensor], torch.Tensor]
    """Makes a tensor on ``device`` into what upstream host code accepts."""
    plain: Callable[[torch.Tensor], torch.Tensor]
    """Undoes ``wrap`` and brings results to the CPU."""
    launches: Callable[[], list[dict[str, Any]]]
    clear_launches: Callable[[], None]
    refuse: Callable[[Iterable[torch.dtype]], None] = lambda dtypes: None
    """Raises RuntimeUnavailable for a dtype whose arithmetic the runtime is known to get wrong."""
    cannot: tuple[type[Exception], ...] = ()
    """What is raised where the runtime itself, not the kernel, cannot go on."""
    needs_values: tuple[type[Exception], ...] = ()
    """What is raised where host code reads a value of a tensor that has none: then it gets one that has."""
    only_rows: Callable[[int], AbstractContextManager[object]] = lambda row: nullcontext()
    """Restricts launches to the program that stands at that row of grid axis 0, where the runtime can."""
    watch: Callable[[], AbstractContextManager[object]] = nullcontext
    """Within it launches are recorded, where recording them costs something."""
    settle: Callable[[], None] = lambda: None
    """Waits until everything that was asked for is done; what a device did wrong meanwhile is raised here."""
    lost: Callable[[], str] = lambda: ""
    """Why nothing more can be run in this process, empty while something can."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What a record should say of the device, beside versions."""


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _cpu(arch: str) -> Execution:
    return Execution("cpu", arch, True, torch.device("cpu"), _same, _same, list, lambda: None)


def _interpret(arch: str) -> Execution:
    from waveproof.kernels.runtimes import interpret
    from waveproof.kernels.runtimes.emulate import aiter_package

    try:
        interpret.prepare()
    except interpret.InterpreterUnavailable as error:
        raise RuntimeUnavailable(str(error)) from error
    # AITER picks block sizes by architecture, and an interpreter has none; of the two this is the newer.
    aiter_package.offer("gfx950")

    def refuse(dtypes: Iterable[torch.dtype]) -> None:
        try:
            interpret.require_right(dtypes)
        except interpret.InterpreterWrong as error:
            raise RuntimeUnavailable(str(error)) from error

    return Execution(
        "interpret",
        arch,
        True,
        torch.device("cpu"),
        interpret.on_device,
        interpret.plain,
        lambda: [asdict(launch) for launch in interpret.launches()],
        interpret.clear_launches,
        refuse,
        cannot=(aiter_package.AiterPackageUnavailable,),
        only_rows=lambda row: interpret.only_programs(select=lambda kernel, grid: [(row, 0, 0)]),
    )


def _compile(arch: str) -> Execution:
    from waveproof.kernels.runtimes import compile as ahead_of_time
    from waveproof.kernels.runtimes.emulate import aiter_package

    try:
        ahead_of_time.prepare(arch)
    except ahead_of_time.CompileUnavailable as error:
        raise RuntimeUnavailable(str(error)) from error
    aiter_package.offer(arch)

    return Execution(
        "compile",
        arch,
        False,
        torch.device("meta"),
        ahead_of_time.on_device,
        ahead_of_time.plain,
        lambda: [
            {**asdict(launch), "overflows": [str(overflow) for overflow in ahead_of_time.int32_overflows(launch)]}
            for launch in ahead_of_time.launches()
        ],
        ahead_of_time.clear_launches,
        cannot=(ahead_of_time.CompileUnavailable, aiter_package.AiterPackageUnavailable),
        needs_values=(ahead_of_time.NeedsValues,),
    )


def _gpu(runtime: str) -> Callable[[str], Execution]:
    def open_gpu(arch: str) -> Execution:
        from waveproof.kernels.runtimes import device

        try:
            gpu = device.open_device(runtime)
        except device.DeviceUnavailable as error:
            raise RuntimeUnavailable(str(error)) from error
        return Execution(
            runtime,
            gpu.arch,
            True,
            gpu.device,
            _same,
            device.to_cpu,
            gpu.launches,
            gpu.clear_launches,
            watch=gpu.watch,
            settle=gpu.settle,
            lost=gpu.lost,
            facts=gpu.facts,
        )

    return open_gpu


def _emulate(arch: str) -> Execution:
    from waveproof.kernels.runtimes import pretence
    from waveproof.kernels.runtimes.emulate import aiter_mla, aiter_package, fault, host_build, triton_driver

    try:
        triton_driver.prepare(arch)
    except pretence.PretenceUnavailable as error:
        raise RuntimeUnavailable(str(error)) from error
    aiter_mla.offer(arch)

    return Execution(
        "emulate",
        arch,
        True,
        torch.device("cpu"),
        pretence.on_device,
        pretence.plain,
        lambda: [asdict(launch) for launch in triton_driver.launches()],
        triton_driver.clear_launches,
        cannot=(
            pretence.PretenceUnavailable,
            aiter_package.AiterPackageUnavailable,
            host_build.HostBuildUnavailable,
            host_build.HostBuildFailed,
            fault.InstructionUnsupported,
            fault.CodeObjectInvalid,
        ),
        only_rows=lambda row: triton_driver.only_workgroups(lambda kernel, grid: [(row, 0, 0)]),
        settle=triton_driver.settle,
    )


_OPENERS: dict[str, Callable[[str], Execution]] = {
    "cpu": _cpu,
    "interpret": _interpret,
    "compile": _compile,
    "emulate": _emulate,
    "hip": _gpu("hip"),
    "cuda": _gpu("cuda"),
}


def open_execution(runtime: str, arch: str) -> Execution:
    """Prepare this process for a runtime.

    Raises:
        RuntimeUnavailable: the runtime cannot be used here.
    """
    return _OPENERS[runtime](arch)
