"""AITER's own host code on the emulated device: what it launches, what it refuses and with which words."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("aiter_meta", reason="amd-aiter is not installed")

import torch

from waveproof.kernels.runtimes.emulate import abi_aiter, aiter_host
from waveproof.kernels.runtimes.emulate.aiter_host import DECODE, PREFILL, AiterRefused, Dispatch, Refusal
from waveproof.kernels.runtimes.emulate.hip_runtime import HipLaunch
from waveproof.kernels.runtimes.emulate.host_build import aiter_installation, host_build
from waveproof.selftest.emulate import aiter_calls

ARCHES = ("gfx942", "gfx950")
BF16, FN, FNUZ = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz
FP8 = {"gfx942": FNUZ, "gfx950": FN}

NO_DECODE = "mla_decode_stage1_asm_fwd: unsupport current data type or shape. please refer to asm_mla.cu"
NO_PREFILL = "mla_prefill_asm_fwd:only support num_q_heads/num_kv_heads==16 or 128 for now"


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Build before the first test, so that its time is on its own line of ``--durations``."""
    host_build()


def chosen(arch: str, entry: str, call: dict[str, Any]) -> Dispatch:
    answer = aiter_host.dispatch(arch, entry, **call)
    assert isinstance(answer, Dispatch), answer
    return answer


def refused(arch: str, entry: str, call: dict[str, Any]) -> Refusal:
    answer = aiter_host.dispatch(arch, entry, **call)
    assert isinstance(answer, Refusal), answer
    return answer


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("heads", [4, 8, 12, 24, 32, 64])
def test_other_head_counts_are_refused_with_aiters_words(arch: str, heads: int) -> None:
    assert refused(arch, DECODE, aiter_calls.decode(heads)).text == NO_DECODE
    assert refused(arch, DECODE, aiter_calls.decode(heads, dtype=FP8[arch])).text == NO_DECODE
    assert refused(arch, DECODE, aiter_calls.persistent(heads)).text == NO_DECODE
    answer = refused(arch, PREFILL, aiter_calls.prefill(heads))
    assert (answer.text, answer.kind) == (NO_PREFILL, "exception")


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    ("heads", "query_length", "dtype", "name", "grid_x"),
    [
        (16, 1, "bf16", "mla_dec_stage1_bf16_a16w16_subQ16_mqa16", 1),
        (16, 2, "bf16", "mla_a16w16_qh16_m16x4_n16x1_coex0_mask1", 1),
        (16, 4, "bf16", "mla_a16w16_qh16_m16x4_n16x1_coex0_mask1", 1),
        (16, 5, "bf16", "mla_a16w16_qh16_m32x4_n16x1_coex0_mask1", 1),
        (16, 9, "bf16", "mla_a16w16_qh16_m32x4_n16x1_coex0_mask1", 2),
        (128, 1, "bf16", "mla_dec_stage1_bf16_a16w16_subQ128_mqa128", 1),
        (128, 3, "bf16", "mla_dec_stage1_bf16_a16w16_subQ128_mqa128", 3),
        (16, 1, "fp8", "mla_a8w8_qh16_qseqlen1_gqaratio16", 1),
        (16, 2, "fp8", "mla_a8w8_qh16_qseqlen2_gqaratio16", 1),
        (16, 3, "fp8", "mla_a8w8_qh16_qseqlen4_gqaratio16", 1),
        (16, 4, "fp8", "mla_a8w8_qh16_qseqlen4_gqaratio16", 1),
        (128, 1, "fp8", "mla_a8w8_qh128_m32x4_n16x2_msk1", 1),
    ],
)
def test_decode_launches_the_shipped_object(
    arch: str, heads: int, query_length: int, dtype: str, name: str, grid_x: int
) -> None:
    call = aiter_calls.decode(heads, query_length, splits=2, dtype=BF16 if dtype == "bf16" else FP8[arch])
    answer = chosen(arch, DECODE, call)
    assert answer.code_object == aiter_installation().code_objects(arch) / "mla" / f"{name}.co"
    assert answer.code_object.exists()
    assert answer.kernel == f"_ZN5aiter{len(name)}{name}E"
    assert answer.grid == (grid_x, 3, 2)
    assert (answer.block, answer.shared_bytes) == ((abi_aiter.WORK_ITEMS, 1, 1), 0)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    ("heads", "query_length", "dtypes", "name"),
    [
        (16, 1, "bf16", "mla_a16w16_qh16_m16x4_n16x1_coex0_mask1_ps"),
        (16, 4, "bf16", "mla_a16w16_qh16_m16x4_n16x1_coex0_mask1_ps"),
        (16, 1, "bf16-fp8", "mla_a16w8_qh16_m16x4_n16x1_coex0_mask1_ps"),
        (16, 1, "fp8", "mla_a8w8_qh16_qseqlen1_gqaratio16_ps"),
        (16, 2, "fp8", "mla_a8w8_qh16_qseqlen2_gqaratio16_ps"),
        (16, 4, "fp8", "mla_a8w8_qh16_qseqlen4_gqaratio16_ps"),
        (128, 1, "fp8", "mla_a8w8_qh128_m32x4_n16x2_msk0_ps"),
    ],
)
def test_persistent_decode_takes_its_grid_from_the_work(
    arch: str, heads: int, query_length: int, dtypes: str, name: str
) -> None:
    dtype, kv_dtype = {"bf16": (BF16, BF16), "bf16-fp8": (BF16, FP8[arch]), "fp8": (FP8[arch], FP8[arch])}[dtypes]
    call = aiter_calls.persistent(heads, parts=80, query_length=query_length, dtype=dtype, kv_dtype=kv_dtype)
    answer = chosen(arch, DECODE, call)
    assert (answer.code_object.stem, answer.grid) == (name, (80, 1, 1))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    ("heads", "query_length", "grid_x"), [(16, 1, 1), (16, 8, 1), (16, 9, 2), (16, 33, 5), (128, 5, 5)]
)
def test_prefill_launches_the_shipped_object(arch: str, heads: int, query_length: int, grid_x: int) -> None:
    answer = chosen(arch, PREFILL, aiter_calls.prefill(heads, query_length, splits=2))
    name = f"mla_pfl_bf16_a16w16_causal_subQ{heads}_mqa{heads}"
    assert (answer.code_object.stem, answer.kernel) == (name, f"_ZN5aiter{len(name)}{name}E")
    assert (answer.grid, answer.block) == ((grid_x, 3, 2), (256, 1, 1))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_decode_argument_block(arch: str, dtype: str) -> None:
    call = aiter_calls.decode(16, splits=2, dtype=BF16 if dtype == "bf16" else FP8[arch])
    answer = chosen(arch, DECODE, call)
    itemsize = 2 if dtype == "bf16" else 1
    expected: dict[str, Any] = {
        name: call[argument].data_ptr() for name, argument in DECODE_POINTERS.items() if call[argument] is not None
    }
    expected |= {"s_MQA": 16, "s_kv_split": 2, "s_Q_Bs": 16 * 576 * itemsize, "s_Bs": 576 * itemsize}
    expected |= {"s_log2_plen": 0, "out_16_nosplit": 2, "scalar": _float32(aiter_calls.SCALE)}
    got = abi_aiter.unpack(answer.kernarg)
    assert {name: got[name] for name in expected} == expected
    assert _unset(answer) == ({"ptr_QSCALE", "ptr_KVSCALE"} if dtype == "bf16" else set())


@pytest.mark.parametrize("arch", ARCHES)
def test_prefill_argument_block(arch: str) -> None:
    call = aiter_calls.prefill(16, query_length=20)
    answer = chosen(arch, PREFILL, call)
    expected: dict[str, Any] = {
        name: call[argument].data_ptr() for name, argument in DECODE_POINTERS.items() if argument in call
    }
    expected |= {"s_MQA": 16, "s_kv_split": 1, "s_Q_Bs": 16 * 576 * 2, "s_Bs": 576 * 2, "s_log2_plen": 0}
    got = abi_aiter.unpack(answer.kernarg)
    assert {name: got[name] for name in expected} == expected
    assert _unset(answer) == {"ptr_STP", "ptr_RP", "ptr_QSCALE", "ptr_KVSCALE", "out_16_nosplit"}


DECODE_POINTERS = {
    "ptr_R": "splitData",
    "ptr_LSE": "splitLse",
    "ptr_Q": "Q",
    "ptr_KV": "KV",
    "ptr_LTP": "kv_indptr",
    "ptr_LTD": "kv_page_indices",
    "ptr_LTL": "kv_last_page_lens",
    "ptr_QTP": "qo_indptr",
    "ptr_STP": "num_kv_splits_indptr",
    "ptr_RP": "output",
    "ptr_QSCALE": "q_scale",
    "ptr_KVSCALE": "kv_scale",
}


def test_decode_of_several_tokens_scales_by_the_longest_query() -> None:
    got = abi_aiter.unpack(chosen("gfx950", DECODE, aiter_calls.decode(16, query_length=3)).kernarg)
    assert (got["s_MQA"], got["s_Q_Bs"]) == (48, 3 * 16 * 576 * 2)


def test_pages_are_accepted_and_sized_in_bytes() -> None:
    """The bf16 decode object takes every index for one token: nothing on the host side stands in the way."""
    answer = chosen("gfx950", DECODE, aiter_calls.decode(16, page_size=16))
    got = abi_aiter.unpack(answer.kernarg)
    assert (got["s_Bs"], got["s_log2_plen"]) == (16 * 576 * 2, 4)
    assert answer.code_object.stem == "mla_dec_stage1_bf16_a16w16_subQ16_mqa16"


def _unset(answer: Dispatch) -> set[str]:
    unset_byte = host_build().unset_byte
    if unset_byte is None:
        pytest.skip("the compiler cannot mark uninitialised variables")
    return set(abi_aiter.unset_fields(answer.kernarg, unset_byte))


def _float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def test_argument_table_is_the_struct_of_the_installed_source() -> None:
    source = (aiter_installation().meta / "csrc" / "py_itfs_cu" / "asm_mla.cu").read_text()
    body = re.search(r"struct __attribute__\(\(packed\)\) KernelArgs\s*\{(.*?)\};", source, re.DOTALL)
    assert body is not None
    kinds = {"void*": ("Q", 8), "float": ("f", 4), "unsigned int": ("I", 4), "p2": ("", 8), "p3": ("", 12)}
    declared, offset = [], 0
    for kind, name in re.findall(r"(void\*|float|unsigned int|p2|p3)\s+(\w+);", body[1]):
        code, size = kinds[kind]
        if code:
            declared.append((name, offset, code))
        offset += size
    assert declared == [(field.name, field.offset, field.format) for field in abi_aiter.FIELDS]
    assert offset == abi_aiter.ARGUMENT_BYTES


def test_argument_block_round_trip_and_errors() -> None:
    values = {field.name: float(at) if field.format == "f" else at for at, field in enumerate(abi_aiter.FIELDS)}
    assert abi_aiter.unpack(abi_aiter.pack(values)) == values
    some = abi_aiter.pack({"s_MQA": 16}, unset=0xFE)
    assert abi_aiter.unset_fields(some, 0xFE) == {field.name for field in abi_aiter.FIELDS} - {"s_MQA"}
    with pytest.raises(abi_aiter.WrongArgumentBlock, match="no field s_MAQ"):
        abi_aiter.pack({"s_MAQ": 16})
    with pytest.raises(abi_aiter.WrongArgumentBlock, match="303 bytes"):
        abi_aiter.unpack(bytes(303))


@pytest.mark.parametrize(
    ("entry", "change", "text"),
    [
        (DECODE, {"Q": torch.zeros(3, 16, 576, dtype=torch.float16)}, NO_DECODE),
        (DECODE, {"Q": torch.zeros(16, 3, 576, dtype=BF16).transpose(0, 1)}, "only support Q.is_contiguous()"),
        (DECODE, {"KV": torch.zeros(9, 1, 2, 576, dtype=BF16)}, "only support num_kv_heads==1"),
        (DECODE, {"KV": torch.zeros(9, 1, 1, 512, dtype=BF16)}, "only support head_size == KV.size(3)"),
        (PREFILL, {"Q": torch.zeros(60, 16, 576, dtype=FN)}, "unsupport current Q_type:Float8_e4m3fn"),
    ],
)
def test_refusals(entry: str, change: dict[str, Any], text: str) -> None:
    call = (aiter_calls.decode if entry == DECODE else aiter_calls.prefill)(16) | change
    assert text in refused("gfx950", entry, call).text


@pytest.mark.parametrize("dtype", [BF16, FN])
def test_long_queries_of_other_modes_are_refused(dtype: torch.dtype) -> None:
    answer = refused("gfx950", DECODE, aiter_calls.persistent(16, query_length=5, dtype=dtype))
    assert answer.text == (NO_DECODE if dtype == BF16 else f"{DECODE}:only support fp8 mla decoding for qo_len <= 4")


def test_failed_assertion_is_told_instead_of_aborting() -> None:
    call = aiter_calls.decode(16, dtype=FN) | {"q_scale": None}
    answer = refused("gfx950", DECODE, call)
    assert answer.kind == "assertion"
    assert answer.text.startswith("asm_mla.cu:")
    assert "Assertion `q_scale.has_value() && kv_scale.has_value()' failed" in answer.text


def test_persistent_metadata_is_on_the_device() -> None:
    call = aiter_calls.persistent(16)
    seen: list[tuple[int, ...]] = []

    def launcher(launch: HipLaunch) -> None:
        table = int(abi_aiter.unpack(launch.kernarg)["ptr_STP"])
        assert (table, 80) in [(block.address, block.bytes) for block in launch.allocations]
        seen.append(struct.unpack("<QQ", ctypes.string_at(table, 16)))

    aiter_host.launch("gfx950", DECODE, launcher, **call)
    assert seen == [(call["work_indptr"].data_ptr(), call["work_info_set"].data_ptr())]


def test_the_oracle_runs_nothing_and_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    call = aiter_calls.decode(16)
    os.environ.pop("AITER_ASM_DIR", None)
    before = {name: value.clone() for name, value in call.items() if isinstance(value, torch.Tensor)}
    chosen("gfx942", DECODE, call)
    assert all(torch.equal(call[name].view(torch.uint8), value.view(torch.uint8)) for name, value in before.items())
    assert "AITER_ASM_DIR" not in os.environ
    assert capfd.readouterr().out == ""


def test_launches_go_to_the_launcher_with_their_buffers() -> None:
    call = aiter_calls.decode(16)
    seen: list[HipLaunch] = []
    aiter_host.launch("gfx950", DECODE, seen.append, *call.values())
    (launch,) = seen
    assert set(launch.buffers) == {name for name, value in call.items() if value is not None} - {
        "max_seqlen_q",
        "softmax_scale",
    }
    assert launch.buffers["splitData"] is call["splitData"]
    assert launch.code_object is not None
    assert launch.image == launch.code_object.read_bytes()
    assert (launch.arch, launch.stream) == ("gfx950", 0)
    with pytest.raises(AiterRefused, match="unsupport current data type or shape") as caught:
        aiter_host.launch("gfx950", DECODE, seen.append, **aiter_calls.decode(12))
    assert caught.value.refusal.text == NO_DECODE
    assert len(seen) == 1


class Broken(Exception):
    pass


def test_what_the_launcher_raises_comes_out() -> None:
    error = Broken("out of bounds")

    def launcher(launch: HipLaunch) -> None:
        raise error

    with pytest.raises(Broken) as caught:
        aiter_host.launch("gfx950", DECODE, launcher, **aiter_calls.decode(16))
    assert caught.value is error
    assert chosen("gfx950", DECODE, aiter_calls.decode(16)).grid == (1, 3, 1)


def test_wrong_calls() -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        aiter_host.dispatch("gfx950", DECODE, torch.zeros(1))
    with pytest.raises(aiter_host.UnknownEntryPoint, match="mla_decode_stage1_asm_fwd"):
        aiter_host.dispatch("gfx950", "mla_fwd")
    with pytest.raises(ValueError, match="gfx942, gfx950"):
        aiter_host.dispatch("gfx90a", DECODE)
    meta = aiter_calls.decode(16) | {"Q": torch.zeros(3, 16, 576, dtype=BF16, device="meta")}
    assert "takes tensors on the CPU, not on meta" in refused("gfx950", DECODE, meta).text


@pytest.mark.parametrize(
    ("folder", "text"),
    [("nowhere", "hipModuleLoad: hipErrorFileNotFound: "), ("hsa/gfx942", "hipModuleLoad: hipErrorNoBinaryForGpu: ")],
)
def test_a_failing_hip_call_is_told_instead_of_ending_the_process(folder: str, text: str) -> None:
    """In a process of its own: a launcher keeps the first code object that it loaded."""
    program = (
        "from waveproof.kernels.runtimes.emulate import aiter_host, host_build\n"
        "from waveproof.selftest.emulate import aiter_calls\n"
        f"host_build.AiterInstallation.code_objects = lambda self, arch: self.meta / {folder!r}\n"
        "answer = aiter_host.dispatch('gfx950', aiter_host.DECODE, **aiter_calls.decode(16))\n"
        "print(answer.kind, answer.text)\n"
    )
    done = run_python("-c", program)
    assert done.stdout.startswith(f"hip {text}"), done.stdout + done.stderr


@pytest.mark.parametrize("arch", ARCHES)
def test_aiters_python_host(arch: str) -> None:
    """``aiter.mla`` itself; what it must show stands in the program that is run."""
    pytest.importorskip("triton")
    done = run_python(str(Path(__file__).with_name("aiter_mla_checks.py")), arch, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["decode", "prefill", "refusals", "package"]
    assert "Traceback" not in done.stderr, done.stderr


def test_import_is_light() -> None:
    program = (
        "import sys\n"
        "from waveproof.kernels.runtimes.emulate import abi_aiter, aiter_host, hip_runtime, host_build\n"
        "print(sorted({'torch', 'triton', 'aiter', 'numpy'} & sys.modules.keys()))\n"
    )
    assert run_python("-c", program).stdout == "[]\n"


def run_python(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
