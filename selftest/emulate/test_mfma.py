"""Matrix instructions: where single elements land, and values against sums written out, for every form.

Words: LLVM's assembler, D = v[64:], A = v[0:], B = v[16:], C = v[32:], scales in v96 and v97.
"""

from __future__ import annotations

import numpy as np
import pytest

from waveproof.kernels.runtimes import narrow_floats
from waveproof.kernels.runtimes.emulate import registry
from waveproof.kernels.runtimes.emulate.decode import decode
from waveproof.kernels.runtimes.emulate.fault import CodeObjectInvalid, InstructionUnsupported
from waveproof.kernels.runtimes.emulate.isa import mfma
from waveproof.kernels.runtimes.emulate.registers import Group
from waveproof.kernels.runtimes.emulate.registry import Context
from waveproof.selftest.emulate.matrix_layouts import BITS, RESULTS, matrix_of, place_of, registers
from waveproof.selftest.emulate.single_step import bare_group, execute, set_exec

A, B, C, D = 0, 16, 32, 64
_OPERANDS = 0x04822100
_BOTH = ("gfx942", "gfx950")

# size, kind of A and B, first word, architectures
DENSE = [
    ("16x16x4", "f32", "f32", 0xD3C50040, _BOTH),
    ("32x32x2", "f32", "f32", 0xD3C40040, _BOTH),
    ("16x16x16", "f16", "f16", 0xD3CD0040, _BOTH),
    ("32x32x8", "f16", "f16", 0xD3CC0040, _BOTH),
    ("16x16x16", "bf16", "bf16", 0xD3E10040, _BOTH),
    ("32x32x8", "bf16", "bf16", 0xD3E00040, _BOTH),
    ("16x16x32", "f16", "f16", 0xD3D40040, ("gfx950",)),
    ("32x32x16", "f16", "f16", 0xD3D50040, ("gfx950",)),
    ("16x16x32", "bf16", "bf16", 0xD3B50040, ("gfx950",)),
    ("32x32x16", "bf16", "bf16", 0xD3B70040, ("gfx950",)),
    ("16x16x32", "i8", "i8", 0xD3D70040, _BOTH),
    ("32x32x16", "i8", "i8", 0xD3D60040, _BOTH),
    ("16x16x64", "i8", "i8", 0xD3B60040, ("gfx950",)),
    ("32x32x32", "i8", "i8", 0xD3B80040, ("gfx950",)),
    ("16x16x32", "fp8", "fp8", 0xD3F30040, _BOTH),
    ("32x32x16", "fp8", "fp8", 0xD3F70040, _BOTH),
    ("16x16x32", "fp8", "bf8", 0xD3F20040, _BOTH),
    ("32x32x16", "fp8", "bf8", 0xD3F60040, _BOTH),
    ("16x16x32", "bf8", "fp8", 0xD3F10040, _BOTH),
    ("32x32x16", "bf8", "fp8", 0xD3F50040, _BOTH),
    ("16x16x32", "bf8", "bf8", 0xD3F00040, _BOTH),
    ("32x32x16", "bf8", "bf8", 0xD3F40040, _BOTH),
]  # fmt: skip
_TYPES = ("fp8", "bf8", "fp6", "bf6", "fp4")
MIXED = [
    (size, a, b, first | at << 8, _OPERANDS | bt << 29)
    for size, first in (("16x16x128", 0xD3AD0040), ("32x32x64", 0xD3AE0040))
    for at, a in enumerate(_TYPES)
    for bt, b in enumerate(_TYPES)
]
CASES = [
    *((size, a, b, arch, (first, _OPERANDS)) for size, a, b, first, archs in DENSE for arch in archs),
    *((size, a, b, "gfx950", (first, second)) for size, a, b, first, second in MIXED),
]
NAMES = [f"{size}-{a}-{b}-{arch}" for size, a, b, arch, _ in CASES]


def group_of(arch: str, waves: int = 1) -> Group:
    return bare_group(Context(arch, 112, 16), waves)


def load(group: Group, first: int, words: np.ndarray, wave: int = 0) -> None:
    for at, row in enumerate(words):
        group.v[first + at][wave] = row


def result(group: Group, m: int, integer: bool, wave: int = 0) -> np.ndarray:
    view = group.vi if integer else group.vf
    return matrix_of(np.array([view[D + r][wave] for r in range(m * m // 64)]))


def dimensions(size: str) -> tuple[int, int]:
    m, _, k = (int(x) for x in size.split("x"))
    return m, k


@pytest.mark.parametrize(("size", "a", "b", "arch", "words"), CASES, ids=NAMES)
def test_one_element_of_a_meets_one_of_b(size: str, a: str, b: str, arch: str, words: tuple[int, int]) -> None:
    """A holds a single 2 at (i, k), B a single 3 at (k, j): D is 6 at (i, j), and zero elsewhere and if the k differ.

    Elements are put into lanes by the table of this test, bit by bit, and D is read by it.
    """
    m, depth = dimensions(size)
    rng = np.random.default_rng(7)
    waves = 48
    group = group_of(arch, waves)
    for row in range(112):
        group.v[row][:] = 0
    wanted = []
    for wave in range(waves):
        spots: list[tuple[int, int]] = []
        for kind, first, value in ((a, A, 2), (b, B, 3)):
            lane, e = int(rng.integers(64)), int(rng.integers(m * depth // 64))
            spot = place_of(size, kind)(lane, e)
            if first == B and wave % 4:
                # choose the lane and element that hold the k of A's
                spot = (int(rng.integers(m)), spots[0][1])
                lane, e = next(
                    (x, y) for x in range(64) for y in range(m * depth // 64) if place_of(size, kind)(x, y) == spot
                )
            spots.append(spot)
            single = np.zeros((m, depth), int)
            single[spot] = value
            words_of_it = registers(single, size, kind, arch)
            at = e * BITS[kind]
            assert set(np.argwhere(words_of_it)[:, 1]) == {lane}
            assert at // 32 <= np.argwhere(words_of_it)[0, 0] <= (at + BITS[kind] - 1) // 32
            load(group, first, words_of_it, wave)
        wanted.append(((spots[0][0], spots[1][0]), 6 if spots[0][1] == spots[1][1] else 0))
    execute(group, *words)
    assert {value for _, value in wanted} == {0, 6}
    for wave, (spot, value) in enumerate(wanted):
        want = np.zeros((m, m))
        want[spot] = value
        np.testing.assert_array_equal(result(group, m, a == "i8", wave), want)


@pytest.mark.parametrize(("size", "a", "b", "arch", "words"), CASES, ids=NAMES)
def test_against_the_sum_written_out(size: str, a: str, b: str, arch: str, words: tuple[int, int]) -> None:
    m, depth = dimensions(size)
    rng = np.random.default_rng(3)
    group = group_of(arch, 2)
    wanted = []
    for wave in range(2):
        left, right = (rng.choice([-1, 0, 1, 2, 3], (m, depth)) for _ in "ab")
        c = rng.integers(-50, 50, (m * m // 64, 64)).astype(np.int32)
        load(group, A, registers(left, size, a, arch), wave)
        load(group, B, registers(right, size, b, arch), wave)
        load(group, C, c.view(np.uint32) if a == "i8" else c.astype(np.float32).view(np.uint32), wave)
        product = [[sum(int(left[i, k]) * int(right[j, k]) for k in range(depth)) for j in range(m)] for i in range(m)]
        wanted.append(np.array(product) + matrix_of(c))
    set_exec(group, 0x0F0F)  # EXEC is ignored
    execute(group, *words)
    for wave in range(2):
        np.testing.assert_array_equal(result(group, m, a == "i8", wave), wanted[wave])


def test_points_of_the_published_layouts() -> None:
    """The matrix instruction calculator on v_mfma_f32_16x16x16_f16: A[i][k] is in register, lane and half."""
    printed = {(0, 0): (0, 0, 0), (0, 1): (0, 0, 1), (0, 2): (1, 0, 0), (0, 3): (1, 0, 1), (0, 4): (0, 16, 0),
               (0, 5): (0, 16, 1), (0, 6): (1, 16, 0), (0, 7): (1, 16, 1), (9, 15): (1, 57, 1)}  # fmt: skip
    for spot, (register, lane, half) in printed.items():
        single = np.zeros((16, 16), int)
        single[spot] = 1
        words = registers(single, "16x16x16", "f16", "gfx942")
        assert words[register, lane] == 0x3C00 << 16 * half
        assert np.count_nonzero(words) == 1
    assert RESULTS[32](33, 6) == (14, 1)


def test_the_forms_of_the_table_are_those_tested() -> None:
    decoded = {decode(b"".join(w.to_bytes(4, "little") for w in words)).mnemonic for *_, words in CASES}
    assert decoded == set(mfma.FORMS) | {f"V_MFMA_F32_{size}_F8F6F4" for size in mfma.MIXED_SIZES}
    for name in decoded:
        with_it = {arch for *_, arch, words in CASES
                   if decode(b"".join(w.to_bytes(4, "little") for w in words)).mnemonic == name}  # fmt: skip
        assert {arch for arch in _BOTH if registry.lookup(name, arch)} == with_it


@pytest.mark.parametrize("size", ["16x16x128", "32x32x64"])
@pytest.mark.parametrize(
    ("a", "b", "byte_a", "byte_b", "selects"),
    [
        ("fp8", "fp8", 1, 2, (0xD3AC0800, 0x1002C360)),
        ("fp4", "fp4", 3, 0, (0xD3AC0800, 0x0802C360)),
        ("fp6", "bf8", 0, 3, (0xD3AC1000, 0x1002C360)),
        ("bf8", "bf6", 2, 1, (0xD3AC1000, 0x0802C360)),
    ],
)
def test_scales(size: str, a: str, b: str, byte_a: int, byte_b: int, selects: tuple[int, int]) -> None:
    """Each block of 32 along k of each row has a power of two: in lane row + M * block, in the byte OP_SEL chooses."""
    m, depth = dimensions(size)
    rng = np.random.default_rng(5)
    group = group_of("gfx950")
    left, right = (rng.choice([-1, 0, 1, 2, 3], (m, depth)) for _ in "ab")
    scales = rng.integers(122, 133, (2, 64))
    scales[0, 5] = 255  # NaN: row 5 of A, block 0
    group.v[96][0] = rng.integers(0, 2**32, 64) & ~(0xFF << 8 * byte_a) | scales[0] << 8 * byte_a
    group.v[97][0] = rng.integers(0, 2**32, 64) & ~(0xFF << 8 * byte_b) | scales[1] << 8 * byte_b
    load(group, A, registers(left, size, a, "gfx950"))
    load(group, B, registers(right, size, b, "gfx950"))
    load(group, C, np.zeros((m * m // 64, 64), np.uint32))
    first = (0xD3AD0840 if m == 16 else 0xD3AE0840) | _TYPES.index(a) << 8
    execute(group, *selects, first, _OPERANDS | _TYPES.index(b) << 29)
    want = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            for k in range(depth):
                powers = int(scales[0, i + m * (k // 32)]) + int(scales[1, j + m * (k // 32)]) - 254
                want[i, j] += int(left[i, k]) * int(right[j, k]) * 2.0**powers
    want[5] = np.nan
    np.testing.assert_array_equal(result(group, m, False), want)


def test_the_half_before_an_unscaled_one_is_an_instruction_of_its_own() -> None:
    """ds_read_b128 a[40:43], v72 offset... before v_mfma_f32_16x16x128_f8f6f4, as in AITER's four-token fp8 kernel."""
    code = bytes.fromhex("0048fedb150000282400add33011921c")
    assert (decode(code).mnemonic, decode(code).size) == ("DS_READ_B128", 8)
    assert decode(code[8:]).mnemonic == "V_MFMA_F32_16X16X128_F8F6F4"
    scaled = b"".join(w.to_bytes(4, "little") for w in (0xD3AC0800, 0x1002C360, 0xD3AD0840, _OPERANDS))
    assert (decode(scaled).mnemonic, decode(scaled).size) == ("V_MFMA_SCALE_F32_16X16X128_F8F6F4", 16)


def bf16(values: np.ndarray) -> np.ndarray:
    return narrow_floats.narrow(values.astype(np.float32), narrow_floats.BFLOAT16).astype(np.uint32)


def test_one_rounding_at_the_end() -> None:
    """2**24 + 1 - 2**24 is 1, and a half unit in the last place goes to even, C included."""
    group = group_of("gfx950")
    for r in range(2):
        group.v[A + r][:] = group.v[B + r][:] = 0
    for r in range(4):
        group.v[C + r][:] = 0
    one, big = 0x3F80, int(bf16(np.array([2.0**24]))[0])
    # row 0: k = 0 and 2 cancel; row 1: 2**24 + 1 rounds to 2**24, row 2: 2**24 + 1 + 2 rounds to 2**24 + 4
    for lane, low, high in ((0, big, one), (1, big, one), (2, big, one)):
        group.v[A][0, lane] = low | high << 16
    group.v[A + 1][0, 0] = big | 0x8000
    group.v[B][0, :16] = one | one << 16
    group.v[B + 1][0, :16] = one
    group.vf[C + 2][0, :16] = 2.0
    execute(group, 0xD3E10040, _OPERANDS)
    assert result(group, 16, False)[:3, 0].tolist() == [1.0, 2.0**24, 2.0**24 + 4]


def test_denormals_nan_and_infinity() -> None:
    """Denormal elements, results and C survive even where MODE flushes (0xC0); inf - inf is NaN, in its row only."""
    group = bare_group(Context("gfx950", 112, 0, float_mode=0xC0))
    for r in range(4):
        group.v[A + r][:] = group.v[B + r][:] = group.v[C + r][:] = 0
    group.v[A][0, :3] = [0x0001, 0x7F80, 0x7F80 | 0xFF80 << 16]  # the least bf16 denormal; inf; inf and -inf
    group.v[B][0, :16] = 0x3F80 | 0x3F80 << 16
    group.v[C + 3][0, :16] = 5
    execute(group, 0xD3E10040, _OPERANDS)
    got = result(group, 16, False)
    assert got[0, 0] == np.uint32(0x00010000).view(np.float32)
    assert got[1, 0] == np.inf
    assert np.isnan(got[2]).all()
    assert (got[3].view(np.uint32) == 5).all()
    assert not np.isnan(got[4:]).any()


@pytest.mark.parametrize("arch", _BOTH)
def test_real_values_within_the_bound(arch: str) -> None:
    """bf16, K = 16: within one rounding of the exact sum."""
    rng = np.random.default_rng(0)
    group = group_of(arch)
    left, right = (bf16(rng.standard_normal((16, 16))) for _ in "ab")
    c = rng.standard_normal((4, 64)).astype(np.float32)
    for lane in range(64):
        for first, matrix in ((A, left), (B, right)):
            four = matrix[lane % 16, 4 * (lane // 16) : 4 * (lane // 16) + 4]
            group.v[first][0, lane] = four[0] | four[1] << 16
            group.v[first + 1][0, lane] = four[2] | four[3] << 16
    load(group, C, c.view(np.uint32))
    execute(group, 0xD3E10040, _OPERANDS)
    x, y = ((m << 16).astype(np.uint32).view(np.float32).astype(np.longdouble) for m in (left, right))
    exact = x @ y.T + matrix_of(c)
    assert (np.abs(result(group, 16, False) - exact) <= np.spacing(np.abs(exact).astype(np.float32)) / 2 * 1.001).all()


def test_accumulators_constants_and_overlap() -> None:
    rng = np.random.default_rng(2)
    left, right = (rng.integers(-1, 4, (16, 16)) for _ in "ab")
    x, y = (registers(m, "16x16x16", "bf16", "gfx942") for m in (left, right))
    # v_mfma_f32_16x16x16_bf16 a[0:3], a[4:5], v[16:17], a[0:3]
    group = bare_group(Context("gfx942", 112, 16))
    load(group, 112 + 4, x)
    load(group, 16, y)
    c = rng.integers(-9, 9, (4, 64)).astype(np.float32)
    load(group, 112, c.view(np.uint32))
    execute(group, 0xD3E18000, 0x0C022104)
    got = matrix_of(np.array([group.vf[112 + r][0] for r in range(4)]))
    np.testing.assert_array_equal(got, left @ right.T + matrix_of(c))
    # v_mfma_f32_16x16x16_bf16 v[0:3], v[0:1], a[2:3], 1.0
    load(group, 0, x)
    load(group, 112 + 2, y)
    execute(group, 0xD3E10000, 0x13CA0500)
    got = matrix_of(np.array([group.vf[r][0] for r in range(4)]))
    np.testing.assert_array_equal(got, left @ right.T + 1)
    # v_mfma_i32_16x16x32_i8 v[64:67], v[0:1], v[16:17], 3, with results beyond 32 bits in C's sum
    wide = np.full((16, 32), -128)
    load(group, A, registers(wide, "16x16x32", "i8", "gfx942"))
    load(group, B, registers(wide, "16x16x32", "i8", "gfx942"))
    execute(group, 0xD3D70040, 0x020E2100)
    assert (result(group, 16, True) == 32 * 128 * 128 + 3).all()
    load(group, C, np.full((4, 64), 0x7FFFFFFF, np.uint32))
    execute(group, 0xD3D70040, _OPERANDS)
    assert (result(group, 16, True) == 32 * 128 * 128 - 1 - 2**31).all()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((0xD3CD0040, 0x24822100), "BLGP 1"),
        ((0xD3CD0140, 0x04822100), "CBSZ 1"),
        ((0xD3AD0540, 0x04822100), "CBSZ 5, which is no type"),
        ((0xD3AD0840, 0x04822100), "ABID 1"),
        ((0xD3AC0000, 0x0002C360, 0xD3AD0040, 0x04822100), "ABID 0"),
        ((0xD3CA0040, 0x04822100), "4X4X4"),
    ],
)
def test_forms_that_are_refused(words: tuple[int, ...], says: str) -> None:
    with pytest.raises(InstructionUnsupported, match=says):
        execute(group_of("gfx950"), *words)


def test_registers_beyond_the_allocation() -> None:
    with pytest.raises(CodeObjectInvalid, match="allocates 66 VGPRs"):
        execute(bare_group(Context("gfx950", 66, 0)), 0xD3E10040, _OPERANDS)
