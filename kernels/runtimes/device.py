"""The runtimes ``hip`` and ``cuda``: a real GPU, reached through torch, which calls both of them ``cuda``.

**Not yet seen on AMD hardware**, nor on NVIDIA's: the logic is tested with a stand-in for ``torch.cuda``
(``selftest/test_device.py``), what a driver really does is not.

Which kernels ran is asked of torch's profiler (CUPTI on CUDA, roctracer or rocprofiler on ROCm, behind one API). It
watches the first of a call's repeats only. All kernels of that call count, those of torch included, since a fallback is
most often one of them; copies and fills do not. The guards of :mod:`waveproof.kernels.runtimes.memory` are made on the
CPU and copied over, so they add no kernel.

A fault on the device (an illegal address, a failed assertion) is *asynchronous and sticky*: it surfaces at the next
synchronisation, and from then on every call into the context fails (CUDA Runtime API, ``cudaErrorIllegalAddress``: "the
process must be terminated and relaunched"). :meth:`Gpu.lost` tells this from an error that a process survives, such as
a launch with an illegal configuration or a lack of memory. On ROCm the runtime aborts the process by itself at a memory
access fault.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType

from waveproof.kernels.runtimes.catalogue import ARCHES

DEVICE = torch.device("cuda")
"""The current device, on ROCm too (PyTorch documentation, "HIP (ROCm) semantics")."""

VISIBILITY = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""Variables that hide devices (HIP documentation, "GPU isolation techniques"; CUDA C++ Programming Guide)."""

LONGEST_NAME = 200
"""Characters kept of a kernel's name: those of C++ templates run to thousands."""

_COPIES_AND_FILLS = ("Memcpy", "Memset", "CopyHostToDevice", "CopyDeviceTo", "FillBuffer", "__amd_rocclr_")
"""How names of copies and fills begin. ROCm's runtime does some with kernels of its own, ``__amd_rocclr_copyBuffer``
and ``__amd_rocclr_fillBufferAligned`` (ROCm/clr, ``rocclr/device/blitcl.cpp``), which the profiler lists as kernels."""


class DeviceUnavailable(RuntimeError):
    """There is no such GPU for this process; the message says why and what would help."""


@dataclass
class Gpu:
    """One device that answers, and the kernels that were seen on it."""

    runtime: str
    """``hip`` or ``cuda``."""
    arch: str
    """``gfx942`` without its feature suffix, or ``sm_90``."""
    device: torch.device
    facts: dict[str, str] = field(default_factory=dict)
    """For the record: the device's name, its driver's version, and what a reader must know besides."""
    watches: bool = True
    """Whether the profiler can be used; without it nothing is recorded."""
    _kernels: list[str] = field(default_factory=list)

    def launches(self) -> list[dict[str, Any]]:
        """``{"kernel": name}`` for each kernel seen within :meth:`watch` since the last :meth:`clear_launches`."""
        return [{"kernel": name} for name in self._kernels]

    def clear_launches(self) -> None:
        """Forget the kernels seen so far."""
        self._kernels.clear()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Within, kernels are recorded, also where an exception ends it; waits for the device before it ends.

        Raises:
            RuntimeError: a fault on the device, which surfaces here.
        """
        if not self.watches:
            yield
            self.settle()
            return
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True)
        profiler.start()
        try:
            yield
            self.settle()
        finally:
            profiler.stop()  # waits for the device too, and raises where it is lost
            self._kernels += kernel_names(profiler.events() or ())

    def settle(self) -> None:
        """Wait until the device has done all that it was asked for.

        Raises:
            RuntimeError: a fault on the device, which surfaces here.
        """
        torch.cuda.synchronize()

    def lost(self) -> str:
        """Why the device does not answer any more, empty while it does.

        Asked twice: an error that is not sticky may still be pending, and is gone once it was reported.
        """
        reason = ""
        for _ in range(2):
            try:
                self.settle()
                torch.zeros(1, device=self.device).item()
            except torch.cuda.OutOfMemoryError:
                return ""
            except RuntimeError as error:
                reason = f"{type(error).__name__}: {_first_line(error)}"
            else:
                return ""
        return reason


def open_device(runtime: str) -> Gpu:
    """The current GPU of this process.

    Args:
        runtime: ``hip`` or ``cuda``.

    Raises:
        DeviceUnavailable: torch was built for another platform or for none, no device is visible, or it does not
            compute.
    """
    require_build(runtime)
    _require_visible(runtime)
    try:
        properties = torch.cuda.get_device_properties()
        answer = torch.ones(2, device=DEVICE).add_(1).sum().item()
    except RuntimeError as error:
        raise DeviceUnavailable(f"the {runtime} device does not answer: {_first_line(error)}") from error
    if answer != 4.0:
        raise DeviceUnavailable(f"the {runtime} device adds 1 to two ones and their sum is {answer!r}, not 4.0")
    gfx = properties.gcnArchName.partition(":")[0] if runtime == "hip" else ""
    arch = gfx or f"sm_{properties.major}{properties.minor}"
    gpu = Gpu(runtime, arch, DEVICE, {"device": properties.name})
    driver = _driver_version(runtime)
    if driver:
        gpu.facts["driver"] = driver
    if gfx and gfx not in ARCHES:
        gpu.facts["arch"] = f"{gfx}, which is none of those that the suite was written for ({', '.join(ARCHES)})"
    unseen = _why_kernels_go_unseen(gpu)
    if unseen:
        gpu.watches = False
        gpu.facts["kernel names"] = f"not recorded: {unseen}"
    return gpu


def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the CPU, after everything that the device was asked for before."""
    return tensor.to("cpu")


def kernel_names(events: Iterable[Any]) -> list[str]:
    """Names of the kernels among a profiler's events, in order of their start; copies and fills are left out."""
    kernels = [event for event in events if event.device_type == DeviceType.CUDA and _is_kernel(event)]
    return [event.name[:LONGEST_NAME] for event in sorted(kernels, key=lambda event: event.time_range.start)]


def _is_kernel(event: Any) -> bool:
    # Kineto's own word for it (libkineto, ActivityType.cpp); older versions of torch do not pass it on.
    kind = getattr(event, "activity_type", None) or "kernel"
    annotation = getattr(event, "is_user_annotation", False)
    return kind == "kernel" and not annotation and not event.name.startswith(_COPIES_AND_FILLS)


def require_build(runtime: str) -> None:
    """Whether torch was built for ``hip`` or ``cuda``.

    Raises:
        DeviceUnavailable: it was built for another platform or for none.
    """
    found = "hip" if torch.version.hip else "cuda" if torch.version.cuda else ""
    if found == runtime:
        return
    wanted = {"hip": "ROCm", "cuda": "CUDA"}
    built = f"is built for {wanted[found]}" if found else "is built without GPU support"
    cure = f"install a {wanted[runtime]} build (https://pytorch.org/get-started/locally/)"
    if runtime == "hip":
        cure += " or use a ROCm container such as rocm/pytorch"
    raise DeviceUnavailable(f"torch {torch.__version__} {built}, the runtime {runtime} needs {wanted[runtime]}: {cure}")


def _require_visible(runtime: str) -> None:
    if torch.cuda.is_available():
        return
    hidden = [f"{name}={os.environ[name]!r}" for name in VISIBILITY if name in os.environ]
    node = "/dev/kfd and /dev/dri" if runtime == "hip" else "/dev/nvidia*"
    cure = f"set: {', '.join(hidden)}" if hidden else f"see that this account may open {node}"
    if runtime == "hip" and not hidden:
        cure += " (groups render and video; in a container --device=/dev/kfd --device=/dev/dri)"
    raise DeviceUnavailable(f"torch {torch.__version__} sees no {runtime} device; {cure}")


def _driver_version(runtime: str) -> str:
    try:
        return Path(f"/sys/module/{'amdgpu' if runtime == 'hip' else 'nvidia'}/version").read_text().strip()
    except OSError:
        return ""


def _why_kernels_go_unseen(gpu: Gpu) -> str:
    """Why a kernel that surely ran is not on record, empty where it is: silence must not look like no kernel."""
    if torch.profiler.ProfilerActivity.CUDA not in torch.profiler.supported_activities():
        return "this torch's profiler cannot see the device"
    try:
        with gpu.watch():
            torch.ones(2, device=gpu.device).add_(1)
    except RuntimeError as error:
        return f"torch's profiler fails: {_first_line(error)}"
    seen = gpu.launches()
    gpu.clear_launches()
    return "" if seen else "torch's profiler saw none in a call that runs two"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
