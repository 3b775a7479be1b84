"""Launch state, divergence, barriers, order of waves, and what a fault says.

Programs are given as words, with what they do beside them (assembled by LLVM 14 for gfx90a: these encodings are those
of gfx942 and gfx950).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest

from waveproof.kernels.runtimes.emulate.fault import Fault, InstructionUnsupported, LaunchInvalid
from waveproof.kernels.runtimes.emulate.launch import LaunchStats, Machine
from waveproof.kernels.runtimes.emulate.lds_watch import LdsReport
from waveproof.kernels.runtimes.emulate.program import Program
from waveproof.kernels.runtimes.emulate.registers import POISON, Group, State
from waveproof.kernels.runtimes.emulate.registry import Context
from waveproof.kernels.runtimes.emulate.scheduler import Execution, Schedule
from waveproof.selftest.emulate.tiny_code_object import code_object

SCHEDULES = [Schedule(), Schedule(quantum=3), Schedule(quantum=1000), *(Schedule(quantum=4, seed=s) for s in range(3))]

# s_load_dwordx2 s[6:7], s[0:1], 0; wave s8 = v0 >> 6; v1 = 4 * s2 + s8; odd waves take a longer way:
# even: v4 = v1 * 10, odd: v4 = v1 * 100; then out[256 * s2 + v0] = v4 + lane + 0x1234
DIVERGENT = [
    0xC0060180, 0x00000000, 0x7E100500, 0x8F088608, 0x8E098202, 0x80090809, 0x7E020209, 0x260400BF, 0x24060082,
    0x7E0E02FF, 0x00001234, 0x8E0A8A02, 0x6806060A, 0xBF0D8008, 0xBF850003, 0xD2850004, 0x00011501, 0xBF820004,
    0x100802FF, 0x00000064, 0xBF800000, 0xBF800000, 0x68080504, 0x68080F04, 0xDC708000, 0x00060403, 0xBF810000,
]  # fmt: skip

# s11 = sum of 0 .. s2 + wave, by a loop; out[256 * s2 + v0] = s11
LOOP = [
    0xC0060180, 0x00000000, 0x7E100500, 0x8F088608, 0x80090208, 0xBE8A0080, 0xBE8B0080, 0x800B0A0B, 0x800A810A,
    0xBF0B090A, 0xBF85FFFC, 0x7E02020B, 0x24060082, 0x8E0A8A02, 0x6806060A, 0xDC708000, 0x00060103, 0xBF810000,
]  # fmt: skip

# LDS[v0] = v0 + s2; waves 0-1 and 2-3 meet at two different s_barrier; out[256 * s2 + v0] = LDS[v0 ^ 255]
EXCHANGE = [
    0xC0060180, 0x00000000, 0x7E100500, 0x8F088608, 0x24060082, 0x68020002, 0xBF0A8208, 0xBF850008, 0xBF800000,
    0xBF800000, 0xBF800000, 0xD81A0000, 0x00000103, 0xBF8CC07F, 0xBF8A0000, 0xBF820004, 0xD81A0000, 0x00000103,
    0xBF8CC07F, 0xBF8A0000, 0x2A0806FF, 0x000003FC, 0xD86C0000, 0x05000004, 0xBF8CC07F, 0x8E0A8A02, 0x6806060A,
    0xDC708000, 0x00060503, 0xBF810000,
]  # fmt: skip


def run(
    words: Sequence[int],
    out: np.ndarray,
    workgroups: int = 3,
    threads: int = 256,
    schedule: Schedule | None = None,
    lds: int = 0,
    arch: str = "gfx950",
) -> LaunchStats:
    machine = Machine(arch)
    argument = struct.pack("<Q", machine.memory.add("out", out))
    return machine.launch(
        code_object(words, arch), (workgroups, 1, 1), (threads, 1, 1), argument, lds_bytes=lds, schedule=schedule
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_divergent_waves_keep_their_registers_and_come_together(schedule: Schedule) -> None:
    out = np.zeros((3, 4, 64), np.uint32)
    stats = run(DIVERGENT, out, schedule=schedule)
    wave = np.arange(12).reshape(3, 4, 1)
    assert (out == wave * np.where(wave & 1, 100, 10) + np.arange(64) + 0x1234).all()
    assert stats.by_mnemonic["V_MUL_LO_U32"] == stats.by_mnemonic["V_MUL_U32_U24"] == 6
    assert stats.by_mnemonic["S_NOP"] == 12
    assert stats.wave_instructions == 12 * 17 + 6 * 2 + 6 * 3 == sum(stats.by_mnemonic.values())
    assert stats.traffic.stored == out.nbytes


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_waves_leave_a_loop_one_by_one(schedule: Schedule) -> None:
    out = np.zeros((3, 4, 64), np.uint32)
    stats = run(LOOP, out, schedule=schedule)
    last = np.arange(3)[:, None] + np.arange(4)
    assert (out == (last * (last + 1) // 2)[:, :, None]).all()
    assert stats.by_mnemonic["S_CMP_LE_U32"] == (last + 1).sum()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_barrier_counts_waves_wherever_they_stand(schedule: Schedule) -> None:
    out = np.zeros((3, 256), np.uint32)
    stats = run(EXCHANGE, out, schedule=schedule, lds=1024)
    assert (out == (np.arange(256) ^ 255) + np.arange(3)[:, None]).all()
    assert stats.by_mnemonic["S_BARRIER"] == 12
    assert (stats.lds_bytes_read, stats.lds_bytes_written) == (3072, 3072)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_ended_wave_does_not_hold_up_the_others(schedule: Schedule) -> None:
    # wave 0 ends at once; the others pass two barriers
    words = [0x7E100500, 0x8F088608, 0xBF068008, 0xBF850002, 0xBF8A0000, 0xBF8A0000, 0xBF810000]
    stats = run(words, np.zeros(1, np.uint32), schedule=schedule)
    assert stats.by_mnemonic["S_BARRIER"] == 3 * 3 * 2


# wave 0 waits at a barrier, wave 1 at another, wave 2 ends, wave 3 comes to the first; all but 2: out[256 * s2 + v0] =
# wave. So two groups meet that have a group and an ended wave between them.
MEETING = [
    0xC0060180, 0x00000000, 0x7E100500, 0x8F088608, 0x24060082, 0x8E0A8A02, 0x6806060A, 0x7E020208, 0xBF068008,
    0xBF850004, 0xBF068108, 0xBF850006, 0xBF068208, 0xBF850003, 0xBF8A0000, 0xDC708000, 0x00060103, 0xBF810000,
    0xBF8A0000, 0xBF800000, 0xDC708000, 0x00060103, 0xBF810000,
]  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_waves_meet_across_an_ended_one(schedule: Schedule) -> None:
    out = np.full((3, 4, 64), 99, np.uint32)
    run(MEETING, out, schedule=schedule)
    assert (out == np.array([0, 1, 99, 3])[:, None]).all()


def test_groups_unite_around_ended_waves() -> None:
    """Of 9 waves 2, 5 and 8 have ended; the groups of 0-1, 4 and 7 unite, those of 3 and 6 move and stay themselves."""
    state, context, machine = State(9, 1, 0), Context(vgprs=1, accvgprs=0), Machine("gfx950")
    waves = np.arange(9)
    state.v[0], state.s[:, 5], state.workgroup[:] = waves[:, None], waves, waves
    program = Program(code_object([0xBF810000]))
    execution = Execution(program, state, context, 0, machine, Schedule(), 1, "kernel")
    same = [Group(state, *slots, 0, context, machine) for slots in ((7, 8), (0, 2), (4, 5))]
    others = [Group(state, *slots, 4, context, machine) for slots in ((6, 7), (3, 4))]
    execution.groups = [same[0], others[0], same[1], others[1], same[2]]
    execution._unite(same)

    def held(group: Group) -> list[int]:
        found = group.v[0][:, 7].tolist()
        assert found == group.s[5][:, 0].tolist() == state.wave[group.first : group.last].tolist()
        assert found == state.workgroup[group.first : group.last].tolist()
        return found

    assert [held(group) for group in execution.groups if group.pc == 4] == [[6], [3]]
    assert [sorted(held(group)) for group in execution.groups if group.pc == 0] == [[0, 1, 4, 7]]
    assert sorted(state.wave.tolist()) == list(range(9)), "no wave is lost, none is doubled"


def test_lds_out_of_bounds() -> None:
    with pytest.raises(Fault, match="LDS access of 4 bytes at 0x200, the workgroup has 512 bytes") as caught:
        run(EXCHANGE, np.zeros((3, 256), np.uint32), lds=512)
    place = caught.value.place
    assert place is not None
    assert (place.wave, place.lane, place.workgroup) == (2, 0, (0, 0, 0))


def test_the_fault_names_buffer_instruction_and_lane() -> None:
    # out[64 * s2 + v0 - 2] = v0: workgroup 0 leaves the buffer below, by its lanes 0 and 1
    words = [0xC0060180, 0, 0x24060082, 0x8E0A8802, 0x6806060A, 0xDC709FF8, 0x00060003, 0xBF810000]
    out = np.zeros((3, 64), np.uint32)
    with pytest.raises(Fault) as caught:
        run(words, out, threads=64)
    fault = caught.value
    assert fault.place is not None
    assert fault.access is not None
    assert "8 bytes before out (uint32[3, 64], 768 bytes), which would be element -2 of 192 (2 lanes do)" in fault.rule
    assert (fault.place.workgroup, fault.place.wave, fault.place.lane) == ((0, 0, 0), 0, 0)
    assert (fault.place.address, fault.access.size) == (5 * 4, 4)
    assert any(line.startswith("=> 0x0014: global_store_dword") for line in fault.place.listing)
    assert "kernel kernel, .text+0x14" in str(fault)
    assert not out.any()


def test_endless_loops_end() -> None:
    with pytest.raises(Fault, match="no end after"):
        run([0xBF800000, 0xBF82FFFE], np.zeros(1), schedule=Schedule(most_instructions=10_000))


def test_an_unknown_instruction_matters_only_where_it_is_reached() -> None:
    # s_branch over s_rfe_b64 s[0:1]
    around, into = [0xBF820001, 0xBE801F00, 0xBF810000], [0xBF820000, 0xBE801F00, 0xBF810000]
    assert run(around, np.zeros(1)).wave_instructions == 24
    with pytest.raises(InstructionUnsupported, match=r"S_RFE_B64 is not implemented for gfx950[\s\S]*\.text\+0x4"):
        run(into, np.zeros(1))


def test_running_off_the_end_of_the_code_is_refused() -> None:
    with pytest.raises(Exception, match=r"\.text\+0x4, the section has 0x4 bytes"):
        run([0xBF800000], np.zeros(1))


def test_a_register_index_that_differs_by_wave() -> None:
    # v10..v12 = 7, 8, 9; out[64 * s2 + v0] = v[10 + s2] through s_set_gpr_idx_on
    words = [
        0x7E140287, 0x7E160288, 0x7E180289, 0xBE890002, 0xBF110109, 0x7E02030A, 0xBF9C0000, 0xC0060180, 0x00000000,
        0x24060082, 0x8E0A8802, 0x6806060A, 0xDC708000, 0x00060103, 0xBF810000,
    ]  # fmt: skip
    out = np.zeros((3, 64), np.uint32)
    run(words, out, threads=64)
    assert (out == np.array([[7], [8], [9]])).all()


def test_the_float_mode_can_change_on_the_way() -> None:
    # a denormal times 1.0 with denormals kept (v2), flushed after s_setreg (v4), kept again (v5)
    words = [
        0x7E0202FF, 0x00400000, 0x0A0402F2, 0xBA000901, 0x00000000, 0x0A0802F2, 0xBA000901, 0x00000003, 0x0A0A02F2,
        0xC0060180, 0x00000000, 0x7E060280, 0xDC748000, 0x00060403, 0xDC708008, 0x00060203, 0xBF810000,
    ]  # fmt: skip
    out = np.ones(3, np.uint32)
    run(words, out, 1, 64)
    assert out.tolist() == [0, 0x00400000, 0x00400000]


def test_a_subroutine() -> None:
    # s_getpc, s_swappc to code behind s_endpgm that loads the pointer and sets v1 = 42
    words = [
        0xBE881C00, 0x80089C08, 0x82098009, 0xBE8A1E08, 0x7E060280, 0xDC708000, 0x00060103, 0xBF810000, 0xC0060180,
        0x00000000, 0x7E0202AA, 0xBE801D0A,
    ]  # fmt: skip
    out = np.zeros(1, np.uint32)
    run(words, out, 2, 64)
    assert out[0] == 42


def test_ids_arrive_where_the_descriptor_puts_them() -> None:
    # out[s2 + 2 * (s3 + 2 * s4)][x + 7 * (y + 5 * z)] = x | y << 8 | z << 16
    words = [
        0xC0060180, 0x00000000, 0x260200FF, 0x000003FF, 0xD1C80002, 0x02291500, 0xD2000004, 0x04051102, 0xD1C80002,
        0x02292900, 0xD2000004, 0x04112102, 0x920A8204, 0x800A030A, 0x920A820A, 0x800A020A, 0x920AFF0A, 0x00000118,
        0x100A0485, 0xD1C80006, 0x02291500, 0x680A0D05, 0x100A0A87, 0x680A0305, 0x240A0A82, 0x680A0A0A, 0xDC708000,
        0x00060405, 0xBF810000,
    ]  # fmt: skip
    out = np.full((12, 70), 0xFFFFFFFF, np.uint32)
    machine = Machine("gfx942")
    argument = struct.pack("<Q", machine.memory.add("out", out))
    stats = machine.launch(code_object(words, "gfx942"), (2, 2, 3), (7, 5, 2), argument)
    z, y, x = np.meshgrid(np.arange(2), np.arange(5), np.arange(7), indexing="ij")
    assert (out == (x | y << 8 | z << 16).reshape(1, 70)).all()
    # the second wave of each workgroup has 6 lanes
    assert stats.traffic.stored == out.nbytes
    assert (stats.waves, stats.workgroups) == (24, 12)


def test_registers_start_poisoned() -> None:
    # s_load_dwordx2; v3 = 4 * v0; store v9, which nobody wrote
    words = [0xC0060180, 0, 0x24060082, 0xDC708000, 0x00060903, 0xBF810000]
    out = np.zeros(64, np.uint32)
    run(words, out, 1, 64)
    assert (out == POISON).all()


def test_more_vgprs_than_allocated_are_refused_when_reached() -> None:
    with pytest.raises(Exception, match=r"v32: the kernel descriptor allocates 32 VGPRs"):
        run([0x7E400280, 0xBF810000], np.zeros(1))  # v_mov_b32 v32, 0


@pytest.mark.parametrize(
    ("fields", "arguments", "says"),
    [
        ({"arch": "gfx942"}, {}, "code for gfx942, the device is gfx950"),
        ({"kernarg_bytes": 16}, {}, "8 bytes of arguments, its descriptor says 16"),
        ({"lds_bytes": 160 << 10}, {"lds_bytes": 1}, "163841 bytes of LDS, gfx950 has 163840"),
        ({}, {"grid": (0, 1, 1)}, "must be positive"),
        ({}, {"block": (1025, 1, 1)}, "1025 work-items"),
        ({"properties": 0b101000}, {}, "flat scratch"),
    ],
)
def test_launches_that_do_not_fit(fields: dict[str, int], arguments: dict[str, object], says: str) -> None:
    code = code_object([0xBF810000], **fields)  # type: ignore[arg-type]
    given = {"grid": (1, 1, 1), "block": (64, 1, 1), "kernarg": bytes(8), **arguments}
    with pytest.raises(LaunchInvalid, match=says):
        Machine("gfx950").launch(code, **given)  # type: ignore[arg-type]


def test_counts_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    out = np.zeros((40, 4, 64), np.uint32)
    whole = run(LOOP, out, workgroups=40)
    want = out.copy()
    monkeypatch.setattr("waveproof.kernels.runtimes.emulate.launch._BATCH_BYTES", 100_000)
    out[:] = 0
    parts = run(LOOP, out, workgroups=40)
    assert (out == want).all()
    assert parts.by_mnemonic == whole.by_mnemonic


# out[v0] = what the lane stored in its scratch at 4: scratch_store_dword off, v1, off offset:4;
# scratch_load_dword v2, off, s9 with s9 = 4
SPILL = [
    0xC0060180, 0x00000000, 0x24060082, 0x68020085, 0xDC704004, 0x007F0100, 0x7E020280, 0xB0090004, 0xDC504000,
    0x02090000, 0xDC708000, 0x00060203, 0xBF810000,
]  # fmt: skip


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_each_lane_has_its_own_scratch(arch: str) -> None:
    out = np.zeros(256, np.uint32)
    machine = Machine(arch)
    argument = struct.pack("<Q", machine.memory.add("out", out))
    machine.launch(code_object(SPILL, arch, private_bytes=8), (1, 1, 1), (256, 1, 1), argument)
    assert (out == np.arange(256) + 5).all()
    with pytest.raises(Fault, match="scratch access of 4 bytes at 0x4, a lane has 4 bytes"):
        machine.launch(code_object(SPILL, arch, private_bytes=4), (1, 1, 1), (256, 1, 1), argument)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lds_conflicts_and_unwritten_reads_are_reported(schedule: Schedule) -> None:
    def watched(words: Sequence[int]) -> LdsReport:
        machine = Machine("gfx950")
        argument = struct.pack("<Q", machine.memory.add("out", np.zeros((3, 256), np.uint32)))
        machine.lds_report = LdsReport()
        machine.launch(code_object(words), (3, 1, 1), (256, 1, 1), argument, lds_bytes=1024, schedule=schedule)
        return machine.lds_report

    assert watched(EXCHANGE) == LdsReport()
    unsynchronised = [0xBF800000 if word == 0xBF8A0000 else word for word in EXCHANGE]
    report = watched(unsynchronised)
    # Each of the 768 dwords is written by one wave and read by another; which comes first is up to the schedule.
    assert sum(report.conflicts.values()) == 768
    assert report.unwritten == report.conflicts["write after read"]
    assert set(report.conflicts) <= {"read after write", "write after read"}
    assert "of workgroup" in report.first[0]
    silent = [0xBF800000 if word in (0xD81A0000, 0x00000103) else word for word in EXCHANGE]
    assert watched(silent).unwritten == 768
