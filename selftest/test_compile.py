"""The ``compile`` runtime on trial: what it records of right kernels, and whether it sees planted faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waveproof.kernels.runtimes.amdgcn_resources import MetadataUnreadable, read_resources, waves_per_simd
from waveproof.kernels.runtimes.triton_lanes import Integers, compute, known
from waveproof.kernels.runtimes.triton_module import Location, Operation, Value

pytest.importorskip("torch")

ARCHES = ("gfx942", "gfx950")
CASES = Path(__file__).with_name("compile_cases.py")
EVERYWHERE = {"renorm", "alignment", "matrix", "failures"}
ONCE = {"renorm_on_real_tensors", "twice", "overflow", "values", "kinds", "other_arch", "autotuned"}
"""Cases in which the architecture plays no part."""
SGLANG = {"renorm", "renorm_on_real_tensors"}

Cases = Callable[[str, str], Any]


def child(*command: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *command],
        env={**inherited, "TRITON_CACHE_DIR": str(cache), **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


@pytest.fixture(scope="module")
def cases(cache: Path) -> Cases:
    """Runs one case for an architecture; the cases of an architecture share a process, each runs once."""
    answers: dict[str, dict[str, Any]] = {}
    names = {"gfx942": EVERYWHERE, "gfx950": EVERYWHERE | ONCE}

    def answer(arch: str, case: str) -> Any:
        if case in SGLANG and find_spec("sglang") is None:
            pytest.skip("sglang is not installed")
        if arch not in answers:
            wanted = names[arch] - (SGLANG if find_spec("sglang") is None else set())
            done = child(str(CASES), arch, *sorted(wanted), cache=cache)
            assert done.returncode == 0, done.stderr
            answers[arch] = json.loads(done.stdout)
        if "unavailable" in answers[arch]:
            pytest.skip(answers[arch]["unavailable"])
        return answers[arch][case]

    return answer


@pytest.mark.parametrize("arch", ARCHES)
class TestRenorm:
    """sglang's public functions choose the launches: two kernels, at every vocabulary and for both forms of k and p."""

    def test_both_kernels_are_compiled_for_every_call(self, cases: Cases, arch: str) -> None:
        found = cases(arch, "renorm")
        assert len(found) == 24
        for call, launches in found.items():
            assert [launch["kernel"] for launch in launches] == ["_mask_and_partial_sum_kernel", "_normalize_kernel"], (
                call
            )
            assert {launch["arch"] for launch in launches} == {arch}

    def test_grid_is_the_launchers(self, cases: Cases, arch: str) -> None:
        mask, normalize = cases(arch, "renorm")["top-p 16384x163840"]
        assert mask["grid"] == [16384, 160, 1]
        assert normalize["grid"] == [16384 * 160, 1, 1]
        assert normalize["scalars"] == {"numel": 16384 * 163840}
        assert normalize["signature"]["numel"] == "i64"
        assert mask["constexprs"] == {"vocab_size": 163840, "num_chunks": 160, "BLOCK_SIZE": 1024}
        assert mask["num_warps"] == 8

    def test_resources_are_those_of_a_streaming_kernel(self, cases: Cases, arch: str) -> None:
        for call, launches in cases(arch, "renorm").items():
            for launch in launches:
                resources = launch["resources"]
                spilt = {
                    name: resources[name] for name in ("vgpr_spill", "sgpr_spill", "scratch_bytes", "mfma", "agpr")
                }
                assert not any(spilt.values()), (call, launch["kernel"], spilt)
                # At least the address and a value; at most what was measured for these kernels on both architectures.
                assert 3 <= resources["vgpr"] <= 18, (call, launch["kernel"], resources)
                assert resources["waves_per_simd"] == 8
                assert resources["max_workgroup"] == 64 * launch["num_warps"]
            # One float per wave for the sum over a block.
            assert launches[0]["resources"]["lds_bytes"] == 4 * launches[0]["num_warps"]

    def test_no_offset_overflows(self, cases: Cases, arch: str) -> None:
        found = {call: [launch["overflows"] for launch in launches] for call, launches in cases(arch, "renorm").items()}
        assert not any(overflows for launches in found.values() for overflows in launches), found

    def test_tensors_above_two_gigabytes_lose_32_bit_addressing(self, cases: Cases, arch: str) -> None:
        small, large = (cases(arch, "renorm")[f"top-k {rows}x163840"][0] for rows in (4, 16384))
        assert small["specialization"]["probs_ptr"] == {"tt.divisibility": 16, "tt.pointer_range": 32}
        assert large["specialization"]["probs_ptr"] == {"tt.divisibility": 16}
        assert small["code_sha256"] != large["code_sha256"]


def test_real_tensors_give_the_same_launches_as_meta(cases: Cases) -> None:
    on_meta, on_cpu = cases("gfx950", "renorm_on_real_tensors")
    assert len(on_meta) == 2
    assert on_meta == on_cpu


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("where", ["meta", "cpu"])
def test_alignment_of_a_view_decides_the_code(cases: Cases, arch: str, where: str) -> None:
    whole, vector, element = (cases(arch, "alignment")[f"{where} {skipped}"][0] for skipped in (0, 4, 1))
    assert vector["code_sha256"] == whole["code_sha256"], "16 bytes further is aligned as well"
    assert element["code_sha256"] != whole["code_sha256"]
    assert "tt.divisibility" in whole["specialization"]["source"]
    assert "tt.divisibility" not in element["specialization"]["source"]


def test_cached_kernel_is_recorded_again(cases: Cases) -> None:
    first, again = cases("gfx950", "twice")
    assert len(first) == 1
    assert first == again


@pytest.mark.parametrize("arch", ARCHES)
def test_matrix_instructions_are_counted(cases: Cases, arch: str) -> None:
    # 64**3 products over 4 waves, by an instruction of 32x32xK or 16x16x2K: K is 16 on CDNA4, 8 on CDNA3.
    depth = {"gfx942": 8, "gfx950": 16}[arch]
    resources = cases(arch, "matrix")["small"][0]["resources"]
    assert resources["mfma"] in {64**3 // 4 // (32 * 32 * depth), 64**3 // 4 // (16 * 16 * 2 * depth)}
    assert resources["lds_bytes"] >= 64 * 64 * 2, "an operand goes through LDS"


@pytest.mark.parametrize("arch", ARCHES)
def test_spills_are_seen(cases: Cases, arch: str) -> None:
    # One wave holds three 128x128 tiles of floats: 768 registers a lane, and it can have 512.
    resources = cases(arch, "matrix")["spilling"][0]["resources"]
    assert resources["vgpr"] == 512
    assert resources["agpr"] == 256
    assert resources["vgpr_spill"] > 0
    assert resources["scratch_bytes"] >= 4 * resources["vgpr_spill"]
    assert resources["waves_per_simd"] == 1


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("undefined_name", "nowhere is not defined"),
        ("refused_by_assembler", "invalid instruction"),
        # Triton returns code for this one, without the instruction.
        ("complained_of_only", "could not allocate output register for constraint"),
    ],
)
def test_compile_error_surfaces_each_time(cases: Cases, arch: str, kernel: str, words: str) -> None:
    for attempt in ("first", "again"):
        failure = cases(arch, "failures")[f"{kernel} {attempt}"]
        assert failure["arch"] == arch
        assert failure["message"].startswith(f"{kernel} does not compile for {arch}: ")
        assert words in failure["message"]


OVERFLOWS: dict[str, tuple[str, list[int], int, int]] = {
    # Launch: operation, first program, lane and exact offset. 163840 columns: row 13107 starts 32768 below 2**31.
    "row_times_vocab 13108": ("arith.addi", [13107, 32, 0], 0, 2**31),
    "row_times_vocab 16384": ("arith.addi", [13107, 32, 0], 0, 2**31),
    "widened_too_late 16384": ("arith.muli", [13108, 0, 0], 0, 13108 * 163840),
    "row_times_stride 16384": ("arith.muli", [13108, 0, 0], 0, 13108 * 163840),
    "induction_variable 13108": ("arith.addi", [0, 0, 0], 32768, 2**31),
    "induction_variable 16384": ("arith.muli", [0, 0, 0], 0, 16383 * 163840),
    "after_early_return 16384": ("arith.muli", [13108, 0, 0], 0, 13108 * 163840),
    "under_condition 16384": ("arith.muli", [13108, 0, 0], 0, 13108 * 163840),
    "carried_offset 13109": ("arith.addi", [0, 0, 0], 0, 13108 * 163840),
    "unsigned_offset 26216": ("arith.muli", [26215, 0, 0], 0, 26215 * 163840),
    f"read_of_a_tile {2**20 + 1}": ("arith.muli", [2**14, 0, 0], 0, 2**31),
}


class TestOverflow:
    """Planted kernels at the last shape that is right and the first that is wrong."""

    @pytest.mark.parametrize("launch", OVERFLOWS)
    def test_planted_overflow_is_reported(self, cases: Cases, launch: str) -> None:
        operation, program, lane, exact = OVERFLOWS[launch]
        (found,) = cases("gfx950", "overflow")[launch]
        assert (found["operation"], found["program"], found["lane"], found["exact"]) == (
            operation,
            program,
            lane,
            exact,
        )
        width = 2**32
        assert (found["wrapped"] - exact) % width == 0
        read = launch.startswith("read")
        assert found["access"] == ("tt.load" if read else "tt.store")
        assert found["argument"] == ("keys" if read else "out")
        assert found["kernel"] == launch.split()[0]
        assert found["file"] == CASES.name
        assert found["source"] == CASES.read_text().splitlines()[found["line"] - 1].strip()
        assert any(word in found["source"] for word in ("* vocab", "* stride", "+= vocab", "* width"))

    def test_nothing_else_is(self, cases: Cases) -> None:
        found = cases("gfx950", "overflow")
        assert {launch for launch, overflows in found.items() if overflows} == set(OVERFLOWS)
        kernels = {launch.split()[0] for launch in found}
        for kernel in kernels - {"widened_in_time", "carried_pointer", "loaded_bound", "hashed"}:
            assert not all(overflows for launch, overflows in found.items() if launch.split()[0] == kernel), kernel


def test_values_of_meta_tensors_are_refused(cases: Cases) -> None:
    found = cases("gfx950", "values")
    for question in ("item", "bool", "tolist", "cpu", "nonzero", "mask", "made by a factory"):
        assert found[question].startswith("NeedsValues: torch "), (question, found[question])
    assert found["wrong shapes"].startswith("RuntimeError: ")
    assert found["real"] == "answered"


def test_tensors_pass_for_ones_on_the_device(cases: Cases) -> None:
    expected = {"wrapped": True, "result": True, "made on its device": True, "plain": False}
    assert cases("gfx950", "kinds") == expected


def test_one_architecture_to_a_process(cases: Cases) -> None:
    assert cases("gfx950", "other_arch") == "this process compiles for gfx950; start another one for gfx942"


def test_timed_choice_of_a_configuration_is_refused(cases: Cases) -> None:
    assert "triton.autotune" in cases("gfx950", "autotuned")


REFUSALS = {
    "unknown architecture 'gfx90a'; known: gfx942, gfx950": "arch = 'gfx90a'",
    "sglang imported before prepare()": "sys.modules['sglang'] = sys",
    "triton==3.9.0": "sys.modules['triton'] = None",
    "has no AMD back end": "import triton.backends as b; b.backends.pop('amd')",
    "TRITON_INTERPRET=1 makes triton.jit interpret": "import os; os.environ['TRITON_INTERPRET'] = '1'",
}


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("reason", REFUSALS)
def test_refuses_what_it_cannot_do(cache: Path, reason: str) -> None:
    script = f"""
import sys
from waveproof.kernels.runtimes import compile
arch = 'gfx942'
{REFUSALS[reason]}
try:
    compile.prepare(arch)
except compile.CompileUnavailable as error:
    print(error)
"""
    done = child("-c", script, cache=cache)
    assert done.returncode == 0, done.stderr
    assert reason in done.stdout


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_last_words_of_a_compiler_that_aborts_come_through(cache: Path) -> None:
    done = child(str(CASES), "gfx950", "abort_of_the_compiler", cache=cache)
    assert done.returncode < 0
    assert "LLVM ERROR: last words" in done.stderr


METADATA = """
\tv_mfma_f32_32x32x16_bf16 a[0:15], v[0:3], v[4:7], 0
\tv_smfmac_f32_16x16x32_bf16 a[0:3], v[0:1], v[2:5], v6
\tv_mov_b32 v0, v1 ; not v_mfma_f32
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     2
    .args:
      - .offset:         0
        .vgpr_count:     99
    .group_segment_fixed_size: 16
    .max_flat_workgroup_size: 256
    .private_segment_fixed_size: 4
    .sgpr_count:     30
    .sgpr_spill_count: 5
    .symbol:         k.kd
    .vgpr_count:     130
    .vgpr_spill_count: 6
...
\t.end_amdgpu_metadata
"""


def test_resources_are_read_from_the_kernel_entry() -> None:
    found = read_resources(METADATA, dynamic_lds_bytes=1024)
    assert (found.vgpr, found.agpr, found.sgpr, found.vgpr_spill, found.sgpr_spill) == (130, 2, 30, 6, 5)
    assert (found.lds_bytes, found.scratch_bytes, found.max_workgroup) == (1040, 4, 256)
    assert found.mfma == 2
    assert found.waves_per_simd == 3


@pytest.mark.parametrize(
    ("was", "becomes", "reason"),
    [
        ("    .sgpr_spill_count: 5\n", "", r"\.sgpr_spill_count expected once .* found 0 times"),
        (".vgpr_count:     130", ".vgpr_count:     many", r"\.vgpr_count expected once"),
        ("k.kd", "k.kd\n  - .symbol:         other.kd", r"one kernel expected, found \['k.kd', 'other.kd'\]"),
        ("\t.amdgpu_metadata", "", "no .amdgpu_metadata"),
    ],
)
def test_incomplete_metadata_is_refused(was: str, becomes: str, reason: str) -> None:
    assert was in METADATA
    with pytest.raises(MetadataUnreadable, match=reason):
        read_resources(METADATA.replace(was, becomes), dynamic_lds_bytes=0)


@pytest.mark.parametrize(
    ("vgpr", "waves"), [(0, 8), (64, 8), (65, 7), (72, 7), (73, 6), (128, 4), (129, 3), (256, 2), (257, 1), (512, 1)]
)
def test_waves_that_registers_leave_room_for(vgpr: int, waves: int) -> None:
    assert waves_per_simd(vgpr) == waves


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


IN_THE_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": _truncated,
    "arith.remsi": lambda a, b: a - b * _truncated(a, b),
    "arith.minsi": min,
    "arith.maxsi": max,
}

edges = st.sampled_from([-(2**31), -1, 1, 2**31 - 1, 2**16, 163840]) | st.integers(-(2**31), 2**31 - 1).filter(bool)


def operation(name: str, bits: int) -> Operation:
    result = Value(1, f"i{bits}", (), bits, False, "")
    return Operation(7, name, (), (result,), {}, None, Location("", 0), (), ())


def as_signed(value: int, bits: int) -> int:
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


@given(st.sampled_from(sorted(IN_THE_INTEGERS)), edges, edges)
def test_arithmetic_agrees_with_unlimited_integers(name: str, left: int, right: int) -> None:
    exact = IN_THE_INTEGERS[name](left, right)
    found = compute(operation(name, 32), [known(left, 32), known(right, 32)])
    assert isinstance(found, Integers)
    assert int(found.machine) == as_signed(exact, 32)
    assert int(found.exact) == max(-(2**61), min(2**61, exact))
    assert int(found.origin) == (0 if -(2**31) <= exact < 2**31 else 7)


@given(st.integers(-(2**63), 2**63 - 1))
def test_casts_keep_what_fits(value: int) -> None:
    narrow = compute(operation("arith.trunci", 32), [known(value, 64)])
    assert isinstance(narrow, Integers)
    assert int(narrow.machine) == as_signed(value, 32)
    assert int(narrow.origin) == (0 if -(2**31) <= value < 2**31 else 7)
    for name, expected in (("arith.extsi", as_signed(value, 32)), ("arith.extui", value % 2**32)):
        wide = compute(operation(name, 64), [known(as_signed(value, 32), 32)])
        assert isinstance(wide, Integers)
        assert (int(wide.machine), int(wide.origin)) == (expected, 0)


def test_what_comes_back_into_range_is_no_overflow() -> None:
    large = compute(operation("arith.addi", 32), [known(2**31 - 1, 32), known(5, 32)])
    back = compute(operation("arith.subi", 32), [large, known(5, 32)])
    assert isinstance(large, Integers)
    assert isinstance(back, Integers)
    assert (int(large.origin), int(back.origin), int(back.machine)) == (7, 0, 2**31 - 1)


def test_division_by_zero_and_unknown_operands_are_unknown() -> None:
    assert compute(operation("arith.divsi", 32), [known(1, 32), known(0, 32)]) is None
    assert compute(operation("arith.addi", 32), [known(1, 32), None]) is None
    lanes = Integers(np.arange(4), np.arange(4), np.zeros(4, np.int64), 32)
    assert compute(operation("arith.shli", 32), [lanes, known(40, 32)]) is None
