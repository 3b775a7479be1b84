"""Loads from global memory straight to LDS (CDNA3 ISA, "Buffer Load to LDS"; CDNA4 adds 96 and 128 bits)."""

from __future__ import annotations

from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.registry import Context, Step


def buffer_to_lds(instruction: Instruction, context: Context) -> Step:
    """Refused so far."""
    raise InstructionUnsupported(f"{instruction.mnemonic} with LDS")
