"""What the compiler makes of each Triton kernel for gfx942 and gfx950, driven by the kernel's own host code."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from waveproof.fixtures.bench import Bench
from waveproof.fixtures.strategies.mla import AttentionCase, MergeCase, fitted
from waveproof.fixtures.strategies.mla_calls import moved_to_the_end
from waveproof.fixtures.strategies.verify_trees import TreeCase
from waveproof.golden.judges.machine_code import judge_compiled, judge_matrix_units, judge_offsets, judge_resources
from waveproof.kernels.operators.contract import Call, Embedding, Value
from waveproof.kernels.operators.renorm import MAX_ROWS

pytestmark = [pytest.mark.rocm, pytest.mark.compile]


def arguments(operator: str, rows: int, vocab_size: int, path: str) -> dict[str, Value]:
    """Arguments of a ``renorm`` operator; only shapes and types count, nothing is executed."""
    matrix = torch.full((rows, vocab_size), 1.0 / vocab_size)
    top_k, top_p = torch.full((rows,), 50, dtype=torch.int32), torch.full((rows,), 0.9)
    if operator == "top_k_renorm_prob":
        return {"probs": matrix, "top_k": top_k}
    if operator == "top_p_renorm_prob":
        return {"probs": matrix, "top_p": top_p}
    return {"logits": matrix, "temperature": torch.ones(rows), "top_k": top_k, "top_p": top_p, "path": path}


@pytest.mark.operator("top_k_renorm_prob", "top_p_renorm_prob", "target_probs", runtimes=("compile",))
def test_compiles(bench: Bench, vocab_size: int) -> None:
    """Every kernel that the host code launches compiles, spills nothing, needs no scratch and fits into LDS."""
    call = Call(bench.operator, arguments(bench.operator, 4, vocab_size, bench.path))
    outcome = bench.run(call)
    bench.hold(judge_compiled(outcome.error, outcome.launches, call))
    for judgement in judge_resources(outcome.launches, bench.subject.arch, call):
        bench.hold(judgement)


@pytest.mark.operator("top_k_renorm_prob", "top_p_renorm_prob", runtimes=("compile",))
def test_offsets_fit_at_serving_scale(bench: Bench) -> None:
    """At 65,536 rows of 163,840 values no address is computed in 32 bits that do not hold it."""
    (name, matrix), (limit, _) = arguments(bench.operator, 1, 163_840, "").items()
    scalar = 50 if limit == "top_k" else 0.9
    call = Call(bench.operator, {name: matrix, limit: scalar}, embedding=Embedding(name, MAX_ROWS, 0))
    outcome = bench.run(call)
    bench.hold(judge_compiled(outcome.error, outcome.launches, call))
    bench.hold(judge_offsets(outcome.launches, call))


def verify_calls(operator: str, path: str) -> list[Call]:
    """Calls of an operator of family ``verify``; only shapes and types count."""
    if operator == "tree_verify_greedy":
        return [TreeCase("eagle", 8).call(operator)]
    vocab_size, slots = 163_840, 4
    cube = torch.full((1, slots, vocab_size), 1.0 / vocab_size)
    common: dict[str, Value] = {"candidates": torch.zeros((1, slots), dtype=torch.long)}
    coins: dict[str, Value] = {"coins": torch.zeros(1, slots - 1), "final_coins": torch.zeros(1)}
    draft, ones = cube[:, :-1].clone(), torch.ones(1)
    if operator == "seeded_chain_verify":
        logits: dict[str, Value] = {"target_logits": cube, "draft_logits": draft}
        return [Call(operator, {**common, **logits, "temperature": ones, "draft_temperature": ones.clone(), "seed": 1})]
    given: dict[str, Value] = {"target_probs": cube, "draft_probs": draft, **coins}
    if operator == "accept_sampling":
        filters: dict[str, Value] = {"temperature": ones, "top_k": torch.full((1,), 50, dtype=torch.int32)}
        filters |= {"top_p": torch.full((1,), 0.9)}
        cut: dict[str, Value] = {"verify_lens": torch.full((1,), slots, dtype=torch.int32)}
        given = {"target_logits": cube, "draft_probs": draft, **filters, **coins, **cut}
    rest: dict[str, Value] = {"path": path} if operator == "accept_sampling" else {}
    return [Call(operator, {**common, **given, "block_verification": block, **rest}) for block in (False, True)]


ATTENTION = ("mla_decode", "mla_prefill_absorbed", "mla_extend", "mla_prefill")


@pytest.mark.slow
@pytest.mark.operator(*ATTENTION, runtimes=("compile",))
@pytest.mark.parametrize("heads", [12, 16])
def test_attention_compiles(bench: Bench, heads: int) -> None:
    """Attention kernels in the configuration of their own host code; their products go through the matrix units."""
    case = AttentionCase(heads, ((1, 97), (1, 160)))
    call = fitted(case, bench.subject).call(bench.operator)
    outcome = bench.run(call)
    bench.hold(judge_compiled(outcome.error, outcome.launches, call))
    bench.hold(judge_matrix_units(outcome.launches, call))
    for judgement in judge_resources(outcome.launches, bench.subject.arch, call):
        bench.hold(judgement)


@pytest.mark.operator("merge_state", runtimes=("compile",))
def test_merge_compiles(bench: Bench) -> None:
    call = MergeCase(5, 12).call()
    outcome = bench.run(call)
    bench.hold(judge_compiled(outcome.error, outcome.launches, call))
    for judgement in judge_resources(outcome.launches, bench.subject.arch, call):
        bench.hold(judgement)


VERIFY = ("chain_verify", "accept_sampling", "seeded_chain_verify", "tree_verify_greedy")


@pytest.mark.slow
@pytest.mark.operator(*VERIFY, runtimes=("compile",))
def test_verify_compiles(bench: Bench) -> None:
    """Verifiers of draft tokens at the vocabulary of Kimi K3 with 3 draft tokens, token by token and as a block."""
    calls = verify_calls(bench.operator, bench.path)
    for call in calls:
        outcome = bench.run(call)
        bench.hold(judge_compiled(outcome.error, outcome.launches, call))
        for judgement in judge_resources(outcome.launches, bench.subject.arch, call):
            bench.hold(judgement)


@pytest.mark.slow
@pytest.mark.operator("chain_verify", runtimes=("compile",))
def test_offsets_of_verify_fit_at_serving_scale(bench: Bench) -> None:
    """With 4,096 requests of 3 draft tokens and 163,840 values a row no address overflows 32 bits that hold it."""
    rows = MAX_ROWS // 16
    (call, *_) = verify_calls("chain_verify", "")
    many = {
        name: torch.zeros((rows, *call.tensor(name).shape[1:]), dtype=call.tensor(name).dtype)
        for name in ("candidates", "coins", "final_coins")
    }
    huge = replace(call.with_arguments(**many), embedding=Embedding("target_probs", rows, 0))
    outcome = bench.run(huge)
    bench.hold(judge_compiled(outcome.error, outcome.launches, huge))
    bench.hold(judge_offsets(outcome.launches, huge))


@pytest.mark.slow
@pytest.mark.operator("mla_decode", "mla_extend", runtimes=("compile",))
def test_offsets_fit_in_a_huge_pool(bench: Bench) -> None:
    """In a pool of 4 million tokens no address is computed in 32 bits that do not hold it."""
    call = moved_to_the_end(fitted(AttentionCase(16, ((1, 97), (1, 160))), bench.subject).call(bench.operator))
    outcome = bench.run(call)
    bench.hold(judge_compiled(outcome.error, outcome.launches, call))
    bench.hold(judge_offsets(outcome.launches, call))
