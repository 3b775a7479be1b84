"""sglang's Triton kernels through their own launchers on the emulated device, each against float64.

Every case returns ``error`` and ``bound`` (the largest error among elements, relative to the bound of each, is
``of_bound``; the two figures are those of that element), its launches with exact counts, and what else it shows.
A process has one architecture, so :func:`run` starts one, in which this file is the program:
``python sglang_cases.py ARCH CASE...`` prints ``{case: result}`` as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from waveproof.kernels.operators.renorm import UNIT_ROUNDOFF, value_tolerance
from waveproof.kernels.runtimes.emulate import triton_driver
from waveproof.kernels.runtimes.pretence import PretenceUnavailable, on_device, plain
from waveproof.selftest.emulate.exact_verifier import Verified, verify_block, verify_tokens

CHILD_SECONDS = 300.0
Counted = list[dict[str, Any]]


def counted(function: Callable[[], object]) -> Counted:
    """The launches of a call, without what depends on the machine below."""
    triton_driver.clear_launches()
    function()
    return [
        {key: value for key, value in asdict(one).items() if "seconds" not in key} for one in triton_driver.launches()
    ]


def _judged(got: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> dict[str, float]:
    """The element that takes the largest share of its bound; NaN takes all of it and more."""
    error = (plain(got).double() - expected).abs()
    error = torch.where(error.isnan(), torch.inf, error)
    share = torch.where(error == 0, 0.0, error / bound)
    at = int(share.argmax())
    return {
        "error": float(error.flatten()[at]),
        "bound": float(bound.expand_as(error).flatten()[at]),
        "of_bound": float(share.max()),
    }


def renorm() -> dict[str, Any]:
    """Top-k renormalisation; bound: the relative one of the renorm contract."""
    from sglang.kernels.ops.sampling.renorm_triton import top_k_renorm_probs_triton

    torch.manual_seed(0)
    probs = torch.softmax(2.0 * torch.randn(3, 5000), -1)
    top_k = torch.tensor([5, 50, 4999], dtype=torch.int32)
    results: list[torch.Tensor] = []
    launches = counted(lambda: results.append(top_k_renorm_probs_triton(on_device(probs), on_device(top_k))))
    falling = probs.double().sort(-1, descending=True).values
    kept = torch.where(probs >= falling.gather(1, top_k.long()[:, None] - 1), probs.double(), 0.0)
    expected = kept / kept.sum(-1, keepdim=True)
    return {
        **_judged(results[0], expected, value_tolerance(5000) * expected),
        "support": bool(((plain(results[0]) > 0) == (expected > 0)).all()),
        "launches": launches,
    }


def chain() -> dict[str, Any]:
    """Verification token by token, in one tile of the vocabulary."""
    return _verification(verify_tokens, verify_block, vocab_size=64, block=False)


def block() -> dict[str, Any]:
    """Block verification; 5000 tokens are two tiles of the CDF, and eight warps."""
    return _verification(verify_block, verify_tokens, vocab_size=5000, block=True)


def _verification(
    verifier: Callable[..., Verified], another: Callable[..., Verified], vocab_size: int, block: bool
) -> dict[str, Any]:
    """Error: how many of all outputs differ. None may: no decision is as close as float32 can err (``margin``).

    The seed is one for which that holds and chains of every length occur. ``told_apart`` counts the rows in which
    another rule would have returned other tokens.
    """
    from sglang.kernels.ops.speculative.reject_sampling import chain_speculative_sampling_triton

    torch.manual_seed(2)
    rows, slots = 8, 4
    logits = 3.0 * torch.randn(rows, slots, vocab_size)
    target = torch.softmax(logits, -1)
    draft = torch.softmax(logits[:, :-1] + 1.5 * torch.randn(rows, slots - 1, vocab_size), -1)
    drawn = torch.multinomial(draft.flatten(0, 1), 1).view(rows, slots - 1)
    candidates = torch.cat([torch.zeros(rows, 1, dtype=torch.int64), drawn], 1)
    index = torch.randperm(rows * slots).view(rows, slots)
    coins, last = torch.rand(rows, slots), torch.rand(rows)
    predicts = torch.full((rows * slots,), -1, dtype=torch.int32)
    accept_index = torch.full((rows, slots), -1, dtype=torch.int32)
    accepted = torch.full((rows,), -1, dtype=torch.int32)
    buffers = (predicts, accept_index, accepted, candidates, index, index, index, coins, last, target, draft)
    launches = counted(
        lambda: chain_speculative_sampling_triton(*map(on_device, buffers), 1.0, 1.0, True, block_verification=block)
    )
    given = [(target[row], draft[row], candidates[row], coins[row], float(last[row])) for row in range(rows)]
    due = [verifier(*row) for row in given]
    expected = [torch.full_like(buffer, -1) for buffer in (predicts, accept_index, accepted)]
    for row, one in enumerate(due):
        places = index[row, : one.accepted + 1]
        expected[0][places] = torch.tensor(one.tokens, dtype=torch.int32)
        expected[1][row, : one.accepted + 1] = places.int()
        expected[2][row] = one.accepted
    wrong = sum(int((got != want).sum()) for got, want in zip(buffers[:3], expected, strict=True))
    return {
        "error": float(wrong),
        "bound": 0.0,
        "of_bound": float("inf") if wrong else 0.0,
        "accepted": accepted.tolist(),
        "expected_accepted": [one.accepted for one in due],
        "margin": min(one.margin for one in due),
        "told_apart": sum(another(*row).tokens != one.tokens for row, one in zip(given, due, strict=True)),
        "launches": launches,
    }


def merge() -> dict[str, Any]:
    """Merge of attention states. With d the difference of the two LSEs, an exponential is off by the roundings of
    d, of its product with log2(e) and by 4 ulp; a weight by two of these, their sum and a division; an output by
    these and two more. LSE: the sum's logarithm, good to 4 ulp of a result below 1, and the final sum.
    """
    from sglang.kernels.ops.attention.merge_state import merge_state_triton

    torch.manual_seed(0)
    outputs = torch.randn(2, 5, 3, 96)
    lse = 3.0 * torch.randn(2, 5, 3)
    lse[0, 0, 0] = lse[1, 0, 1] = -torch.inf
    lse[:, 1, 1] = -torch.inf
    lse[0, 2, 2], outputs[0, 2, 2] = -torch.inf, torch.nan
    results: list[torch.Tensor] = []
    arguments = (outputs[0], lse[0], outputs[1], lse[1])
    launches = counted(lambda: results.extend(merge_state_triton(*map(on_device, arguments))))
    got, got_lse = (plain(result) for result in results)
    merged = torch.logsumexp(lse.double(), 0)
    weights = torch.exp(lse.double() - merged)
    expected, spread = ((weights[..., None] * part).sum(0) for part in (outputs.double(), outputs.double().abs()))
    between = (lse[0] - lse[1]).abs().double()
    between = torch.where(between.isfinite(), between, 0.0)
    regular = merged.isfinite()
    regular[2, 2] = False
    bound = (4.0 * between + 32.0) * UNIT_ROUNDOFF
    lse_bound = (bound + UNIT_ROUNDOFF * merged.abs())[regular]
    return {
        **_judged(got[regular], expected[regular], (bound[..., None] * spread)[regular]),
        "lse_of_bound": _judged(got_lse[regular], merged[regular], lse_bound)["of_bound"],
        "one_empty_is_the_other": bool((got[0, 0] == outputs[1, 0, 0]).all() and (got[0, 1] == outputs[0, 0, 1]).all()),
        "both_empty_is_nan": bool(got[1, 1].isnan().all() and got_lse[1, 1].isnan()),
        "nan_of_an_empty_side_spreads": bool(got[2, 2].isnan().all()),
        "findings": [
            text
            for seen, text in (
                (got[1, 1].isnan().all(), "two empty states (both LSE -inf) merge to NaN, output and LSE"),
                (got[2, 2].isnan().all(), "NaN in the output of an empty state (LSE -inf) reaches the merged output"),
            )
            if seen
        ],
        "launches": launches,
    }


HEADS, LATENT, ROPE = 12, 512, 64


def _attention(
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


def _judged_rows(got: torch.Tensor, expected: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    return _judged(got, *(torch.cat(parts) for parts in zip(*expected, strict=True)))


def decode() -> dict[str, Any]:
    """MLA decode with 12 heads: grouped stage 1 over four splits of paged keys, and stage 2, which merges them."""
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
    expected = [_attention(query[row : row + 1], pages[row], scale) for row in range(2)]
    return {**_judged_rows(out, expected), "launches": launches}


def extend() -> dict[str, Any]:
    """MLA extend with 12 heads: new tokens see a cached prefix whole and each other causally."""
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
        expected.append(_attention(query[mine], torch.cat([before, keys[mine, 0]]), scale, causal_from=len(before)))
    return {**_judged_rows(out, expected), "launches": launches}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "renorm": renorm, "chain": chain, "block": block, "merge": merge, "decode": decode, "extend": extend,
}  # fmt: skip


def run(arch: str, cases: Sequence[str] = tuple(CASES)) -> dict[str, Any]:
    """Results of the cases, from a process of its own; ``{"unavailable": reason}`` where they cannot run.

    Args:
        arch: ``gfx942`` or ``gfx950``.
        cases: keys of :data:`CASES`.

    Raises:
        subprocess.CalledProcessError: a case raised; its traceback is the process's standard error.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), arch, *cases],
        env={**inherited, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=CHILD_SECONDS,
        check=True,
    )
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def main(arch: str, *cases: str) -> None:
    """Run the cases in this process and print what they give."""
    try:
        triton_driver.prepare(arch)
        import sglang  # noqa: F401
    except (PretenceUnavailable, ModuleNotFoundError) as error:
        print(json.dumps({"unavailable": str(error)}))
        return
    print(json.dumps({case: CASES[case]() for case in cases}))


if __name__ == "__main__":
    main(*sys.argv[1:])
