"""An AMD GPU that is not there, as far as upstream host code looks: shared by the runtimes ``compile`` and ``emulate``.

One process per architecture, since upstream reads the architecture at import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch


class PretenceUnavailable(RuntimeError):
    """No AMD GPU can be pretended here, or not for this; the message says why and what would help."""


class CompileFailed(RuntimeError):
    """The compiler refused a kernel, or reported an error and went on all the same."""

    def __init__(self, kernel: str, arch: str, message: str) -> None:
        super().__init__(f"{kernel} does not compile for {arch}: {message}")
        self.kernel = kernel
        self.arch = arch
        self.message = message


@dataclass(frozen=True)
class Device:
    """What upstream asks of a device. Names as in ``torch.cuda.get_device_properties`` on ROCm."""

    name: str
    gcnArchName: str
    major: int
    minor: int
    multi_processor_count: int
    """Compute units."""
    total_memory: int
    """Bytes."""
    shared_memory_per_block: int
    """Bytes of LDS."""
    warp_size: int = 64


DEVICES: Mapping[str, Device] = {
    "gfx942": Device("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 9, 4, 304, 192 << 30, 64 << 10),
    "gfx950": Device("AMD Instinct MI355X", "gfx950:sramecc+:xnack-", 9, 5, 256, 288 << 30, 160 << 10),
}
"""AMD's data sheets of the MI300X (304 CUs, 192 GB) and the MI355X (256 CUs, 288 GB); LDS per compute unit from the
CDNA3 and CDNA4 instruction set architecture documents (64 KiB, 160 KiB)."""


def pretend(arch: str) -> Device:
    """Make this process look like one with an AMD GPU. Call it before sglang or AITER is imported.

    Raises:
        PretenceUnavailable: unknown architecture, Triton or its AMD back end missing, TRITON_INTERPRET set, upstream
            imported already, or the process pretends another architecture.
    """
    if arch not in DEVICES:
        raise PretenceUnavailable(f"unknown architecture {arch!r}; known: {', '.join(DEVICES)}")
    if _pretended and _pretended[0] != arch:
        raise PretenceUnavailable(f"this process compiles for {_pretended[0]}; start another one for {arch}")
    if _pretended:
        return DEVICES[arch]
    early = sorted({"sglang", "aiter"} & sys.modules.keys())
    if early:
        raise PretenceUnavailable(f"{', '.join(early)} imported before prepare(); the architecture is read at import")
    _require_compiler()
    device = DEVICES[arch]
    # sglang.srt.utils.is_hip, and AITER, ask whether torch is a ROCm build ...
    torch.version.hip = "7.0.0"
    # ... and is_cuda that it is not one for CUDA: a ROCm build has None here, a CUDA machine would not.
    torch.version.cuda = None
    # sglang.srt.utils.is_gfx95_supported reads gcnArchName at import, launchers read multi_processor_count.
    torch.cuda.get_device_properties = lambda *args, **kwargs: device  # type: ignore[assignment]
    # Launchers of attention and GEMM kernels branch on it; on ROCm it is the major and minor number of the gfx name.
    torch.cuda.get_device_capability = lambda *args, **kwargs: (device.major, device.minor)
    # torch.cuda.is_available stays false: it leads to calls into a HIP runtime that is not there.
    _pretended.append(arch)
    return device


_pretended: list[str] = []


def _require_compiler() -> None:
    try:
        import triton
        from triton.backends import backends
    except ImportError as error:
        raise PretenceUnavailable(
            f"triton cannot be imported ({error}); python -m pip install triton==3.9.0"
        ) from error
    if "amd" not in backends:
        raise PretenceUnavailable(
            f"triton {triton.__version__} has no AMD back end (it has {', '.join(backends) or 'none'}); "
            "python -m pip install triton==3.9.0"
        )
    if triton.knobs.runtime.interpret:
        raise PretenceUnavailable(
            f"TRITON_INTERPRET={os.environ.get('TRITON_INTERPRET')} makes triton.jit interpret kernels instead of "
            "compiling them; unset it"
        )


class DeviceTensor(torch.Tensor):
    """A tensor that host code takes for one on the GPU. Results of torch functions on it are too."""

    is_cuda = property(lambda self: True)


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """The same storage as a tensor that passes for one on the GPU."""
    return tensor.as_subclass(DeviceTensor)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same storage as an ordinary tensor."""
    return tensor.as_subclass(torch.Tensor)
