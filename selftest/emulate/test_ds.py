"""LDS reads, writes, atomics and exchanges between lanes. Words: LLVM's assembler or the DS format written out."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from waveproof.kernels.runtimes.emulate import registry
from waveproof.kernels.runtimes.emulate.fault import AccessViolation, InstructionUnsupported
from waveproof.kernels.runtimes.emulate.registers import POISON, Group
from waveproof.kernels.runtimes.emulate.registry import Context
from waveproof.selftest.emulate.assembler import opcode
from waveproof.selftest.emulate.single_step import bare_group, execute, set_exec

FULL = 0xFFFFFFFFFFFFFFFF
SPARSE = 0x8000_0F00_F00F_0006
MASKS = [FULL, SPARSE, 0]


def ds(mnemonic: str, vdst: int = 0, addr: int = 0, data0: int = 0, data1: int = 0, offset: int = 0,
       acc: int = 0) -> tuple[int, int]:  # fmt: skip
    """Words of a DS instruction (CDNA3 ISA, "DS": OFFSET0 7:0, OFFSET1 15:8, OP 24:17, ACC 25, ENCODING 31:26)."""
    op = opcode("DS", mnemonic)
    assert op is not None
    return 0b110110 << 26 | acc << 25 | op << 17 | offset, vdst << 24 | data1 << 16 | data0 << 8 | addr


def group_of(waves: int = 2, arch: str = "gfx950") -> Group:
    """A group with 4 KiB of distinct words in LDS."""
    group = bare_group(Context(arch, 32, 32), waves)
    group.lds.words[:] = np.random.default_rng(0).integers(0, 2**32, 1024, np.uint32)
    return group


def active(mask: int, lane: int) -> bool:
    return bool(mask >> lane & 1)


def test_the_words_are_llvms() -> None:
    assert ds("DS_READ_B64_TR_B16", vdst=2, offset=16) == (0xD9C60010, 0x02000000)
    assert ds("DS_READ_B64_TR_B8", vdst=2, acc=1) == (0xDBC40000, 0x02000000)
    assert ds("DS_READ_B96_TR_B6", vdst=2, offset=16) == (0xD9C20010, 0x02000000)
    assert ds("DS_BPERMUTE_B32", vdst=2, data0=1, offset=8) == (0xD87E0008, 0x02000100)
    assert ds("DS_SWIZZLE_B32", vdst=2, offset=0x80B1) == (0xD87A80B1, 0x02000000)


# reads: name, bytes, value of the result from the bytes, which half of the register is written
READS: list[tuple[str, int, Callable[[bytes], int], slice]] = [
    ("U8", 1, lambda b: b[0], slice(0, 4)),
    ("I8", 1, lambda b: int.from_bytes(b, "little", signed=True), slice(0, 4)),
    ("U16", 2, lambda b: int.from_bytes(b, "little"), slice(0, 4)),
    ("I16", 2, lambda b: int.from_bytes(b, "little", signed=True), slice(0, 4)),
    ("U8_D16", 1, lambda b: b[0], slice(0, 2)),
    ("U8_D16_HI", 1, lambda b: b[0], slice(2, 4)),
    ("I8_D16", 1, lambda b: int.from_bytes(b, "little", signed=True), slice(0, 2)),
    ("I8_D16_HI", 1, lambda b: int.from_bytes(b, "little", signed=True), slice(2, 4)),
    ("U16_D16", 2, lambda b: int.from_bytes(b, "little"), slice(0, 2)),
    ("U16_D16_HI", 2, lambda b: int.from_bytes(b, "little"), slice(2, 4)),
]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("name", "size", "value", "part"), READS, ids=[r[0] for r in READS])
def test_small_reads(name: str, size: int, value: Callable[[bytes], int], part: slice, mask: int) -> None:
    group = group_of()
    group.v[3][:] = np.random.default_rng(1).integers(0, 1000, (2, 64)) * size
    address = group.v[3].copy()
    group.v[5][:] = 0x11223344
    set_exec(group, mask)
    execute(group, *ds(f"DS_READ_{name}", vdst=5, addr=3, offset=300))
    memory = group.lds.bytes.tobytes()
    for wave in range(2):
        for lane in range(64):
            want = bytearray(struct.pack("<I", 0x11223344))
            if active(mask, lane):
                at = int(address[wave, lane]) + 300
                width = part.stop - part.start
                want[part] = (value(memory[at : at + size]) & (1 << 8 * width) - 1).to_bytes(width, "little")
            assert group.v[5][wave, lane] == int.from_bytes(want, "little")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("name", "dwords", "offsets"),
    [("B32", 1, [300]), ("B64", 2, [300]), ("B96", 3, [300]), ("B128", 4, [300]), ("2_B32", 1, [4 * 5, 4 * 9]),
     ("2ST64_B32", 1, [256 * 1, 256 * 3]), ("2_B64", 2, [8 * 5, 8 * 9]), ("2ST64_B64", 2, [512 * 1, 512 * 3])],
)  # fmt: skip
@pytest.mark.parametrize("accumulator", [0, 1])
def test_wide_reads_and_writes(name: str, dwords: int, offsets: list[int], accumulator: int, mask: int) -> None:
    """Consecutive registers for consecutive dwords, the second value behind the first; the address register may be
    overwritten.
    """
    field = {300: 300, 20: 5 | 9 << 8, 256: 1 | 3 << 8, 40: 5 | 9 << 8, 512: 1 | 3 << 8}[offsets[0]]
    group = group_of()
    first = 32 if accumulator else 0
    rng = np.random.default_rng(1)
    address = rng.permutation(256)[:128].reshape(2, 64).astype(np.uint32) * 4
    if dwords > 1:
        address = rng.permutation(128).reshape(2, 64).astype(np.uint32) * 4 * dwords
    group.v[3][:] = address
    before = [group.v[first + 2 + r].copy() for r in range(dwords * len(offsets))]
    before = [address if first + 2 + r == 3 else b for r, b in enumerate(before)]
    set_exec(group, mask)
    execute(group, *ds(f"DS_READ{name}" if name[0] == "2" else f"DS_READ_{name}", 2, 3, offset=field, acc=accumulator))
    for wave in range(2):
        for lane in range(64):
            r = 0
            for offset in offsets:
                for d in range(dwords):
                    at = (int(address[wave, lane]) + offset) // 4 + d
                    want = group.lds.words[at] if active(mask, lane) else before[r][wave, lane]
                    assert group.v[first + 2 + r][wave, lane] == want
                    r += 1

    group.v[3][:] = address
    sources = [first + 8, first + 16][: len(offsets)]
    for register in range(8, 24):
        group.v[first + register][:] = rng.integers(0, 2**32, (2, 64), np.uint32)
    want = group.lds.words.copy()
    for offset, register in zip(offsets, sources, strict=True):
        for wave in range(2):
            for lane in range(64):
                if active(mask, lane):
                    for d in range(dwords):
                        value = group.v[register + d][wave, lane]
                        want[(int(address[wave, lane]) + offset) // 4 + d] = value
    mnemonic = f"DS_WRITE{name}" if name[0] == "2" else f"DS_WRITE_{name}"
    execute(group, *ds(mnemonic, addr=3, data0=8, data1=16, offset=field, acc=accumulator))
    np.testing.assert_array_equal(group.lds.words, want)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("name", "size", "shift"), [("B8", 1, 0), ("B16", 2, 0), ("B8_D16_HI", 1, 16), ("B16_D16_HI", 2, 16)]
)
def test_small_writes(name: str, size: int, shift: int, mask: int) -> None:
    group = group_of()
    rng = np.random.default_rng(1)
    address = rng.permutation(500)[:128].reshape(2, 64).astype(np.uint32) * size
    group.v[3][:] = address
    group.v[8][:] = rng.integers(0, 2**32, (2, 64), np.uint32)
    want = bytearray(group.lds.bytes.tobytes())
    for wave in range(2):
        for lane in range(64):
            if active(mask, lane):
                at = int(address[wave, lane]) + 300
                value = int(group.v[8][wave, lane]) >> shift & (1 << 8 * size) - 1
                want[at : at + size] = value.to_bytes(size, "little")
    set_exec(group, mask)
    execute(group, *ds(f"DS_WRITE_{name}", addr=3, data0=8, offset=300))
    assert group.lds.bytes.tobytes() == bytes(want)


TRANSPOSING = {"DS_READ_B64_TR_B16": (16, 4), "DS_READ_B64_TR_B8": (8, 8), "DS_READ_B64_TR_B4": (4, 16),
               "DS_READ_B96_TR_B6": (6, 16)}  # fmt: skip


def lane_element(words: list[int], element: int, bits: int) -> int:
    value = sum(word << 32 * at for at, word in enumerate(words))
    return value >> bits * element & (1 << bits) - 1


@pytest.mark.parametrize("accumulator", [0, 1])
@pytest.mark.parametrize("mnemonic", TRANSPOSING)
def test_transposing_reads_move_a_matrix(mnemonic: str, accumulator: int) -> None:
    """A block of 16 lanes reads rows of 16 elements, 16 / e lanes to a row; lane c of the block gets column c.

    Every element of the block is distinct (or, with few bits, random) and rows lie apart from each other.
    """
    bits, elements = TRANSPOSING[mnemonic]
    size, dwords = bits * elements // 8, bits * elements // 32
    pieces = 16 // elements
    group = group_of(2)
    rng = np.random.default_rng(4)
    place = rng.permutation(128).reshape(2, 64) * (16 if bits == 6 else 8)
    group.v[0][:] = place
    execute(group, *ds(mnemonic, vdst=2, addr=0, offset=16, acc=accumulator))
    memory = group.lds.bytes.tobytes()
    first = (32 if accumulator else 0) + 2
    for wave in range(2):
        for lane in range(64):
            block, column = lane & 48, lane & 15
            got = [int(group.v[first + r][wave, lane]) for r in range(dwords)]
            for j in range(elements):
                source = block + j * pieces + column // elements
                at = int(place[wave, source]) + 16
                piece = int.from_bytes(memory[at : at + size], "little")
                want = piece >> bits * (column % elements) & (1 << bits) - 1
                assert lane_element(got, j, bits) == want


@pytest.mark.parametrize("mnemonic", TRANSPOSING)
def test_transposing_reads_one_hot(mnemonic: str) -> None:
    """One element set: the lane and element it lands at, for a row-major matrix of 16 columns."""
    bits, elements = TRANSPOSING[mnemonic]
    dwords = bits * elements // 32
    rng = np.random.default_rng(0)
    for _ in range(40):
        group = group_of(1)
        group.lds.words[:] = 0
        step = bits * elements // 8
        group.v[0][:] = np.arange(64) * step
        lane, row, column = int(rng.integers(4)), int(rng.integers(elements)), int(rng.integers(16))
        bit = lane * 16 * step * 8 + (row * 16 + column) * bits
        group.lds.bytes[bit // 8] = 1 << bit % 8
        execute(group, *ds(mnemonic, vdst=2))
        got = np.array([group.v[2 + r][0] for r in range(dwords)])
        assert np.argwhere(got).tolist() == [[row * bits // 32, 16 * lane + column]]
        assert got[row * bits // 32, 16 * lane + column] == 1 << row * bits % 32


def test_transposing_reads_want_all_lanes() -> None:
    group = group_of(1)
    group.v[0][:] = 0
    set_exec(group, FULL >> 1)
    with pytest.raises(InstructionUnsupported, match="lanes missing from EXEC"):
        execute(group, *ds("DS_READ_B64_TR_B16", vdst=2))
    with pytest.raises(InstructionUnsupported, match="another architecture"):
        execute(bare_group(Context("gfx942")), *ds("DS_READ_B64_TR_B16", vdst=2))


@pytest.mark.parametrize("mask", MASKS)
def test_permutes(mask: int) -> None:
    group = group_of()
    rng = np.random.default_rng(2)
    address = rng.integers(0, 2**32, (2, 64), np.uint32)
    data = rng.integers(1, 2**32, (2, 64), np.uint32)
    set_exec(group, mask)
    for mnemonic in ("DS_BPERMUTE_B32", "DS_PERMUTE_B32"):
        group.v[0][:], group.v[1][:], group.v[2][:] = address, data, 77
        execute(group, *ds(mnemonic, vdst=2, addr=0, data0=1, offset=8))
        for wave in range(2):
            want = [0] * 64
            for lane in range(64):
                other = (int(address[wave, lane]) + 8) % 2**32 // 4 % 64
                if mnemonic == "DS_BPERMUTE_B32":
                    want[lane] = int(data[wave, other]) if active(mask, other) else 0
                elif active(mask, lane):
                    want[other] = int(data[wave, lane])
            for lane in range(64):
                assert group.v[2][wave, lane] == (want[lane] if active(mask, lane) else 77)


def test_a_permute_may_overwrite_its_sources() -> None:
    group = group_of(1)
    group.v[1][0] = np.arange(64)
    group.v[0][0] = 4 * (63 - np.arange(64))
    execute(group, *ds("DS_BPERMUTE_B32", vdst=0, addr=0, data0=1))
    assert group.v[0][0].tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize(
    ("pattern", "source"),
    [
        # swizzle(BITMASK_PERM, "01pip"): bits 4 to 0 of the lane become 0, 1, as it was, inverted, as it was
        (0x0907, lambda lane: lane & 32 | 8 | lane & 4 | (lane ^ 2) & 2 | lane & 1),
        (0x1C1F, lambda lane: lane ^ 7),  # swizzle(REVERSE, 8)
        (0x005C, lambda lane: lane & ~3 | 2),  # swizzle(BROADCAST, 4, 2)
        (0x401F, lambda lane: lane ^ 16),  # swizzle(SWAP, 16)
        (0x80B1, lambda lane: lane ^ 1),  # swizzle(QUAD_PERM, 1, 0, 3, 2)
        (0x8000, lambda lane: lane & ~3),
    ],
)
@pytest.mark.parametrize("mask", MASKS)
def test_swizzles(pattern: int, source: Callable[[int], int], mask: int) -> None:
    group = group_of(1)
    data = np.random.default_rng(2).integers(1, 2**32, 64, np.uint32)
    group.v[0][0], group.v[2][0] = data, 77
    set_exec(group, mask)
    execute(group, *ds("DS_SWIZZLE_B32", vdst=2, addr=0, offset=pattern))
    for lane in range(64):
        other = source(lane)
        want = data[other] if active(mask, other) else 0
        assert group.v[2][0, lane] == (want if active(mask, lane) else 77)


@pytest.mark.parametrize("pattern", [0xC020, 0xE000, 0x8100])
def test_swizzles_that_are_refused(pattern: int) -> None:
    with pytest.raises(InstructionUnsupported, match="pattern"):
        execute(group_of(), *ds("DS_SWIZZLE_B32", vdst=2, offset=pattern))


def _f32(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


def _bf16_sum(a: int, b: int) -> int:
    total = np.float32(_f32(a << 16)) + np.float32(_f32(b << 16))
    word = int(total.view(np.uint32))
    return (word + 0x7FFF + (word >> 16 & 1)) >> 16 & 0xFFFF


def _f16_sum(a: int, b: int) -> int:
    return int((np.uint16(a).view(np.float16) + np.uint16(b).view(np.float16)).view(np.uint16))


def _packed(add: Callable[[int, int], int]) -> Callable[..., int]:
    return lambda m, d, e: add(m & 0xFFFF, d & 0xFFFF) | add(m >> 16, d >> 16) << 16


def integer_updates(bits: int) -> dict[str, Callable[[int, int, int], int]]:
    """(memory, data, second data) to memory, from the pseudocode in AMD's ISA documents."""
    u, b, i = f"U{bits}", f"B{bits}", f"I{bits}"
    return {
        f"ADD@{u}": lambda m, d, e: m + d,
        f"SUB@{u}": lambda m, d, e: m - d,
        f"RSUB@{u}": lambda m, d, e: d - m,
        f"INC@{u}": lambda m, d, e: 0 if m >= d else m + 1,
        f"DEC@{u}": lambda m, d, e: d if m == 0 or m > d else m - 1,
        f"MIN@{u}": lambda m, d, e: min(m, d),
        f"MAX@{u}": lambda m, d, e: max(m, d),
        f"MIN@{i}": lambda m, d, e: min(m, d, key=lambda x: _signed(x, bits)),
        f"MAX@{i}": lambda m, d, e: max(m, d, key=lambda x: _signed(x, bits)),
        f"AND@{b}": lambda m, d, e: m & d,
        f"OR@{b}": lambda m, d, e: m | d,
        f"XOR@{b}": lambda m, d, e: m ^ d,
        f"MSKOR@{b}": lambda m, d, e: m & ~d | e,
        f"CMPST@{b}": lambda m, d, e: e if m == d else m,
        f"WRXCHG@{b}": lambda m, d, e: d,
    }


def _f64(bits: int) -> float:
    return float(np.uint64(bits).view(np.float64))


def _bits64(value: float) -> int:
    return int(np.float64(value).view(np.uint64))


UPDATES: dict[str, Callable[[int, int, int], int]] = {
    **integer_updates(32),
    **integer_updates(64),
    "ADD@F32": lambda m, d, e: _bits(float(np.float32(_f32(m)) + np.float32(_f32(d)))),
    "MIN@F32": lambda m, d, e: d if _f32(d) < _f32(m) else m,
    "MAX@F32": lambda m, d, e: d if _f32(d) > _f32(m) else m,
    "CMPST@F32": lambda m, d, e: e if _f32(m) == _f32(d) else m,
    "ADD@F64": lambda m, d, e: _bits64(_f64(m) + _f64(d)),
    "MIN@F64": lambda m, d, e: d if _f64(d) < _f64(m) else m,
    "MAX@F64": lambda m, d, e: d if _f64(d) > _f64(m) else m,
    "CMPST@F64": lambda m, d, e: e if _f64(m) == _f64(d) else m,
    "PK_ADD@F16": _packed(_f16_sum),
    "PK_ADD@BF16": _packed(_bf16_sum),
}


def values_for(kind: str, rng: np.random.Generator, count: int) -> list[int]:
    """Few different values, so that comparisons meet equal ones; floats are exact in sums."""
    if kind in ("F32", "F64"):
        numbers = rng.integers(-4, 5, count) / 2
        return [_bits(x) if kind == "F32" else _bits64(x) for x in numbers]
    if kind in ("F16", "BF16"):
        halves = {"F16": [0x3C00, 0x4000, 0xBC00, 0x3555], "BF16": [0x3F80, 0x4000, 0xBF80, 0x3EAB]}[kind]
        return [int(rng.choice(halves)) | int(rng.choice(halves)) << 16 for _ in range(count)]
    top = 1 << int(kind[1:])
    pool = [0, 1, 2, 5, top - 1, top // 2, top // 2 - 1, 0x1234567 * 0x9E3779B97F4A7C15 % top]
    return [pool[x] for x in rng.integers(0, len(pool), count)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("name", "returning"), [(n, r) for n in UPDATES for r in (True, False) if r or not n.startswith("WRXCHG")]
)
def test_atomics(name: str, returning: bool, mask: int) -> None:
    """Several lanes meet at each address: they take turns in order of waves and lanes, each sees what it found."""
    operation, kind = name.split("@")
    size = 8 if kind.endswith("64") else 4
    rng = np.random.default_rng(3)
    group = group_of()
    dtype = np.uint64 if size == 8 else np.uint32
    cells = group.lds.words.view(dtype)
    cells[:20] = values_for(kind, rng, 20)
    place = rng.integers(0, 16, (2, 64))
    data = np.array([values_for(kind, rng, 128) for _ in "de"], dtype).reshape(2, 2, 64)
    group.v[0][:] = place * size
    for register, value in ((4, data[0]), (8, data[1])):
        words = np.ascontiguousarray(value).view(np.uint32).reshape(2, 64, -1)
        for at in range(size // 4):
            group.v[register + at][:] = words[:, :, at]
    for r in (12, 13):
        group.v[r][:] = 77
    want = [int(x) for x in cells[:24]]
    found: dict[tuple[int, int], int] = {}
    for wave in range(2):
        for lane in range(64):
            if active(mask, lane):
                at = int(place[wave, lane]) + 4 * 4 // size
                found[wave, lane] = want[at]
                new = UPDATES[name](want[at], int(data[0][wave, lane]), int(data[1][wave, lane]))
                want[at] = new % (1 << 8 * size)
    set_exec(group, mask)
    rtn = "RTN_" if returning else ""
    execute(group, *ds(f"DS_{operation}_{rtn}{kind}", vdst=12, addr=0, data0=4, data1=8, offset=16))
    assert [int(x) for x in cells[:24]] == want
    for wave in range(2):
        for lane in range(64):
            got = int(group.v[12][wave, lane]) | (int(group.v[13][wave, lane]) << 32 if size == 8 else 0)
            untouched = 77 | 77 << 32 if size == 8 else 77
            assert got == (found.get((wave, lane), untouched) if returning else untouched)


def test_every_ds_mnemonic_is_tested_here() -> None:
    """The registry's DS entries are those of the tables above."""
    tested = {f"DS_READ_{r[0]}" for r in READS} | set(TRANSPOSING)
    tested |= {f"DS_{way}_B{bits}" for way in ("READ", "WRITE") for bits in (32, 64, 96, 128)}
    tested |= {f"DS_{way}2{st}_B{bits}" for way in ("READ", "WRITE") for st in ("", "ST64") for bits in (32, 64)}
    tested |= {f"DS_WRITE_{kind}" for kind in ("B8", "B16", "B8_D16_HI", "B16_D16_HI")}
    tested |= {"DS_PERMUTE_B32", "DS_BPERMUTE_B32", "DS_SWIZZLE_B32"}
    for name in UPDATES:
        operation, kind = name.split("@")
        tested.add(f"DS_{operation}_RTN_{kind}")
        if operation != "WRXCHG":
            tested.add(f"DS_{operation}_{kind}")
    assert {name for name in registry.operations() if name.startswith("DS_")} == tested


def test_faults() -> None:
    group = group_of()
    group.v[0][:] = 0
    group.v[0][1, 9] = 4093
    with pytest.raises(AccessViolation, match="LDS access of 4 bytes at 0xffd, the workgroup has 4096 bytes") as caught:
        execute(group, *ds("DS_READ_B32", vdst=2))
    assert (caught.value.access.row, caught.value.access.lane) == (1, 9)
    group.v[0][1, 9] = 4092
    execute(group, *ds("DS_READ_B32", vdst=2))
    with pytest.raises(AccessViolation, match="LDS access of 8 bytes at 0xffc"):
        execute(group, *ds("DS_READ_B64", vdst=2))
    with pytest.raises(AccessViolation, match="LDS access of 8 bytes at 0xffc"):
        execute(group, *ds("DS_READ_B64_TR_B16", vdst=2))
    group.v[0][1, 9] = 2
    with pytest.raises(AccessViolation, match="not a multiple of 4"):
        execute(group, *ds("DS_ADD_U32", data0=4))
    set_exec(group, 1)
    execute(group, *ds("DS_ADD_U32", data0=4))


def test_untouched_lds_is_poison() -> None:
    group = bare_group()
    group.v[0][:] = 0
    execute(group, *ds("DS_READ_B32", vdst=2))
    assert (group.v[2] == POISON).all()
