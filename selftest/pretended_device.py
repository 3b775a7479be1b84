"""A stand-in for ``torch.cuda`` and torch's profiler, for the tests of the runtimes ``hip`` and ``cuda``.

The device is the CPU. Every torch operation within a profile is on record as a kernel, beside what :func:`launch` adds,
and :func:`fault` makes the next synchronisations fail as a CUDA context does: for ever, or once.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.utils._python_dispatch import TorchDispatchMode

Patch = Callable[[Any, str, Any], None]
"""``setattr``, or pytest's ``monkeypatch.setattr``, which takes it back."""

_faults: list[str] = []
_sticky: list[bool] = [False]
_profile: list[Profile] = []


def install(
    patch: Patch = setattr, hip: str | None = "7.0.0", cuda: str | None = None, arch: str = "gfx942:sramecc+:xnack-"
) -> None:
    """Make this process look like one with a GPU."""
    from waveproof.kernels.runtimes import device

    _faults.clear()
    properties = SimpleNamespace(name="Pretended", gcnArchName=arch, major=9, minor=0)
    patch(torch.version, "hip", hip)
    patch(torch.version, "cuda", cuda)
    patch(torch.cuda, "is_available", lambda: True)
    patch(torch.cuda, "get_device_properties", lambda *_: properties)
    patch(torch.cuda, "synchronize", synchronize)
    patch(torch.profiler, "supported_activities", lambda: {torch.profiler.ProfilerActivity.CUDA})
    patch(torch.profiler, "profile", Profile)
    patch(device, "DEVICE", torch.device("cpu"))


def fault(message: str, sticky: bool) -> None:
    """Let something go wrong on the device that the host does not know of yet."""
    _faults.append(message)
    _sticky[0] = sticky


def synchronize() -> None:
    """As torch's: raises what went wrong meanwhile."""
    if _faults:
        message = _faults[-1]
        if not _sticky[0]:
            _faults.clear()
        raise torch.AcceleratorError(f"CUDA error: {message}\nSearch for it in the documentation.")


def launch(name: str, **event: Any) -> None:
    """Put an event on record, a kernel unless it says otherwise."""
    for profile in _profile:
        profile.recorded.append(
            SimpleNamespace(
                **{
                    "name": name,
                    "device_type": DeviceType.CUDA,
                    "activity_type": "kernel",
                    "is_user_annotation": False,
                    "time_range": SimpleNamespace(start=len(profile.recorded)),
                    **event,
                }
            )
        )


class Profile(TorchDispatchMode):
    """As much of ``torch.profiler.profile`` as the runtime uses."""

    def __init__(self, activities: list[Any], acc_events: bool) -> None:
        super().__init__()
        assert activities == [torch.profiler.ProfilerActivity.CUDA]
        assert acc_events
        self.recorded: list[SimpleNamespace] = []

    def start(self) -> None:
        _profile.append(self)
        self.__enter__()

    def stop(self) -> None:
        self.__exit__(None, None, None)
        _profile.remove(self)
        synchronize()

    def events(self) -> list[SimpleNamespace]:
        return self.recorded

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        launch(f"void at::native::{func.overloadpacket.__name__}<float>")
        return func(*args, **(kwargs or {}))
