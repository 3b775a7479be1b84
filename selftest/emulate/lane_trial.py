"""Instructions between lanes and register files, tried against references written out lane by lane.

Sources: the pseudocode of V_READFIRSTLANE, V_READLANE, V_WRITELANE, V_PERMLANE16_SWAP, V_PERMLANE32_SWAP and V_SWAP in
the CDNA3 and CDNA4 ISA documents, which names registers by lane and is written out here by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from waveproof.kernels.runtimes.emulate.registers import Group
from waveproof.kernels.runtimes.emulate.registry import Context, build_step
from waveproof.selftest.emulate.assembler import assemble
from waveproof.selftest.emulate.instruction_forms import EXEC, M0, VCC
from waveproof.selftest.emulate.instruction_reference import VGPRS, Words
from waveproof.selftest.emulate.instruction_trial import (
    EXEC_MASKS,
    FIRST,
    LAST,
    Fault,
    differences,
    random_state,
)
from waveproof.selftest.emulate.single_step import instructions

Predict = Callable[[Words, Words], None]
"""Changes the vector registers [rows, 64] and scalar registers [128] of one wave as the instruction does."""


@dataclass(frozen=True)
class LaneForm:
    """An encoding and what it does to a wave."""

    label: str
    words: tuple[int, ...]
    predict: Predict


def _exec(s: Words) -> int:
    return int(s[EXEC]) | int(s[EXEC + 1]) << 32


def _read_first_lane() -> Iterator[LaneForm]:
    for vdst in (12, VCC, M0, EXEC):

        def predict(v: Words, s: Words, vdst: int = vdst) -> None:
            mask = _exec(s)
            lane = (mask & -mask).bit_length() - 1 if mask else 0
            s[vdst] = v[2, lane]

        yield LaneForm(f"s{vdst}", assemble("VOP1", "V_READFIRSTLANE_B32", vdst=vdst, src0=258), predict)


def _read_lane() -> Iterator[LaneForm]:
    for number in (20, M0, 128, 161, 191, 192, 193):

        def predict(v: Words, s: Words, number: int = number) -> None:
            select = int(s[number]) if number < 128 else number - 128 if number <= 192 else 192 - number
            s[13] = v[2, select & 63]

        yield LaneForm(f"lane #{number}", assemble("VOP3", "V_READLANE_B32", vdst=13, src0=258, src1=number), predict)


def _write_lane() -> Iterator[LaneForm]:
    for value in (21, M0, 193, EXEC):
        for number in (20, 128, 161, 191):

            def predict(v: Words, s: Words, value: int = value, number: int = number) -> None:
                select = int(s[number]) if number < 128 else number - 128
                v[10, select & 63] = s[value] if value < 128 else 0xFFFFFFFF

            words = assemble("VOP3", "V_WRITELANE_B32", vdst=10, src0=value, src1=number)
            yield LaneForm(f"#{value} to lane #{number}", words, predict)


def _swap_rows() -> Iterator[LaneForm]:
    def predict16(v: Words, s: Words) -> None:
        for half in (0, 32):
            for lane in range(half, half + 16):
                v[2, lane], v[10, lane + 16] = int(v[10, lane + 16]), int(v[2, lane])

    yield LaneForm("", assemble("VOP1", "V_PERMLANE16_SWAP_B32", vdst=10, src0=258), predict16)


def _swap_halves() -> Iterator[LaneForm]:
    def predict32(v: Words, s: Words) -> None:
        for lane in range(32):
            v[2, lane], v[10, lane + 32] = int(v[10, lane + 32]), int(v[2, lane])

    yield LaneForm("", assemble("VOP1", "V_PERMLANE32_SWAP_B32", vdst=10, src0=258), predict32)


def _swap_registers() -> Iterator[LaneForm]:
    for source in (2, 10):

        def predict(v: Words, s: Words, source: int = source) -> None:
            for lane in range(64):
                if _exec(s) >> lane & 1:
                    v[source, lane], v[10, lane] = int(v[10, lane]), int(v[source, lane])

        yield LaneForm(f"v{source}", assemble("VOP1", "V_SWAP_B32", vdst=10, src0=256 + source), predict)


def _accumulator(mnemonic: str) -> Iterator[LaneForm]:
    """AccVGPR n is row VGPRS + n of the state."""
    cases = {
        "V_ACCVGPR_READ": [(10, lambda v, s, lane: v[VGPRS + 2, lane], 258)],
        "V_ACCVGPR_WRITE": [
            (VGPRS + 3, lambda v, s, lane: v[2, lane], 258),
            (VGPRS + 3, lambda v, s, lane: 33, 161),
        ],
        "V_ACCVGPR_MOV_B32": [(VGPRS + 3, lambda v, s, lane: v[VGPRS + 2, lane], 258)],
    }
    for row, value, number in cases[mnemonic]:

        def predict(v: Words, s: Words, row: int = row, value: Callable[..., int] = value) -> None:
            for lane in range(64):
                if _exec(s) >> lane & 1:
                    v[row, lane] = value(v, s, lane)

        format = "VOP1" if mnemonic == "V_ACCVGPR_MOV_B32" else "VOP3P"
        vdst = row - VGPRS if row >= VGPRS else row
        yield LaneForm(f"#{number}", assemble(format, mnemonic, vdst=vdst, src0=number), predict)


FORMS: dict[str, Callable[[], Iterator[LaneForm]]] = {
    "V_READFIRSTLANE_B32": _read_first_lane,
    "V_READLANE_B32": _read_lane,
    "V_WRITELANE_B32": _write_lane,
    "V_PERMLANE16_SWAP_B32": _swap_rows,
    "V_PERMLANE32_SWAP_B32": _swap_halves,
    "V_SWAP_B32": _swap_registers,
    **{
        name: lambda name=name: _accumulator(name)  # type: ignore[misc]
        for name in ("V_ACCVGPR_READ", "V_ACCVGPR_WRITE", "V_ACCVGPR_MOV_B32")
    },
}
"""Forms of each mnemonic that this module has a reference for."""


def trials(mnemonic: str) -> list[Fault]:
    """Differences over all forms and EXEC masks."""
    found = []
    for seed, form in enumerate(FORMS[mnemonic]()):
        for masks in EXEC_MASKS:
            found += trial(mnemonic, form, masks, seed)
    return found


def trial(mnemonic: str, form: LaneForm, masks: str, seed: int) -> list[Fault]:
    """Execute one form on random waves; differences from the prediction in any register."""
    state = random_state(np.random.default_rng(seed), EXEC_MASKS[masks])
    context = Context(vgprs=VGPRS, accvgprs=4)
    group = Group(state, FIRST, LAST, 0, context)
    v, s, scc = state.v.copy(), state.s.copy(), state.scc.copy()
    label = f"{mnemonic} {form.label}, EXEC {masks}"
    for slot in range(FIRST, LAST):
        form.predict(v[:, slot], s[slot])
    try:
        (instruction,) = instructions(form.words)
        build_step(instruction, context)(group)
    except Exception as error:
        return [Fault(label, f"{type(error).__name__}: {error}")]
    return differences(label, group, v, s, scc)
