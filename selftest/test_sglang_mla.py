"""What lies between the contract of latent attention and sglang's kernels: pages, padding, refusals, the registry."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from waveproof.kernels.providers import sglang_heads, sglang_mla, sglang_prefill
from waveproof.kernels.providers.registry import builtin_implementations
from waveproof.reports.adapter import adapter_source

needs_sglang = pytest.mark.skipif(find_spec("sglang") is None, reason="sglang is not installed")


def _batch(lengths: list[int], page_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[list[int]]]:
    """``kv_indptr``, ``kv_indices``, ``kv_last_page_len`` and, found one by one, the slots of each request's tokens."""
    pages = [-(-length // page_size) for length in lengths]
    drawn = torch.randperm(sum(pages) + 3, generator=torch.Generator().manual_seed(0))[: sum(pages)].int()
    slots, begin = [], 0
    for length, count in zip(lengths, pages, strict=True):
        mine = drawn[begin : begin + count].tolist()
        slots.append([mine[token // page_size] * page_size + token % page_size for token in range(length)])
        begin += count
    indptr = torch.tensor([0, *torch.tensor(pages).cumsum(0).tolist()], dtype=torch.int32)
    last = torch.tensor([(length - 1) % page_size + 1 if length else 0 for length in lengths], dtype=torch.int32)
    return indptr, drawn, last, slots


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("lengths", [[1], [16, 17, 1], [0, 33, 0, 5], [48, 0]])
def test_pages_become_slots(lengths: list[int], page_size: int) -> None:
    indptr, pages, last, slots = _batch(lengths, page_size)
    cached = sglang_mla.tokens_cached(indptr, last, page_size)
    assert cached.tolist() == lengths
    begins, found = sglang_mla.token_slots(indptr, pages, cached, page_size)
    assert begins.dtype is torch.int32
    assert begins.tolist() == [0, *torch.tensor(lengths).cumsum(0).tolist()]
    assert found[: begins[-1]].tolist() == [slot for request in slots for slot in request]


def test_requests_without_any_page() -> None:
    indptr, pages, last, _ = _batch([0, 0], 4)
    begins, found = sglang_mla.token_slots(indptr, pages, sglang_mla.tokens_cached(indptr, last, 4), 4)
    assert begins.tolist() == [0, 0, 0]
    assert found.numel() == 0


@pytest.mark.parametrize("page_size", [1, 4])
def test_new_tokens_are_the_last_of_each_request(page_size: int) -> None:
    indptr, pages, last, slots = _batch([9, 3, 8], page_size)
    queries = [2, 3, 1]
    qo_indptr = torch.tensor([0, 2, 5, 6], dtype=torch.int32)
    q = torch.zeros(6, 1, 1)
    before, prefix, new = sglang_mla.prefix_and_new(qo_indptr, indptr, pages, last, q, page_size, trimmed=True)
    assert before.tolist() == [0, 7, 7, 14]
    assert prefix.tolist() == [slot for mine, n in zip(slots, queries, strict=True) for slot in mine[: len(mine) - n]]
    assert new.tolist() == [slot for mine, n in zip(slots, queries, strict=True) for slot in mine[len(mine) - n :]]
    with pytest.raises(ValueError, match="a cached token for each query"):
        sglang_mla.prefix_and_new(torch.tensor([0, 2, 6, 7]), indptr, pages, last, q, page_size)


def test_values_are_a_view_of_the_keys() -> None:
    cache = torch.zeros(3, 4, 1, 576)
    keys, values = sglang_mla.key_and_value_buffer(cache)
    assert keys.shape == (12, 1, 576)
    assert values.shape == (12, 1, 512)
    assert keys.data_ptr() == values.data_ptr() == cache.data_ptr()


@needs_sglang
@pytest.mark.parametrize(("heads", "mode"), [(12, "zero"), (12, "tile"), (5, "tile"), (4, "repeat"), (16, "tile")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_installed_padding(heads: int, mode: str, dtype: torch.dtype) -> None:
    x = torch.randn(3, heads, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    padded = sglang_heads.pad_heads(x, 16, mode)
    sources: dict[str, list[int | None]] = {
        "zero": [head if head < heads else None for head in range(16)],
        "tile": [head % heads for head in range(16)],
        "repeat": [head * heads // 16 for head in range(16)],
    }
    empty = torch.zeros_like(x[:, 0])
    assert padded.dtype is dtype
    assert padded.is_contiguous()
    assert padded.data_ptr() != x.data_ptr()
    expected = torch.stack([empty if head is None else x[:, head] for head in sources[mode]], 1)
    assert torch.equal(padded.float(), expected.float())
    assert torch.equal(sglang_heads.unpad_heads(padded, heads, mode).float(), x.float())
    assert sglang_heads.unpad_heads(padded[..., 0], heads, mode).tolist() == x[..., 0].tolist()


@needs_sglang
def test_what_the_installed_source_has_not() -> None:
    with pytest.raises(LookupError, match=r"AiterAttnBackend\.no_such_method"):
        sglang_heads.installed_methods(
            "srt/layers/attention/aiter_backend.py", "AiterAttnBackend", ("pad_heads", "no_such_method")
        )
    with pytest.raises(ValueError, match="mirror"):
        sglang_heads.pad_heads(torch.zeros(1, 12, 4), 16, "mirror")


def test_registered_functions_exist_and_stand_alone() -> None:
    mine = [
        one for one in builtin_implementations() if one.load.partition(":")[0].endswith(("_mla", "_prefill", "_heads"))
    ]
    mine = [one for one in mine if one.provider.startswith("sglang")]
    assert {one.operator for one in mine} == {
        "mla_decode", "mla_extend", "mla_prefill", "merge_state", "pad_heads", "unpad_heads",
    }  # fmt: skip
    for one in mine:
        module, _, name = one.load.partition(":")
        function = getattr(
            {"mla": sglang_mla, "prefill": sglang_prefill, "heads": sglang_heads}[module.rpartition("_")[2]], name
        )
        one.contract.check_arity(function)
        assert "waveproof" not in adapter_source(one.load)
    narrow = [one for one in mine if one.variant == "narrow"]
    assert narrow
    assert all("float8" in pair.partition("/")[2] for one in narrow for pair in one.dtypes)


_CHILD = """
import sys, torch
from waveproof.kernels.runtimes.execution import RuntimeUnavailable, open_execution
try:
    device = open_execution("emulate", sys.argv[1])
except RuntimeUnavailable as error:
    print("unavailable", error)
    raise SystemExit from None
from waveproof.golden.judges.mla import error_bounds, judge_attention, judge_lse
from waveproof.golden.references.mla import attend
from waveproof.kernels.providers.sglang_mla import mla_decode
from waveproof.kernels.providers.sglang_prefill import mla_prefill

def int32(*values):
    return device.wrap(torch.tensor(values, dtype=torch.int32))

def refused(function, *arguments):
    try:
        function(*arguments)
    except ValueError as error:
        print("refused", error)

generator = torch.Generator().manual_seed(0)
q, cache = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((2, 12, 576), (4, 16, 1, 576)))
pages = int32(0, 2, 3), int32(3, 0, 1), int32(4, 16)
kept = device.wrap(q), device.wrap(cache)
out, lse = mla_decode(*kept, int32(0, 1, 2), *pages, 0.07, 1.0, 1.0)
device.settle()
for row, tokens in enumerate((torch.cat([cache[3], cache[0, :4]]), cache[1])):
    want = attend(q[row : row + 1], tokens[:, 0], 0.07)
    bounds = error_bounds(want, torch.bfloat16)
    got = device.plain(out)[row : row + 1], device.plain(lse)[row : row + 1]
    print(judge_attention(got[0], want, bounds).holds, judge_lse(got[1], want, bounds).holds)
print(*(launch["kernel"] for launch in device.launches()))
refused(mla_decode, *kept, int32(0, 2), int32(0, 2), *pages[1:], 0.07, 1.0, 1.0)
refused(mla_decode, *kept, int32(0, 1, 2), *pages, 0.07, 0.5, 1.0)
prompt = (torch.zeros(2, 1, 192), torch.zeros(3, 1, 192), torch.zeros(3, 1, 128))
refused(mla_prefill, *map(device.wrap, prompt), int32(0, 2), int32(0, 3), 0.07, True, 1.0, 1.0)
"""


@needs_sglang
def test_decode_on_the_emulated_device_and_refusals() -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, "gfx950"],
        env={**inherited, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if lines[0].startswith("unavailable"):
        pytest.skip(lines[0])
    assert lines[:2] == ["True True"] * 2
    assert lines[2].split() == ["get_num_kv_splits_triton", "_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2"]
    for line, rule in zip(lines[3:], ("one query a request", "q_scale is 0.5", "row for row"), strict=True):
        assert line.startswith("refused")
        assert rule in line
