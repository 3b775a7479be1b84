"""Branches, jumps, the register-index mode and instructions without effect, against their outcomes written out.

Sources: CDNA3 ISA, "SOPP Instructions", "SOP1 Instructions"; a branch goes to the next instruction plus 4 * SIMM16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np

from waveproof.kernels.runtimes.emulate.decode import decode
from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.program import BARRIER, END, Branch, Enter, Jump
from waveproof.kernels.runtimes.emulate.registers import Group, State
from waveproof.kernels.runtimes.emulate.registry import Context, build_step
from waveproof.selftest.emulate.assembler import assemble
from waveproof.selftest.emulate.instruction_forms import M0, VCC
from waveproof.selftest.emulate.instruction_reference import VGPRS
from waveproof.selftest.emulate.instruction_trial import FIRST, LAST, Fault, differences, random_state

CODE_BASE = 0x7F12_3456_7000
ADDRESS = 0x120
"""Where the instruction stands in .text."""

_WAITING = {
    "S_NOP": 3, "S_WAITCNT": 0x0F70, "S_SETPRIO": 2, "S_SLEEP": 5, "S_SETHALT": 0, "S_ICACHE_INV": 0,
    "S_TTRACEDATA": 0, "S_INCPERFLEVEL": 1, "S_DECPERFLEVEL": 1,
}  # fmt: skip
_CACHES = {
    "S_DCACHE_INV": "SMEM", "S_DCACHE_WB": "SMEM", "S_DCACHE_INV_VOL": "SMEM", "S_DCACHE_WB_VOL": "SMEM",
    "BUFFER_WBL2": "MUBUF", "BUFFER_INV": "MUBUF",
}  # fmt: skip


def _scene(masks: tuple[int, int, int] = (0x10, 0, 0xFFFFFFFFFFFFFFFF)) -> tuple[Group, State]:
    state = random_state(np.random.default_rng(7), masks)
    state.scc[FIRST:LAST, 0] = [True, False, True]
    state.s[FIRST:LAST, VCC : VCC + 2] = [[0, 0], [0, 0x80000000], [1, 0]]
    state.s[FIRST:LAST, 20:22] = [[0x34567008, 0x7F12], [0x34567FFC, 0x7F12], [0x34567008, 0x7F12]]
    group = Group(state, FIRST, LAST, ADDRESS, Context(vgprs=VGPRS, accvgprs=4), SimpleNamespace(code_base=CODE_BASE))
    return group, state


def _execute(group: Group, words: tuple[int, ...]) -> object:
    code = b"".join(word.to_bytes(4, "little") for word in words)
    return build_step(decode(code, ADDRESS), group.context)(group)


def _said(outcome: object) -> object:
    """An outcome in comparable form."""
    if isinstance(outcome, Branch):
        return ("branch", outcome.taken.tolist(), outcome.target)
    if isinstance(outcome, Jump):
        return ("jump", outcome.targets.tolist())
    if isinstance(outcome, Enter):
        return ("enter", [(None if rows is None else rows.tolist(), context) for rows, context in outcome.parts])
    return outcome


def _outcome(
    label: str, words: tuple[int, ...], expected: object, writes: dict[int, list[int]] | None = None
) -> list[Fault]:
    """Execute, compare the outcome, and all registers; ``writes``: SGPRs of the three waves that change."""
    group, state = _scene()
    v, s, scc = state.v.copy(), state.s.copy(), state.scc.copy()
    for number, values in (writes or {}).items():
        s[FIRST:LAST, number] = values
    try:
        got = _said(_execute(group, words))
    except Exception as error:
        return [Fault(label, f"{type(error).__name__}: {error}")]
    found = differences(label, group, v, s, scc)
    if got != expected:
        found.append(Fault(label, f"outcome {got}, expected {expected}"))
    return found


_TAKEN = {
    "S_CBRANCH_SCC0": [False, True, False], "S_CBRANCH_SCC1": [True, False, True],
    "S_CBRANCH_VCCZ": [True, False, False], "S_CBRANCH_VCCNZ": [False, True, True],
    "S_CBRANCH_EXECZ": [False, True, False], "S_CBRANCH_EXECNZ": [True, False, True],
}  # fmt: skip


def _conditional(name: str) -> Iterator[Fault]:
    for simm, target in ((0, ADDRESS + 4), (5, ADDRESS + 24), (0xFFFF, ADDRESS), (0xFFF0, ADDRESS - 60)):
        yield from _outcome(f"{name} {simm:#x}", assemble("SOPP", name, simm16=simm), ("branch", _TAKEN[name], target))


def _branch(name: str) -> Iterator[Fault]:
    for simm, target in ((0, ADDRESS + 4), (0x7FFF, ADDRESS + 4 + 4 * 0x7FFF), (0xFFFE, ADDRESS - 4)):
        yield from _outcome(f"{name} {simm:#x}", assemble("SOPP", name, simm16=simm), target)


_NEXT = CODE_BASE + ADDRESS + 4
_NEXT_WORDS = ([_NEXT & 0xFFFFFFFF] * 3, [_NEXT >> 32] * 3)


def _jumps(name: str) -> Iterator[Fault]:
    targets = ("jump", [8, 0xFFC, 8])
    if name == "S_SETPC_B64":
        yield from _outcome(name, assemble("SOP1", name, ssrc0=20), targets)
    elif name == "S_SWAPPC_B64":
        for sdst in (12, 20):
            writes = {sdst: _NEXT_WORDS[0], sdst + 1: _NEXT_WORDS[1]}
            yield from _outcome(f"{name} s{sdst}", assemble("SOP1", name, ssrc0=20, sdst=sdst), targets, writes)
    elif name == "S_GETPC_B64":
        writes = {12: _NEXT_WORDS[0], 13: _NEXT_WORDS[1]}
        yield from _outcome(name, assemble("SOP1", name, sdst=12), None, writes)
    else:
        writes = {12: _NEXT_WORDS[0], 13: _NEXT_WORDS[1]}
        yield from _outcome(name, assemble("SOPK", name, sdst=12, simm16=0xFFF8), ADDRESS + 4 - 32, writes)


def _ends(name: str) -> Iterator[Fault]:
    yield from _outcome(name, assemble("SOPP", name), END if name == "S_ENDPGM" else BARRIER)


def _nothing(name: str) -> Iterator[Fault]:
    if name == "V_NOP":
        yield from _outcome(name, assemble("VOP1", name), None)
    elif name in _CACHES:
        yield from _outcome(name, assemble(_CACHES[name], name), None)
    else:
        yield from _outcome(name, assemble("SOPP", name, simm16=_WAITING[name]), None)


def _set_mode(name: str) -> Iterator[Fault]:
    def words(simm: int, value: int) -> tuple[int, ...]:
        return assemble("SOPK", name, simm16=simm, literal=value)

    def entered(**changes: object) -> tuple[str, list[tuple[None, Context]]]:
        return "enter", [(None, Context(vgprs=VGPRS, accvgprs=4, **changes))]  # type: ignore[arg-type]

    # hwreg(HW_REG_MODE, offset, size): number | offset << 6 | (size - 1) << 11
    denormals = 1 | 4 << 6 | 3 << 11
    yield from _outcome(f"{name} denormals", words(denormals, 0xC), entered(float_mode=0xC0))
    yield from _outcome(f"{name} denormals, wide value", words(denormals, 0xFFFFFFF3), entered(float_mode=0x30))
    yield from _outcome(f"{name} ieee", words(1 | 9 << 6, 0), entered(ieee=False))
    yield from _outcome(f"{name} dx10_clamp", words(1 | 8 << 6, 0), entered(dx10_clamp=False))
    yield from _refused(f"{name} rounding", words(1 | 0 << 6 | 3 << 11, 3))
    yield from _refused(f"{name} another register", words(2, 0))


def _refused(label: str, words: tuple[int, ...]) -> Iterator[Fault]:
    group, _ = _scene()
    try:
        _execute(group, words)
    except InstructionUnsupported:
        return
    yield Fault(label, "is executed and not refused")


def _get_register(name: str) -> Iterator[Fault]:
    yield from _refused(name, assemble("SOPK", name, sdst=12, simm16=1 | 3 << 11))


def _index_on(name: str) -> Iterator[Fault]:
    for bits in (1, 2, 4, 8, 11, 0):
        group, state = _scene()
        state.s[FIRST:LAST, 22] = [0x105, 2, 0xFF05]
        v, s, scc = state.v.copy(), state.s.copy(), state.scc.copy()
        for slot, index in zip(range(FIRST, LAST), (5, 2, 5), strict=True):
            s[slot, M0] = int(s[slot, M0]) & 0xFFFF0F00 | bits << 12 | index
        outcome = _execute(group, assemble("SOPC", name, ssrc0=22, ssrc1=bits))
        label = f"{name} {bits:#x}"
        yield from differences(label, group, v, s, scc)
        uses = [bits >> at & 1 for at in range(4)]
        indices = [(v * uses[0], v * uses[1], v * uses[2], v * uses[3]) for v in (5, 2, 5)]
        if not isinstance(outcome, Enter):
            yield Fault(label, f"outcome {outcome}")
            continue
        left = np.ones(3, np.bool_)
        for rows, context in outcome.parts:
            taken = left if rows is None else left & rows
            for at in np.flatnonzero(taken):
                if context != Context(vgprs=VGPRS, accvgprs=4, gpr_index=indices[at]):
                    yield Fault(label, f"wave {at} goes on with {context.gpr_index}, expected {indices[at]}")
            left = left & ~taken
        if left.any():
            yield Fault(label, "a wave is left without a context")


def _index_off(name: str) -> Iterator[Fault]:
    group, _ = _scene()
    group.context = Context(vgprs=VGPRS, accvgprs=4, gpr_index=(1, 2, 3, 4))
    got = _said(_execute(group, assemble("SOPP", name)))
    if got != ("enter", [(None, Context(vgprs=VGPRS, accvgprs=4))]):
        yield Fault(name, f"outcome {got}")


TRIALS: dict[str, Callable[[str], Iterator[Fault]]] = {
    **dict.fromkeys(_TAKEN, _conditional),
    "S_BRANCH": _branch,
    **dict.fromkeys(("S_SETPC_B64", "S_SWAPPC_B64", "S_GETPC_B64", "S_CALL_B64"), _jumps),
    **dict.fromkeys(("S_ENDPGM", "S_BARRIER"), _ends),
    **dict.fromkeys((*_WAITING, *_CACHES, "V_NOP"), _nothing),
    "S_SETREG_IMM32_B32": _set_mode,
    "S_GETREG_B32": _get_register,
    "S_SET_GPR_IDX_ON": _index_on,
    "S_SET_GPR_IDX_OFF": _index_off,
}


def trials(mnemonic: str) -> list[Fault]:
    """Differences of one control instruction."""
    return list(TRIALS[mnemonic](mnemonic))
