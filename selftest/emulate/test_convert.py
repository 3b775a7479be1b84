"""Conversions against exact rational arithmetic, lane by lane; 8-bit formats by tables typed in from the standards."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.program import Enter
from waveproof.kernels.runtimes.emulate.registry import Context, build_step
from waveproof.selftest.emulate import scalar_floats as sf
from waveproof.selftest.emulate.assembler import assemble
from waveproof.selftest.emulate.float_trial import MODES, Case, failures
from waveproof.selftest.emulate.single_step import bare_group, execute, instructions, set_exec

FORMS = sf.FORMS


def signed(bits: int, width: int) -> int:
    """Two's complement."""
    return bits - (bits >> (width - 1) << width)


def plain() -> Iterator[Case]:
    """Between the IEEE formats, and to and from integers."""
    for source, target in (("f32", "f16"), ("f16", "f32"), ("f32", "f64"), ("f64", "f32")):
        convert = functools.partial(sf.convert, source=FORMS[source], target=FORMS[target])
        yield Case(f"V_CVT_{target.upper()}_{source.upper()}", f"{source} -> {target}", convert)
    for integer, real in (
        ("i32", "f32"),
        ("u32", "f32"),
        ("i32", "f64"),
        ("u32", "f64"),
        ("i16", "f16"),
        ("u16", "f16"),
    ):
        width, form = int(integer[1:]), FORMS[real]
        low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if integer[0] == "i" else (0, (1 << width) - 1)

        def widen(bits: int, width: int = width, form: sf.Form = form, low: int = low) -> int:
            return sf.rounded(Fraction(signed(bits, width) if low else bits), form)

        def truncate(bits: int, width: int = width, form: sf.Form = form, low: int = low, high: int = high) -> int:
            return sf.to_integer(bits, form, low, high) & ((1 << width) - 1)

        yield Case(f"V_CVT_{real.upper()}_{integer.upper()}", f"{integer} -> {real}", widen)
        yield Case(f"V_CVT_{integer.upper()}_{real.upper()}", f"{real} -> {integer}", truncate)


def to_i32(bits: int) -> int:
    """Of a float32, toward zero and saturated."""
    return sf.to_integer(bits, FORMS["f32"], -(1 << 31), (1 << 31) - 1) & 0xFFFFFFFF


def pack(bits: list[int]) -> int:
    """Two halves."""
    return bits[0] | bits[1] << 16


def halves(a: int, b: int, target: str, toward_zero: bool) -> int:
    """Two float32 to two 16-bit floats. NaN is compared as one pattern, so no operand is one here."""
    return pack([sf.convert(x, FORMS["f32"], FORMS[target], toward_zero) for x in (a, b)])


def nibble(bits: int) -> int:
    """Sixteenths: the table of the Vega ISA, V_CVT_OFF_F32_I4."""
    table = [0, 0.0625, 0.125, 0.1875, 0.25, 0.3125, 0.375, 0.4375,
             -0.5, -0.4375, -0.375, -0.3125, -0.25, -0.1875, -0.125, -0.0625]  # fmt: skip
    return sf.rounded(Fraction(table[bits & 15]), FORMS["f32"])


def saturated_bytes(bits: int) -> int:
    """Both signed halves to 0..255."""
    parts = [min(max(signed(bits >> shift & 0xFFFF, 16), 0), 255) for shift in (0, 16)]
    return parts[0] | parts[1] << 8


CASES = [
    *plain(),
    Case("V_CVT_FLR_I32_F32", "f32 -> i32", lambda a: to_i32(sf.floor_of(a, FORMS["f32"]))),
    Case(
        "V_CVT_RPI_I32_F32", "f32 -> i32",
        lambda a: to_i32(sf.floor_of(sf.add(a, 0x3F000000, FORMS["f32"]), FORMS["f32"])),
    ),
    Case("V_CVT_OFF_F32_I4", "b32 -> f32", nibble),
    *(
        Case(f"V_CVT_F32_UBYTE{n}", "b32 -> f32", lambda a, n=n: sf.rounded(Fraction(a >> 8 * n & 255), FORMS["f32"]))
        for n in range(4)
    ),
    Case("V_SAT_PK_U8_I16", "b32 -> b16", saturated_bytes),
    Case("V_CVT_F32_BF16", "b16 -> f32", lambda a: a << 16),
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mnemonic)
def test_conversion_is_exact_arithmetic_rounded_once(case: Case, mode: str) -> None:
    assert not failures(case, mode, "partial" if mode == "keep" else "full")


def converted(mnemonic: str, values: list[int], arch: str = "gfx950", flush: bool = False, **more: object) -> list[int]:
    """v10 after a two-source VOP3 conversion of v2 and the same values one lane on; lanes outside EXEC 0xABCD1234."""
    context = Context(arch=arch, float_mode=0xC0 if flush else 0xF0, **more)  # type: ignore[arg-type]
    group = bare_group(context)
    row = np.resize(np.array(values, np.uint32), 64)
    group.v[2][:], group.v[4][:] = row, np.roll(row, -1)
    group.v[10][:] = 0xABCD1234
    set_exec(group, (1 << 64) - 1 - (1 << 63))
    execute(group, *assemble("VOP3", mnemonic, vdst=10, src0=258, src1=260))
    assert int(group.v[10][0, 63]) == 0xABCD1234
    return [int(x) for x in group.v[10][0, :63]]


SINGLES = [
    0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x477FE000,
    0x477FEFFF, 0x477FF000, 0x47800000, 0xC77FF001, 0x38800000, 0x387FFFFF, 0x33800000, 0x33000000, 0x33000001,
    0x3F800FFF, 0x3F801000, 0x3F801001, 0x3F803000, 0x3F808000, 0x3F808001, 0x3F818000, 0x3F80FFFF, 0x00000001,
    0x007FFFFF, 0x80012345, 0x00008000, 0x00018000, 0x7F7F8000, 0x7F7F7FFF, 0xB3000000, 0x40490FDB, 0xC2F6E979,
]  # fmt: skip
"""Ties and their neighbours for half precision and bfloat16, range ends, denormals."""


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize(
    ("mnemonic", "target", "toward_zero"),
    [("V_CVT_PKRTZ_F16_F32", "f16", True), ("V_CVT_PK_F16_F32", "f16", False), ("V_CVT_PK_BF16_F32", "bf16", False)],
)
def test_packed_halves(mnemonic: str, target: str, toward_zero: bool, flush: bool) -> None:
    values = [v & 0x80000000 if flush and sf.is_denormal(v, FORMS["f32"]) else v for v in SINGLES]
    got = converted(mnemonic, SINGLES, flush=flush)
    for lane, bits in enumerate(got[:36]):
        assert bits == halves(values[lane], values[(lane + 1) % 36], target, toward_zero), (lane, hex(bits))


def test_packed_halves_keep_nan_quiet() -> None:
    for bits in converted("V_CVT_PK_BF16_F32", [0x7F800001, 0xFFFFFFFF, 0x7FC00000]):
        for half in (bits & 0xFFFF, bits >> 16):
            assert sf.is_nan(half, FORMS["bf16"])
            assert not sf.is_signalling(half, FORMS["bf16"])
    for bits in converted("V_CVT_PKRTZ_F16_F32", [0x7F800001, 0xFFFFFFFF, 0x7FC00000]):
        assert sf.is_nan(bits & 0xFFFF, FORMS["f16"])
        assert sf.is_nan(bits >> 16, FORMS["f16"])


# Positive codes and their values where formats differ or end: OCP 8-bit Floating Point Specification 1.0, tables 1-2;
# for FNUZ the table at the head of ck_tile/core/numeric/float8.hpp.
LANDMARKS = {
    ("FP8", "gfx950"): {0x00: 0, 0x01: 2**-9, 0x07: 7 * 2**-9, 0x08: 2**-6, 0x38: 1, 0x39: 1.125, 0x7E: 448},
    ("FP8", "gfx942"): {0x00: 0, 0x01: 2**-10, 0x07: 7 * 2**-10, 0x08: 2**-7, 0x40: 1, 0x41: 1.125, 0x7F: 240},
    ("BF8", "gfx950"): {0x00: 0, 0x01: 2**-16, 0x03: 3 * 2**-16, 0x04: 2**-14, 0x3C: 1, 0x3D: 1.25, 0x7B: 57344},
    ("BF8", "gfx942"): {0x00: 0, 0x01: 2**-17, 0x03: 3 * 2**-17, 0x04: 2**-15, 0x40: 1, 0x41: 1.25, 0x7F: 57344},
}
LAST = {key: max(table) for key, table in LANDMARKS.items()}


@pytest.mark.parametrize(("name", "arch"), LANDMARKS)
def test_every_byte_has_the_value_of_its_format(name: str, arch: str) -> None:
    exponent_bits, mantissa_bits = (4, 3) if name == "FP8" else (5, 2)
    bias = (1 << (exponent_bits - 1)) - (arch == "gfx950")
    group = bare_group(Context(arch=arch), waves=4)
    codes = np.arange(256, dtype=np.uint32).reshape(4, 64)
    group.v[2][:] = codes | 0x5A5A5A00
    execute(group, *assemble("VOP1", f"V_CVT_F32_{name}", vdst=10, src0=258))
    values = group.vf[10].reshape(-1).copy()
    for code, expected in LANDMARKS[name, arch].items():
        assert values[code] == expected
    for code in range(256):
        magnitude, negative = code & 0x7F, code >> 7
        if arch == "gfx942" and code == 0x80:
            assert np.isnan(values[code])
        elif magnitude > LAST[name, arch]:
            infinite = name == "BF8" and magnitude == 0x7C
            assert values[code] == (-np.inf if negative else np.inf) if infinite else np.isnan(values[code])
        else:
            field, rest = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
            value = math.ldexp(rest + (1 << mantissa_bits) * (field > 0), max(field, 1) - bias - mantissa_bits)
            assert values[code] == (-value if negative else value)
            assert np.signbit(values[code]) == bool(negative)


@pytest.mark.parametrize(("name", "arch"), LANDMARKS)
def test_sdwa_selects_bytes_and_words(name: str, arch: str) -> None:
    one, two = (0x38, 0x40) if (name, arch) == ("FP8", "gfx950") else (0x3C, 0x40) if arch == "gfx950" else (0x40, 0x48)
    if name == "BF8" and arch == "gfx942":
        two = 0x44
    group = bare_group(Context(arch=arch))
    group.v[2][:] = one | two << 8 | (one | 0x80) << 16 | (two | 0x80) << 24
    for byte, expected in enumerate((1, 2, -1, -2)):
        execute(group, *assemble("VOP1", f"V_CVT_F32_{name}", vdst=10, sdwa={"vsrc0": 2, "src0_sel": byte}))
        assert (group.vf[10] == expected).all()
    for selector, pair in ((4, (1, 2)), (5, (-1, -2)), (6, (1, 2))):
        group.v[10][:] = group.v[11][:] = 0
        set_exec(group, 0xF0)
        sdwa = {"vsrc0": 2, "src0_sel": selector}
        execute(group, *assemble("VOP1", f"V_CVT_PK_F32_{name}", vdst=10, sdwa=sdwa))
        lanes = np.arange(64) // 4 == 1
        assert (group.vf[10][0] == np.where(lanes, pair[0], 0)).all()
        assert (group.vf[11][0] == np.where(lanes, pair[1], 0)).all()
    with pytest.raises(InstructionUnsupported):
        execute(group, *assemble("VOP1", f"V_CVT_PK_F32_{name}", vdst=10, sdwa={"vsrc0": 2, "src0_sel": 1}))


def nearest_code(bits: int, table: list[float], last: int) -> int:
    """By looking at all neighbours: the code whose value is nearest, the even one of two; last + 1 is overflow."""
    number = abs(sf.value(bits, FORMS["f32"]))
    step = Fraction(table[last]) - Fraction(table[last - 1])
    reach = [Fraction(v) for v in table[: last + 1]] + [Fraction(table[last]) + step]
    return min(range(len(reach)), key=lambda code: (abs(reach[code] - number), code & 1))


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize(("name", "arch"), LANDMARKS)
def test_narrowing_rounds_to_nearest_even(name: str, arch: str, saturate: bool) -> None:
    last = LAST[name, arch]
    exponent_bits, mantissa_bits = (4, 3) if name == "FP8" else (5, 2)
    bias = (1 << (exponent_bits - 1)) - (arch == "gfx950")
    table = [
        math.ldexp((code & ((1 << mantissa_bits) - 1)) + (1 << mantissa_bits) * (code >> mantissa_bits > 0),
                   max(code >> mantissa_bits, 1) - bias - mantissa_bits)
        for code in range(last + 1)
    ]  # fmt: skip
    middles = [(a + b) / 2 for a, b in itertools.pairwise(table)] + [table[last] + (table[last] - table[-2]) / 2]
    numbers = np.array([*table, *middles, 1e30], np.float32)
    numbers = np.concatenate([numbers, np.nextafter(numbers, np.float32(np.inf)), np.nextafter(numbers, np.float32(0))])
    bits = [int(b) for b in np.concatenate([numbers, -numbers]).view(np.uint32)]
    nan = 0x80 if arch == "gfx942" else 0x7F
    for start in range(0, len(bits), 60):
        block = bits[start : start + 60]
        got = converted(f"V_CVT_PK_{name}_F32", block, arch, fp16_overflow=saturate)
        for lane, word in enumerate(got[: len(block)]):
            assert word >> 16 == 0xABCD, "the high half is kept"
            for code, source in ((word & 255, block[lane]), (word >> 8 & 255, block[(lane + 1) % len(block)])):
                expected = nearest_code(source, table, last)
                if expected > last:
                    expected = last if saturate else 0x7C if (name, arch) == ("BF8", "gfx950") else nan
                if not (arch == "gfx942" and expected in (0, 0x80)):
                    expected |= source >> 31 << 7
                assert code == expected, (hex(source), hex(code), hex(expected))


@pytest.mark.parametrize(("name", "arch"), LANDMARKS)
def test_narrowing_of_nan_and_infinity(name: str, arch: str) -> None:
    got = converted(f"V_CVT_PK_{name}_F32", [0x7FC00000, 0x7F800000, 0xFF800000, 0x7F800001], arch)
    nan = 0x80 if arch == "gfx942" else 0x7F
    infinity = 0x7C if (name, arch) == ("BF8", "gfx950") else nan
    assert got[0] & 0xFFFF == nan | infinity << 8
    assert got[1] & 0xFFFF == infinity | (infinity | 0x80) << 8
    assert got[2] & 0xFFFF == (infinity | 0x80) | nan << 8


@pytest.mark.parametrize(("name", "largest"), [("FP8", 0x7E), ("BF8", 0x7B)])
def test_infinities_saturate_in_the_formats_of_gfx950(name: str, largest: int) -> None:
    got = converted(f"V_CVT_PK_{name}_F32", [0x7F800000, 0xFF800000, 0x7FC00000], "gfx950", fp16_overflow=True)
    assert [word & 0xFFFF for word in got[:2]] == [largest | (largest | 0x80) << 8, largest | 0x80 | 0x7F << 8]


def test_narrowing_writes_the_half_that_op_sel_names() -> None:
    group = bare_group()
    group.vf[2][:], group.vf[4][:] = 1.0, -2.0
    group.v[10][:] = 0xABCD1234
    execute(group, *assemble("VOP3", "V_CVT_PK_FP8_F32", vdst=10, src0=258, src1=260, opsel=8))
    assert (group.v[10] == 0xC0381234).all()


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
"""Magnitudes of codes 0 to 7 (OCP Microscaling Formats 1.0, section 5.3.3)."""


def test_fp4_is_divided_by_the_scale_rounded_and_put_in_one_byte() -> None:
    numbers = [0, 0.25, 0.26, 0.75, 1.25, 1.75, 2.4, 2.5, 2.6, 3.5, 5, 5.1, 6, 7, 1e30, math.inf]
    numbers += [-x for x in numbers]
    for shift, exponent in ((0, 0), (1, 3), (2, -5), (3, 120)):
        group = bare_group()
        scaled = [math.ldexp(x, exponent) if abs(x) < 1e3 else x for x in numbers]
        group.vf[2][0] = np.resize(np.array(scaled, np.float32), 64)
        group.vf[4][:] = np.roll(group.vf[2], -1)
        # Only the exponent of the scale counts.
        group.v[6][:] = (127 + exponent) << 23 | 0x123456
        group.v[10][:] = 0xABCD1234
        execute(
            group,
            *assemble("VOP3", "V_CVT_SCALEF32_PK_FP4_F32", vdst=10, src0=258, src1=260, src2=262, opsel=4 * shift),
        )

        def code(x: float) -> int:
            best = min(range(8), key=lambda c: (abs(E2M1[c] - min(abs(x), 6)), c & 1))
            return best | (8 if math.copysign(1, x) < 0 else 0)

        for lane in range(31):
            word = int(group.v[10][0, lane])
            first, second = (float(group.vf[r][0, lane]) for r in (2, 4))
            byte = code(math.ldexp(first, -exponent)) | code(math.ldexp(second, -exponent)) << 4
            assert word == (0xABCD1234 & ~(255 << 8 * shift)) | byte << 8 * shift


@pytest.mark.parametrize("wide", ["F32", "F16", "BF16"])
def test_fp4_times_the_scale(wide: str) -> None:
    group = bare_group()
    group.v[2][:] = np.arange(64) % 256 << 8
    group.v[4][:] = (127 + 2) << 23
    execute(group, *assemble("VOP3", f"V_CVT_SCALEF32_PK_{wide}_FP4", vdst=10, src0=258, src1=260, opsel=1))
    for lane in range(64):
        expected = [(-1 if c & 8 else 1) * 4 * E2M1[c & 7] for c in (lane & 15, lane >> 4)]
        if wide == "F32":
            got = [float(group.vf[10 + at][0, lane]) for at in (0, 1)]
        elif wide == "F16":
            got = [float(group.hf[20 + at][0, lane]) for at in (0, 1)]
        else:
            got = [
                float((group.v[10][0, lane] >> (16 * at) << 16 & 0xFFFF0000).astype(np.uint32).view(np.float32))
                for at in (0, 1)
            ]
        assert got == expected


@pytest.mark.parametrize(
    "words",
    [
        assemble("VOP3", "V_CVT_PKNORM_I16_F32", vdst=10, src0=258, src1=260),
        assemble("VOP3", "V_CVT_SR_FP8_F32", vdst=10, src0=258, src1=260),
        assemble("VOP3", "V_CVT_PK_U16_U32", vdst=10, src0=258, src1=260),
        assemble("VOP3", "V_CVT_PK_FP8_F32", vdst=10, src0=258, src1=260, opsel=1),
        assemble("VOP3", "V_CVT_PK_BF16_F32", vdst=10, src0=258, src1=260, clamp=1),
    ],
)
def test_what_is_not_documented_is_refused(words: tuple[int, ...]) -> None:
    (instruction,) = instructions(words)
    with pytest.raises(InstructionUnsupported):
        build_step(instruction, Context())


@pytest.mark.parametrize("mnemonic", ["V_CVT_F32_BF16", "V_CVT_PK_BF16_F32", "V_CVT_PK_F16_F32"])
def test_gfx942_lacks(mnemonic: str) -> None:
    words = assemble("VOP1", mnemonic, vdst=10, src0=258) if mnemonic == "V_CVT_F32_BF16" else assemble(
        "VOP3", mnemonic, vdst=10, src0=258, src1=260)  # fmt: skip
    (instruction,) = instructions(words)
    with pytest.raises(InstructionUnsupported, match="not implemented for gfx942"):
        build_step(instruction, Context(arch="gfx942"))


def test_half_precision_with_fp16_ovfl_is_refused() -> None:
    (instruction,) = instructions(assemble("VOP1", "V_CVT_F16_F32", vdst=10, src0=258))
    with pytest.raises(InstructionUnsupported, match="FP16_OVFL"):
        build_step(instruction, Context(fp16_overflow=True))


def test_setreg_of_mode_23_saturates_what_follows() -> None:
    """s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1: what Triton puts into kernels that convert to fp8."""
    outcome = execute(bare_group(), 0xBA0005C1, 0x00000001)
    assert isinstance(outcome, Enter)
    ((_, context),) = outcome.parts
    assert context.fp16_overflow
    assert dataclasses.replace(context, fp16_overflow=False) == bare_group().context


@pytest.mark.parametrize("narrow", ["FP8", "BF8"])
@pytest.mark.parametrize("wide", ["F32", "F16", "BF16"])
def test_eight_bits_times_the_scale(wide: str, narrow: str) -> None:
    """The word that OP_SEL[0] names; what a byte is worth is what V_CVT_F32 says, tested above."""
    for select in (0, 1):
        group = bare_group()
        # Codes of 2^-2 and more (below 2^8), positive and negative: exact in every result type.
        codes = [0x34 + lane % 8 for lane in range(64)], [0xB4 + lane % 5 for lane in range(64)]
        words = np.array([low | high << 8 for low, high in zip(*codes, strict=True)], np.uint32)
        group.v[2][0] = words << np.uint32(16 * select) | np.uint32(0x7F7F << 16 * (1 - select))
        group.v[4][:] = (127 + 3) << 23
        group.v[10][:] = group.v[11][:] = 0xABCD1234
        set_exec(group, 0x0F0F_FFFF_0000_00FF)
        mnemonic = f"V_CVT_SCALEF32_PK_{wide}_{narrow}"
        execute(group, *assemble("VOP3", mnemonic, vdst=10, src0=258, src1=260, opsel=select))
        plain = bare_group()
        for at in (0, 1):
            plain.v[2][0] = codes[at]
            execute(plain, *assemble("VOP1", f"V_CVT_F32_{narrow}", vdst=10 + at, src0=258))
        for lane in range(64):
            if not 0x0F0F_FFFF_0000_00FF >> lane & 1:
                assert int(group.v[10][0, lane]) == int(group.v[11][0, lane]) == 0xABCD1234
                continue
            for at in (0, 1):
                expected = sf.rounded(Fraction(float(plain.vf[10 + at][0, lane])) * 8, FORMS[wide.lower()])
                got = int(group.v[10 + at][0, lane]) if wide == "F32" else int(group.v[10][0, lane]) >> 16 * at & 0xFFFF
                assert got == expected
