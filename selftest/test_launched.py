"""Executed-kernel proof: names, traces, builds, the command. No trace here was recorded on a GPU."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from waveproof.fixtures.launched import names
from waveproof.fixtures.launched.builds import cache_directories, watch_builds
from waveproof.fixtures.launched.names import RULES, classify, plain_name, shipped_kernels, triton_functions
from waveproof.fixtures.launched.proof import NotProven, judge_proof, prove
from waveproof.fixtures.launched.trace import UnknownRange, UnreadableTrace, read_trace, recorded
from waveproof.fixtures.products import PRODUCTS, UnknownProduct, product_of
from waveproof.fixtures.strategies.smallest import smallest_call
from waveproof.golden.judges import launched
from waveproof.kernels.providers.registry import builtin_implementations, subjects
from waveproof.kernels.runtimes.catalogue import installed, why_unavailable
from waveproof.reports.cli import app
from waveproof.selftest.recorded_traces import (
    DECODE,
    FILL,
    GEMM,
    GENERIC,
    MASK,
    NORMALIZE,
    PREFILL,
    REDUCE,
    ROCPROF,
    SORT,
    Recording,
)

needs_aiter = pytest.mark.skipif(not installed("aiter_meta"), reason="amd-aiter is not installed")

NAMES = [
    (DECODE, "asm", ""),
    (f"{DECODE}.kd", "asm", ""),
    ("aiter::mla_pfl_bf16_a16w16_causal_subQ16_mqa16", "asm", ""),
    ("mla_dec_stage1_bf16_a16w16_subQ16_mqa16.co", "asm", ""),
    ("_ZN5aiter17paged_attention_kIfEEvPfPT_i", "hip", ""),
    ("void aiter::wvSplitK_hf_sml_<__hip_bfloat16>(int)", "hip", ""),
    ("void kn_mla_reduce_v1<MlaReduceKernelV1Traits<512>>(MlaReduceKernelV1Params)", "hip", ""),
    ("void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<int>>(int)", "ck", ""),
    ("_ZN7ck_tile6kentryILi256ELi2ENS_13FmhaFwdKernelIiEEEEvT1_", "ck", ""),
    (GEMM, "hipblaslt", ""),
    ("Cijk_Ailk_Bljk_SB_MT64x64x16_MI16x16x4x1_SN", "rocblas", ""),
    (FILL, "torch", "fill"),
    ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEEEEviT0_", "torch", "fill"),
    (SORT, "torch", "sort"),
    ("void at::native::bitonicSortKVInPlace<2, -1, 16>(int)", "torch", "sort"),
    ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(int)", "torch", "topk"),
    ("void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float>>(float*)", "torch", "scan"),
    ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>(float*)", "torch", "softmax"),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 9>(float*)", "torch", "softmax"),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)", "torch", "reduce"),
    ("void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>(int)", "torch", "elementwise"),
    ("void at::native::index_elementwise_kernel<128, 4>(int)", "torch", "index"),
    ("__amd_rocclr_fillBufferAligned", "memory", ""),
    ("Memcpy DtoD (Device -> Device)", "memory", ""),
    ("triton_poi_fused_add_mul_0", "triton", "inductor"),
    ("void flashinfer::sampling::TopKRenormProbKernel<1024>(float*)", "flashinfer", ""),
    ("nvjet_tst_256x128_64x5_2x1_2cta_v_bz_TNT", "cublas", ""),
    ("renorm_kernel", "triton", ""),
    ("mystery_kernel", "unknown", ""),
]


@pytest.mark.parametrize(("name", "kind", "role"), NAMES)
def test_names_tell_their_maker(name: str, kind: str, role: str) -> None:
    found = classify(name)
    assert (found.kind, found.role) == (kind, role)


def test_rules_are_sourced_and_of_known_classes() -> None:
    assert all(rule.source and rule.kind in launched.KINDS for rule in RULES)


def test_asm_is_told_without_an_installation() -> None:
    found = classify(DECODE, shipped={}, triton=frozenset())
    assert (found.kind, found.shipped) == ("asm", False)
    assert classify(REDUCE, shipped={}, triton=frozenset()).kind == "unknown"


def test_triton_names_with_their_constants() -> None:
    functions = frozenset({"_fwd_kernel"})
    assert classify("_fwd_kernel_logit_cap_0_Lq_576_Lv_512", shipped={}, triton=functions).kind == "triton"
    assert classify("_fwd_kernel_of_somebody", shipped={}, triton=functions).kind == "unknown"


def test_plain_names() -> None:
    assert plain_name(DECODE) == "mla_dec_stage1_bf16_a16w16_subQ16_mqa16"
    assert plain_name(FILL) == "vectorized_elementwise_kernel"
    assert plain_name("a::(anonymous namespace)::b<c::d>(e)") == "b"


@needs_aiter
def test_symbols_of_shipped_objects() -> None:
    shipped = shipped_kernels()
    assert shipped["mla_dec_stage1_bf16_a16w16_subQ16_mqa16"] == ("gfx942", "gfx950")
    assert shipped["mla_pfl_bf16_a16w16_causal_subQ16_mqa16.co"] == ("gfx942", "gfx950")
    assert ("gfx950",) in shipped.values()


def test_every_launching_implementation_states_its_kernels() -> None:
    """And what it states is there: a pattern that no installed kernel has would wait for one that cannot run."""
    functions, shipped = triton_functions(), shipped_kernels()
    for one in builtin_implementations():
        assert one.runs_as or not one.launches, one
        if not one.runs_as or not all(map(installed, one.packages)):
            continue
        stated = launched.expectation(one.runs_as)
        for pattern in (*stated.runs, *stated.beside):
            kind, _, _ = pattern.partition(":")
            known = {"triton": functions, "asm": shipped}.get(kind)
            if known:
                assert any(classify(name).matches(pattern) for name in known), (one.provider, one.operator, pattern)


def test_notation_is_refused_with_what_there_is() -> None:
    with pytest.raises(launched.BadExpectation, match=r"'cuda'.*asm, triton"):
        launched.expectation(["cuda"])
    with pytest.raises(launched.BadExpectation, match="must run"):
        launched.expectation(["triton:x?"])


def test_a_failure_says_what_ran() -> None:
    work = Recording().span("mla_decode", (GENERIC, REDUCE)).trace().work("mla_decode")[0]
    expected = launched.expectation(["asm:mla_dec_*", "triton:_fwd_kernel_stage2_asm?"])
    first = next(one for one in launched.judge_ran(work.ran(), expected, where=work.name) if not one.holds)
    assert first.message == (
        "waveproof:mla_decode, range 1 of 1: no kernel is asm:mla_dec_*; what ran: "
        "triton _fwd_grouped_kernel_stage1 (1x, 50%), triton _fwd_kernel_stage2_asm (1x, 50%)"
    )


# Traces ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cpu_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What torch's profiler writes on this machine, plain and compressed."""
    folder = tmp_path_factory.mktemp("traces")
    code = (
        "import sys, torch\n"
        "from torch.profiler import ProfilerActivity, profile, record_function\n"
        "for path in sys.argv[1:]:\n"
        "    with profile(activities=[ProfilerActivity.CPU]) as profiler:\n"
        "        for _ in range(2):\n"
        "            with record_function('waveproof:top_k_renorm_prob'):\n"
        "                torch.sort(torch.rand(8, 64))\n"
        "    profiler.export_chrome_trace(path)\n"
    )
    paths = [str(folder / "trace.json"), str(folder / "trace.json.gz")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_reads_what_torch_writes(cpu_trace: Path, name: str) -> None:
    trace = read_trace(cpu_trace / name)
    assert [span.name for span in trace.ranges] == ["waveproof:top_k_renorm_prob"] * 2
    works = trace.work("top_k_renorm_prob")
    assert [(work.kernels, work.launches, work.dropped) for work in works] == [((), (), 0)] * 2
    assert works[0].name == "waveproof:top_k_renorm_prob, range 1 of 2"
    assert 0 < trace.ranges[0].seconds < 60


def test_times_and_overlap() -> None:
    (work,) = Recording().span("mla_decode", (DECODE,) * 4, micros=20.0, streams=2).trace().work("mla_decode")
    assert work.busy_seconds == pytest.approx(40e-6)
    (ran,) = work.ran()
    assert (ran.calls, ran.seconds) == (4, pytest.approx(80e-6))


def test_a_graph_has_many_kernels_for_one_launch() -> None:
    recording = Recording().span("mla_decode", (), host=["hipGraphLaunch"])
    number = recording.events[0]["args"]["correlation"]
    for at in range(3):
        recording._event("kernel", DECODE, 2e6 + 30.0 * at, 20.0, 0, 0, correlation=number)
    (work,) = recording.trace().work("mla_decode")
    assert (len(work.kernels), work.unrecorded) == (3, 0)


def test_kernels_without_a_launch_go_by_the_range_of_the_device() -> None:
    recording = Recording().span("mla_decode", (DECODE,), late=5000.0).span("elsewhere", (GEMM,))
    recording.events = [event for event in recording.events if event["cat"] != "cuda_runtime"]
    marked = next(event for event in recording.events if event["cat"] == "user_annotation")
    kernel = next(event for event in recording.events if event["name"] == DECODE)
    recording.events.append(
        {**marked, "cat": "gpu_user_annotation", "pid": 0, "tid": 0, "ts": kernel["ts"] - 1, "dur": 40}
    )
    (work,) = recording.trace().work("mla_decode")
    assert [span.name for span in work.kernels] == [DECODE]


def test_names_of_ranges_are_listed() -> None:
    with pytest.raises(UnknownRange, match=r"'mla_prefill'.*waveproof:mla_decode"):
        Recording().span("mla_decode", (DECODE,)).trace().work("mla_prefill")


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b'{"traceEvents": [', "written to its end"),
        (b'{"nodes": []}', "no traceEvents"),
        (b"Name,Calls\na,1\n", "no column End_Timestamp"),
        (gzip.compress(b"x" * 5000, mtime=0)[:30], "gzip"),
    ],
)
def test_refuses_other_files(tmp_path: Path, raw: bytes, told: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(raw)
    with pytest.raises(UnreadableTrace, match=told):
        read_trace(path)


def test_names_of_a_runtime() -> None:
    found = recorded([{"kernel": "mla_pfl_bf16_a16w16_causal_subQ16_mqa16.co"}, {"kernel": REDUCE}, {"kernel": REDUCE}])
    assert {(one.kind, one.calls) for one in found} == {("asm", 1), ("triton", 2)}


# Builds ---------------------------------------------------------------------------------------------------------------


def test_cache_directories_follow_their_variables(tmp_path: Path) -> None:
    moved = {"HOME": "/h", "TRITON_CACHE_DIR": "/t", "AITER_JIT_DIR": "/a", "TORCH_EXTENSIONS_DIR": "/e"}
    found = {str(path) for path in cache_directories(moved)}
    assert {"/t", "/a", "/e", "/h/.cache/flashinfer"} <= found
    assert "/h/.aiter" not in found
    assert "/h/.aiter" in {str(path) for path in cache_directories({"HOME": "/h"})}


@pytest.mark.parametrize(
    ("command", "shell", "seen"),
    [
        (["c++", "--version"], False, False),
        (["c++", "-c", "missing.cpp"], False, True),
        ("cd / && c++ -c missing.cpp", True, True),
        (["echo", "c++"], False, False),
        ("echo hipcc -c renorm.hip", True, False),
    ],
)
def test_compilers_are_heard(command: list[str] | str, shell: bool, seen: bool) -> None:
    with watch_builds([]) as builds:
        with contextlib.suppress(FileNotFoundError):  # no compiler here: the attempt is heard before
            subprocess.run(command, shell=shell, capture_output=True, check=False)
        os.system("true")
    assert bool(builds.commands) is seen
    assert not builds.files


def test_changed_files_count_and_locks_do_not(tmp_path: Path) -> None:
    old = tmp_path / "old.so"
    old.write_text("one")
    with watch_builds([tmp_path]) as builds:
        old.write_text("other")
        (tmp_path / "x.lock").touch()
        (tmp_path / "__pycache__").mkdir()
        (tmp_path / "__pycache__" / "x.pyc").touch()
    assert builds.texts == (f"wrote {tmp_path.name}/old.so",)


@pytest.mark.slow
@pytest.mark.skipif(bool(why_unavailable("emulate")), reason="no emulated device")
def test_proof_hears_a_cold_cache_and_not_a_warm_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the emulated device, in a process: Triton compiles in the watched part unless it was warmed up."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    (subject,) = (
        one
        for one in subjects(builtin_implementations(), ("emulate",), ("gfx950",))
        if (one.implementation.provider, one.implementation.operator) == ("waveproof", "top_k_renorm_prob")
    )
    call = smallest_call(subject)
    cold, warm = prove(subject, call, 2, 0), prove(subject, call, 2, 1)
    assert "Triton compiled renorm_kernel" in cold.texts
    assert [one.rule for one in judge_proof(cold) if not one.holds] == [launched.NOT_BUILT]
    assert [one.rule for one in judge_proof(warm) if not one.holds] == []
    assert len(judge_proof(warm)) == 2 + 2 * 3
    bad = replace(subject, implementation=replace(subject.implementation, load="waveproof.kernels.nothing:here"))
    with pytest.raises(NotProven, match="nothing"):
        prove(bad, call, 1, 0)


def test_products() -> None:
    assert len({product.name for product in PRODUCTS}) == len(PRODUCTS)
    for product in PRODUCTS:
        assert product.source
        assert all(product.cu_num % partition == 0 for partition in product.partitions)
        assert product_of(f"AMD Instinct {product.name} OAM") is product
    assert product_of("AMD Instinct MI300X VF").name == "MI300X"
    with pytest.raises(UnknownProduct, match="MI355X"):
        product_of("AMD Radeon RX 7900")


# Command --------------------------------------------------------------------------------------------------------------


def _command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["launched", *arguments])
    return result.exit_code, " ".join(result.output.split())


@needs_aiter
def test_command(tmp_path: Path) -> None:
    path, output = tmp_path / "decode.json", tmp_path / "found.json"
    path.write_text(Recording().span("mla_decode", (FILL, DECODE, REDUCE)).span("rest", (GEMM,)).text())
    asked = (str(path), "--operator", "mla_decode", "--provider", "aiter", "-o", str(output))
    code, told = _command(*asked)
    assert code == 0, told
    assert "it is what ran in 1 range" in told
    (found,) = json.loads(output.read_text())["ranges"]
    assert [kernel["kind"] for kernel in found["kernels"]] == ["torch", "asm", "triton"]
    code, told = _command(str(path), "--expect", "asm")
    assert code == 1, told
    assert "FAULT" in told
    assert "(broken rule: nothing ran in its place)" in told
    assert _command(str(path))[0] == 0


def test_command_finds_what_is_too_fast(tmp_path: Path) -> None:
    path = tmp_path / "decode.json"
    path.write_text(Recording().span("mla_decode", (DECODE,), micros=10.0).text())
    code, told = _command(str(path), "--bytes", "2e9", "--cold")
    assert (code, "not faster than the memory allows" in told) == (1, True)
    assert _command(str(path), "--bytes", "2e7", "--cold")[0] == 0


@needs_aiter
def test_command_reads_rocprofv3(tmp_path: Path) -> None:
    path = tmp_path / "1_kernel_trace.csv"
    path.write_text(ROCPROF.format(kernel=PREFILL))
    assert _command(str(path), "--expect", "asm:mla_pfl_*", "--expect", "triton:_fwd_kernel_stage2_asm?")[0] == 0
    assert _command(str(path), "--expect", "asm:mla_dec_*")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--operator", "prefill"), "no range is named 'prefill'"),
        (("--expect", "cuda"), "no class of kernels"),
        (("--product", "MI999"), "MI999"),
        (("--product", "MI300X"), "the trace was recorded on AMD Instinct MI355X"),
        (("--bytes", "nan"), "--bytes nan"),
        (("--bytes", "-5"), "--bytes -5"),
        (("--provider", "aiter"), "mla_decode"),
    ],
)
def test_command_refuses(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    path = tmp_path / "decode.json"
    path.write_text(Recording().span("mla_decode", (DECODE,)).text())
    code, output = _command(str(path), *arguments)
    assert (code, told in output) == (2, True), output


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("[1, 2]", 2),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": null}]}', 2),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "args": [1]}]}', 2),
        (ROCPROF.format(kernel=DECODE).replace("172352210061004", "soon"), 2),
        ("a\rb", 2),
        ('{"traceEvents": []}', 1),
        ("[]", 1),
    ],
)
def test_command_proves_nothing_of_no_trace(tmp_path: Path, text: str, status: int) -> None:
    """What is no trace is refused in a line; of one without a kernel nothing is proven, whatever was expected."""
    path = tmp_path / "trace"
    path.write_text(text, newline="")
    code, output = _command(str(path))
    assert (code, "Traceback" in output) == (status, False), output


def test_command_expects_of_each_operator_its_own(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    decode = Recording().span("mla_decode", (GENERIC, "_fwd_kernel_stage2"))
    path.write_text(decode.span("top_k_renorm_prob", (SORT, MASK, NORMALIZE)).text())
    code, output = _command(
        str(path), "--provider", "sglang", "--operator", "mla_decode", "--operator", "top_k_renorm_prob"
    )
    assert code == 0, output


def test_packages_that_are_missing_have_no_names() -> None:
    assert names.package_roots(("no_such_package",)) == []
