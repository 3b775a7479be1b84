"""Run by test_aiter_host.py, once for an architecture: AITER's Python host code on the emulated device.

Triton's interpreter runs the merge kernel; the assembly kernel is played by :func:`stage_one`, in float64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from waveproof.kernels.runtimes.emulate import abi_aiter, aiter_package
from waveproof.kernels.runtimes.emulate.aiter_host import AiterRefused
from waveproof.kernels.runtimes.emulate.aiter_package import AiterPackageUnavailable, emulated_mla
from waveproof.kernels.runtimes.emulate.hip_runtime import HipLaunch, Launcher
from waveproof.selftest.emulate import aiter_calls

MERGE_ERROR = 2e-5
"""Absolute bound on merged values up to 4. A partial LSE up to 16 is rounded to float32 by 2**-21 at most, which moves
the weights by as much, relatively; each of a handful of float32 operations adds 2**-24. Ten times 2**-21 in all."""


def stage_one(launch: HipLaunch) -> None:
    """What the bf16 decode kernel does: split z takes the blocks z, z + splits, ... of 64 tokens."""
    buffers, arguments = launch.buffers, abi_aiter.unpack(launch.kernarg)
    splits = int(arguments["s_kv_split"])
    for request in range(launch.grid[1]):
        kv = gathered(buffers, request)
        block = torch.arange(len(kv)) // 64
        for split in range(splits):
            tokens = kv[block % splits == split]
            if len(tokens):
                out, lse = aiter_calls.attention(buffers["Q"][request], tokens, float(arguments["scalar"]))
                buffers["splitData"][request, split] = out.float()
                buffers["splitLse"][request, split, :, 0] = lse.float()


def recording(launches: list[HipLaunch]) -> Launcher:
    """:func:`stage_one`, and a note of each launch."""

    def launcher(launch: HipLaunch) -> None:
        launches.append(launch)
        stage_one(launch)

    return launcher


def gathered(buffers: Mapping[str, Any], request: int) -> torch.Tensor:
    """KV of one request, [tokens, 576]."""
    first, last = buffers["kv_indptr"][request : request + 2].tolist()
    return buffers["KV"][buffers["kv_page_indices"][first:last].long(), 0, 0]


def arguments_of(call: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("Q", "KV", "output", "qo_indptr", "kv_indptr", "kv_page_indices", "kv_last_page_lens", "max_seqlen_q")
    return tuple(call[name] for name in names)


def message_of(call: Callable[[], object], error: type[BaseException]) -> str:
    try:
        call()
    except error as raised:
        return str(raised)
    raise AssertionError(f"no {error.__name__}")


def check_decode(arch: str) -> None:
    """One split and several, one of which has no tokens, against float64.

    The output is float32, which the host code takes as well: Triton 3.9's interpreter stores bf16 wrongly.
    """
    for kv_length, splits in ((75, 1), (130, 2), (130, 3), (40, 2)):
        call = aiter_calls.decode(16, kv_length=kv_length)
        call["output"] = call["output"].float()
        launches: list[HipLaunch] = []
        with emulated_mla(arch, recording(launches)) as mla:
            mla.mla_decode_fwd(*arguments_of(call), sm_scale=aiter_calls.SCALE, num_kv_splits=splits)
        assert [launch.grid for launch in launches] == [(1, 3, splits)]
        for request in range(3):
            expected, _ = aiter_calls.attention(call["Q"][request], gathered(call, request), aiter_calls.SCALE)
            assert expected.abs().max() < 4, expected.abs().max()
            difference = (call["output"][request] - expected).abs().max()
            assert difference <= MERGE_ERROR, (kv_length, splits, difference)
    print("decode")


def check_prefill(arch: str) -> None:
    """The output is handed over as the only split, and nothing is merged."""
    call = aiter_calls.decode(16, query_length=20)
    launches: list[HipLaunch] = []
    with emulated_mla(arch, launches.append) as mla:
        mla.mla_prefill_fwd(*arguments_of(call), sm_scale=aiter_calls.SCALE)
    (launch,) = launches
    assert launch.kernel == "_ZN5aiter39mla_pfl_bf16_a16w16_causal_subQ16_mqa16E"
    assert launch.grid == (3, 3, 1)
    assert abi_aiter.unpack(launch.kernarg)["ptr_R"] == call["output"].data_ptr()
    print("prefill")


def check_refusals(arch: str) -> None:
    """12 heads: three different answers of three layers of AITER."""
    call = aiter_calls.decode(12)
    launches: list[HipLaunch] = []
    with emulated_mla(arch, launches.append) as mla:
        bf16, fp8 = arguments_of(call), (call["Q"].to(mla.dtypes.fp8), *arguments_of(call)[1:])
        assert message_of(lambda: mla.mla_decode_fwd(*bf16), AssertionError) == "nhead=12 not supported"
        assert message_of(lambda: mla.mla_decode_fwd(*fp8), KeyError) == "12"
        text = message_of(lambda: mla.mla_prefill_fwd(*bf16, sm_scale=1.0), AiterRefused)
        assert text == "mla_prefill_asm_fwd:only support num_q_heads/num_kv_heads==16 or 128 for now"
    assert not launches
    print("refusals")


def check_package(arch: str) -> None:
    """The skeleton: the device that AITER sees, the limits, and one architecture in a process."""
    aiter = aiter_package.install(arch)
    assert aiter.dtypes.fp8 == (torch.float8_e4m3fnuz if arch == "gfx942" else torch.float8_e4m3fn)
    assert sys.modules["aiter.mla"].get_cu_num() == {"gfx942": 304, "gfx950": 256}[arch]
    assert "aiter.mla_reduce_v1 is not part" in message_of(lambda: aiter.mla_reduce_v1, AttributeError)
    other = "gfx942" if arch == "gfx950" else "gfx950"
    text = message_of(lambda: aiter_package.install(other), AiterPackageUnavailable)
    assert text == f"aiter is imported already (a skeleton for {arch}); {other} needs a process of its own"
    text = message_of(lambda: aiter.mla_prefill_asm_fwd(), AiterPackageUnavailable)
    assert "outside of emulated_mla()" in text
    print("package")


if __name__ == "__main__":
    for check in (check_decode, check_prefill, check_refusals, check_package):
        check(sys.argv[1])
