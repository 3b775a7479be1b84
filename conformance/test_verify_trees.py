"""Verification by the target's law alone, of trees and of chains from logits, and of trees at temperature 0.

The contract: ``kernels/operators/verify.py``. With both thresholds 1 and a deterministic draft it is lossless, which is
why engines use it for greedy drafts; below 1 it is lossy by design, and held to its own formula.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given

from waveproof.fixtures.bench import Bench
from waveproof.fixtures.strategies.verify import AcceptCase, accept_cases
from waveproof.fixtures.strategies.verify_trees import TREES, TreeCase, tree_cases
from waveproof.golden.judges.relations import judge_refused
from waveproof.kernels.operators.renorm import TOP_K_ALL
from waveproof.kernels.operators.verify import LAST_COIN

pytestmark = pytest.mark.rocm

TARGET_ONLY, GREEDY, FROM_LOGITS = "target_only_verify", "tree_verify_greedy", "target_only_accept_sampling"
THRESHOLDS = pytest.mark.parametrize(
    "thresholds", [(1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (0.3, 0.75)], ids=["lossless", "single", "acc", "both"]
)
"""threshold_single and threshold_acc."""


@pytest.mark.operator(TARGET_ONLY)
@given(case=tree_cases())
def test_tree_follows_its_coins(bench: Bench, case: TreeCase) -> None:
    bench.conforms(case.call(TARGET_ONLY))


@pytest.mark.operator(GREEDY)
@pytest.mark.broad
@given(case=tree_cases())
def test_greedy_tree_follows_the_target(bench: Bench, case: TreeCase) -> None:
    bench.conforms(case.call(GREEDY))


@pytest.mark.operator(FROM_LOGITS)
@given(case=accept_cases())
def test_target_only_sampling_follows_its_coins(bench: Bench, case: AcceptCase) -> None:
    bench.conforms(case.call(FROM_LOGITS, bench.path))


@pytest.mark.operator(TARGET_ONLY)
@THRESHOLDS
@pytest.mark.parametrize("tree", [name for name in TREES if name != "bushy"])
def test_law_of_a_tree(bench: Bench, tree: str, thresholds: tuple[float, float], seed: int) -> None:
    bench.has_law(TreeCase(tree, 8, 3, "near", *thresholds, seed=seed).call(TARGET_ONLY))


@pytest.mark.operator(TARGET_ONLY)
@pytest.mark.parametrize("kind", ["filtered-target", "dyadic", "ties", "tails"])
def test_law_of_a_tree_of_row(bench: Bench, kind: str, seed: int) -> None:
    bench.has_law(TreeCase("eagle", 8, 3, kind, seed=seed).call(TARGET_ONLY))


@pytest.mark.operator(FROM_LOGITS)
@THRESHOLDS
def test_law_of_target_only_sampling(bench: Bench, thresholds: tuple[float, float], seed: int) -> None:
    case = AcceptCase(8, 3, (1.0, 0.5, 1.5), (4, TOP_K_ALL, 3), (0.9, 0.8, 1.0), seed=seed)
    bench.has_law(case.call(FROM_LOGITS, bench.path, thresholds))


@pytest.mark.operator(TARGET_ONLY)
@pytest.mark.parametrize("coin", [0.0, LAST_COIN], ids=["zero", "last"])
def test_child_without_mass_is_never_accepted(bench: Bench, coin: float) -> None:
    # sgl-project/sglang#35771: coins in [0, 1) compared with <= accept a draft of probability 0 at coin 0.
    call = TreeCase("chain", 4, 2, "dyadic").call(TARGET_ONLY)
    p = torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(2, 4, 4).contiguous()
    candidates = torch.tensor([[0, 2, 1, 1], [0, 1, 2, 1]])
    coins = {"coins": torch.full((2, 4), coin), "final_coins": torch.full((2,), coin)}
    bench.conforms(call.with_arguments(target_probs=p, candidates=candidates, **coins))


@pytest.mark.operator(TARGET_ONLY)
def test_step_of_a_tree_belongs_to_what_lies_above(bench: Bench) -> None:
    p = torch.tensor([0.25, 0.25, 0.5, 0.0]).expand(3, 5, 4).contiguous()
    coins = torch.tensor([0.25, 0.5, 0.0])
    call = TreeCase("wide", 4, 3, "dyadic").call(TARGET_ONLY).with_arguments(target_probs=p)
    candidates = torch.tensor([[0, 0, 1, 3, 2]]).repeat(3, 1)
    bench.conforms(
        call.with_arguments(candidates=candidates, coins=coins[:, None].repeat(1, 5), final_coins=coins.clone())
    )


@pytest.mark.operator(TARGET_ONLY)
def test_tree_at_vocabulary(bench: Bench, vocab_size: int, seed: int) -> None:
    for coins in ("random", "last"):
        case = TreeCase("eagle", max(vocab_size, 2), 2, coins=coins, layout="padded-vocab", seed=seed)
        bench.conforms(case.call(TARGET_ONLY))


@pytest.mark.operator(GREEDY)
@pytest.mark.broad
def test_greedy_tree_of_large_tokens(bench: Bench, seed: int) -> None:
    # Token ids beyond 16 bits, and beyond what half precision tells apart.
    call = TreeCase("eagle", 4, 64, seed=seed).call(GREEDY)
    ids = torch.tensor([131_072, 131_073, 131_136, 196_608])
    bench.conforms(call.with_arguments(**{name: ids[call.tensor(name)] for name in ("candidates", "target_predict")}))


@pytest.mark.operator(TARGET_ONLY, GREEDY)
@pytest.mark.broad
def test_bushy_tree(bench: Bench, seed: int) -> None:
    bench.conforms(TreeCase("bushy", 8, 24, coins="zero", seed=seed).call(bench.operator))
    bench.conforms(TreeCase("bushy", 8, 24, seed=seed).call(bench.operator))


@pytest.mark.operator(FROM_LOGITS)
def test_target_only_sampling_at_vocabulary(bench: Bench, vocab_size: int, seed: int) -> None:
    case = AcceptCase(max(vocab_size, 2), 6, (0.7, 1.0), (100, TOP_K_ALL), (0.95, 1.0), dtype="bfloat16", seed=seed)
    bench.conforms(case.call(FROM_LOGITS, bench.path))


@pytest.mark.operator(FROM_LOGITS)
@pytest.mark.parametrize("kind", [{"masked": True}, {"shift": 300.0}, {"temperature": (0.05, 0.1)}])
def test_law_of_target_only_sampling_of_logits(bench: Bench, kind: dict[str, Any], seed: int) -> None:
    plain = AcceptCase(8, 3, (0.7, 1.3), (TOP_K_ALL,) * 2, (1.0, 1.0), seed=seed)
    bench.has_law(replace(plain, **kind).call(FROM_LOGITS, bench.path))


@pytest.mark.operator(TARGET_ONLY)
def test_child_on_threshold_single_is_accepted(bench: Bench) -> None:
    p = torch.tensor([0.5, 0.25, 0.25, 0.0]).expand(2, 4, 4).contiguous()
    call = TreeCase("chain", 4, 2, "dyadic", threshold_single=0.5).call(TARGET_ONLY)
    candidates = torch.tensor([[0, 0, 1, 0], [0, 1, 0, 0]])
    bench.conforms(call.with_arguments(target_probs=p, candidates=candidates, coins=torch.full((2, 4), 0.75)))


@pytest.mark.operator(GREEDY)
def test_first_of_twins_is_followed(bench: Bench) -> None:
    # Two children of the root have one token, and children of their own.
    call = TreeCase("eagle", 8, 1).call(GREEDY)
    candidates = torch.tensor([[0, 5, 5, 1, 2, 3, 4, 6]])
    bench.conforms(call.with_arguments(candidates=candidates, target_predict=torch.tensor([[5, 2, 3, 0, 7, 0, 0, 0]])))


@pytest.mark.operator(TARGET_ONLY, GREEDY)
@pytest.mark.one_arch
@pytest.mark.parametrize("tree", ["late", "mixed"])
@pytest.mark.parametrize("rows", [1, 65])
def test_rows_of_trees(bench: Bench, rows: int, tree: str, seed: int) -> None:
    bench.conforms(TreeCase(tree, 4, rows, layout="padded-vocab", seed=seed).call(bench.operator))


@pytest.mark.operator(GREEDY)
@pytest.mark.broad
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("cut_depth", [0, 1])
def test_greedy_tree(bench: Bench, tree: str, cut_depth: int, seed: int) -> None:
    bench.conforms(TreeCase(tree, 4, 12, cut_depth=cut_depth, seed=seed).call(GREEDY))


@pytest.mark.operator(TARGET_ONLY)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -0.25])
def test_degenerate_target_row_of_a_tree_stays_alone(bench: Bench, value: float, seed: int) -> None:
    call = TreeCase("eagle", 9, 3, seed=seed).call(TARGET_ONLY)
    p = call.tensor("target_probs").clone()
    p[1] = value
    bench.conforms(call.with_arguments(target_probs=p))


@pytest.mark.operator(FROM_LOGITS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_degenerate_logits_of_target_only_sampling_stay_alone(bench: Bench, value: float, seed: int) -> None:
    call = AcceptCase(16, 3, (1.0,) * 3, (4, 8, TOP_K_ALL), (0.9, 1.0, 0.8), seed=seed).call(FROM_LOGITS, bench.path)
    logits = call.tensor("target_logits").clone()
    logits[1, :, :: 1 if value < 0 else 5] = value
    bench.conforms(call.with_arguments(target_logits=logits))


@pytest.mark.operator(FROM_LOGITS)
def test_target_only_sampling_of_top_k_in_64_bits(bench: Bench, seed: int) -> None:
    call = AcceptCase(16, 3, (1.0,) * 33, (4, 9, 2) * 11, (1.0,) * 33, seed=seed).call(FROM_LOGITS, bench.path)
    bench.conforms(call.with_arguments(top_k=call.tensor("top_k").long()))


@pytest.mark.operator(FROM_LOGITS)
@pytest.mark.parametrize("coin", ["zero", "last"])
def test_filtered_token_of_target_only_sampling_is_never_given(bench: Bench, coin: str, seed: int) -> None:
    case = AcceptCase(16, 3, (1.0,) * 8, (3,) * 8, (1.0,) * 8, coins="zero", final_coins=coin, seed=seed)
    bench.conforms(case.call(FROM_LOGITS, bench.path))


@pytest.mark.operator(FROM_LOGITS)
def test_unknown_path_of_target_only_sampling_is_refused(bench: Bench, seed: int) -> None:
    call = AcceptCase(8, 2, (1.0,), (4,), (0.9,), seed=seed).call(FROM_LOGITS, "sideways")
    bench.hold(judge_refused(bench.run(call).error, "path = 'sideways'", call))
