"""Loads straight to LDS: which lane's data goes where, gaps, ranges, M0 beyond 64 KiB. Words: LLVM's assembler."""

from __future__ import annotations

import numpy as np
import pytest

from waveproof.kernels.runtimes.emulate.fault import AccessViolation, InstructionUnsupported
from waveproof.kernels.runtimes.emulate.memory import Memory
from waveproof.kernels.runtimes.emulate.registers import M0, POISON, Group
from waveproof.kernels.runtimes.emulate.registry import Context
from waveproof.selftest.emulate.single_step import bare_group, execute, set_exec

BUFFER = {1: (0xE0511010, 0x08010000), 3: (0xE0591010, 0x08010000), 4: (0xE05D1010, 0x08010000)}
"""buffer_load_dword[x3, x4] v0, s[4:7], s8 offen offset:16 lds, by dwords."""
GLOBAL = {
    1: (0xDCA88010, 0x007F0000),  # global_load_lds_dword v[0:1], off offset:16
    3: (0xDDF88000, 0x007F0000),  # global_load_lds_dwordx3 v[0:1], off
    4: (0xDDF48010, 0x00040000),  # global_load_lds_dwordx4 v0, s[4:5] offset:16
}
FULL = 0xFFFFFFFFFFFFFFFF
SPARSE = 0x80000000F00F0006


def prepared(arch: str, lds_bytes: int, waves: int = 2) -> tuple[Group, np.ndarray, int]:
    """A group, a source of distinct words, and its address."""
    memory = Memory()
    source = np.arange(4096, dtype=np.uint32) + 0xA0000
    address = memory.add("source", source)
    group = bare_group(Context(arch), waves, lds_bytes, memory)
    return group, source, address


def want_of(
    source: np.ndarray, first: np.ndarray, dwords: int, m0: list[int], offset: int, mask: int, size: int
) -> np.ndarray:
    """LDS after the load: lane by lane, written out. ``first`` [waves, 64] is the word each lane reads from."""
    lds = np.full(size // 4, POISON, np.uint32)
    for wave, base in enumerate(m0):
        for lane in range(64):
            if mask >> lane & 1:
                at = (base + offset + lane * 4 * dwords) // 4
                lds[at : at + dwords] = source[first[wave, lane] : first[wave, lane] + dwords]
    return lds


@pytest.mark.parametrize("mask", [FULL, SPARSE, 0])
@pytest.mark.parametrize(("arch", "dwords"), [("gfx942", 1), ("gfx950", 1), ("gfx950", 3), ("gfx950", 4)])
def test_a_lane_has_its_own_slot(arch: str, dwords: int, mask: int) -> None:
    """Lane L's data goes to M0 + offset + L * size, whatever the other lanes do; the offset counts on both sides."""
    group, source, address = prepared(arch, 8192)
    rng = np.random.default_rng(1)
    word = rng.permutation(1000)[:128].reshape(2, 64) + 100
    m0 = [256, 4608]
    group.s[M0][:, 0] = m0
    group.s64[2][:] = np.uint64(address)
    group.s[6][:], group.s[7][:], group.s[8][:] = source.nbytes, 0x20000, 64
    group.v[0][:] = word * 4
    set_exec(group, mask)
    execute(group, *BUFFER[dwords])
    np.testing.assert_array_equal(group.lds.words, want_of(source, word + 16 + 4, dwords, m0, 16, mask, 8192))
    lanes = bin(mask).count("1")
    assert group.machine.lds_bytes_written == 2 * lanes * 4 * dwords
    assert (group.v[0] == word * 4).all()

    group.lds.words[:] = POISON
    offset = 0 if dwords == 3 else 16
    if dwords != 4:
        pointer = address + word.astype(np.uint64) * 4
        group.v[0][:], group.v[1][:] = pointer & 0xFFFFFFFF, pointer >> np.uint64(32)
    execute(group, *GLOBAL[dwords])
    np.testing.assert_array_equal(group.lds.words, want_of(source, word + offset // 4, dwords, m0, offset, mask, 8192))


def test_one_hot_lane() -> None:
    """A single lane set: its four dwords and nothing else."""
    for lane in range(64):
        group, source, address = prepared("gfx950", 2048, 1)
        group.s[M0][:] = 512
        group.s64[2][:] = np.uint64(address)
        group.v[0][:] = 64 + 16 * (63 - np.arange(64))
        set_exec(group, 1 << lane)
        execute(group, *GLOBAL[4])
        written = np.flatnonzero(group.lds.words != POISON)
        assert written.tolist() == [(512 + 16 + 16 * lane) // 4 + d for d in range(4)]
        assert (group.lds.words[written] == source[16 + 4 * (63 - lane) + 4 :][:4]).all()


def test_dwords_out_of_the_buffer_arrive_as_zero() -> None:
    """num_records cuts lane 10's four dwords after two; later lanes get zeros, and nothing is read."""
    group, source, address = prepared("gfx950", 2048, 1)
    group.s[M0][:] = 0
    group.s64[2][:] = np.uint64(address)
    group.s[6][:], group.s[7][:], group.s[8][:] = 16 + 10 * 16 + 8, 0x20000, 0
    group.v[0][:] = np.arange(64) * 16
    execute(group, *BUFFER[4])
    want = np.zeros(256, np.uint32)
    want[:42] = source[4 : 4 + 42]
    np.testing.assert_array_equal(group.lds.words[4 : 4 + 256], want)
    assert (group.lds.words[:4] == POISON).all()


def test_m0_reaches_all_of_the_lds() -> None:
    """gfx950 has 160 KiB: M0 above 64 KiB means what it says; bits above 18 do not count."""
    group, _, address = prepared("gfx950", 160 << 10, 1)
    group.s64[2][:] = np.uint64(address)
    group.v[0][:] = np.arange(64) * 16
    for m0 in (0x20000, 0x20000 | 1 << 18 | 1 << 31):
        group.lds.words[:] = POISON
        group.s[M0][:] = m0
        execute(group, *GLOBAL[4])
        np.testing.assert_array_equal(np.flatnonzero(group.lds.words != POISON), (0x20010 // 4) + np.arange(256))


def test_m0_of_gfx942_has_16_bits() -> None:
    group, _, address = prepared("gfx942", 64 << 10, 1)
    pointer = np.full(64, address, np.uint64)
    group.v[0][:], group.v[1][:] = pointer & 0xFFFFFFFF, pointer >> np.uint64(32)
    group.s[M0][:] = 0xABC1_0100
    execute(group, *GLOBAL[1])
    assert np.flatnonzero(group.lds.words != POISON).tolist() == [0x110 // 4 + lane for lane in range(64)]


def test_faults_name_the_lane() -> None:
    group, _, address = prepared("gfx950", 1024 + 512, 2)
    group.s64[2][:] = np.uint64(address)
    group.v[0][:] = 0
    group.s[M0][:, 0] = [0, 512]
    with pytest.raises(AccessViolation, match="LDS access of 16 bytes at 0x600, the workgroup has 1536") as caught:
        execute(group, *GLOBAL[4])
    assert (caught.value.access.row, caught.value.access.lane) == (1, 63)
    group.v[0][1, 7] = 1 << 20
    group.s[M0][:] = 0
    with pytest.raises(AccessViolation, match="load of 16 bytes") as caught:
        execute(group, *GLOBAL[4])
    assert (caught.value.access.row, caught.value.access.lane) == (1, 7)
    group.v[0][:] = 0
    group.s[M0][:] = 2
    with pytest.raises(AccessViolation, match="not a multiple of 4"):
        execute(group, *GLOBAL[4])


@pytest.mark.parametrize("words", [BUFFER[3], BUFFER[4], GLOBAL[3], GLOBAL[4], (0xE0491000, 0x08010000)])
def test_what_gfx942_lacks(words: tuple[int, int]) -> None:
    with pytest.raises(InstructionUnsupported, match="to LDS"):
        execute(bare_group(Context("gfx942")), *words)
