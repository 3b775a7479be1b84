"""Triton kernels on the emulated device: a process of its own for each architecture, as the driver wants it.

``python triton_cases.py ARCH CASE...`` runs the cases and prints ``{case: result}`` as JSON.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from waveproof.kernels.operators.contract import Call
from waveproof.kernels.runtimes import worker
from waveproof.kernels.runtimes.emulate import registry, triton_driver
from waveproof.kernels.runtimes.emulate.fault import Fault
from waveproof.kernels.runtimes.execution import open_execution
from waveproof.kernels.runtimes.pretence import PretenceUnavailable, on_device, plain

ARCH = sys.argv[1] if len(sys.argv) > 1 else ""

try:
    triton_driver.prepare(ARCH)
except PretenceUnavailable as error:
    print(json.dumps({"unavailable": str(error)}))
    sys.exit()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from waveproof.kernels.runtimes import triton_device  # noqa: E402


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


Counted = list[dict[str, Any]]


def counted(function: Callable[[], object]) -> Counted:
    triton_driver.clear_launches()
    function()
    return [
        {key: value for key, value in asdict(one).items() if "seconds" not in key} for one in triton_driver.launches()
    ]


def largest_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((plain(got).double() - expected).abs().max())


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
    return {"first": first, "again": again, "part": part, "out": out.tolist(), "nothing": nothing}  # type: ignore[dict-item]


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
    replies = {name: worker.run(execution, function, call)[0] for name, function in functions.items()}
    return {"mnemonic": chosen.split()[0].upper(), **replies}


def renorm() -> dict[str, Any]:
    from sglang.kernels.ops.sampling.renorm_triton import top_k_renorm_probs_triton

    torch.manual_seed(0)
    probs = torch.softmax(2.0 * torch.randn(3, 5000), -1)
    top_k = torch.tensor([5, 50, 4999], dtype=torch.int32)
    results = []
    launches = counted(lambda: results.append(top_k_renorm_probs_triton(on_device(probs), on_device(top_k))))
    falling = probs.double().sort(-1, descending=True).values
    kept = torch.where(probs >= falling.gather(1, top_k.long()[:, None] - 1), probs.double(), 0.0)
    expected = kept / kept.sum(-1, keepdim=True)
    return {
        "error": largest_error(results[0], expected),
        "support": bool(((plain(results[0]) > 0) == (expected > 0)).all()),
        "launches": launches,
    }


def chain() -> dict[str, Any]:
    """sglang's chain verifier, one token short of a full chain in some rows, against float64."""
    from sglang.kernels.ops.speculative.reject_sampling import chain_speculative_sampling_triton

    torch.manual_seed(0)
    rows, slots, vocab_size = 8, 4, 64
    target = torch.softmax(torch.randn(rows, slots, vocab_size), -1)
    draft = torch.softmax(torch.randn(rows, slots - 1, vocab_size), -1)
    candidates = torch.randint(0, vocab_size, (rows, slots))
    index = torch.arange(rows * slots).view(rows, slots)
    coins, last = torch.rand(rows, slots), torch.rand(rows)
    predicts = torch.full((rows * slots,), -1, dtype=torch.int32)
    accept_index = torch.full((rows, slots), -1, dtype=torch.int32)
    accepted = torch.zeros(rows, dtype=torch.int32)
    buffers = (predicts, accept_index, accepted, candidates, index, index, index, coins, last, target, draft)
    launches = counted(lambda: chain_speculative_sampling_triton(*map(on_device, buffers), 1.0, 1.0, True))
    expected_predicts = torch.full_like(predicts, -1)
    expected_accepted = []
    for row in range(rows):
        p, q = target[row].double(), draft[row].double()
        step = 0
        while step < slots - 1:
            token = candidates[row, step + 1]
            if not coins[row, step].double() * q[step, token] < p[step, token]:
                break
            expected_predicts[row * slots + step] = token
            step += 1
        rest = p[step] if step == slots - 1 else (p[step] - q[step]).clamp(min=0.0)
        reached = torch.nonzero(rest.cumsum(0) > last[row].double() * rest.sum())
        expected_predicts[row * slots + step] = int(reached[0])
        expected_accepted.append(step)
    return {
        "accepted": accepted.tolist(),
        "expected_accepted": expected_accepted,
        "same_tokens": bool((predicts == expected_predicts).all()),
        "launches": launches,
    }


def merge() -> dict[str, Any]:
    from sglang.kernels.ops.attention.merge_state import merge_state_triton

    torch.manual_seed(0)
    parts = [torch.randn(4, 3, 96) for _ in range(2)]
    weights = [3.0 * torch.randn(4, 3) for _ in range(2)]
    weights[0][0, 0] = -torch.inf
    weights[0][1, 1] = weights[1][1, 1] = -torch.inf
    results = []
    launches = counted(
        lambda: results.extend(
            merge_state_triton(*(on_device(t) for pair in zip(parts, weights, strict=True) for t in pair))
        )
    )
    scale = torch.stack(weights).double()
    lse = torch.logsumexp(scale, 0)
    expected = (torch.stack(parts).double() * torch.exp(scale - lse)[..., None]).sum(0)
    got, got_lse = (plain(result) for result in results)
    empty = torch.isinf(lse)
    return {
        "error": largest_error(got[~empty], expected[~empty]),
        "lse_error": largest_error(got_lse[~empty], lse[~empty]),
        "both_empty_is_nan": bool(got[empty].isnan().all()),
        "launches": launches,
    }


HEADS, LATENT, ROPE = 12, 512, 64


def attention(
    query: torch.Tensor, keys: torch.Tensor, scale: float, causal_from: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """MLA in float64, and what bfloat16 may do to it: query [n, heads, 576], keys [m, 576].

    Query i sees keys up to ``causal_from + i``, or all. Bound: the kernel rounds each weight and the result to
    bfloat16 (unit roundoff 2^-8), so the error is at most 2^-8 (sum of p |v| + |out|); a tenth more for the scores,
    which are float32 sums of 576 exact products.
    """
    scores = torch.einsum("nhd,md->nhm", query.double(), keys.double()) * scale
    if causal_from is not None:
        later = torch.arange(len(keys)) > causal_from + torch.arange(len(query))[:, None]
        scores = scores.masked_fill(later[:, None], -torch.inf)
    weights, values = torch.softmax(scores, -1), keys[:, :LATENT].double()
    out = weights @ values
    return out, 1.1 * 2.0**-8 * (weights @ values.abs() + out.abs())


def judged(got: torch.Tensor, expected: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    """Largest error, and the largest share of its bound that an element takes."""
    out, bound = (torch.cat(parts) for parts in zip(*expected, strict=True))
    error = (plain(got).double() - out).abs()
    return {"error": float(error.max()), "of_bound": float((error / bound).max())}


def decode() -> dict[str, Any]:
    from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

    torch.manual_seed(0)
    lengths, splits = (97, 160), 4
    cache = torch.randn(sum(lengths) + 7, 1, LATENT + ROPE).bfloat16()
    query = torch.randn(2, HEADS, LATENT + ROPE).bfloat16()
    indices = torch.randperm(len(cache))[: sum(lengths)]
    indptr = torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32)
    out = torch.zeros(2, HEADS, LATENT, dtype=torch.bfloat16)
    logits, lse = torch.zeros(2, HEADS, splits, LATENT), torch.zeros(2, HEADS, splits)
    buffers = (query, cache, cache[..., :LATENT], out, indptr, indices, logits, lse)
    scale = (128 + ROPE) ** -0.5
    launches = counted(
        lambda: decode_attention_fwd(
            *map(on_device, buffers),
            on_device(torch.full((2,), splits, dtype=torch.int32)),
            splits,
            scale,
            1.0,
            1.0,
            has_mla=True,
        )
    )
    pages = [cache[indices[indptr[row] : indptr[row + 1]], 0] for row in range(2)]
    expected = [attention(query[row : row + 1], pages[row], scale) for row in range(2)]
    return {**judged(out, expected), "launches": launches}


def extend() -> dict[str, Any]:
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    torch.manual_seed(0)
    new, prefix = (20, 37), (33, 64)
    cache = torch.randn(sum(prefix), 1, LATENT + ROPE).bfloat16()
    keys = torch.randn(sum(new), 1, LATENT + ROPE).bfloat16()
    query = torch.randn(sum(new), HEADS, LATENT + ROPE).bfloat16()
    out = torch.zeros(sum(new), HEADS, LATENT, dtype=torch.bfloat16)
    queries_from = torch.tensor([0, new[0], sum(new)], dtype=torch.int32)
    prefix_from = torch.tensor([0, prefix[0], sum(prefix)], dtype=torch.int32)
    indices = torch.arange(sum(prefix))
    scale = (128 + ROPE) ** -0.5
    buffers = (query, keys, keys[..., :LATENT].contiguous(), out, cache, cache[..., :LATENT])
    launches = counted(
        lambda: extend_attention_fwd(
            *map(on_device, buffers),
            on_device(queries_from),
            on_device(prefix_from),
            on_device(indices),
            None,
            True,
            None,
            max(new),
            1.0,
            1.0,
            sm_scale=scale,
        )
    )
    expected = []
    for row in range(2):
        mine = slice(int(queries_from[row]), int(queries_from[row + 1]))
        before = cache[int(prefix_from[row]) : int(prefix_from[row + 1]), 0]
        expected.append(attention(query[mine], torch.cat([before, keys[mine, 0]]), scale, causal_from=len(before)))
    return {**judged(out, expected), "launches": launches}


if __name__ == "__main__":
    answers = {}
    for case in sys.argv[2:]:
        triton_driver.clear_launches()
        answers[case] = globals()[case]()
    print(json.dumps(answers))
