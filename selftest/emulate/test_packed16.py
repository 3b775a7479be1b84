"""Packed 16-bit arithmetic, dot products and mixed-precision multiply-add, lane by lane."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.registry import Context, build_step
from waveproof.selftest.emulate import scalar_floats as sf
from waveproof.selftest.emulate.assembler import assemble
from waveproof.selftest.emulate.float_trial import EXEC_MASKS, MODES, specials
from waveproof.selftest.emulate.single_step import bare_group, execute, instructions, set_exec

HALF, SINGLE = sf.FORMS["f16"], sf.FORMS["f32"]
Function = Callable[..., int]


def signed(bits: int, width: int = 16) -> int:
    """Two's complement."""
    bits &= (1 << width) - 1
    return bits - (bits >> (width - 1) << width)


def extreme(which: Callable[..., int], sign: bool) -> Function:
    return lambda a, b: which(a, b, key=signed if sign else int)


FLOATS: dict[str, tuple[int, Function]] = {
    "V_PK_ADD_F16": (2, functools.partial(sf.add, form=HALF)),
    "V_PK_MUL_F16": (2, functools.partial(sf.multiply, form=HALF)),
    "V_PK_FMA_F16": (3, functools.partial(sf.fma, form=HALF)),
    "V_PK_MIN_F16": (2, functools.partial(sf.smaller, form=HALF, ieee=True)),
    "V_PK_MAX_F16": (2, functools.partial(sf.smaller, form=HALF, ieee=True, greater=True)),
}
INTEGERS: dict[str, tuple[int, Function]] = {
    "V_PK_ADD_I16": (2, lambda a, b: signed(a) + signed(b)),
    "V_PK_SUB_I16": (2, lambda a, b: signed(a) - signed(b)),
    "V_PK_MAD_I16": (3, lambda a, b, c: signed(a) * signed(b) + signed(c)),
    "V_PK_ADD_U16": (2, lambda a, b: a + b),
    "V_PK_SUB_U16": (2, lambda a, b: a - b),
    "V_PK_MAD_U16": (3, lambda a, b, c: a * b + c),
    "V_PK_MUL_LO_U16": (2, lambda a, b: a * b),
    "V_PK_MIN_I16": (2, extreme(min, True)),
    "V_PK_MAX_I16": (2, extreme(max, True)),
    "V_PK_MIN_U16": (2, extreme(min, False)),
    "V_PK_MAX_U16": (2, extreme(max, False)),
    "V_PK_LSHLREV_B16": (2, lambda a, b: b << (a & 15)),
    "V_PK_LSHRREV_B16": (2, lambda a, b: b >> (a & 15)),
    "V_PK_ASHRREV_I16": (2, lambda a, b: signed(b) >> (a & 15)),
}
SATURATING = ("V_PK_ADD_I16", "V_PK_SUB_I16", "V_PK_MAD_I16", "V_PK_ADD_U16", "V_PK_SUB_U16", "V_PK_MAD_U16")


def words_of(values: tuple[int, ...], seed: int) -> np.ndarray:
    """64 lanes of two telling halves each."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(values), (2, 64))
    table = np.array(values, np.uint32)
    return table[picks[0]] | table[picks[1]] << np.uint32(16)


def run(mnemonic: str, count: int, function: Function, values: tuple[int, ...], masks: str, context: Context,
        finish: Callable[[int], int], flush: bool = False, vdst: int = 10, **fields: Any) -> None:  # fmt: skip
    """Execute with the given fields and compare both halves of every lane."""
    group = bare_group(context)
    sources = [words_of(values, seed) for seed in range(count)]
    for at, words in enumerate(sources):
        group.v[2 + 2 * at][0] = words
    old = group.v[vdst][0].copy()
    set_exec(group, EXEC_MASKS[masks])
    select: dict[str, Any] = {"opsel": 0, "opsel_hi": 3, "opsel_hi2": 1, **fields}
    registers: dict[str, Any] = {name: 258 + 2 * at for at, name in enumerate(("src0", "src1", "src2")[:count])}
    execute(group, *assemble("VOP3P", mnemonic, vdst=vdst, **registers, **select))
    high = select["opsel_hi"] | select["opsel_hi2"] << 2
    for lane in range(64):
        expected = int(old[lane])
        if EXEC_MASKS[masks] >> lane & 1:
            parts = []
            for chosen, negated in ((select["opsel"], fields.get("neg", 0)), (high, fields.get("neg_hi", 0))):
                operands = [int(words[lane]) >> 16 * (chosen >> at & 1) & 0xFFFF for at, words in enumerate(sources)]
                operands = [x ^ (negated >> at & 1) << 15 for at, x in enumerate(operands)]
                if flush:
                    operands = [x & 0x8000 if sf.is_denormal(x, HALF) else x for x in operands]
                parts.append(finish(function(*operands)) & 0xFFFF)
            expected = parts[0] | parts[1] << 16
        got = int(group.v[vdst][0, lane])
        for shift in (0, 16):
            a, b = got >> shift & 0xFFFF, expected >> shift & 0xFFFF
            both_nan = mnemonic in FLOATS and sf.is_nan(a, HALF) and sf.is_nan(b, HALF)
            assert a == b or both_nan, (mnemonic, fields, lane, hex(got), hex(expected))


SELECTIONS: list[dict[str, Any]] = [
    {}, {"opsel": 1, "opsel_hi": 2}, {"opsel": 7, "opsel_hi": 0, "opsel_hi2": 0}, {"opsel": 4, "opsel_hi2": 0},
    {"vdst": 2}, {"vdst": 4, "opsel": 2},
]  # fmt: skip


@pytest.mark.parametrize("masks", EXEC_MASKS)
@pytest.mark.parametrize("mnemonic", INTEGERS)
def test_integers(mnemonic: str, masks: str) -> None:
    count, function = INTEGERS[mnemonic]
    values = (*specials("i16"), 0x1234, 0xFFF0)
    for fields in SELECTIONS:
        if count == 2:
            fields = {name: value & 3 if name == "opsel" else value for name, value in fields.items()}
        run(mnemonic, count, function, values, masks, Context(), lambda n: n, **fields)
    if mnemonic in SATURATING:
        low, high = (-0x8000, 0x7FFF) if mnemonic.endswith("I16") else (0, 0xFFFF)
        run(mnemonic, count, function, values, masks, Context(), lambda n: min(max(n, low), high), clamp=1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mnemonic", FLOATS)
def test_halves(mnemonic: str, mode: str) -> None:
    count, function = FLOATS[mnemonic]
    if mnemonic in ("V_PK_MIN_F16", "V_PK_MAX_F16"):
        function = functools.partial(function, ieee=MODES[mode]["ieee"])
    flush = mode == "flush"

    def finish(bits: int) -> int:
        return bits & 0x8000 if flush and sf.is_denormal(bits, HALF) else bits

    def clamp(bits: int) -> int:
        return 0 if sf.is_nan(bits, HALF) or bits >> 15 else min(finish(bits), 0x3C00)

    context = Context(**MODES[mode])  # type: ignore[arg-type]
    for fields in [*SELECTIONS, {"neg": 1, "neg_hi": 2}, {"neg": 6, "neg_hi": 7, "opsel": 1}]:
        if count == 2:
            fields = {n: v & 3 if n in ("opsel", "neg", "neg_hi") else v for n, v in fields.items()}
        run(mnemonic, count, function, specials("f16"), "partial", context, finish, flush, **fields)
    run(mnemonic, count, function, specials("f16"), "full", context, clamp, flush, clamp=1)


@pytest.mark.parametrize(("name", "greater"), [("MINIMUM", False), ("MAXIMUM", True)])
def test_propagating_minimum_and_maximum(name: str, greater: bool) -> None:
    def three(a: int, b: int, c: int, *, form: sf.Form) -> int:
        if any(sf.is_nan(x, form) for x in (a, b, c)):
            return form.nan
        return sf.smaller(sf.smaller(a, b, form, False, greater), c, form, False, greater)

    FLOATS[f"V_PK_{name}3_F16"] = (3, functools.partial(three, form=HALF))
    try:
        half = functools.partial(three, form=HALF)
        run(f"V_PK_{name}3_F16", 3, half, specials("f16"), "partial", Context(), lambda bits: bits)
    finally:
        del FLOATS[f"V_PK_{name}3_F16"]
    group = bare_group()
    rows = [np.random.default_rng(n).choice(np.array(specials("f32"), np.uint32), 64) for n in range(3)]
    for at, row in enumerate(rows):
        group.v[2 + 2 * at][0] = row
    execute(group, *assemble("VOP3", f"V_{name}3_F32", vdst=10, src0=258, src1=260, src2=262))
    for lane in range(64):
        got, expected = (
            int(group.v[10][0, lane]),
            three(int(rows[0][lane]), int(rows[1][lane]), int(rows[2][lane]), form=SINGLE),
        )
        assert got == expected or (sf.is_nan(got, SINGLE) and sf.is_nan(expected, SINGLE))


@pytest.mark.parametrize(
    ("number", "kind", "low", "high"),
    [(245, "F16", 0xC000, 0), (129, "F16", 1, 0), (193, "F16", 0xFFFF, 0xFFFF), (248, "F16", 0x3118, 0),
     (193, "U16", 0xFFFF, 0xFFFF), (192, "U16", 64, 0), (245, "U16", 0, 0xC000), (248, "U16", 0xF983, 0x3E22)],
)  # fmt: skip
def test_halves_of_inline_constants(number: int, kind: str, low: int, high: int) -> None:
    """LLVM, AMDGPUBaseInfo.cpp, getInlineEncodingV216."""
    group = bare_group()
    group.v[4][:] = 0 if kind == "U16" else 0x80008000  # -0 is neutral, +0 would hide the sign of nothing here
    mnemonic = f"V_PK_ADD_{kind}"
    execute(group, *assemble("VOP3P", mnemonic, vdst=10, src0=number, src1=260, opsel_hi=3))
    execute(group, *assemble("VOP3P", mnemonic, vdst=11, src0=number, src1=260, opsel=1, opsel_hi=2))
    quiet = 0xFFFF if kind == "F16" else 0
    for row, (first, second) in ((10, (low, high)), (11, (high, low))):
        for shift, expected in ((0, first), (16, second)):
            got = int(group.v[row][0, 7]) >> shift & 0xFFFF
            assert got == expected or (expected == quiet and sf.is_nan(got, HALF))


def test_scalar_source_has_halves() -> None:
    group = bare_group()
    group.s[20][:] = 0x00050007
    group.v[4][:] = 0x01000200
    execute(group, *assemble("VOP3P", "V_PK_ADD_U16", vdst=10, src0=20, src1=260, opsel=1, opsel_hi=2))
    assert (group.v[10] == 0x01070205).all()


def dot2(a: int, b: int, c: int, order: str, form: sf.Form) -> int:
    """Products exact, then sums from left to right, each rounded; float32 denormals are zeros throughout."""

    def flush(bits: int) -> int:
        return bits & SINGLE.sign if sf.is_denormal(bits, SINGLE) else bits

    def element(word: int, at: int) -> int:
        return flush(sf.convert(word >> 16 * at & 0xFFFF, form, SINGLE))

    terms = {"c": flush(c)}
    for at in (0, 1):
        terms[str(at)] = flush(sf.multiply(element(a, at), element(b, at), SINGLE))
    first, second, third = (terms[name] for name in order)
    return flush(sf.add(flush(sf.add(first, second, SINGLE)), third, SINGLE))


@pytest.mark.parametrize(("kind", "order"), [("F16", "c01"), ("BF16", "01c")])
def test_dot2_of_floats(kind: str, order: str) -> None:
    form = sf.FORMS[kind.lower()]
    values = specials("f16") if kind == "F16" else tuple(x >> 16 for x in specials("f32"))
    group = bare_group()
    a, b = words_of(values, 1), words_of(values, 2)
    c = np.random.default_rng(3).choice(np.array(specials("f32"), np.uint32), 64)
    group.v[2][0], group.v[4][0], group.v[6][0] = a, b, c
    group.v[10][0] = c
    set_exec(group, EXEC_MASKS["partial"])
    fields: dict[str, Any] = {"opsel_hi": 3, "opsel_hi2": 1}
    execute(group, *assemble("VOP3P", f"V_DOT2_F32_{kind}", vdst=8, src0=258, src1=260, src2=262, **fields))
    execute(group, *assemble("VOP2", f"V_DOT2C_F32_{kind}", vdst=10, src0=258, vsrc1=4))
    for lane in range(64):
        if not EXEC_MASKS["partial"] >> lane & 1:
            assert group.v[10][0, lane] == c[lane]
            continue
        for row, terms in ((8, order), (10, "c01")):
            got = int(group.v[row][0, lane])
            expected = dot2(int(a[lane]), int(b[lane]), int(c[lane]), terms, form)
            assert got == expected or (sf.is_nan(got, SINGLE) and sf.is_nan(expected, SINGLE)), (lane, row)


@pytest.mark.parametrize("clamp", [0, 1])
@pytest.mark.parametrize(
    ("mnemonic", "bits"),
    [("V_DOT2_I32_I16", 16), ("V_DOT2_U32_U16", 16), ("V_DOT4_I32_I8", 8), ("V_DOT4_U32_U8", 8), ("V_DOT8_I32_I4", 4),
     ("V_DOT8_U32_U4", 4)],
)  # fmt: skip
def test_integer_dots(mnemonic: str, bits: int, clamp: int) -> None:
    sign = "I32" in mnemonic
    group = bare_group()
    rng = np.random.default_rng(5)
    telling = np.array([0x80008000, 0x7FFF7FFF, 0xFFFFFFFF, 0x88888888, 0x12345678, 0x80FF7F01], np.uint32)
    rows = [rng.choice(telling, 64) for _ in range(2)]
    rows.append(rng.choice(np.array([0, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 5], np.uint32), 64))
    for at, row in enumerate(rows):
        group.v[2 + 2 * at][0] = row
    fields: dict[str, Any] = {"opsel_hi": 3, "opsel_hi2": 1, "clamp": clamp}
    execute(group, *assemble("VOP3P", mnemonic, vdst=10, src0=258, src1=260, src2=262, **fields))
    group.v[12][0] = rows[2]
    accumulates = sign and not clamp
    if accumulates:
        execute(group, *assemble("VOP2", mnemonic.replace("_I32", "C_I32"), vdst=12, src0=258, vsrc1=4))
    for lane in range(64):
        a, b, c = (int(row[lane]) for row in rows)
        total = signed(c, 32) if sign else c
        for at in range(0, 32, bits):
            x, y = (n >> at & ((1 << bits) - 1) for n in (a, b))
            total += signed(x, bits) * signed(y, bits) if sign else x * y
        if clamp:
            total = min(max(total, -(1 << 31)), (1 << 31) - 1) if sign else min(total, 0xFFFFFFFF)
        assert int(group.v[10][0, lane]) == total & 0xFFFFFFFF
        assert int(group.v[12][0, lane]) == (total & 0xFFFFFFFF if accumulates else c)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mnemonic", ["V_MAD_MIX_F32", "V_MAD_MIXLO_F16", "V_MAD_MIXHI_F16"])
def test_mixed_multiply_add(mnemonic: str, mode: str) -> None:
    """S0 the high half, negated, S1 the low half, S2 a float32, its absolute value; fused, then to half precision."""
    group = bare_group(Context(**MODES[mode]))  # type: ignore[arg-type]
    a, b = words_of(specials("f16"), 1), words_of(specials("f16"), 2)
    c = np.random.default_rng(3).choice(np.array(specials("f32"), np.uint32), 64)
    group.v[2][0], group.v[4][0], group.v[6][0], group.v[10][0] = a, b, c, 0xABCD1234
    set_exec(group, EXEC_MASKS["partial"])
    fields: dict[str, Any] = {"opsel": 1, "opsel_hi": 3, "opsel_hi2": 0, "neg": 1, "neg_hi": 4}
    execute(group, *assemble("VOP3P", mnemonic, vdst=10, src0=258, src1=260, src2=262, **fields))
    flushes = {form: not int(MODES[mode]["float_mode"]) >> shift & 1 for form, shift in ((SINGLE, 4), (HALF, 6))}

    def flush(bits: int, form: sf.Form) -> int:
        return bits & form.sign if flushes[form] and sf.is_denormal(bits, form) else bits

    for lane in range(64):
        got, expected = int(group.v[10][0, lane]), 0xABCD1234
        if EXEC_MASKS["partial"] >> lane & 1:
            x = sf.convert(flush(int(a[lane]) >> 16 ^ 0x8000, HALF), HALF, SINGLE)
            y = sf.convert(flush(int(b[lane]) & 0xFFFF, HALF), HALF, SINGLE)
            total = flush(sf.fma(x, y, flush(int(c[lane]) & 0x7FFFFFFF, SINGLE), SINGLE), SINGLE)
            if mnemonic.endswith("F32"):
                expected = total
                if sf.is_nan(total, SINGLE):
                    assert sf.is_nan(got, SINGLE)
                    continue
            else:
                half = flush(sf.convert(total, SINGLE, HALF), HALF)
                shift = 16 if "HI" in mnemonic else 0
                if sf.is_nan(half, HALF):
                    assert sf.is_nan(got >> shift & 0xFFFF, HALF)
                    continue
                expected = 0xABCD1234 & ~(0xFFFF << shift) | half << shift
        assert got == expected, (lane, hex(got), hex(expected))


def test_pack_b32_f16_takes_halves_as_they_are() -> None:
    group = bare_group()
    group.v[2][:], group.v[4][:], group.v[10][:] = 0x00017C01, 0xFBFF8002, 0xABCD1234
    set_exec(group, EXEC_MASKS["partial"])
    live = np.array([EXEC_MASKS["partial"] >> lane & 1 for lane in range(64)], bool)
    selections: list[tuple[dict[str, Any], int]] = [
        ({}, 0x80027C01),
        ({"opsel": 3}, 0xFBFF0001),
        ({"opsel": 2, "neg": 1, "abs": 2}, 0x7BFFFC01),
    ]
    for fields, expected in selections:
        execute(group, *assemble("VOP3", "V_PACK_B32_F16", vdst=10, src0=258, src1=260, **fields))
        assert (group.v[10][0] == np.where(live, expected, 0xABCD1234)).all()


@pytest.mark.parametrize(
    "words",
    [
        assemble("VOP3P", "V_DOT2_F32_F16", vdst=10, src0=258, src1=260, src2=262, opsel=1, opsel_hi=3),
        assemble("VOP3P", "V_DOT2_F32_F16", vdst=10, src0=242, src1=260, src2=262, opsel_hi=3),
        assemble("VOP3P", "V_PK_LSHLREV_B16", vdst=10, src0=258, src1=260, opsel_hi=3, clamp=1),
        assemble("VOP3P", "V_PK_ADD_U16", vdst=10, src0=258, src1=260, opsel_hi=3, neg=1),
        assemble("VOP3P", "V_MAD_MIX_F32", vdst=10, src0=242, src1=260, src2=262, opsel_hi=1),
        assemble("VOP2", "V_PK_FMAC_F16", vdst=10, src0=258, vsrc1=4),
        assemble("VOP3", "V_MAD_F16", vdst=10, src0=258, src1=260, src2=262),
    ],
)
def test_what_is_not_documented_is_refused(words: tuple[int, ...]) -> None:
    (instruction,) = instructions(words)
    with pytest.raises(InstructionUnsupported):
        build_step(instruction, Context())
