"""Traces, builds and times that must be found out, and some that only look as if."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from waveproof.fixtures.launched.builds import watch_builds
from waveproof.fixtures.launched.judging import judge_works
from waveproof.fixtures.launched.names import classify, shipped_kernels
from waveproof.fixtures.launched.trace import Trace, read_trace
from waveproof.fixtures.products import product_of
from waveproof.fixtures.strategies.mla import AttentionCase
from waveproof.golden.judges import launched, memory_floor
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.providers.registry import builtin_implementations
from waveproof.kernels.runtimes.catalogue import installed
from waveproof.selftest.planted import Planted
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

FAST = (DECODE, REDUCE)


def broken(
    recording: Recording | Trace,
    operator: str = "mla_decode",
    provider: str = "aiter",
    call: Call | None = None,
    repeats: bool = False,
) -> list[str]:
    """Rules that a trace breaks, by what the provider's implementation states."""
    trace = recording.trace() if isinstance(recording, Recording) else recording
    (stated,) = (
        one.runs_as for one in builtin_implementations() if (one.provider, one.operator) == (provider, operator)
    )
    expected = launched.expectation(stated)
    device = product_of(trace.device) if trace.device else None
    works = trace.work(operator) if trace.ranges else (trace.whole,)
    least = memory_floor.least_bytes(call) if call is not None else None
    judgements = judge_works(works, expected, device, least, True, repeats)
    return [one.rule for one in judgements if not one.holds]


def decode(*kernels: str, **how: object) -> Callable[[], Sequence[str]]:
    """Inspects one range with these kernels."""
    return lambda: broken(Recording().span("mla_decode", kernels, **how))  # type: ignore[arg-type]


def decode_once(repeats: bool) -> Sequence[str]:
    """Inspects one range as repeats of one call."""
    return broken(Recording().span("mla_decode", FAST), repeats=repeats)


def two_layers(first: Sequence[str], second: Sequence[str], repeats: bool = False) -> Callable[[], Sequence[str]]:
    """Inspects two ranges of the operator."""
    return lambda: broken(Recording().span("mla_decode", first).span("mla_decode", second), repeats=repeats)


def renorm(*kernels: str) -> Callable[[], Sequence[str]]:
    """Inspects a top-k renorm of sglang."""
    return lambda: broken(Recording().span("top_k_renorm_prob", kernels), "top_k_renorm_prob", "sglang")


def outside_only() -> Sequence[str]:
    """Kernels before and after an empty range."""
    return broken(Recording().span("", FAST).span("mla_decode", ()).span("", FAST))


def of_another_arch() -> Sequence[str]:
    """A decode object that is shipped for gfx950 alone, on an MI300X."""
    only = next(
        name for name, arches in shipped_kernels().items() if arches == ("gfx950",) and name.startswith("mla_a8w8")
    )
    trace = Recording("AMD Instinct MI300X").span("mla_decode", [f"_ZN5aiter{len(only)}{only}E"])
    return broken(trace, provider="aiter_fp8")


def long_context(page_size: int = 1) -> Call:
    """A decode whose cache is larger than all caches of the device: 16 requests of 131,072 tokens; no memory behind it.

    Only shapes and lengths count, so the cache is one row that is seen as many.
    """
    call = AttentionCase(16, ((1, 8),) * 16, "flat").call("mla_decode")
    tokens = 131_072
    pages = 16 * tokens // page_size
    row = torch.zeros(1, 1, 1, 576, dtype=torch.bfloat16)
    return call.with_arguments(
        kv_cache=row.expand(pages, page_size, 1, 576),
        kv_indices=torch.arange(pages, dtype=torch.int32),
        kv_indptr=torch.arange(17, dtype=torch.int32) * (tokens // page_size),
        kv_last_page_len=torch.full((16,), page_size, dtype=torch.int32),
    )


def page_size_ignored() -> Sequence[str]:
    """2.4 GB take 302 us at 8 TB/s; 64 of them are read in 23 us."""
    return broken(Recording().span("mla_decode", FAST, micros=11.5), call=long_context(64))


def at_the_roof() -> Sequence[str]:
    """2.4 GB at 7.5 TB/s."""
    return broken(Recording().span("mla_decode", FAST, micros=160.0), call=long_context(64))


def cached_between_calls() -> Sequence[str]:
    """3 MB in 0.3 us are 10 TB/s, more than HBM gives: they came from a cache, as they may where a call is repeated."""
    call = AttentionCase(16, ((1, 2600),), "flat").call("mla_decode")
    least = memory_floor.least_bytes(call)
    judgement = memory_floor.judge_not_faster(0.3e-6, least, product_of("MI355X"), False)
    cold = memory_floor.judge_not_faster(0.3e-6, least, product_of("MI355X"), True)
    assert not cold.holds, "the example must be too fast for HBM"
    return [] if judgement.holds else [judgement.rule]


def file_appears() -> Sequence[str]:
    """What AITER's JIT leaves."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "module_rmsnorm").mkdir()
        with watch_builds([Path(folder)]) as builds:
            Path(folder, "module_rmsnorm", "module_rmsnorm.so").write_bytes(b"\x7fELF")
    return [one.rule for one in [launched.judge_not_built(builds)] if not one.holds]


def built_before() -> Sequence[str]:
    """Nothing but a read, a lock and a process that compiles nothing."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "module_rmsnorm.so").write_bytes(b"\x7fELF")
        with watch_builds([Path(folder)]) as builds:
            Path(folder, "module_rmsnorm.so").read_bytes()
            Path(folder, "lock_module_rmsnorm").touch()
            subprocess.run([sys.executable, "-c", ""], check=True)
    return [one.rule for one in [launched.judge_not_built(builds)] if not one.holds]


def compiler_starts() -> Sequence[str]:
    """A script that goes by a compiler's name, from a shell."""
    with tempfile.TemporaryDirectory() as folder:
        compiler = Path(folder, "hipcc")
        compiler.write_text("#!/bin/sh\n")
        compiler.chmod(0o755)
        with watch_builds([]) as builds:
            subprocess.run(f"cd {folder} && ./hipcc -O3 renorm.hip", shell=True, check=True)
    return [one.rule for one in [launched.judge_not_built(builds)] if not one.holds]


def of_a_file(name: str, raw: bytes) -> Sequence[str]:
    """Inspects a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(raw)
        trace = read_trace(path)
    return broken(trace)


def dropped() -> Sequence[str]:
    """What Kineto writes beside the events."""
    recording = Recording(extra={"WARNING": ["Dropped 512 activity records: buffer was full"]})
    return broken(recording.span("mla_decode", FAST))


def launch_without_kernel() -> Sequence[str]:
    """The reduction's kernel is missing, its launch is not."""
    recording = Recording().span("mla_decode", FAST)
    recording.events = [event for event in recording.events if event["name"] != REDUCE]
    return broken(recording)


def module_loaded_before() -> Sequence[str]:
    """Loads in another range."""
    return broken(Recording().span("warm-up", FAST, host=["hipModuleLoad"]).span("mla_decode", FAST))


def behind_the_host() -> Sequence[str]:
    """By time a GEMM of before lies within the range and the range's own kernels after it; by launch neither does."""
    recording = Recording().span("before", [GEMM], micros=200.0, late=60.0)
    recording.span("mla_decode", FAST, host=["hipStreamIsCapturing"] * 100, late=900.0)
    return broken(recording.span("after", [GEMM]))


def of_a_library(name: str) -> Sequence[str]:
    """A name where AITER's objects are not at hand, and any assembly was meant."""
    ran = [classify(name, 1, 20e-6, shipped={})]
    judgements = launched.judge_ran(ran, launched.expectation(["asm"]), installed=False)
    return [one.rule for one in judgements if not one.holds]


def of(provider: str, operator: str, *kernels: str) -> Callable[[], Sequence[str]]:
    """Inspects an operator of a provider."""
    return lambda: broken(Recording().span(operator, kernels), operator, provider)


def undated() -> Sequence[str]:
    """Durations that are no numbers."""
    recording = Recording().span("mla_decode", FAST)
    for event in recording.events:
        event["dur"] = float("nan") if event["cat"] == "kernel" else event["dur"]
    return broken(recording)


def starts(*command: str) -> Callable[[], Sequence[str]]:
    """The audit event of a process, which is not started."""

    def inspected() -> Sequence[str]:
        with watch_builds([]) as builds:
            sys.audit("subprocess.Popen", command[0], list(command), None, None)
        return [one.rule for one in [launched.judge_not_built(builds)] if not one.holds]

    return inspected


RAN, ALONE, SEEN = launched.RAN, launched.ALONE, launched.SEEN
BUILT, INSTALLED = launched.NOT_BUILT, launched.INSTALLED
RENAMED = "_ZN5aiter43mla_dec_stage1_bf16_a16w16_subQ16_mqa16_newE"


def _without_objects() -> str:
    return "" if installed("aiter_meta") else "AITER is not installed: no code object to look a name up in"


def _csv(kernel: str) -> Callable[[], Sequence[str]]:
    return lambda: of_a_file("1_kernel_trace.csv", ROCPROF.format(kernel=kernel).encode())


def _gz() -> Sequence[str]:
    return of_a_file("trace.json.gz", gzip.compress(Recording().span("mla_decode", FAST).text().encode()))


COPY, FILL_BUFFER = "Memcpy DtoD (Device -> Device)", "Memset (Device)"
DEMANGLED = "aiter::mla_dec_stage1_bf16_a16w16_subQ16_mqa16"
FLOOR = memory_floor.RULE
CPP = "_ZN5aiter17mla_dec_generic_kIfEEvPT_NS_6ParamsE"
"""A C++ template whose parameters end in E, as AITER's assembly symbols do."""
NORM = "void {}::norm::RMSNormKernel<8u, float>(float*)"
UNGROUPED = ("_fwd_kernel_stage1", "_fwd_kernel_stage2")
EXTEND = "_fwd_kernel_logit_cap_0_Lq_576_Lv_512"

PLANTED: tuple[Planted, ...] = (
    Planted("triton-for-asm", "sglang's Triton decode ran where assembly was meant", RAN, decode(GENERIC, REDUCE)),
    Planted("one-of-two-layers", "the second layer fell back", RAN, two_layers(FAST, (GENERIC, REDUCE))),
    Planted("second-layer-empty", "the second layer launched nothing", SEEN, two_layers(FAST, ())),
    Planted("torch-for-renorm", "a torch sort and copies renormalise, no Triton kernel does", RAN, renorm(SORT, FILL)),
    Planted("hidden-fallback", "assembly ran, and sglang's Triton decode after it", ALONE, decode(*FAST, GENERIC)),
    Planted("matrix-product-beside", "assembly ran, and a GEMM of hipBLASLt beside it", ALONE, decode(*FAST, GEMM)),
    Planted("unknown-beside", "assembly ran, and a kernel that nobody knows", ALONE, decode(*FAST, "mystery_kernel")),
    Planted("wrong-operator", "the prefill object ran in a decode", RAN, decode(PREFILL, REDUCE)),
    Planted("reduce-alone", "only the second stage ran", RAN, decode(REDUCE)),
    Planted("only-memory", "nothing but copies and fills", SEEN, decode(COPY, FILL_BUFFER)),
    Planted("empty-range", "nothing ran in the range", SEEN, decode()),
    Planted("outside-only", "the right kernels ran, before and after the range", SEEN, outside_only),
    Planted("renamed-kernel", "no object has the kernel", INSTALLED, decode(RENAMED, REDUCE), _without_objects),
    Planted("another-arch", "an object of gfx950 alone, on a gfx942", INSTALLED, of_another_arch, _without_objects),
    Planted("file-appears", "AITER builds a module within the timed part", BUILT, file_appears),
    Planted("compiler-starts", "hipcc is started within the timed part", BUILT, compiler_starts),
    Planted("module-loaded", "a code object is loaded within", BUILT, decode(*FAST, host=["hipModuleLoad"])),
    Planted("page-size-ignored", "one row of each page of 64 was read: ROCm/aiter#2996", FLOOR, page_size_ignored),
    Planted("zero-duration", "kernels take no time at all", launched.TIMED, decode(*FAST, micros=0.0)),
    Planted("dropped-events", "the profiler lost 512 records", launched.COMPLETE, dropped),
    Planted("launch-without-kernel", "a launch has no kernel on record", launched.COMPLETE, launch_without_kernel),
    Planted("repeats-differ", "a repeat sums twice", launched.SAME, two_layers(FAST, (*FAST, REDUCE), True)),
    Planted("csv-fallback", "rocprofv3's table has the Triton decode", RAN, _csv(GENERIC)),
    Planted("one-repeat", "of three repeats one is on record", launched.SAME, lambda: decode_once(True)),
    Planted("undated", "durations that are no numbers", launched.TIMED, undated),
    Planted("library-loaded", "a code object is loaded by HIP 7's call", BUILT,
            decode(*FAST, host=["hipLibraryLoadData"])),
    Planted("ninja-v", "torch's and AITER's own way to build", BUILT, starts("ninja", "-v", "-j", "8")),
    Planted("login-shell", "a compiler in the line of bash -lc", BUILT, starts("bash", "-lc", "hipcc -O3 x.hip")),
    Planted("ccache", "a compiler behind another program", BUILT, starts("ccache", "hipcc", "-c", "x.hip")),
    Planted("variable-first", "CC=gcc hipcc in a shell", BUILT, starts("sh", "-c", "CC=gcc hipcc -c x.hip")),
    Planted("cpp-for-asm", "a C++ template, and no object to look its name up in", RAN, lambda: of_a_library(CPP)),
    Planted("ungrouped", "sglang's decode without matrix units", RAN, of("sglang", "mla_decode", *UNGROUPED)),
    Planted("reduce-for-extend", "a second stage where AITER's extend was meant", RAN,
            of("aiter_triton", "mla_extend", "_fwd_kernel_stage2")),
    Planted("norm-for-renorm", "any C++ of AITER where its renorm was meant", RAN,
            of("aiter", "top_k_renorm_prob", NORM.format("aiter"))),
    Planted("norm-for-flashinfer", "any kernel of flashinfer where its renorm was meant", RAN,
            of("flashinfer", "top_p_renorm_prob", NORM.format("flashinfer"))),
    Planted("constants-in-the-name", "AITER's extend as it is named", "", of("aiter_triton", "mla_extend", EXTEND)),
    Planted("nvcc-asked", "a compiler is asked what it is", "", starts("gcc", "-print-search-dirs")),
    Planted("name-of-a-compiler", "a program is told of one", "", starts("which", "hipcc")),
    Planted("extra-memset", "fills and a copy beside assembly", "", decode(FILL_BUFFER, FILL, COPY, *FAST)),
    Planted("split-reduce", "the Triton kernel that sums AITER's splits", "", decode(DECODE, REDUCE)),
    Planted("no-split", "assembly alone: one split needs no sum", "", decode(DECODE)),
    Planted("demangled", "names as a profiler demangles them", "", decode(DEMANGLED)),
    Planted("descriptor-name", "the symbol of the kernel's descriptor", "", decode(f"{DECODE}.kd", REDUCE)),
    Planted("gz", "a compressed file", "", _gz),
    Planted("csv", "rocprofv3's table, which has no ranges", "", _csv(DECODE)),
    Planted("two-streams", "kernels on two streams at once", "", decode(DECODE, DECODE, REDUCE, REDUCE, streams=2)),
    Planted("behind-the-host", "the device is behind the host, so that times mislead", "", behind_the_host),
    Planted("loaded-before", "the code object was loaded in the warm-up", "", module_loaded_before),
    Planted("built-before", "a module was built before, is read and locked within", "", built_before),
    Planted("sort-in-renorm", "torch sorts for sglang's renorm, as it states", "", renorm(SORT, MASK, NORMALIZE)),
    Planted("at-the-roof", "2.4 GB in 320 us: near to all that HBM gives", "", at_the_roof),
    Planted("from-a-cache", "faster than HBM, since the inputs lie in the L2", "", cached_between_calls),
)  # fmt: skip
