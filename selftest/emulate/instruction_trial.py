"""Try one form of an instruction against the pseudocode on whole register files: every cell must be as predicted.

The state has five waves, three of which execute the instruction: what it does to the other two, and to every register
that it does not name, must be nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from waveproof.kernels.runtimes.emulate.registers import Group, State
from waveproof.kernels.runtimes.emulate.registry import Context, build_step
from waveproof.selftest.emulate.instruction_forms import EXEC, Form
from waveproof.selftest.emulate.instruction_reference import VGPRS, ScalarReference, VectorReference, Words
from waveproof.selftest.emulate.single_step import instructions

WAVES, FIRST, LAST = 5, 1, 4

_INTEGERS = (
    0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFF, 0x800000, 0xFFFFFF,
    0x00200010, 0x001F0000, 0x0040003F, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 0x0C0D0B08,
)  # fmt: skip
_PAIRS = ((0, 0), (0, 1), (1, 0), (0, 0x80000000), (0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0), (0, 0xFFFFFFFF), (1, 1))
"""Low and high word."""
_FLOATS = (
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x3F800000, 0xBF800000,
    0x3F800001, 0x34000000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7FA00000,
    0xFF812345, 0x40490FDB, 0x4B800000, 0x3C003C00, 0x7C007BFF, 0x80018000, 0xFE00FC00,
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A difference between emulator and reference."""

    form: str
    what: str

    def __str__(self) -> str:
        return f"{self.form}: {self.what}"


def random_words(rng: np.random.Generator, shape: tuple[int, ...], floats: bool = False) -> Words:
    """Half edge cases, a quarter uniform bits, a quarter small or equal-looking numbers."""
    edges = np.array(_FLOATS + _INTEGERS[:4] if floats else _INTEGERS + _FLOATS[:4], np.uint32)
    uniform = rng.integers(0, 1 << 32, shape, np.uint32)
    small = (uniform & np.uint32(63)) if not floats else (uniform & np.uint32(0x83FFFFFF)) + np.uint32(0x3E000000)
    choice = rng.integers(0, 4, shape)
    return np.where(choice < 2, edges[rng.integers(0, len(edges), shape)], np.where(choice == 2, uniform, small))


EXEC_MASKS: dict[str, tuple[int, int, int]] = {
    "full": (0xFFFFFFFFFFFFFFFF,) * 3,
    "partial": (0x5A5A_0F0F_8001_F3C5, 0, 0x8000_0000_0000_0000),
    "mixed": (0xFFFFFFFFFFFFFFFF, 0x0000_FFFF_0001_0000, 0x1),
}
"""EXEC of the three waves."""


def random_state(rng: np.random.Generator, exec_masks: tuple[int, int, int], floats: bool = False) -> State:
    """Five waves in shuffled slots, all registers random, EXEC of slots 1..3 as given."""
    state = State(WAVES, VGPRS, 4)
    state.v[:] = random_words(rng, state.v.shape, floats)
    state.s[:] = random_words(rng, state.s.shape, floats)
    # Pairs that differ in one half only, or are zero there: 64-bit scalars meet few of them by chance.
    for register in (20, 22):
        chosen = np.array(_PAIRS, np.uint32)[rng.integers(0, len(_PAIRS), WAVES)]
        state.s[:, register : register + 2] = np.where(
            rng.random((WAVES, 1)) < 0.5, chosen, state.s[:, register : register + 2]
        )
    state.scc[:] = rng.integers(0, 2, state.scc.shape)
    state.permute(0, np.array([4, 2, 0, 3, 1]))
    for slot, mask in zip(range(FIRST, LAST), exec_masks, strict=True):
        state.s[slot, EXEC], state.s[slot, EXEC + 1] = mask & 0xFFFFFFFF, mask >> 32
    return state


def trial(form: Form, masks: str, seed: int, context: Context | None = None) -> list[Fault]:
    """Execute a form on random waves and compare all registers of all waves with the prediction."""
    context = context or Context(vgprs=VGPRS, accvgprs=4)
    floats = any(kind[0] in "fp" for kind in form.kinds)
    state = random_state(np.random.default_rng(seed), EXEC_MASKS[masks], floats)
    group = Group(state, FIRST, LAST, 0, context)
    v, s, scc = state.v.copy(), state.s.copy(), state.scc.copy()
    try:
        (instruction,) = instructions(form.words)
        with np.errstate(all="ignore"):
            build_step(instruction, context)(group)
    except Exception as error:
        return [Fault(f"{form.mnemonic} {form.label}", f"{type(error).__name__}: {error}")]
    vector = form.mnemonic.startswith("V_")
    for slot in range(FIRST, LAST):
        if vector:
            rows, scalars = VectorReference(form, context).wave(v[:, slot].copy(), s[slot].copy())
            for number, row in rows.items():
                v[number, slot] = row
        else:
            scalars, scc[slot, 0] = ScalarReference(form, context).wave(s[slot].copy(), bool(scc[slot, 0]))
        for number, word in scalars.items():
            s[slot, number] = word
    label = f"{form.mnemonic} {form.label}, EXEC {masks}"
    if form.result[:1] in ("f", "p"):
        width = int(form.result[1:]) // (2 if form.result[0] == "p" else 1)
        for registers in (v, state.v):
            _one_nan(registers[form.destination : form.destination + max(1, int(form.result[1:]) // 32)], width)
    return differences(label, group, v, s, scc)


def _one_nan(rows: Words, width: int) -> None:
    """Make all NaNs the same one: which NaN arithmetic gives is not specified."""
    if width == 64:
        pairs = np.ascontiguousarray(np.moveaxis(rows, 0, -1)).view(np.float64)[..., 0]
        rows[:, np.isnan(pairs)] = np.array([[0], [0x7FF80000]], np.uint32)
        return
    if width == 16:
        rows.view(np.uint16)[np.isnan(rows.view(np.float16))] = 0x7E00
    else:
        rows[np.isnan(rows.view(np.float32))] = 0x7FC00000


def differences(label: str, group: Group, v: Words, s: Words, scc: npt.NDArray[np.bool_]) -> list[Fault]:
    """Where the registers of all waves differ from ``v``, ``s`` and ``scc``.

    Args:
        label: what was executed.
        group: the waves that executed it; its state is compared whole.
        v: expected vector registers [rows, slots, 64].
        s: expected scalar registers [slots, 128].
        scc: expected SCC [slots, 1].
    """
    state, found = group.state, []
    differs = state.v != v
    if differs.any():
        row, slot, lane = (int(x[0]) for x in np.nonzero(differs))
        got, expected = int(state.v[row, slot, lane]), int(v[row, slot, lane])
        cells = int(differs.sum())
        found.append(f"v{row} of slot {slot} lane {lane} is {got:#x}, expected {expected:#x} ({cells} cells)")
    if (state.s != s).any():
        slot, number = (int(x[0]) for x in np.nonzero(state.s != s))
        found.append(f"s{number} of slot {slot} is {state.s[slot, number]:#x}, expected {s[slot, number]:#x}")
    if (state.scc != scc).any():
        found.append(f"SCC is {state.scc[:, 0].tolist()}, expected {scc[:, 0].tolist()}")
    words = state.s[group.first : group.last, EXEC : EXEC + 2].tolist()
    live = [[bool(pair[lane // 32] >> lane % 32 & 1) for lane in range(64)] for pair in words]
    if group.mask.tolist() != live or group.full != all(map(all, live)):
        found.append("the group's lane mask is not what EXEC says")
    return [Fault(label, what) for what in found]
