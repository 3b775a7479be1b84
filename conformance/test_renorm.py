"""Top-k and top-p renormalisation, and the target distribution made of them, held to their contract.

The contract, its error model and its sources: ``kernels/operators/renorm.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given

from waveproof.fixtures.bench import Bench
from waveproof.fixtures.strategies.layouts import LAYOUTS, lay_out
from waveproof.fixtures.strategies.renorm import (
    DEGENERATE_KINDS,
    ROW_KINDS,
    Case,
    LawCase,
    cases,
    law_cases,
    make_logits,
    make_rows,
)
from waveproof.golden.judges.relations import judge_close_rows, judge_refused, judge_same_rows
from waveproof.kernels.operators.contract import Call, Embedding, Value
from waveproof.kernels.operators.renorm import TOP_K_ALL, value_tolerance

pytestmark = pytest.mark.rocm

TOP_K, TOP_P, LAW = "top_k_renorm_prob", "top_p_renorm_prob", "target_probs"
TIE = torch.tensor([[0.4, 0.3, 0.3, 0.0]])
"""flashinfer's example of a tie at the second place (flashinfer-ai/flashinfer#3774)."""


# Against float64 ----------------------------------------------------------------------------------------------------


@pytest.mark.operator(TOP_K)
@given(case=cases(TOP_K))
def test_top_k_matches_float64(bench: Bench, case: Case) -> None:
    bench.conforms(case.call(TOP_K))


@pytest.mark.operator(TOP_P)
@given(case=cases(TOP_P))
def test_top_p_matches_float64(bench: Bench, case: Case) -> None:
    bench.conforms(case.call(TOP_P))


@pytest.mark.operator(LAW)
@given(case=law_cases())
def test_target_probs_match_float64(bench: Bench, case: LawCase) -> None:
    # A path whose tie rule changes with the batch is judged by test_batch_mate_leaves_the_law_alone.
    assume(bench.variant != "any-k" or case.filters_all_or_none)
    bench.conforms(case.call(bench.path))


@pytest.mark.operator(TOP_K)
def test_top_k_at_vocabulary(bench: Bench, vocab_size: int, seed: int) -> None:
    limits = (min(50, vocab_size), min(2000, vocab_size), max(1, vocab_size - 1))
    bench.conforms(Case(vocab_size, ("quantised", "wide", "equal"), limits, "padded-vocab", seed).call(TOP_K))


@pytest.mark.operator(TOP_K)
def test_large_top_k_at_vocabulary(bench: Bench, vocab_size: int, seed: int) -> None:
    # Beyond what a selection in registers or LDS holds, implementations change algorithm.
    bench.conforms(Case(vocab_size, ("quantised",), (max(1, vocab_size // 3),), seed=seed).call(TOP_K, repeats=2))


@pytest.mark.operator(TOP_P)
def test_top_p_at_vocabulary(bench: Bench, vocab_size: int, seed: int) -> None:
    kinds, limits = ("softmax", "tails", "quantised"), (0.95, 1.0, 0.5)
    bench.conforms(Case(vocab_size, kinds, limits, "padded-vocab", seed).call(TOP_P))


@pytest.mark.operator(TOP_P)
def test_scalar_top_p_at_vocabulary(bench: Bench, vocab_size: int, seed: int) -> None:
    bench.conforms(Case(vocab_size, ("softmax",), (0.8,), seed=seed).call(TOP_P, repeats=2))


@pytest.mark.operator(LAW)
def test_target_probs_at_vocabulary(bench: Bench, vocab_size: int, seed: int) -> None:
    case = LawCase(vocab_size, ("softmax", "flat"), (0.7, 1.0), (50, 1000), (0.95, 1.0), "bfloat16", seed)
    bench.conforms(case.call(bench.path))


@pytest.mark.operator(LAW)
def test_unfiltered_target_probs_at_vocabulary(bench: Bench, vocab_size: int, seed: int) -> None:
    case = LawCase(vocab_size, ("softmax",), (1.3,), (TOP_K_ALL,), (1.0,), seed=seed)
    bench.conforms(case.call(bench.path, repeats=2))


# Limits at their edges ----------------------------------------------------------------------------------------------


@pytest.mark.operator(TOP_K)
@pytest.mark.parametrize("form", ["scalar", "per-row"])
@pytest.mark.parametrize("k", ["-1", "0", "1", "V-1", "V", "V+1", "2^30"])
def test_top_k_edge(bench: Bench, k: str, form: str, seed: int) -> None:
    vocab_size = 5
    value = {"V-1": vocab_size - 1, "V": vocab_size, "V+1": vocab_size + 1, "2^30": TOP_K_ALL}.get(k) or int(k)
    limits, kinds = ((value,), ("softmax",)) if form == "scalar" else ((value, 2), ("softmax", "quantised"))
    bench.conforms(Case(vocab_size, kinds, limits, seed=seed).call(TOP_K))


@pytest.mark.operator(TOP_P)
@pytest.mark.parametrize("form", ["scalar", "per-row"])
@pytest.mark.parametrize("p", [1e-6, 0.1, 0.9, 0.999, 0.9999, 1.0])
def test_top_p_edge(bench: Bench, p: float, form: str, seed: int) -> None:
    limits = (p,) if form == "scalar" else (p, 0.5, p)
    bench.conforms(Case(4096, ("softmax", "quantised", "equal"), limits, seed=seed).call(TOP_P))


@pytest.mark.operator(TOP_P)
@pytest.mark.parametrize("kind", ["tails", "softmax"])
def test_top_p_of_one_is_the_identity(bench: Bench, kind: str, seed: int) -> None:
    # Summed in float32, twenty tails of 1e-9 beside a 1 vanish, and with them the tokens (flashinfer#708).
    bench.conforms(Case(21, (kind,), (1.0,), seed=seed).call(TOP_P))


@pytest.mark.operator(LAW)
@pytest.mark.parametrize("k", ["-1", "1", "V", "2^30"])
def test_target_probs_edge(bench: Bench, k: str, seed: int) -> None:
    value = {"V": 5, "2^30": TOP_K_ALL}.get(k) or int(k)
    case = LawCase(5, ("softmax", "wide"), (1.0, 0.5), (value, value), (1.0, 0.9), seed=seed)
    bench.conforms(case.call(bench.path))


@pytest.mark.operator(TOP_K, TOP_P)
def test_limit_in_a_tensor_of_one(bench: Bench, seed: int) -> None:
    name, limit = ("top_k", torch.tensor([7], dtype=torch.int32)) if bench.operator == TOP_K else ("top_p", TIE[0, :1])
    bench.conforms(Call(bench.operator, {"probs": make_rows(("softmax", "quantised", "wide"), 300, seed), name: limit}))


@pytest.mark.operator(TOP_K)
def test_top_k_in_64_bits(bench: Bench, seed: int) -> None:
    rows = make_rows(("softmax", "quantised", "wide"), 300, seed)
    bench.conforms(Call(TOP_K, {"probs": rows, "top_k": torch.tensor([3, 40, 299])}))


@pytest.mark.operator(LAW)
def test_target_probs_of_top_k_in_64_bits(bench: Bench, seed: int) -> None:
    case = LawCase(300, ("softmax", "quantised", "wide"), (1.0, 0.5, 1.3), (3, 40, 299), (0.9, 1.0, 0.5), seed=seed)
    call = case.call(bench.path)
    bench.conforms(call.with_arguments(top_k=torch.tensor(case.top_k)))


# Rows -----------------------------------------------------------------------------------------------------------------


@pytest.mark.operator(TOP_K)
@pytest.mark.parametrize("kind", ROW_KINDS)
def test_top_k_of_row(bench: Bench, kind: str, seed: int) -> None:
    bench.conforms(Case(1000, (kind,) * 3, (1, 7, 999), seed=seed).call(TOP_K))


@pytest.mark.operator(TOP_P)
@pytest.mark.parametrize("kind", ROW_KINDS)
def test_top_p_of_row(bench: Bench, kind: str, seed: int) -> None:
    bench.conforms(Case(1000, (kind,) * 3, (0.1, 0.9, 1.0), seed=seed).call(TOP_P))


@pytest.mark.operator(TOP_K)
def test_tie_at_the_boundary(bench: Bench) -> None:
    output = bench.conforms(Call(TOP_K, {"probs": TIE, "top_k": 2}))
    bench.note(f"of two tokens tied for the second place it keeps {int((output > 0).sum()) - 1}")


@pytest.mark.operator(TOP_P)
def test_tie_at_the_boundary_of_top_p(bench: Bench) -> None:
    bench.conforms(Call(TOP_P, {"probs": TIE, "top_p": 0.6}))


@pytest.mark.operator(TOP_K, TOP_P)
def test_negative_zero_is_zero(bench: Bench) -> None:
    # Its bit pattern, read as an unsigned integer, exceeds that of every probability.
    limit = {"top_k": 2} if bench.operator == TOP_K else {"top_p": 0.7}
    bench.conforms(Call(bench.operator, {"probs": torch.tensor([[0.5, -0.0, 0.3, 0.2, 0.0, -0.0]]), **limit}))


@pytest.mark.operator(LAW)
@pytest.mark.parametrize("offset", [-300.0, 300.0])
def test_target_probs_of_large_logits(bench: Bench, offset: float, seed: int) -> None:
    # exp overflows float32 at 89 and vanishes at -104: the row's maximum has to be taken off first.
    call = LawCase(257, ("softmax", "peaked"), (1.0, 0.5), (20, 257), (1.0, 0.9), seed=seed).call(bench.path)
    bench.conforms(call.with_arguments(logits=call.tensor("logits") + offset))


@pytest.mark.operator(LAW)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_degenerate_logits_stay_alone(bench: Bench, value: float, seed: int) -> None:
    case = LawCase(257, ("softmax", "flat", "peaked"), (1.0, 0.5, 0.7), (20, 257, 5), (0.9, 1.0, 1.0), seed=seed)
    healthy = case.call(bench.path)
    logits = make_logits(case.kinds, 257, seed, torch.float32)
    logits[1, :: 1 if value < 0 else 100] = value
    poisoned = healthy.with_arguments(logits=logits)
    before, after = bench.conforms(healthy), bench.conforms(poisoned)
    because = f"logits of {value} stand in the row between them"
    bench.hold(judge_same_rows(before, after, ((0, 2), (0, 2)), (healthy, poisoned), because))


@pytest.mark.operator(TOP_K, TOP_P)
@pytest.mark.parametrize("kind", DEGENERATE_KINDS)
def test_degenerate_row_stays_alone(bench: Bench, kind: str, seed: int) -> None:
    # One row without a distribution must not raise, nor change a bit of its neighbours (sglang#27618, flashinfer#2402).
    good = ("softmax", "quantised", "peaked") * 3
    limits = (5, 3, 7) * 3 if bench.operator == TOP_K else (0.9, 0.5, 0.95) * 3
    healthy = Case(65, good, limits, seed=seed).call(bench.operator)
    poisoned = healthy.with_arguments(probs=make_rows((*good[:4], kind, *good[5:]), 65, seed))
    before, after = bench.conforms(healthy), bench.conforms(poisoned)
    others = [row for row in range(9) if row != 4]
    because = f"a {kind} row stands beside them"
    bench.hold(judge_same_rows(before, after, (others, others), (healthy, poisoned), because))


@pytest.mark.operator(LAW)
@pytest.mark.parametrize("left", [1, 20, 40])
def test_masked_logits(bench: Bench, left: int, seed: int) -> None:
    # A grammar leaves few tokens: fewer than top_k, or one alone.
    call = LawCase(64, ("softmax", "flat"), (0.7, 1.0), (30, 30), (0.9, 1.0), seed=seed).call(bench.path)
    logits = call.tensor("logits")
    masked = logits.clone()
    masked[:, left:] = -torch.inf
    bench.conforms(call.with_arguments(logits=masked))


# Relations between calls ----------------------------------------------------------------------------------------------


@pytest.mark.operator(TOP_K, TOP_P)
def test_per_row_limit_is_the_scalar(bench: Bench, seed: int) -> None:
    limit: int | float = 7 if bench.operator == TOP_K else 0.75
    kinds = ("softmax", "quantised", "wide", "flat")
    scalar = Case(500, kinds, (limit,), seed=seed).call(bench.operator)
    per_row = Case(500, kinds, (limit,) * len(kinds), seed=seed).call(bench.operator)
    rows = range(len(kinds))
    because = "one limit for all rows and the same limit a row are the same call"
    first, second = bench.conforms(scalar), bench.conforms(per_row)
    bench.hold(judge_close_rows(first, second, (rows, rows), value_tolerance(500), (scalar, per_row), because))


@pytest.mark.operator(TOP_K, TOP_P)
@pytest.mark.parametrize("batch", [7, 8, 9, pytest.param(64, marks=pytest.mark.slow)])
def test_row_alone_is_row_in_batch(bench: Bench, batch: int, seed: int) -> None:
    # vLLM switched kernels, and with them the tie rule, at 8 rows (vllm-project/vllm#50979): so the row has a tie.
    row = torch.cat([TIE, torch.zeros(1, 296)], -1)
    crowd = make_rows(("softmax",) * batch, 300, seed)
    crowd[batch // 2] = row[0]
    name, limit = ("top_k", 2) if bench.operator == TOP_K else ("top_p", 0.6)
    alone, together = (Call(bench.operator, {"probs": rows, name: limit}) for rows in (row, crowd))
    first, second = bench.conforms(alone), bench.conforms(together)
    because = f"the same row alone and in a batch of {batch}"
    bench.hold(judge_close_rows(first, second, ((0,), (batch // 2,)), value_tolerance(300), (alone, together), because))


@pytest.mark.operator(TOP_K, TOP_P)
@pytest.mark.parametrize("rows", [70, pytest.param(257, marks=pytest.mark.slow)])
def test_many_rows(bench: Bench, rows: int, seed: int) -> None:
    limits = (
        [1 + row % 4 for row in range(rows)] if bench.operator == TOP_K else [(1 + row % 9) / 10 for row in range(rows)]
    )
    bench.conforms(Case(5, ("softmax",) * rows, tuple(limits), seed=seed).call(bench.operator))


@pytest.mark.operator(TOP_K, TOP_P)
@pytest.mark.parametrize("form", ["strided", "expanded"])
def test_limit_with_strides(bench: Bench, form: str, seed: int) -> None:
    name, pair = ("top_k", torch.tensor([2, 9])) if bench.operator == TOP_K else ("top_p", torch.tensor([0.3, 0.9]))
    limit = pair.repeat(3)[::2] if form == "strided" else pair[1:].expand(3)
    bench.conforms(Call(bench.operator, {"probs": make_rows(("softmax",) * 3, 31, seed), name: limit}))


@pytest.mark.operator(TOP_K, TOP_P)
def test_order_of_rows(bench: Bench, seed: int) -> None:
    # No other test has this shape: the first call cannot find what an earlier one of its shape left behind, the second
    # one can, and must not.
    kinds = ("softmax", "quantised", "wide")
    limit: int | float = 9 if bench.operator == TOP_K else 0.8
    forward = Case(331, kinds, (limit,), seed=seed).call(bench.operator)
    backward = forward.with_arguments(probs=make_rows(kinds, 331, seed).flip(0))
    first, second = bench.result(forward), bench.result(backward)
    rows = ((0, 1, 2), (2, 1, 0))
    because = "the same rows in another order, in a second call of the same shape"
    calls = (forward, backward)
    bench.hold(judge_close_rows(first, second, rows, value_tolerance(331), calls, because, state=True))


@pytest.mark.operator(LAW)
@pytest.mark.parametrize("batch", [7, 8, 9, pytest.param(64, marks=pytest.mark.slow)])
def test_target_probs_of_batch(bench: Bench, batch: int, seed: int) -> None:
    rows = range(batch)
    temperatures, top_p = tuple(0.5 + row / batch for row in rows), tuple((1.0, 0.9, 0.5)[row % 3] for row in rows)
    case = LawCase(300, ("quantised",) * batch, temperatures, tuple(18 + row % 5 for row in rows), top_p, seed=seed)
    bench.conforms(case.call(bench.path))


@pytest.mark.operator(LAW)
def test_paths_of_the_verifier_agree_without_ties(bench: Bench, seed: int) -> None:
    paths = [path for path, _ in bench.subject.implementation.paths]
    case = LawCase(400, ("softmax", "peaked"), (0.7, 1.3), (20, 5), (0.9, 1.0), seed=seed)
    calls = [case.call(path) for path in paths]
    laws = [bench.result(call) for call in calls]
    for call, law in zip(calls[1:], laws[1:], strict=True):
        because = f"path {call.arguments['path']} realises the law of path {paths[0]} where nothing ties"
        tolerance = 4.0 * value_tolerance(400) + 60.0 * 2.0**-24
        bench.hold(judge_close_rows(laws[0], law, ((0, 1), (0, 1)), tolerance, (calls[0], call), because))
    tied = Call(
        LAW,
        {
            "logits": torch.log(TIE),
            "temperature": torch.ones(1),
            "top_k": torch.tensor([2], dtype=torch.int32),
            "top_p": torch.ones(1),
            "path": paths[0],
        },
    )
    at_ties = [bench.result(tied.with_arguments(path=path)) for path in paths]
    for path, law in zip(paths[1:], at_ties[1:], strict=True):
        distance = 0.5 * float((at_ties[0] - law).abs().sum())
        if distance > value_tolerance(4):
            bench.note(
                f"paths {paths[0]} and {path} realise different laws under ties: total variation {distance:.2f} "
                "for probabilities [0.4, 0.3, 0.3, 0] and top_k 2"
            )


@pytest.mark.operator(LAW)
def test_batch_mate_leaves_the_law_alone(bench: Bench) -> None:
    # A request that sets no top_k must not change how its neighbour's ties are broken (sglang#35697, vllm#50979).
    alone = LawCase(4, ("equal",), (1.0,), (2,), (1.0,)).call(bench.path)
    beside = LawCase(4, ("equal", "equal"), (1.0, 1.0), (2, TOP_K_ALL), (1.0, 1.0)).call(bench.path)
    first, second = bench.result(alone), bench.result(beside)
    because = "the same row alone and beside a row without top_k"
    bench.hold(judge_close_rows(first, second, ((0,), (0,)), value_tolerance(4), (alone, beside), because))


# Memory ---------------------------------------------------------------------------------------------------------------


@pytest.mark.operator(TOP_K, TOP_P)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout(bench: Bench, layout: str, seed: int) -> None:
    limits = (3, 5, 300) if bench.operator == TOP_K else (0.3, 0.9, 1.0)
    bench.conforms(Case(300, ("softmax", "quantised", "wide"), limits, layout, seed).call(bench.operator))


@pytest.mark.operator(LAW)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_of_logits(bench: Bench, layout: str, dtype: torch.dtype, seed: int) -> None:
    # Logits of a vocabulary that was padded for tensor parallelism are a slice of a wider matrix.
    call = LawCase(300, ("softmax", "wide", "flat"), (1.0, 0.5, 1.3), (3, 40, 299), (0.9, 1.0, 0.5)).call(bench.path)
    logits = make_logits(("softmax", "wide", "flat"), 300, seed, dtype)
    bench.conforms(call.with_arguments(logits=lay_out(logits, layout)))


@pytest.mark.operator(LAW)
def test_target_probs_repeat_themselves(bench: Bench, seed: int) -> None:
    case = LawCase(1000, ("softmax",) * 3, (1.0, 0.2, 1.3), (3, 40, 1000), (0.9, 1.0, 0.5), "bfloat16", seed)
    bench.conforms(case.call(bench.path, repeats=3))


@pytest.mark.operator(TOP_K, TOP_P)
def test_repeats_itself(bench: Bench, seed: int) -> None:
    # Fresh memory holds another pattern on each call: what nobody wrote shows as a difference.
    limits = (3, 40, 65, 1000) if bench.operator == TOP_K else (0.3, 0.9, 0.95, 1.0)
    bench.conforms(Case(1000, ("softmax",) * 4, limits, "padded-vocab", seed).call(bench.operator, repeats=3))


@pytest.mark.operator(TOP_K)
def test_mixed_limits_stay_in_their_buffers(bench: Bench, seed: int) -> None:
    # A per-row limit beside "no filter" overran a workspace sized for a scalar k of 50 (ROCm/aiter#5191).
    bench.conforms(Case(1000, ("softmax",) * 2, (20, 1000), seed=seed).call(TOP_K, repeats=2))


@pytest.mark.operator(TOP_K, TOP_P, whole_rows=True)
def test_row_beyond_32_bit_offsets(bench: Bench, seed: int) -> None:
    # Row 13,107 of 163,840 values starts where int32 element offsets end (sglang#35571).
    limit: int | float = 50 if bench.operator == TOP_K else 0.9
    name = "top_k" if bench.operator == TOP_K else "top_p"
    row = make_rows(("softmax",), 163_840, seed)
    bench.conforms(Call(bench.operator, {"probs": row, name: limit}, embedding=Embedding("probs", 13_108, 13_107)))


@pytest.mark.bigmem
@pytest.mark.operator(TOP_K, TOP_P, runtimes=("hip", "cuda"))
def test_late_rows_of_a_huge_batch(bench: Bench, seed: int) -> None:
    limit: int | float = 50 if bench.operator == TOP_K else 0.9
    name = "top_k" if bench.operator == TOP_K else "top_p"
    row = make_rows(("softmax",), 163_840, seed)
    bench.conforms(Call(bench.operator, {"probs": row, name: limit}, embedding=Embedding("probs", 16_384, 16_383)))


# Refusals -------------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[], torch.Tensor], Value, Value]] = {
    "one-dimensional probs": (lambda: torch.full((4,), 0.25), 2, 0.5),
    "three-dimensional probs": (lambda: torch.full((1, 2, 4), 0.25), 2, 0.5),
    "five limits for three rows": (lambda: torch.full((3, 4), 0.25), torch.full((5,), 2), torch.full((5,), 0.5)),
    "two limits for three rows": (lambda: torch.full((3, 4), 0.25), torch.tensor([1, 2]), torch.tensor([0.5, 0.6])),
}


@pytest.mark.operator(TOP_K, TOP_P)
@pytest.mark.parametrize("rule", REFUSED)
def test_refusal(bench: Bench, rule: str) -> None:
    probs, top_k, top_p = REFUSED[rule]
    limit: dict[str, Value] = {"top_k": top_k} if bench.operator == TOP_K else {"top_p": top_p}
    call = Call(bench.operator, {"probs": probs(), **limit})
    bench.hold(judge_refused(bench.run(call).error, rule, call))


@pytest.mark.operator(TOP_P)
@pytest.mark.parametrize("p", [0.0, -0.5, float("nan")])
def test_refusal_of_top_p(bench: Bench, p: float) -> None:
    call = Call(TOP_P, {"probs": torch.full((1, 4), 0.25), "top_p": p})
    bench.hold(judge_refused(bench.run(call).error, f"top_p = {p}", call))


@pytest.mark.operator(LAW)
def test_refusal_of_path(bench: Bench) -> None:
    case = LawCase(31, ("softmax",), (1.0,), (5,), (0.9,))
    call = case.call("diagonal")
    bench.hold(judge_refused(bench.run(call).error, "path 'diagonal'", call))


@pytest.mark.operator(TOP_K, TOP_P)
def test_empty_batch(bench: Bench) -> None:
    limit: dict[str, Value] = {"top_k": 2} if bench.operator == TOP_K else {"top_p": 0.5}
    bench.result(Call(bench.operator, {"probs": torch.empty(0, 8), **limit}))
