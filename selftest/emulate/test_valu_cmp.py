"""Comparisons of all types: the lane mask, to VCC or a scalar pair, to EXEC for V_CMPX, 0 outside EXEC."""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from waveproof.kernels.runtimes.emulate.registry import Context
from waveproof.selftest.emulate import scalar_floats as sf
from waveproof.selftest.emulate.assembler import assemble, formats
from waveproof.selftest.emulate.float_trial import EXEC_MASKS, MODES, specials, width
from waveproof.selftest.emulate.single_step import bare_group, execute, set_exec

VCC, EXEC = 106, 126
KINDS = ("i16", "u16", "i32", "u32", "i64", "u64", "f16", "f32", "f64")
RELATIONS = {
    "integer": {
        "F": "", "LT": "<", "EQ": "=", "LE": "<=", "GT": ">", "NE": "<>", "GE": ">=", "T": "<=>",
    },
    "float": {
        "F": "", "LT": "<", "EQ": "=", "LE": "<=", "GT": ">", "LG": "<>", "GE": ">=", "O": "<=>", "U": "?",
        "NGE": "<?", "NLG": "=?", "NGT": "<=?", "NLE": ">?", "NEQ": "<>?", "NLT": ">=?", "TRU": "<=>?",
    },
}  # fmt: skip
"""Which outcomes of comparing S0 with S1 make the bit 1: less, equal, greater, unordered (CDNA3 ISA, table "VOPC")."""


def outcome(a: int, b: int, kind: str) -> str:
    """``<``, ``=``, ``>`` or ``?`` of two bit patterns."""
    bits = width(kind)
    if kind[0] != "f":
        if kind[0] == "i":
            a, b = (x - (x >> (bits - 1) << bits) for x in (a, b))
        return "<" if a < b else "=" if a == b else ">"
    form = sf.FORMS[kind]
    if sf.is_nan(a, form) or sf.is_nan(b, form):
        return "?"
    # Infinities as numbers beyond all others.
    x, y = (
        Fraction((-1) ** sf.negative(n, form) * 2**2000) if sf.is_infinite(n, form) else sf.value(n, form)
        for n in (a, b)
    )
    return "<" if x < y else "=" if x == y else ">"


@functools.cache
def operands(kind: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Operands of 256 lanes: all pairs of sixteen patterns."""
    integers = [0, 1, 2, 3, -1, -2, 5, 1 << (width(kind) - 1), (1 << (width(kind) - 1)) - 1, 100, 0x1234, -100, 7, 8]
    mask = (1 << width(kind)) - 1
    values = (
        specials(kind)[:13] + specials(kind)[-3:] if kind[0] == "f" else tuple(n & mask for n in [*integers, 16, -9])
    )
    return tuple(values[lane % 16] for lane in range(256)), tuple(values[lane // 16] for lane in range(256))


def put(cells: np.ndarray, row: int, kind: str, values: tuple[int, ...]) -> None:
    """Into a register; the rest of it is noise."""
    table = np.array(values, np.uint64).reshape(4, 64)
    if width(kind) == 16:
        cells[row] = table.astype(np.uint32) | np.uint32(0x3C010000)
        return
    for at in range(width(kind) // 32):
        cells[row + at] = (table >> np.uint64(32 * at)).astype(np.uint32)


def bits_of(lanes: list[bool]) -> list[int]:
    """Lane masks of four waves."""
    return [sum(lanes[64 * wave + lane] << lane for lane in range(64)) for wave in range(4)]


def check(
    mnemonic: str, kind: str, second: str, expected: Callable[[int, int], bool], mode: str, mask: int,
    values: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:  # fmt: skip
    """Run the 32- and the 64-bit encoding and compare the mask, EXEC and everything else."""
    exec_too = "CMPX" in mnemonic
    for format in ("VOPC", "VOP3"):
        assert format in formats(mnemonic)
        group = bare_group(Context(vgprs=8, accvgprs=1, **MODES[mode]), waves=4)  # type: ignore[arg-type]
        put(group.state.v, 2, kind, values[0])
        put(group.state.v, 4, second, values[1])
        set_exec(group, mask)
        vectors, scalars = group.state.v.copy(), group.state.s.copy()
        words = (
            assemble("VOPC", mnemonic, src0=258, vsrc1=4)
            if format == "VOPC"
            else assemble("VOP3", mnemonic, vdst=40, src0=258, src1=260)
        )
        execute(group, *words)
        lanes = [bool(mask >> lane % 64 & 1) and expected(*pair) for lane, pair in enumerate(zip(*values, strict=True))]
        for wave, bits in enumerate(bits_of(lanes)):
            for number in [VCC if format == "VOPC" else 40] + [EXEC] * exec_too:
                scalars[wave, number], scalars[wave, number + 1] = bits & 0xFFFFFFFF, bits >> 32
        assert (group.state.s == scalars).all(), (mnemonic, format)
        assert (group.state.v == vectors).all()
        live = np.array(lanes).reshape(4, 64) if exec_too else np.array([mask >> n & 1 for n in range(64)], bool)
        assert (group.mask == live).all()


@pytest.mark.parametrize("masks", EXEC_MASKS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", ["V_CMP", "V_CMPX"])
def test_all_relations(prefix: str, kind: str, masks: str) -> None:
    for name, outcomes in RELATIONS["float" if kind[0] == "f" else "integer"].items():

        def expected(a: int, b: int, outcomes: str = outcomes) -> bool:
            return outcome(a, b, kind) in outcomes

        check(
            f"{prefix}_{name}_{kind.upper()}", kind, kind,
            expected, "keep", EXEC_MASKS[masks], operands(kind),
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_denormals_compare_as_zeros_where_mode_flushes_them(kind: str) -> None:
    form = sf.FORMS[kind]

    def equal(a: int, b: int) -> bool:
        a, b = (x & form.sign if sf.is_denormal(x, form) else x for x in (a, b))
        return outcome(a, b, kind) == "="

    check(f"V_CMP_EQ_{kind.upper()}", kind, kind, equal, "flush", EXEC_MASKS["full"], operands(kind))


def class_of(bits: int, form: sf.Form) -> int:
    """Number of the class's bit in S1 (CDNA3 ISA, V_CMP_CLASS_F32)."""
    if sf.is_nan(bits, form):
        return 0 if sf.is_signalling(bits, form) else 1
    order = 0 if sf.is_infinite(bits, form) else 2 if sf.is_denormal(bits, form) else 3 if sf.is_zero(bits, form) else 1
    return 2 + order if sf.negative(bits, form) else 9 - order


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
@pytest.mark.parametrize("prefix", ["V_CMP", "V_CMPX"])
def test_class(prefix: str, kind: str, mode: str) -> None:
    form = sf.FORMS[kind]
    classes = {class_of(bits, form): bits for bits in specials(kind)}
    assert set(classes) == set(range(10))
    first = tuple(classes[lane % 16] if lane % 16 < 10 else specials(kind)[lane % 16] for lane in range(256))
    second = tuple(1 << lane // 16 if lane < 160 else (lane * 77) & 0x3FF for lane in range(256))
    expected = lambda a, b: bool(b >> class_of(a, form) & 1)  # noqa: E731
    check(f"{prefix}_CLASS_{kind.upper()}", kind, "b32", expected, mode, EXEC_MASKS["partial"], (first, second))


def test_operand_modifiers_and_constants() -> None:
    group = bare_group()
    group.vf[2][:] = np.linspace(-3, 3, 64, dtype=np.float32)
    # |v2| > -(-1.0); v2 < 0.5 with the constant first; v2 <= literal
    execute(group, *assemble("VOP3", "V_CMP_GT_F32", vdst=40, src0=258, src1=243, abs=1, neg=2))
    execute(group, *assemble("VOPC", "V_CMP_GT_F32", src0=240, vsrc1=2))
    assert (group.lane_mask(40)[0] == (np.abs(group.vf[2][0]) > 1)).all()
    assert (group.lane_mask(VCC)[0] == (group.vf[2][0] < 0.5)).all()
    execute(group, *assemble("VOPC", "V_CMP_GE_F32", src0=255, vsrc1=2, literal=0x40100000))
    assert (group.lane_mask(VCC)[0] == (group.vf[2][0] <= 2.25)).all()


def test_cmpx_with_exec_as_destination_of_a_comparison_of_exec() -> None:
    group = bare_group()
    group.v[2][:] = np.arange(64)
    execute(group, *assemble("VOP3", "V_CMPX_GT_U32", vdst=EXEC, src0=258, src1=128 + 40))
    assert int(group.s64[63][0, 0]) == ((1 << 64) - 1) >> 41 << 41
    execute(group, *assemble("VOPC", "V_CMPX_GT_U32", src0=128 + 50, vsrc1=2))
    assert int(group.s64[63][0, 0]) == ((1 << 50) - 1) >> 41 << 41
