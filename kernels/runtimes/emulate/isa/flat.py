"""FLAT memory instructions (CDNA3 ISA, "Flat Memory Instructions"), as far as they reach global memory.

An address in the apertures of LDS or scratch is in no buffer here, and so a fault: programs get the apertures from
source operands (SRC_SHARED_BASE and its like) that are refused already.
"""

from __future__ import annotations

import dataclasses

from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.isa import vmem_global
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define

_LOADS = [kind for kind in vmem_global.SIZES if kind not in ("BYTE", "SHORT")]
_LOADS += [f"{kind}_D16{half}" for kind in ("UBYTE", "SBYTE", "SHORT") for half in ("", "_HI")]
_STORES = ["BYTE", "SHORT", "DWORD", "DWORDX2", "DWORDX3", "DWORDX4", "BYTE_D16_HI", "SHORT_D16_HI"]


def as_global(instruction: Instruction) -> Instruction:
    """The GLOBAL instruction that does the same: a VGPR pair and no SGPR as address."""
    return dataclasses.replace(
        instruction,
        mnemonic=instruction.mnemonic.replace("FLAT_", "GLOBAL_"),
        fields={**instruction.fields, "saddr": vmem_global.OFF},
    )


@define(*(f"FLAT_LOAD_{kind}" for kind in _LOADS))
def load(instruction: Instruction, context: Context) -> Step:
    """Load."""
    return vmem_global.load(as_global(instruction), context)


@define(*(f"FLAT_STORE_{kind}" for kind in _STORES))
def store(instruction: Instruction, context: Context) -> Step:
    """Store."""
    return vmem_global.store(as_global(instruction), context)
