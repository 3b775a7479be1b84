"""What the emulator says when something is wrong, and what looks on where that is asked for.

Programs are given as words, with what they do beside them (as in test_core_launch.py).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from waveproof.kernels.runtimes.emulate import listing
from waveproof.kernels.runtimes.emulate.decode import decode
from waveproof.kernels.runtimes.emulate.fault import CodeObjectInvalid, EmulationError, Fault, InstructionUnsupported
from waveproof.kernels.runtimes.emulate.launch import LaunchStats, Machine
from waveproof.kernels.runtimes.emulate.trace import Trace
from waveproof.kernels.runtimes.emulate.watch import Touched, Watch, by_class
from waveproof.selftest.emulate.test_core_launch import DIVERGENT, EXCHANGE
from waveproof.selftest.emulate.tiny_code_object import code_object

# s_load_dwordx2 s[6:7], s[0:1], 0; v3 = 4 * v0; s10 = s2 << 8; v3 += s10 (byte offset of the thread's element)
ELEMENT = [0xC0060180, 0, 0x24060082, 0x8E0A8802, 0x6806060A]
END = 0xBF810000


def run(machine: Machine, words: Sequence[int], out: np.ndarray, lds: int = 0, threads: int = 64) -> LaunchStats:
    argument = struct.pack("<Q", machine.memory.add("out", out, uninitialised=True))
    return machine.launch(code_object(words), (3, 1, 1), (threads, 1, 1), argument, lds_bytes=lds)


def message(words: Sequence[int], kind: type[EmulationError], lds: int = 0, threads: int = 64) -> list[str]:
    with pytest.raises(kind) as caught:
        run(Machine("gfx950"), words, np.zeros((3, 64), np.uint32), lds, threads)
    return str(caught.value).splitlines()


# Faults -------------------------------------------------------------------------------------------------------------


def test_a_store_out_of_bounds() -> None:
    # exec = 0xffff0000; out[64 * s2 + v0 + 240] = v0
    words = [*ELEMENT, 0xBEFE01FF, 0xFFFF0000, 0xDC7083C0, 0x00060003, END]
    first, *lines = message(words, Fault)
    assert first.startswith("store of 4 bytes at 0x")
    # 16 lanes in each of three workgroups, which execute together
    assert "256 bytes beyond the end of out (uint32[3, 64], 768 bytes), which would be element 256 of 192" in first
    assert first.endswith(" (48 lanes do)")
    assert lines[0] == "kernel kernel, .text+0x1c: global_store_dword v3, v0, s[6:7] offset:960"
    assert lines[1] == "workgroup (0, 0, 0), wave 0, lane 16, EXEC 0x00000000ffff0000 (16 of 64 lanes)"
    assert lines[2] == "code object test (gfx950)"
    assert lines[3].startswith("operands of lane 16: v3 = 0x40, v0 = 0x10, s[6:7] = 0x")
    assert lines[4:] == [
        "   0x0008: v_lshlrev_b32 v3, 2, v0",
        "   0x000c: s_lshl_b32 s10, s2, 8",
        "   0x0010: v_add_u32 v3, s10, v3",
        "   0x0014: s_mov_b64 exec, 0xffff0000",
        "=> 0x001c: global_store_dword v3, v0, s[6:7] offset:960",
        "   0x0024: s_endpgm",
    ]


def test_an_access_across_the_end() -> None:
    # global_load_dwordx2 v[4:5] of the last element
    words = [0xC0060180, 0, 0x7E0602FF, 0x000002FC, 0xDC548000, 0x04060003, END]
    first = message(words, Fault)[0]
    assert "byte 764 of out (uint32[3, 64], 768 bytes), element 191 of 192, index [2, 63]" in first
    assert first.endswith("4 of the 8 bytes lie beyond the end (192 lanes do)")


def test_lds_faults_say_how_many_lanes() -> None:
    first, *lines = message(EXCHANGE, Fault, lds=576, threads=256)
    assert first == "LDS access of 4 bytes at 0x240, the workgroup has 576 bytes (336 lanes do)"
    assert "wave 2, lane 16" in lines[1]
    # v2 = 1; ds_read_b32 v3, v2
    first, *lines = message([0x7E040281, 0xD86C0000, 0x03000002, END], Fault, lds=512)
    assert first == "LDS access of 4 bytes at 0x1, which is not a multiple of 4 (192 lanes do)"
    assert "operands of lane 0: v2 = 0x1" in lines


def test_instructions_that_cannot_be_executed() -> None:
    lines = message([0xBF800000, 0xBE801F00, END], InstructionUnsupported)
    assert lines[0] == "S_RFE_B64 is not implemented for gfx950"
    assert lines[1].startswith("kernel kernel, .text+0x4: s_rfe_b64")
    assert "=> 0x0004: s_rfe_b64" in lines[-2]
    lines = message([0x7E020280, 0xFFFFFFFF, END], CodeObjectInvalid)
    assert lines[0].startswith("no CDNA instruction: ffffffff")
    assert lines[-3:] == ["   0x0000: v_mov_b32 v1, 0", "=> 0x0004: .long 0xffffffff", "   0x0008: s_endpgm"]
    lines = message([0xBF800000], CodeObjectInvalid)
    assert lines[-1] == "=> 0x0004: (no code here)"


def test_a_fault_shows_undefined_operands() -> None:
    # global_load_dword v5, v9, s[6:7] with v9 never written
    lines = message([*ELEMENT, 0xDC508000, 0x05060009, END], Fault)
    assert any("v9 = 0x7fc0dead (undefined: never written)" in line for line in lines)


# Disassembly: expected texts by LLVM's disassembler (llvm-mc -disassemble -mcpu=gfx90a), modifiers in this suite's form


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((0xBF8CC07F,), "s_waitcnt lgkmcnt(0)"),
        ((0xBF8C0070,), "s_waitcnt vmcnt(0) lgkmcnt(0)"),
        ((0xC0060180, 0x00000010), "s_load_dwordx2 s[6:7], s[0:1] offset:16"),
        ((0xDC708000, 0x007F0402), "global_store_dword v[2:3], v4, off"),
        ((0xD1FF0003, 0x04220704), "v_add3_u32 v3, v4, v3, v8"),
        ((0xD0C30002, 0x00020404), "v_cmp_le_i32 s[2:3], s4, v2"),
        ((0xD2850004, 0x00011501), "v_mul_lo_u32 v4, v1, 10"),
        ((0xD2800004, 0x00020902), "v_add_f64 v[4:5], v[2:3], v[4:5]"),
        ((0xBE8A0080,), "s_mov_b32 s10, 0"),
        ((0xBF85FFFC,), "s_cbranch_scc1 .text+0xf4"),
        ((0xD86C0004, 0x05000004), "ds_read_b32 v5, v4 offset:4"),
    ],
)
def test_disassembly(words: tuple[int, ...], text: str) -> None:
    assert listing.line(decode(struct.pack(f"<{len(words)}I", *words), 0x100)) == text


# Watching -----------------------------------------------------------------------------------------------------------


def watched(words: Sequence[int], watch: Watch, lds: int = 0, threads: int = 64) -> LaunchStats:
    return run(Machine("gfx950", watch=watch), words, np.zeros((3, 64), np.uint32), lds, threads)


def test_a_register_that_nobody_wrote() -> None:
    # exec_lo = 0xf0; v6 = 1; exec_lo = 0xff; v7 = v6 + v6, which reads it twice; s11 = s12 + 1
    watch = Watch()
    watched([0xBEFE00FF, 0xF0, 0x7E0C0281, 0xBEFE00FF, 0xFF, 0x020E0D06, 0x800B810C, END], watch)
    found = {key[2]: finding for key, finding in watch.findings.items()}
    assert set(found) == {"v6", "s12"}
    assert (found["v6"].count, found["v6"].lane, found["v6"].workgroup) == (2 * 3 * 4, 0, (0, 0, 0))
    assert (found["s12"].count, found["s12"].lane) == (3, None)
    assert "v_add_f32 v7, v6, v6: v6 was never written; 24 reads" in watch.report()


def test_lanes_that_are_off_and_written_registers_are_no_findings() -> None:
    # exec_lo = 0xf0; v6 = 1; v7 = v6 + v6
    watch = Watch()
    watched([0xBEFE00FF, 0xF0, 0x7E0C0281, 0x020E0D06, END], watch)
    assert not watch.findings
    assert watch.report() == ""


def test_a_buffer_that_nobody_wrote() -> None:
    load, store = [0xDC508000, 0x05060003], [0xDC708000, 0x00060003]
    watch = Watch()
    stats = watched([*ELEMENT, *load, END], watch)
    (finding,) = watch.findings.values()
    assert (finding.kind, finding.address, finding.count, finding.lane) == ("buffer", 0x14, 192, 0)
    assert "byte 0 of out (uint32[3, 64], 768 bytes), element 0 of 192, index [0, 0]" in finding.what
    assert stats.distinct["out"] == Touched(768, 0)
    watch = Watch()
    stats = watched([*ELEMENT, *store, *load, END], watch)
    assert not watch.findings
    assert stats.distinct["out"] == Touched(768, 768)
    assert stats.distinct["kernel arguments"] == Touched(8, 0)


def test_distinct_bytes_count_once() -> None:
    # every thread reads out[0] twice
    watch = Watch()
    words = [0xC0060180, 0, 0x7E060280, *[0xDC508000, 0x05060003] * 2, END]
    stats = watched(words, watch)
    assert stats.traffic.loaded == 3 * 64 * 4 * 2
    assert stats.distinct["out"] == Touched(4, 0)


def test_lds_that_nobody_wrote_is_reported_with_its_instruction() -> None:
    # v2 = 4 * v0; ds_read_b32 v3, v2
    watch = Watch()
    watched([0x24040082, 0xD86C0000, 0x03000002, END], watch, lds=512)
    assert watch.lds_report.unwritten == 192
    assert ".text+0x0004: ds_read_b32 v3, v2: 192 reads of LDS dwords that no wave has written" in watch.report()


def test_watching_and_tracing_change_nothing() -> None:
    plain, looked_on = np.zeros((2, 12, 64), np.uint32)
    argument = "<Q"
    counts = []
    for out, machine in ((plain, Machine("gfx950")), (looked_on, Machine("gfx950", watch=Watch(), trace=Trace()))):
        base = machine.memory.add("out", out)
        counts.append(machine.launch(code_object(DIVERGENT), (3, 1, 1), (256, 1, 1), struct.pack(argument, base)))
    assert plain.any()
    assert (plain == looked_on).all()
    assert counts[0].by_mnemonic == counts[1].by_mnemonic
    assert (counts[0].distinct, counts[1].distinct["out"]) == ({}, Touched(0, plain.nbytes))


# Tracing and histogram ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wave", "factor", "product"), [(2, 10, "v_mul_lo_u32 v4, v1, 10"), (3, 100, "v_mul_u32_u24 v4, 0x64, v1")]
)
def test_the_trace_of_a_wave(wave: int, factor: int, product: str) -> None:
    trace = Trace(workgroup=(1, 0, 0), wave=wave)
    run(Machine("gfx950", trace=trace), DIVERGENT, np.zeros((12, 64), np.uint32), threads=256)
    texts = [line.text for line in trace.lines]
    assert len(texts) == trace.executed == (20 if wave % 2 else 19)
    assert texts[0].startswith("s_load_dwordx2 s[6:7]")
    assert texts[-1] == "s_endpgm"
    at = texts.index(product)
    assert trace.lines[at].results == (f"v4 = {(4 + wave) * factor:#x} in all lanes",)
    assert f"v4 = {(4 + wave) * factor:#x} in all lanes" in trace.text()
    assert trace.lines[0].exec_mask == 0xFFFFFFFFFFFFFFFF


def test_the_trace_ends_at_its_limit_and_knows_its_kernel() -> None:
    trace = Trace(limit=3)
    run(Machine("gfx950", trace=trace), EXCHANGE, np.zeros((3, 256), np.uint32), lds=1024, threads=256)
    assert len(trace.lines) == 3
    assert trace.text().splitlines()[-1] == f"        and {trace.executed - 3} more instructions"
    other = Trace(kernel="another")
    run(Machine("gfx950", trace=other), EXCHANGE, np.zeros((3, 256), np.uint32), lds=1024, threads=256)
    assert not other.lines


def test_histogram_by_class() -> None:
    stats = run(Machine("gfx950"), EXCHANGE, np.zeros((3, 256), np.uint32), lds=1024, threads=256)
    assert stats.by_class.total() == stats.wave_instructions
    assert stats.by_class["LDS"] == 2 * 12
    assert stats.by_class["global memory"] == stats.by_class["scalar memory"] == 12
    every = Counter(
        {"V_MFMA_F32_16X16X16_F16": 1, "V_ADD_F32": 2, "S_ADD_U32": 3, "S_WAITCNT": 4, "BUFFER_LOAD_DWORD": 5}
    )
    assert by_class(every) == {"matrix": 1, "vector": 2, "scalar": 3, "control": 4, "global memory": 5}
