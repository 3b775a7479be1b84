"""What the code of a kernel takes from a CDNA device: compiled by Triton ahead of time, or shipped as a code object."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from waveproof.kernels.runtimes.amdgcn_resources import waves_per_simd

if TYPE_CHECKING:
    from waveproof.kernels.runtimes.emulate.loader import CodeObject


@dataclass(frozen=True)
class Code:
    """Registers and memory of a kernel, and how many matrix instructions its code holds."""

    kernel: str
    vgpr: int
    """Vector registers per lane, AGPRs included; of a shipped object what its descriptor asks for."""
    agpr: int
    vgpr_spill: int | None
    """None where the code object does not say: AITER's carry no such metadata."""
    scratch_bytes: int
    """Per lane."""
    lds_bytes: int
    """Per workgroup."""
    mfma: int
    """Matrix instructions in the code, each counted once however often it runs."""
    waves_per_simd: int
    """That the vector registers leave room for; LDS is not considered."""


def compiled_code(launch: dict[str, Any]) -> Code:
    """Of a launch on the ``compile`` runtime."""
    resources = launch["resources"]
    names = ("vgpr", "agpr", "vgpr_spill", "scratch_bytes", "lds_bytes", "mfma", "waves_per_simd")
    return Code(launch["kernel"], **{name: resources[name] for name in names})


@functools.cache
def shipped_code(arch: str, kernel: str) -> Code | None:
    """Of a code object that AITER ships for latent attention, by its file name; None for any other kernel.

    Raises:
        HostBuildUnavailable: AITER is not installed.
        FileNotFoundError: it ships no such file.
        CodeObjectInvalid: the file is none, or holds several kernels.
    """
    from waveproof.kernels.runtimes.emulate import loader
    from waveproof.kernels.runtimes.emulate.host_build import aiter_installation

    if not kernel.endswith(".co"):
        return None
    code = loader.load((aiter_installation().code_objects(arch) / "mla" / kernel).read_bytes(), kernel)
    descriptor = code.kernel(None)
    vgprs = min(descriptor.accum_offset, descriptor.total_vgprs)
    return Code(
        kernel,
        descriptor.total_vgprs,
        descriptor.total_vgprs - vgprs,
        None,
        descriptor.private_segment_bytes,
        descriptor.group_segment_bytes,
        sum(name.startswith(("V_MFMA", "V_SMFMAC")) for name in mnemonics(code)),
        waves_per_simd(descriptor.total_vgprs),
    )


def mnemonics(code: CodeObject) -> list[str]:
    """Of all instructions in ``.text``, in order; words at which none decodes are passed over."""
    from waveproof.kernels.runtimes.emulate.decode import decode
    from waveproof.kernels.runtimes.emulate.fault import CodeObjectInvalid

    start, size = code.text
    text, at, found = code.image[start : start + size], 0, []
    while at < size:
        try:
            instruction = decode(text[at : at + 16], at)
        except CodeObjectInvalid:
            at += 4
            continue
        found.append(instruction.mnemonic)
        at += instruction.size
    return found
