"""What a compiled CDNA kernel takes from the device, read in the assembly that Triton's AMD back end prints.

The figures are those of the code object metadata that LLVM writes at the end of the assembly (LLVM, "User Guide for
AMDGPU Backend", section "Code Object V4 Metadata"), so nothing is estimated but the occupancy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

REGISTERS_PER_LANE = 512
"""32-bit vector registers of one SIMD that a lane can have, VGPRs and AGPRs in one file (gfx90a and later).

LLVM, ``AMDGPUBaseInfo.cpp``, ``getTotalNumVGPRs``."""

REGISTER_GRANULE = 8
"""Vector registers are given out in blocks of this many: same file, ``getVGPRAllocGranule`` for gfx90a instructions."""

WAVES_PER_SIMD = 8
"""The most waves that one SIMD holds: same file, ``getMaxWavesPerEU`` for gfx90a instructions."""


SIMDS_PER_CU = 4
"""Same file, ``getEUsPerCU`` for gfx9."""


@dataclass(frozen=True)
class LocalMemory:
    """LDS of a compute unit, in bytes."""

    size: int
    granule: int
    """It is given to workgroups in blocks of this many."""


LOCAL_MEMORY = {"gfx942": LocalMemory(65_536, 512), "gfx950": LocalMemory(163_840, 1_280)}
"""Same file, ``getAddressableLocalMemorySize`` and ``getLdsDwGranularity`` (128 and 320 dwords)."""


class MetadataUnreadable(ValueError):
    """The assembly holds no kernel metadata, or more than one kernel, or lacks a key; the message names it."""


@dataclass(frozen=True)
class Resources:
    """Registers per lane, memory in bytes, and counts of instructions in the text of the kernel."""

    vgpr: int
    """Vector registers per lane, AGPRs included."""
    agpr: int
    """Accumulation registers per lane, a part of ``vgpr``."""
    sgpr: int
    """Scalar registers per wave."""
    vgpr_spill: int
    sgpr_spill: int
    lds_bytes: int
    """Per workgroup: what the code object fixes and what the launch asks for on top."""
    scratch_bytes: int
    """Per lane."""
    max_workgroup: int
    """Work-items per workgroup that the code was compiled for."""
    mfma: int
    """Matrix instructions (``v_mfma_*``, ``v_smfmac_*``) in the code, each counted once however often it runs."""
    waves_per_simd: int
    """Derived: how many waves the vector registers leave room for on one SIMD. LDS is not considered."""


_KEYS = {
    "vgpr": "vgpr_count",
    "agpr": "agpr_count",
    "sgpr": "sgpr_count",
    "vgpr_spill": "vgpr_spill_count",
    "sgpr_spill": "sgpr_spill_count",
    "lds_bytes": "group_segment_fixed_size",
    "scratch_bytes": "private_segment_fixed_size",
    "max_workgroup": "max_flat_workgroup_size",
}

_MATRIX_INSTRUCTION = re.compile(r"^\s*v_s?mfmac?_\w+", re.MULTILINE)


def waves_per_simd(vgpr: int) -> int:
    """Waves of ``vgpr`` vector registers per lane (AGPRs included) that fit on one SIMD of CDNA3 or CDNA4."""
    granted = max(1, -(-vgpr // REGISTER_GRANULE)) * REGISTER_GRANULE
    return min(WAVES_PER_SIMD, REGISTERS_PER_LANE // granted)


def waves_per_cu(vgpr: int, lds_bytes: int, workgroup_waves: int, arch: str) -> int:
    """Waves that a compute unit holds, in whole workgroups, as vector registers and LDS leave room for.

    0 where not one workgroup fits. Scalar registers are not considered, nor what the dispatcher does.

    Args:
        vgpr: vector registers per lane, AGPRs included.
        lds_bytes: of a workgroup.
        workgroup_waves: waves of a workgroup; they spread evenly over the SIMDs.
        arch: ``gfx942`` or ``gfx950``.
    """
    memory = LOCAL_MEMORY[arch]
    groups = SIMDS_PER_CU * waves_per_simd(vgpr) // workgroup_waves
    if lds_bytes:
        groups = min(groups, memory.size // (-(-lds_bytes // memory.granule) * memory.granule))
    return groups * workgroup_waves


def code_bytes(assembly: str) -> int:
    """Size of the instructions as the assembly's comments have it, functions that the kernel calls included.

    0 where there are no such comments.
    """
    return sum(int(size) for size in re.findall(r"^; codeLenInByte = (\d+)$", assembly, re.MULTILINE))


def read_resources(assembly: str, dynamic_lds_bytes: int) -> Resources:
    """Read the metadata of the one kernel in ``assembly`` (AMDGCN text).

    Triton asks for its LDS at launch and fixes none in the code object, hence ``dynamic_lds_bytes``.

    Raises:
        MetadataUnreadable: no metadata, another number of kernels than one, or a key that is missing.
    """
    found = re.search(r"^\s*\.amdgpu_metadata\n(.*?)^\s*\.end_amdgpu_metadata", assembly, re.MULTILINE | re.DOTALL)
    if found is None:
        raise MetadataUnreadable("no .amdgpu_metadata section in the assembly")
    metadata = found[1]
    kernels = re.findall(r"^ {2}(?:- | {2})\.symbol:\s+(\S+)$", metadata, re.MULTILINE)
    if len(kernels) != 1:
        raise MetadataUnreadable(f"metadata of one kernel expected, found {kernels}")
    figures = {field: _figure(metadata, key) for field, key in _KEYS.items()}
    figures["lds_bytes"] += dynamic_lds_bytes
    return Resources(
        **figures,
        mfma=len(_MATRIX_INSTRUCTION.findall(assembly)),
        waves_per_simd=waves_per_simd(figures["vgpr"]),
    )


def _figure(metadata: str, key: str) -> int:
    # Keys of the kernel stand at column 4, the first of them behind "  - "; those of its arguments stand deeper.
    found = re.findall(rf"^ {{2}}(?:- | {{2}})\.{key}:\s+(\d+)\s*$", metadata, re.MULTILINE)
    if len(found) != 1:
        raise MetadataUnreadable(f".{key} expected once in the kernel metadata, found {len(found)} times")
    return int(found[0])
