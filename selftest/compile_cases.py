# mypy: allow-untyped-defs
"""What selftest/test_compile.py asks of the ``compile`` runtime, in a process of its own: Triton stays out of pytest.

``python compile_cases.py ARCH CASE...`` prints one JSON object, a value per case. Each kernel below is planted: it has
the fault, or just lacks the fault, that its name says.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from waveproof.kernels.runtimes import compile as ahead_of_time

ARCH, *CASES = sys.argv[1:]
try:
    ahead_of_time.prepare(ARCH)
except ahead_of_time.CompileUnavailable as error:
    print(json.dumps({"unavailable": str(error)}))
    raise SystemExit(0) from None

import triton  # noqa: E402
import triton.language as tl  # noqa: E402


@triton.jit
def row_times_vocab(out, vocab: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + (tl.program_id(0) * vocab + columns), 0.0, mask=columns < vocab)


@triton.jit
def row_times_stride(out, stride, vocab, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * stride + columns, 0.0, mask=columns < vocab)


@triton.jit
def widened_too_late(out, vocab: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + (tl.program_id(0) * vocab).to(tl.int64) + columns, 0.0, mask=columns < vocab)


@triton.jit
def widened_in_time(out, vocab: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0).to(tl.int64) * vocab + columns, 0.0, mask=columns < vocab)


@triton.jit
def induction_variable(out, rows, vocab, BLOCK: tl.constexpr):
    for row in range(0, rows):
        columns = tl.arange(0, BLOCK)
        tl.store(out + (row * vocab + columns), 0.0, mask=columns < vocab)


@triton.jit
def carried_offset(out, rows, vocab, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    for _ in range(0, rows):
        tl.store(out + offsets, 0.0)
        offsets += vocab


@triton.jit
def carried_pointer(out, rows, vocab, BLOCK: tl.constexpr):
    pointers = out + tl.arange(0, BLOCK)
    for _ in range(0, rows):
        tl.store(pointers, 0.0)
        pointers += vocab


@triton.jit
def loaded_bound(out, counts, vocab, BLOCK: tl.constexpr):
    for row in range(0, tl.load(counts)):
        tl.store(out + (row * vocab + tl.arange(0, BLOCK)), 0.0)


@triton.jit
def after_early_return(out, rows, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if row >= rows:
        return
    tl.store(out + (row * vocab + tl.arange(0, BLOCK)), 0.0)


@triton.jit
def under_condition(out, rows, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if row < rows:
        tl.store(out + (row * vocab + tl.arange(0, BLOCK)), 0.0)
    tl.atomic_add(out, 1.0)


@triton.jit
def unsigned_offset(out, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.uint32)
    tl.store(out + (row * vocab.to(tl.uint32) + tl.arange(0, BLOCK)), 0.0)


@triton.jit
def hashed(out, mask, BLOCK: tl.constexpr):
    scrambled = (tl.program_id(0) * 1664525 + tl.arange(0, BLOCK)) & mask
    tl.store(out + scrambled, 0.0)


@triton.jit
def read_of_a_tile(out, keys, rows, width, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, BLOCK)
    tile = tl.load(keys + (row[:, None] * width + column[None, :]), mask=row[:, None] < rows, other=0.0)
    tl.store(out + column, tl.sum(tile, axis=0))


@triton.jit
def copies(source, target, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + offsets, tl.load(source + offsets, mask=offsets < n), mask=offsets < n)


@triton.jit
def square(matrix, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    values = tl.load(matrix + at)
    tl.store(matrix + at, tl.dot(values, values))


@triton.jit
def undefined_name(out, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), nowhere)  # type: ignore[name-defined]  # noqa: F821


@triton.jit
def refused_by_assembler(out, BLOCK: tl.constexpr):
    values = tl.load(out + tl.arange(0, BLOCK))
    values = tl.inline_asm_elementwise("v_bogus $0, $1", "=v,v", [values], tl.float32, is_pure=True, pack=1)
    tl.store(out + tl.arange(0, BLOCK), values)


@triton.jit
def complained_of_only(out, BLOCK: tl.constexpr):
    values = tl.load(out + tl.arange(0, BLOCK))
    values = tl.inline_asm_elementwise("v_mov_b32 $0, $1", "=q,v", [values], tl.float32, is_pure=True, pack=1)
    tl.store(out + tl.arange(0, BLOCK), values)


def device(*shape: int, dtype: torch.dtype = torch.float32, real: bool = False) -> torch.Tensor:
    return ahead_of_time.on_device(torch.empty(shape, dtype=dtype, device="cpu" if real else "meta"))


Launches = list[dict[str, Any]]


def recorded(host: Callable[..., object], *arguments: Any, **options: Any) -> Launches:
    ahead_of_time.clear_launches()
    host(*arguments, **options)
    return [
        {**asdict(launch), "overflows": [asdict(found) for found in ahead_of_time.int32_overflows(launch)]}
        for launch in ahead_of_time.launches()
    ]


def renorm() -> dict[str, Launches]:
    from sglang.kernels.ops.sampling.renorm_triton import top_k_renorm_probs_triton, top_p_renorm_probs_triton

    found = {}
    for rows, vocab in ((4, 1), (4, 1000), (4, 32000), (4, 128256), (4, 163840), (16384, 163840)):
        shape, probabilities = f"{rows}x{vocab}", device(rows, vocab)
        per_row = device(rows, dtype=torch.int32), device(rows)
        found[f"top-k {shape}"] = recorded(top_k_renorm_probs_triton, probabilities, 50)
        found[f"top-k per row {shape}"] = recorded(top_k_renorm_probs_triton, probabilities, per_row[0])
        found[f"top-p {shape}"] = recorded(top_p_renorm_probs_triton, probabilities, 0.9)
        found[f"top-p per row {shape}"] = recorded(top_p_renorm_probs_triton, probabilities, per_row[1])
    return found


def renorm_on_real_tensors() -> list[Launches]:
    from sglang.kernels.ops.sampling.renorm_triton import top_k_renorm_probs_triton

    return [recorded(top_k_renorm_probs_triton, device(4, 1000, real=real), 5) for real in (False, True)]


def alignment() -> dict[str, Launches]:
    found = {}
    for where, real in (("meta", False), ("cpu", True)):
        whole = device(4096, real=real)
        for skipped in (0, 4, 1):
            found[f"{where} {skipped}"] = recorded(copies[(2,)], whole[skipped:], whole, 2048, BLOCK=1024)
    return found


def twice() -> list[Launches]:
    return [recorded(copies[(3,)], device(4096), device(4096), 3000, BLOCK=1024) for _ in range(2)]


def overflow() -> dict[str, Launches]:
    out, counts = device(1), device(1, dtype=torch.int32)
    vocab, block, wide = 163840, 1024, 262144
    launches: dict[str, Callable[[], object]] = {}
    for rows in (13107, 13108, 16384):
        grid = (rows, vocab // block)
        launches |= {
            f"row_times_vocab {rows}": partial(row_times_vocab[grid], out, vocab, block),
            f"widened_too_late {rows}": partial(widened_too_late[grid], out, vocab, block),
            f"widened_in_time {rows}": partial(widened_in_time[grid], out, vocab, block),
            f"row_times_stride {rows}": partial(row_times_stride[(rows,)], out, vocab, vocab, wide),
            f"induction_variable {rows}": partial(induction_variable[(1,)], out, rows, vocab, wide),
            f"carried_pointer {rows}": partial(carried_pointer[(1,)], out, rows, vocab, block),
            f"loaded_bound {rows}": partial(loaded_bound[(1,)], out, counts, vocab, block),
            f"after_early_return {rows}": partial(after_early_return[(16384,)], out, rows, vocab, block),
            f"under_condition {rows}": partial(under_condition[(16384,)], out, rows, vocab, block),
            f"hashed {rows}": partial(hashed[(rows,)], out, 65535, block),
        }
    for rows in (13108, 13109):
        launches[f"carried_offset {rows}"] = partial(carried_offset[(1,)], out, rows, vocab, block)
    for rows in (26215, 26216):
        launches[f"unsigned_offset {rows}"] = partial(unsigned_offset[(rows,)], out, vocab, block)
    for rows in (1 << 20, (1 << 20) + 1):
        launches[f"read_of_a_tile {rows}"] = partial(read_of_a_tile[(-(-rows // 64),)], out, out, rows, 2048, 64)
    return {name: recorded(launch)[0]["overflows"] for name, launch in launches.items()}


def matrix() -> dict[str, Launches]:
    return {
        "small": recorded(square[(1,)], device(64, 64, dtype=torch.bfloat16), 64, num_warps=4),
        "spilling": recorded(square[(1,)], device(128, 128), 128, num_warps=1),
    }


def failures() -> dict[str, dict[str, str]]:
    found = {}
    for kernel in (undefined_name, refused_by_assembler, complained_of_only):
        for attempt in ("first", "again"):
            kernel.device_caches.clear()
            try:
                kernel[(1,)](device(256), 256)
            except ahead_of_time.CompileFailed as error:
                found[f"{error.kernel} {attempt}"] = {"arch": error.arch, "message": str(error)}
    return found


def values() -> dict[str, str]:
    tensor = device(4)
    made = torch.zeros(3, device=tensor.device)
    questions: dict[str, Callable[[], object]] = {
        "item": lambda: tensor[0].item(),
        "bool": lambda: bool(tensor[0] > 0),
        "tolist": lambda: tensor.tolist(),
        "cpu": lambda: tensor.cpu(),
        "nonzero": lambda: tensor.nonzero(),
        "mask": lambda: tensor[tensor > 0],
        "made by a factory": lambda: int(made.max()),
        "wrong shapes": lambda: tensor @ device(5),
        "real": lambda: device(4, real=True).tolist(),
    }
    found = {}
    for name, ask in questions.items():
        try:
            ask()
            found[name] = "answered"
        except RuntimeError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def kinds() -> dict[str, bool]:
    tensor = device(4, 4)
    return {
        "wrapped": tensor.is_cuda,
        "result": torch.sort(tensor, dim=-1).values.is_cuda,
        "made on its device": torch.empty(3, device=tensor.device).is_cuda,
        "plain": ahead_of_time.plain(tensor).is_cuda,
    }


def other_arch() -> str:
    ahead_of_time.prepare(ARCH)
    other = next(arch for arch in ahead_of_time.DEVICES if arch != ARCH)
    try:
        ahead_of_time.prepare(other)
    except ahead_of_time.CompileUnavailable as error:
        return str(error)
    return ""


def autotuned() -> str:
    tuned = triton.autotune([triton.Config({"BLOCK": size}) for size in (256, 512)], key=["n"])(copies)
    try:
        tuned[(1,)](device(512), device(512), 512)
    except ahead_of_time.CompileUnavailable as error:
        return str(error)
    return ""


def abort_of_the_compiler() -> None:
    from waveproof.kernels.runtimes import triton_device

    with triton_device.standard_error():
        os.write(2, b"LLVM ERROR: last words\n")
        os.abort()


if __name__ == "__main__":
    print(json.dumps({name: globals()[name]() for name in CASES}))
