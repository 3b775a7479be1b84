"""Where one element goes: DPP controls and SDWA selectors, one lane or byte set at a time, against tables typed in."""

from __future__ import annotations

import numpy as np
import pytest

from waveproof.kernels.runtimes.emulate.registry import Context
from waveproof.selftest.emulate.assembler import assemble
from waveproof.selftest.emulate.single_step import bare_group, execute, set_exec

_ROW: dict[str, list[int | None]] = {
    "shl 1": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, None],
    "shl 15": [15] + [None] * 15,
    "shl 4": [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, None, None, None, None],
    "shr 1": [None, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
    "shr 8": [None] * 8 + [0, 1, 2, 3, 4, 5, 6, 7],
    "shr 15": [None] * 15 + [0],
    "ror 1": [15, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
    "ror 4": [12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    "ror 15": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0],
    "mirror": [15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0],
    "half mirror": [7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8],
    "newbcast 0": [0] * 16,
    "newbcast 9": [9] * 16,
    "newbcast 15": [15] * 16,
    "quad 3210": [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12],
    "quad 0000": [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12],
    "quad 1032": [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14],
    "quad 2301": [2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13],
    "quad 3012": [3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14],
}  # fmt: skip
_ROW_CONTROLS = {
    "shl 1": 0x101, "shl 15": 0x10F, "shl 4": 0x104, "shr 1": 0x111, "shr 8": 0x118, "shr 15": 0x11F, "ror 1": 0x121,
    "ror 4": 0x124, "ror 15": 0x12F, "mirror": 0x140, "half mirror": 0x141, "newbcast 0": 0x150, "newbcast 9": 0x159,
    "newbcast 15": 0x15F, "quad 3210": 0b00_01_10_11, "quad 0000": 0, "quad 1032": 0b10_11_00_01,
    "quad 2301": 0b01_00_11_10, "quad 3012": 0b10_01_00_11,
}  # fmt: skip


def _rows(pattern: list[int | None]) -> list[int | None]:
    return [None if c is None else 16 * row + c for row in range(4) for c in pattern]


SOURCES: dict[int, list[int | None]] = {
    **{control: _rows(_ROW[name]) for name, control in _ROW_CONTROLS.items()},
    0x130: [*range(1, 64), None],
    0x134: [*range(1, 64), 0],
    0x138: [None, *range(63)],
    0x13C: [63, *range(63)],
    0x142: [None] * 16 + [15] * 16 + [31] * 16 + [47] * 16,
    0x143: [None] * 32 + [31] * 32,
}
"""For DPP_CTRL, the lane that each of 64 lanes reads (CDNA3 ISA, table "DPP_CTRL")."""


@pytest.mark.parametrize("control", SOURCES, ids=hex)
@pytest.mark.parametrize("bound_control", [0, 1])
def test_one_lane_set_lands_where_the_table_says(control: int, bound_control: int) -> None:
    words = assemble("VOP1", "V_MOV_B32", vdst=3, dpp={"vsrc0": 2, "ctrl": control, "bound_ctrl": bound_control})
    for lane in range(64):
        group = bare_group(Context(vgprs=8, accvgprs=4))
        group.v[2][:] = 0
        group.v[2][0, lane] = 0xABCD1234
        group.v[3][:] = 7
        execute(group, *words)
        expected = [
            (0 if bound_control else 7) if source is None else 0xABCD1234 if source == lane else 0
            for source in SOURCES[control]
        ]
        assert group.v[3][0].tolist() == expected, f"lane {lane}"


@pytest.mark.parametrize("control", [0x101, 0x111, 0x121, 0x140, 0x142, 0x1B], ids=hex)
@pytest.mark.parametrize("bound_control", [0, 1])
@pytest.mark.parametrize("off", [0, 15, 16, 40, 63])
def test_a_source_lane_out_of_exec_is_no_source(control: int, bound_control: int, off: int) -> None:
    group = bare_group(Context(vgprs=8, accvgprs=4))
    group.v[2][:] = np.arange(64) + 100
    group.v[3][:] = 7
    set_exec(group, ((1 << 64) - 1) & ~(1 << off))
    words = assemble("VOP1", "V_MOV_B32", vdst=3, dpp={"vsrc0": 2, "ctrl": control, "bound_ctrl": bound_control})
    execute(group, *words)
    for lane, source in enumerate(SOURCES[control]):
        value = (0 if bound_control else 7) if source in (None, off) else source + 100
        assert group.v[3][0, lane] == (7 if lane == off else value), f"lane {lane}"


@pytest.mark.parametrize("row_mask", [1, 2, 4, 8, 0xA])
@pytest.mark.parametrize("bank_mask", [1, 2, 4, 8, 0x5])
def test_row_and_bank_masks_keep_lanes_out(row_mask: int, bank_mask: int) -> None:
    group = bare_group(Context(vgprs=8, accvgprs=4))
    group.v[2][:] = 5
    group.v[3][:] = 7
    dpp = {"vsrc0": 2, "ctrl": 0x121, "row_mask": row_mask, "bank_mask": bank_mask}
    execute(group, *assemble("VOP1", "V_MOV_B32", vdst=3, dpp=dpp))
    rows = [row for row in range(4) if row_mask & 1 << row]
    banks = [bank for bank in range(4) if bank_mask & 1 << bank]
    written = {16 * row + 4 * bank + lane for row in rows for bank in banks for lane in range(4)}
    assert {int(lane) for lane in np.flatnonzero(group.v[3][0] == 5)} == written


def test_only_the_first_source_is_permuted() -> None:
    group = bare_group(Context(vgprs=8, accvgprs=4))
    group.v[2][:] = np.arange(64)
    group.v[4][:] = np.arange(64) * 1000
    execute(group, *assemble("VOP2", "V_ADD_U32", vdst=2, vsrc1=4, dpp={"vsrc0": 2, "ctrl": 0x140}))
    assert group.v[2][0].tolist() == [16 * (lane // 16) + 15 - lane % 16 + 1000 * lane for lane in range(64)]


_WORD = 0x84_73_F2_91
SELECTED = {
    (0, 0): 0x00000091, (1, 0): 0x000000F2, (2, 0): 0x00000073, (3, 0): 0x00000084, (4, 0): 0x0000F291,
    (5, 0): 0x00008473, (6, 0): 0x8473F291, (0, 1): 0xFFFFFF91, (1, 1): 0xFFFFFFF2, (2, 1): 0x00000073,
    (3, 1): 0xFFFFFF84, (4, 1): 0xFFFFF291, (5, 1): 0xFFFF8473, (6, 1): 0x8473F291,
}  # fmt: skip
"""What SDWA makes of 0x8473f291 as a source: by selector (bytes 0-3, halves, all) and sign extension."""

PLACED = {
    (0, 0): 0x00000091, (1, 0): 0x00009100, (2, 0): 0x00910000, (3, 0): 0x91000000, (4, 0): 0x0000F291,
    (5, 0): 0xF2910000, (6, 0): 0x8473F291, (0, 1): 0xFFFFFF91, (1, 1): 0xFFFF9100, (2, 1): 0xFF910000,
    (3, 1): 0x91000000, (4, 1): 0xFFFFF291, (5, 1): 0xF2910000, (6, 1): 0x8473F291, (0, 2): 0x11223391,
    (1, 2): 0x11229144, (2, 2): 0x11913344, (3, 2): 0x91223344, (4, 2): 0x1122F291, (5, 2): 0xF2913344,
    (6, 2): 0x8473F291,
}  # fmt: skip
"""A register that held 0x11223344 after an SDWA result of 0x8473f291: by selector and DST_UNUSED (0 zeros, 1 sign
extension above, 2 kept)."""


@pytest.mark.parametrize(("select", "extend"), SELECTED)
@pytest.mark.parametrize("at", [0, 1])
def test_source_selectors(select: int, extend: int, at: int) -> None:
    group = bare_group(Context(vgprs=8, accvgprs=4))
    group.v[2 + at][:] = _WORD
    group.v[3 - at][:] = 0
    sdwa = {"vsrc0": 2, f"src{at}_sel": select, f"src{at}_sext": extend}
    execute(group, *assemble("VOP2", "V_OR_B32", vdst=4, vsrc1=3, sdwa=sdwa))
    assert set(group.v[4][0].tolist()) == {SELECTED[select, extend]}


@pytest.mark.parametrize(("select", "unused"), PLACED)
def test_destination_selectors(select: int, unused: int) -> None:
    group = bare_group(Context(vgprs=8, accvgprs=4))
    group.v[2][:] = _WORD
    group.v[4][:] = 0x11223344
    set_exec(group, 0xFFFF)
    sdwa = {"vsrc0": 2, "dst_sel": select, "dst_unused": unused}
    execute(group, *assemble("VOP1", "V_MOV_B32", vdst=4, sdwa=sdwa))
    assert group.v[4][0].tolist() == [PLACED[select, unused]] * 16 + [0x11223344] * 48
