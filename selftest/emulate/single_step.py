"""Execute a few instructions on a bare wave: what the instruction tests stand on."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from waveproof.kernels.runtimes.emulate.decode import Instruction, decode
from waveproof.kernels.runtimes.emulate.launch import LDS, Machine
from waveproof.kernels.runtimes.emulate.memory import Memory
from waveproof.kernels.runtimes.emulate.registers import Group, State
from waveproof.kernels.runtimes.emulate.registry import Context, build_step


def bare_group(
    context: Context | None = None, waves: int = 1, lds_bytes: int = 4096, memory: Memory | None = None
) -> Group:
    """Waves of one workgroup with EXEC full and poison everywhere else; set registers through ``group.v[3][:] = ...``.

    Rows: ``group.v[n]`` is VGPR n as uint32 [waves, 64], ``group.v[context.vgprs + n]`` AccVGPR n, ``group.s[n]``
    SGPR n as [waves, 1], ``group.scc`` bool [waves, 1]. After writing EXEC by hand call ``group.refresh_exec()``,
    or use :func:`set_exec`.
    """
    context = context or Context()
    machine = Machine(context.arch, memory)
    machine.lds = LDS(1, lds_bytes)
    return Group(State(waves, context.vgprs, context.accvgprs), 0, waves, 0, context, machine)


def set_exec(group: Group, mask: int) -> None:
    """The same EXEC in every wave."""
    group.s64[63][:] = np.uint64(mask)
    group.refresh_exec()


def instructions(words: Sequence[int]) -> list[Instruction]:
    """Decode a sequence of 32-bit words."""
    code = struct.pack(f"<{len(words)}I", *words)
    found, at = [], 0
    while at < len(code):
        found.append(decode(code[at:], at))
        at += found[-1].size
    return found


def execute(group: Group, *words: int) -> object:
    """Decode and execute the words on the group, without a scheduler.

    Returns:
        The outcome of the last instruction: None, or what a control instruction says (see ``program.py``).
    """
    outcome = None
    with np.errstate(all="ignore"):
        for instruction in instructions(words):
            outcome = build_step(instruction, group.context)(group)
    return outcome
