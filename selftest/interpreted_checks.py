"""Run by test_interpret.py in a process of its own: kernels in Triton's interpreter, first as shipped and then mended.

Prints one JSON object: the name of each check and its figures, or under "error" the traceback that it ended in. It
judges nothing; the assertions are in test_interpret.py.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

# What prepare() sets. Here Triton has to be seen before prepare() mends it.
os.environ["TRITON_INTERPRET"] = "1"

import torch

from waveproof.kernels.runtimes import interpret, interpreter_canary, narrow_floats
from waveproof.selftest.interpreted_kernels import (
    accumulate,
    convert,
    convert_toward_zero,
    double_row_in_32_bits,
    double_row_in_64_bits,
    double_strided,
    elementwise,
    mark,
    positive,
    product,
    running,
    scaled_product,
    square,
    store_at,
    store_offset,
)

FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
OTHERS = ("float64", "int8", "int16", "int32", "int64")
HUGE_ROWS, HUGE_VOCABULARY = 13_108, 163_840


def dtype_of(name: str) -> torch.dtype:
    return getattr(torch, name)


def differing(got: torch.Tensor, right: torch.Tensor) -> int:
    """How many values differ, NaN taken as equal to NaN and +0 as different from -0."""
    got, right = got.double(), right.double()
    same = (got == right) & (got.signbit() == right.signbit()) | (got.isnan() & right.isnan())
    return int((~same).sum())


def every_bfloat16() -> torch.Tensor:
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def canary_as_shipped() -> dict[str, Any]:
    return {name: list(interpreter_canary.faults(dtype_of(name))) for name in FLOATS + OTHERS}


def canary_mended() -> dict[str, Any]:
    interpret.require_right(map(dtype_of, FLOATS + OTHERS))
    return {name: interpret.canary(dtype_of(name)) for name in FLOATS + OTHERS} | {
        "launches": len(interpret.launches())
    }


def refusal() -> dict[str, Any]:
    """The mended interpreter with its bfloat16 rounding taken out again."""
    original = narrow_floats.narrow
    interpret._canary.cache_clear()
    narrow_floats.narrow = lambda number, form, toward_zero=False: original(number, form, toward_zero=True)
    try:
        interpret.require_right([torch.float32, torch.bfloat16])
    except interpret.InterpreterWrong as error:
        return {"message": str(error)}
    finally:
        narrow_floats.narrow = original
        interpret._canary.cache_clear()
    return {"message": ""}


def rounding() -> dict[str, Any]:
    """float32 round every bfloat16 value: itself, the tie above it, and one float32 unit to either side of both."""
    pattern = torch.arange(65536, dtype=torch.int64) << 16
    bits = torch.cat([(pattern + shift) % 2**32 for shift in (0, 1, -1, 0x8000, 0x7FFF, 0x8001)])
    number = torch.cat([bits, bits[: 2**19 - len(bits)]]).to(torch.int32).view(torch.float32)
    got = torch.empty(len(number), dtype=torch.bfloat16)
    convert[(1,)](number, got, LANES=len(number))
    cut = torch.empty(len(number), dtype=torch.bfloat16)
    convert_toward_zero[(1,)](number, cut, LANES=len(number))
    toward_zero = (number.view(torch.int32) & -65536).view(torch.float32)
    ordinary = ~number.isnan()
    return {
        "values": len(number),
        "differing": differing(got, number.to(torch.bfloat16)),
        "toward zero": differing(cut[ordinary], toward_zero[ordinary]) + int((~cut[~ordinary].isnan()).sum()),
    }


def widening() -> dict[str, Any]:
    got = torch.empty(65536)
    convert[(1,)](every_bfloat16(), got, LANES=65536)
    return {"differing": differing(got, every_bfloat16().float())}


def conversions() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    figures: dict[str, Any] = {}

    def compare(name: str, source: torch.Tensor, target: torch.dtype, right: torch.Tensor) -> None:
        got = torch.empty(len(source), dtype=target)
        convert[(1,)](source, got, LANES=len(source))
        figures[name] = differing(got, right)

    integer = torch.randint(-(2**31), 2**31 - 1, (4096,), generator=generator, dtype=torch.int32)
    compare("int32 to bfloat16", integer, torch.bfloat16, integer.to(torch.bfloat16))
    half = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16)
    compare("float16 to bfloat16", half, torch.bfloat16, half.to(torch.bfloat16))
    compare("bfloat16 to float16", every_bfloat16(), torch.float16, every_bfloat16().to(torch.float16))
    small = (torch.randn(4096, generator=generator) * 100).to(torch.bfloat16)
    compare("bfloat16 to int32", small, torch.int32, small.to(torch.int32))
    compare("bfloat16 to float64", every_bfloat16(), torch.float64, every_bfloat16().double())
    # Just above, on and just below a tie: through float32 all three would be the tie and go to 1.
    near_tie = torch.tensor([1 + 2**-8 + 2**-40, 1 + 2**-8, 1 + 2**-8 - 2**-40, torch.nan], dtype=torch.float64)
    compare("float64 to bfloat16", near_tie, torch.bfloat16, torch.tensor([1 + 2**-7, 1.0, 1.0, torch.nan]))
    signed, flags = torch.tensor([1.0, -1.0, 0.0, 2.0]), torch.empty(4, dtype=torch.bfloat16)
    positive[(1,)](signed, flags, LANES=4)
    figures["comparison to bfloat16"] = differing(flags, torch.tensor([1.0, 0.0, 0.0, 1.0]))
    return figures


def arithmetic() -> dict[str, Any]:
    a = every_bfloat16()
    figures = {}
    for name, multiplier in (("first", 40503), ("second", 25173)):
        b = a[(torch.arange(65536) * multiplier + 12345) % 65536]
        got = torch.empty((5, 65536), dtype=torch.bfloat16)
        elementwise[(1,)](a, b, got, LANES=65536)
        right = torch.stack([a * b, a + b, a - b, (a < b).to(torch.bfloat16), a.abs()])
        figures[name] = [differing(*pair) for pair in zip(got, right, strict=True)]
    return figures


def dot() -> dict[str, Any]:
    """The error over its bound: 64 exact products summed in float32 in any order."""
    generator = torch.Generator().manual_seed(2)
    a, b = torch.randn((2, 64, 64), generator=generator).to(torch.bfloat16)
    got = torch.empty((64, 64))
    product[(1,)](a, b, got, SIZE=64)
    x, y = a.double(), b.double()
    bound = 65 * 2.0**-24 * (x.abs() @ y.abs())
    return {"error over bound": float(((got - x @ y).abs() / bound).max())}


def scaled_dot() -> dict[str, Any]:
    """With bfloat16 numbers far outside the range of float16."""
    generator = torch.Generator().manual_seed(3)
    a = (torch.randn((32, 32), generator=generator) * 1e6).to(torch.bfloat16)
    b = torch.randn((32, 32), generator=generator).to(torch.float8_e4m3fn)
    scale = torch.randint(125, 130, (32, 1), generator=generator, dtype=torch.uint8)
    got = torch.empty((32, 32))
    scaled_product[(1,)](a, b, scale, got, SIZE=32)
    x, y = a.double(), b.double() * torch.exp2(scale.double() - 127).T
    bound = 33 * 2.0**-24 * (x.abs() @ y.abs())
    return {"error over bound": float(((got - x @ y).abs() / bound).max())}


def scans() -> dict[str, Any]:
    number = (torch.arange(64) % 5 - 2).to(torch.bfloat16)
    number[37] = 3.0
    sums, index = torch.empty(64, dtype=torch.bfloat16), torch.empty(1, dtype=torch.int32)
    running[(1,)](number, sums, index, LANES=64)
    return {"differing": differing(sums, number.double().cumsum(0)), "index": index.item()}


def atomics() -> dict[str, Any]:
    target = torch.tensor([1.0], dtype=torch.bfloat16)
    interpret.clear_launches()
    accumulate[(1,)](target, torch.arange(16, dtype=torch.bfloat16), LANES=16)
    launch = interpret.launches()[0]
    return {"sum": target.item(), "read": launch.bytes_read, "written": launch.bytes_written}


def integers() -> dict[str, Any]:
    target = torch.empty(1, dtype=torch.int64)
    square[(1,)](target, 2**31 + 5)
    offsets = torch.empty(4, dtype=torch.int64)
    with interpret.only_programs(select=lambda kernel, grid: [(HUGE_ROWS, 0, 0)]):
        store_offset[(HUGE_ROWS + 1,)](offsets, HUGE_VOCABULARY, LANES=4)
    return {"square": target.item(), "wrapped": offsets.tolist()}


def device_view() -> dict[str, Any]:
    tensor = torch.arange(12.0).reshape(3, 4)
    view = interpret.on_device(tensor.T)
    return {
        "is_cuda": view.is_cuda,
        "results": [view.float().is_cuda, (view + 1).is_cuda, torch.empty_like(view).is_cuda, view[0].is_cuda],
        "sorted": torch.sort(view, dim=-1).values.is_cuda,
        "device": str(view.device),
        "made on its device": torch.empty(1, device=view.device).is_cuda,
        "same memory": view.data_ptr() == tensor.data_ptr(),
        "strides": list(view.stride()),
        "plain": [interpret.plain(view).is_cuda, type(interpret.plain(view)) is torch.Tensor],
        "plain memory": interpret.plain(view).data_ptr() == tensor.data_ptr(),
    }


def views() -> dict[str, Any]:
    """A transposed view at an offset of a poisoned storage, read from an expanded view; what lies round it stays."""
    storage = torch.full((64,), -1.0)
    target = storage.as_strided((3, 5), (1, 4), 9)
    source = torch.arange(5.0).expand(3, 5)
    double_strided[(3,)](
        interpret.on_device(source), interpret.on_device(target), 3, 5, *source.stride(), *target.stride(), LANES=8
    )
    right = torch.full((64,), -1.0)
    right.as_strided((3, 5), (1, 4), 9).copy_(source * 2)
    return {"differing": differing(storage, right), "written": int((storage != -1).sum())}


def strays() -> dict[str, Any]:
    storage = torch.zeros(32)
    view = storage[8:16]
    store_at[(1,)](view, 8)
    figures: dict[str, Any] = {"canary beyond the view": storage[16].item(), "others": float(storage.sum())}
    for name, offset in (("past", 24), ("before", -9)):
        interpret.clear_launches()
        try:
            store_at[(1,)](view, offset)
        except interpret.StrayAccess as error:
            figures[name] = str(error)
        figures[f"launches {name}"] = len(interpret.launches())
    return figures


def record() -> dict[str, Any]:
    interpret.clear_launches()
    source, target = torch.ones((3, 5), dtype=torch.float16), torch.zeros((3, 5))
    double_strided[(3,)](source, target, 3, 5, 5, 1, 5, 1, LANES=8)
    store_at[lambda arguments: (1,)](target, 0)
    figures = [
        [launch.kernel, list(launch.grid), launch.bytes_read, launch.bytes_written, launch.programs]
        for launch in interpret.launches()
    ]
    positive = all(launch.seconds > 0 for launch in interpret.launches())
    interpret.clear_launches()
    return {"launches": figures, "seconds positive": positive, "after clearing": len(interpret.launches())}


def selection() -> dict[str, Any]:
    def marks() -> list[list[int]]:
        target = torch.zeros((3, 4), dtype=torch.int32)
        mark[(3, 4)](target, 4)
        return target.tolist()

    figures: dict[str, Any] = {}
    with interpret.only_programs(lambda x, y, z: x == 2 and y > 1):
        figures["predicate"] = marks()
    asked = []

    def first_only(kernel: str, grid: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        asked.append([kernel, list(grid)])
        return [(0, 1, 0)]

    with interpret.only_programs(select=first_only):
        figures["select"] = marks()
    figures["asked"] = asked
    figures["after"] = marks()
    try:
        with interpret.only_programs(select=lambda kernel, grid: [(3, 0, 0)]):
            marks()
    except ValueError as error:
        figures["outside"] = str(error)
    try:
        with interpret.only_programs():
            pass
    except TypeError as error:
        figures["neither"] = str(error)
    return figures


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def huge() -> dict[str, Any]:
    """The last row of 13,108 x 163,840 float32 (8.59 GB of address space, of which only that row is touched)."""
    try:
        source, target = (torch.empty((HUGE_ROWS, HUGE_VOCABULARY)) for _ in range(2))
    except RuntimeError as error:
        return {"unavailable": str(error).splitlines()[0]}
    source[-1] = torch.arange(HUGE_VOCABULARY)
    before = resident_bytes()
    grid = (HUGE_ROWS, HUGE_VOCABULARY // 1024)

    def last_row(kernel: str, grid: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        return [(grid[0] - 1, chunk, 0) for chunk in range(grid[1])]

    interpret.clear_launches()
    with interpret.only_programs(select=last_row):
        double_row_in_64_bits[grid](source, target, HUGE_VOCABULARY, LANES=1024)
    launch = interpret.launches()[0]
    figures: dict[str, Any] = {
        "differing": differing(target[-1], source[-1] * 2),
        "programs": launch.programs,
        "read": launch.bytes_read,
        "seconds": launch.seconds,
        "resident growth": resident_bytes() - before,
    }
    target[-1] = 0
    try:
        with interpret.only_programs(lambda x, y, z: x == HUGE_ROWS - 1):
            double_row_in_32_bits[grid](source, target, HUGE_VOCABULARY, LANES=1024)
    except interpret.StrayAccess as error:
        figures["in 32 bits"] = str(error)
    figures["chunks before the fault"] = int(target[-1].view(-1, 1024).any(dim=1).sum())
    return figures


def sglang_renorm() -> dict[str, Any]:
    """Sglang's public functions, loaded by path: the file needs only torch and triton, the package far more."""
    package = find_spec("sglang")
    if package is None or not package.submodule_search_locations:
        return {"unavailable": "sglang is not installed"}
    path = Path(package.submodule_search_locations[0]) / "kernels/ops/sampling/renorm_triton.py"
    spec = spec_from_file_location("renorm_triton", path)
    if spec is None or spec.loader is None or not path.exists():
        return {"unavailable": "this sglang has no kernels/ops/sampling/renorm_triton.py"}
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    probabilities = torch.softmax(torch.randn((3, 2000), generator=torch.Generator().manual_seed(4)) * 3, dim=-1)
    interpret.clear_launches()
    got = module.top_k_renorm_probs_triton(interpret.on_device(probabilities), 40)
    exact = probabilities.double()
    kept = torch.where(exact >= exact.topk(40).values[:, -1:], exact, 0.0)
    right = kept / kept.sum(dim=-1, keepdim=True)
    error = ((interpret.plain(got).double() - right).abs() / right)[right > 0]
    return {
        "in the subclass": got.is_cuda,
        "support": int(((got != 0) != (right != 0)).sum()),
        "relative error": float(error.max()),
        "kernels": [launch.kernel for launch in interpret.launches()],
        "read": [launch.bytes_read for launch in interpret.launches()],
        "written": [launch.bytes_written for launch in interpret.launches()],
    }


AS_SHIPPED = (canary_as_shipped,)
MENDED = (
    canary_mended, refusal, rounding, widening, conversions, arithmetic, dot, scaled_dot, scans, atomics, integers,
    device_view, views, strays, record, selection, huge, sglang_renorm,
)  # fmt: skip


def outcome(check: Any) -> dict[str, Any]:
    try:
        return check()
    except Exception:
        return {"error": traceback.format_exc()}


def main() -> None:
    results = {check.__name__: outcome(check) for check in AS_SHIPPED}
    interpret.prepare()
    interpret.prepare()
    results |= {check.__name__: outcome(check) for check in MENDED}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
