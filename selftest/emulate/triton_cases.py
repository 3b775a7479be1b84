"""Triton kernels on the emulated device: a process of its own for each architecture, as the driver wants it.

``python triton_cases.py ARCH CASE...`` runs the cases and prints ``{case: result}`` as JSON.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import torch

from waveproof.kernels.operators.contract import Call
from waveproof.kernels.runtimes import worker
from waveproof.kernels.runtimes.emulate import registry, triton_driver
from waveproof.kernels.runtimes.emulate.fault import Fault
from waveproof.kernels.runtimes.execution import open_execution
from waveproof.kernels.runtimes.pretence import PretenceUnavailable

ARCH = sys.argv[1] if len(sys.argv) > 1 else ""

try:
    triton_driver.prepare(ARCH)
except PretenceUnavailable as error:
    print(json.dumps({"unavailable": str(error)}))
    sys.exit()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from waveproof.kernels.runtimes import triton_device  # noqa: E402
from waveproof.selftest.emulate import sglang_cases  # noqa: E402
from waveproof.selftest.emulate.sglang_cases import Counted, counted  # noqa: E402


@triton.jit
def mixed(out, flag, small, large, absent, scale, pair, one, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    value = tl.where(flag, scale, -scale) + small + (large >> 32) + tl.load(pair[0]) * pair[1] + one
    if absent is not None:
        value += tl.load(absent)
    tl.store(out + offsets, value)


@triton.jit
def shifted_copy(destination, source, shift, length, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    within = offsets < length
    tl.store(destination + offsets, tl.load(source + offsets + shift, mask=within), mask=within)


@triton.jit
def exotic(out, INSTRUCTION: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    value = tl.inline_asm_elementwise(INSTRUCTION, "=v,v", [tl.load(out + offsets)], tl.float32, is_pure=False, pack=1)
    tl.store(out + offsets, value)


@triton.jit
def row_sums(out, rows, length, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    values = tl.load(rows + tl.program_id(0) * length + offsets, mask=offsets < length, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(values, axis=0))


@triton.jit
def converted(out, source, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(source + offsets).to(out.dtype.element_ty))


def kernarg() -> dict[str, Any]:
    """Offsets and sizes of the arguments in the code object's metadata, beside those that the driver packs."""
    out, data = torch.zeros(64), torch.tensor([3.0])
    arguments = (out, True, -7, 5 << 32, None, 0.25, (data, 2.0), 1)
    mixed[(1,)](*arguments, BLOCK=64)
    kernel = next(iter(mixed.device_caches[0][0].values()))
    text = kernel.asm["amdgcn"]
    described = re.findall(r"\.offset:\s+(\d+)\n(?:.*\n)*?\s+\.size:\s+(\d+)", text[text.index(".args:") :])
    parameters = triton_device.parameters(kernel.src.signature, (*arguments, 64))
    kinds = [one.kind for one in parameters if one.kind != "constexpr"] + ["*u8", "*u8"]
    sizes = [len(triton_driver.pack_kernarg([kind], [0])) for kind in kinds]
    ends = [len(triton_driver.pack_kernarg(kinds[: count + 1], [0] * (count + 1))) for count in range(len(kinds))]
    return {
        "described": [[int(offset), int(size)] for offset, size in described],
        "packed": [[end - size, size] for end, size in zip(ends, sizes, strict=True)],
        "kinds": kinds,
        "out": sorted(set(out.tolist())),
    }


def bounds() -> dict[str, str]:
    """What is said of an access, by where it goes."""
    source, destination = torch.arange(1000.0), torch.zeros(1000)
    grid, wide = (4,), torch.zeros(2000)
    attempts: dict[str, Callable[[], object]] = {
        "beyond": lambda: shifted_copy[grid](destination, source, 40, 1000, BLOCK=256),
        "before": lambda: shifted_copy[grid](destination, source, -8, 1000, BLOCK=256),
        "store": lambda: shifted_copy[grid](destination, wide, 0, 1003, BLOCK=256),
        "null": lambda: shifted_copy[grid](destination, torch.empty(0), 0, 1000, BLOCK=256),
        "strided": lambda: shifted_copy[grid](destination, wide[:200].view(10, 20)[:, :10], 1996, 10, BLOCK=256),
        "view": lambda: shifted_copy[grid](destination, wide[500:1500], -500, 1000, BLOCK=256),
    }
    found = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            found[name] = "landed"
        except Fault as fault:
            found[name] = str(fault)
    return found


def shared_storage() -> list[float]:
    """Two views of one storage, one written: the other shows it, and no byte is copied back or forth."""
    both = torch.arange(512.0)
    shifted_copy[(1,)](both[256:], both[:256], 0, 256, BLOCK=256)
    return both[250:262].tolist()


def counts() -> dict[str, Counted]:
    rows, out = torch.ones(5, 700), torch.zeros(5)

    def run() -> None:
        row_sums[(5,)](out, rows, 700, BLOCK=1024)

    first, again = counted(run), counted(run)
    with triton_driver.only_workgroups(lambda kernel, grid: [(3, 0, 0)]):
        out.zero_()
        part = counted(run)
    nothing = counted(lambda: row_sums[(0,)](out, rows, 700, BLOCK=1024))
    return {"first": first, "again": again, "part": part, "out": out.tolist(), "nothing": nothing}


def eight_bits() -> dict[str, dict[str, Any]]:
    """Conversions to and from 8-bit floats: how many numbers there were, how many of them torch converts to others,
    and which conversion instructions did it. Torch's are clamped first, which is what Triton promises (saturation,
    infinities too).
    """
    patterns = torch.arange(1 << 16).to(torch.int16)
    codes = torch.arange(256).to(torch.uint8).repeat(16)
    found = {}
    for narrow in (torch.float8_e4m3fn, torch.float8_e5m2):
        largest = torch.finfo(narrow).max
        values = codes.view(narrow).float()
        finite = values[:256][values[:256].isfinite()].sort().values
        telling = torch.cat([finite, (finite[1:] + finite[:-1]) / 2, torch.tensor([largest * 1.07, -largest * 1.08])])
        telling = torch.cat([torch.nextafter(telling, torch.tensor(to)) for to in (-torch.inf, torch.inf)] + [telling])
        single = torch.cat([telling, patterns.view(torch.bfloat16).float()])
        single = torch.cat([single, torch.zeros(-len(single) % 4096)])
        sources = single, patterns.view(torch.bfloat16), patterns.view(torch.float16)
        for source in sources:
            steps = (
                ("to", source, narrow, source.clamp(-largest, largest).to(narrow)),
                ("from", codes.view(narrow), source.dtype, values.to(source.dtype)),
            )
            for direction, given, dtype, wanted in steps:
                out = torch.zeros(given.shape, dtype=dtype)
                converted[(len(given) // 4096,)](out, given, BLOCK=4096)
                text = list(converted.device_caches[0][0].values())[-1].asm["amdgcn"]
                # Through integers: a comparison of floats takes -0 for 0.
                bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[out.element_size()]
                both_nan = out.float().isnan() & wanted.float().isnan()
                differ = (out.view(bits) != wanted.view(bits)) & ~both_nan
                found[f"{direction} {narrow} {source.dtype}".replace("torch.", "")] = {
                    "numbers": len(given),
                    "others": int(differ.sum()),
                    "instructions": sorted(set(re.findall(r"\bv_cvt_scalef32\w+", text))),
                }
    return found


MISSING = ("s_trap 3", "s_sethalt 0", "s_icache_inv", "s_dcache_wb")
"""Instructions that a kernel has no use for; the first without a handler stands for all of these."""


def missing() -> dict[str, Any]:
    """What becomes of a call whose kernel reaches an instruction that has no handler, or faults, caught or not."""
    chosen = next(text for text in MISSING if registry.lookup(text.split()[0].upper(), ARCH) is None)
    execution = open_execution("emulate", ARCH)
    source = f"{chosen}\nv_mov_b32 $0, $1"

    def unsupported(probs: torch.Tensor, top_k: int) -> torch.Tensor:
        exotic[(1,)](probs, source, BLOCK=64)
        return probs

    def swallowed(probs: torch.Tensor, top_k: int) -> torch.Tensor:
        try:
            return unsupported(probs, top_k)
        except RuntimeError:
            return torch.empty_like(probs)

    def faulty(probs: torch.Tensor, top_k: int) -> torch.Tensor:
        shifted_copy[(1,)](torch.empty_like(probs), probs, 1 << 20, 64, BLOCK=64)
        return probs

    call = Call("top_k_renorm_prob", {"probs": torch.ones(1, 64), "top_k": 1})
    functions = {"unsupported": unsupported, "swallowed": swallowed, "faulty": faulty}
    replies = {name: worker.run(execution, function, 1, call)[0] for name, function in functions.items()}
    return {"mnemonic": chosen.split()[0].upper(), **replies}


if __name__ == "__main__":
    answers = {}
    for case in sys.argv[2:]:
        triton_driver.clear_launches()
        answers[case] = {**globals(), **sglang_cases.CASES}[case]()
    print(json.dumps(answers))
