"""Verifiers of drafts against cases worked by hand, and providers against each other: they differ on edges alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from waveproof.golden.references.decisions import Outcome, legal
from waveproof.golden.references.verify import coins_of, decision
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.providers import (
    flashinfer_kernels,
    pytorch_verify,
    sglang_accept,
    sglang_eagle,
    sglang_verify,
    transformers_verify,
)
from waveproof.kernels.providers.registry import Implementation, Subject, builtin_implementations
from waveproof.kernels.runtimes.catalogue import installed as is_installed
from waveproof.kernels.runtimes.process import WorkerPool
from waveproof.reports.adapter import adapter_source

needs_sglang = pytest.mark.skipif(not (is_installed("sglang") and is_installed("triton")), reason="sglang, triton")
needs_transformers = pytest.mark.skipif(not is_installed("transformers"), reason="transformers not installed")

JUST_BELOW_1 = 1.0 - 2.0**-24


def chain(
    p: list[list[float]], q: list[list[float]], drafts: list[int], coins: list[float], final: float, block: bool = False
) -> Call:
    """A call of one row."""
    return Call(
        "chain_verify",
        {
            "candidates": torch.tensor([[0, *drafts]]),
            "target_probs": torch.tensor([p]),
            "draft_probs": torch.tensor([q]),
            "coins": torch.tensor([coins]),
            "final_coins": torch.tensor([final]),
            "block_verification": block,
        },
    )


def answer(result: tuple[torch.Tensor, torch.Tensor], row: int = 0) -> tuple[int, list[int]]:
    accept_len, tokens = result
    assert (accept_len.dtype, tokens.dtype) == (torch.int32, torch.int32)
    return int(accept_len[row]), tokens[row].tolist()


def torch_answer(call: Call) -> tuple[int, list[int]]:
    return answer(getattr(pytorch_verify, call.operator)(*call.arguments.values()))


HALF = [[0.25, 0.25, 0.5], [0.5, 0.0, 0.5]]
PROPOSAL = [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize(
    ("draft", "coin", "final", "expected"),
    [
        (0, 0.25, 0.0, (1, [0, 0])),  # p / q = 1/2, and the whole target after it
        (0, 0.25, 0.5, (1, [0, 2])),  # half-open: a coin on the edge belongs to what follows, token 1 has no weight
        (0, 0.5, 0.0, (0, [2, -1])),  # on the edge it is rejected; the residual is token 2 alone
        (0, 0.5, JUST_BELOW_1, (0, [2, -1])),
        (2, 0.0, 0.0, (0, [2, -1])),  # a token that q cannot have proposed
    ],
)
def test_chain_by_hand(draft: int, coin: float, final: float, expected: tuple[int, list[int]]) -> None:
    assert torch_answer(chain(HALF, PROPOSAL, [draft], [coin], final)) == expected


@pytest.mark.parametrize("q", [float("nan"), float("inf"), -1.0, 2.0])
def test_a_draft_probability_that_is_none_is_rejected_and_counts_as_zero(q: float) -> None:
    call = chain(HALF, [[q, 0.5, 0.5]], [0], [0.0], 0.9)
    assert torch_answer(call) == (0, [0, -1])


def test_an_empty_residual_gives_a_token_of_the_target() -> None:
    same = [0.5, 0.5, 0.0]
    call = chain([same, same], [same], [2], [0.0], JUST_BELOW_1)
    assert torch_answer(call) == (0, [1, -1])


@pytest.mark.parametrize(
    ("coins", "final", "expected"),
    [
        # h = (1/2, 1/2); the residual of a prefix of 1 is max(p/2 - q, 0) = (0, 1/4) of 1/4, so it stands below 1/3.
        ([0.3125, 0.5], 0.0, (1, [0, 1, -1])),
        ([0.34375, 0.5], 0.0, (0, [1, -1, -1])),
        # A whole chain stands below h = 1/2, whatever its first coin says.
        ([0.96875, 0.46875], 0.75, (2, [0, 0, 1])),
    ],
)
def test_block_by_hand(coins: list[float], final: float, expected: tuple[int, list[int]]) -> None:
    p = [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
    q = [[1.0, 0.0], [0.5, 0.0]]
    assert torch_answer(chain(p, q, [0, 0], coins, final, block=True)) == expected


TREE = {
    # The root has children 1 (token 1) and 2 (token 2); node 2 has child 3 (token 0).
    "candidates": torch.tensor([[9, 1, 2, 0]]),
    "retrieve_next_token": torch.tensor([[1, -1, 3, -1]]),
    "retrieve_next_sibling": torch.tensor([[-1, 2, -1, -1]]),
}


@pytest.mark.parametrize(
    ("coins", "final", "thresholds", "expected"),
    [
        ([0.125, 0.0, 0.0, 0.0], 0.0, (1.0, 1.0), (1, [1, 0, -1])),
        ([0.25, 0.0, 0.5, 0.0], 0.0, (1.0, 1.0), (1, [2, 1, -1])),  # token 0 refused at node 2: 1 and 2 are left
        ([0.25, 0.0, 0.25, 0.0], 0.75, (1.0, 1.0), (2, [2, 0, 3])),
        ([0.75, 0.0, 0.0, 0.0], 0.5, (1.0, 1.0), (0, [3, -1, -1])),  # both refused: 0 and 3 are left, an eighth each
        ([0.75, 0.0, 0.0, 0.0], 0.5, (0.5, 1.0), (2, [2, 0, 3])),  # p of token 2 reaches threshold_single
        ([0.375, 0.0, 0.5, 0.0], 0.5, (1.0, 0.5), (1, [1, 2, -1])),  # 1/4 / threshold_acc lies above the coin
    ],
)
def test_tree_by_hand(
    coins: list[float], final: float, thresholds: tuple[float, float], expected: tuple[int, list[int]]
) -> None:
    law = torch.tensor([[[0.125, 0.25, 0.5, 0.125]] + [[0.5, 0.25, 0.25, 0.0]] * 2 + [[0.0, 0.25, 0.25, 0.5]]])
    law[0, 1] = torch.tensor([0.5, 0.0, 0.5, 0.0])
    call = Call(
        "target_only_verify",
        {
            **TREE,
            "target_probs": law,
            "coins": torch.tensor([coins]),
            "final_coins": torch.tensor([final]),
            "threshold_single": thresholds[0],
            "threshold_acc": thresholds[1],
            "depth": 3,
        },
    )
    assert torch_answer(call) == expected


@pytest.mark.parametrize(
    ("predict", "depth", "expected"),
    [
        ([2, 7, 0, 5], 3, (2, [2, 0, 5])),
        ([2, 7, 1, 5], 3, (1, [2, 1, -1])),
        ([3, 7, 0, 5], 3, (0, [3, -1, -1])),
        ([2, 7, 0, 5], 2, (1, [2, 0])),
    ],
)
def test_greedy_tree_by_hand(predict: list[int], depth: int, expected: tuple[int, list[int]]) -> None:
    call = Call("tree_verify_greedy", {**TREE, "target_predict": torch.tensor([predict]), "depth": depth})
    assert torch_answer(call) == expected


def accepting(verify_lens: list[int], path: str = "dense", top_k: int = 3) -> Call:
    """Rows of uniform logits over four tokens whose drafts all stand."""
    batch = len(verify_lens)
    return Call(
        "accept_sampling",
        {
            "candidates": torch.tensor([[0, 1, 2, 1]]).repeat(batch, 1),
            "target_logits": torch.tensor([2.0, 2.0, 2.0, 0.0]).repeat(batch, 4, 1),
            "draft_probs": torch.full((batch, 3, 4), 0.25),
            "temperature": torch.ones(batch),
            "top_k": torch.full((batch,), top_k, dtype=torch.int32),
            "top_p": torch.ones(batch),
            "coins": torch.zeros(batch, 3),
            "final_coins": torch.full((batch,), 0.5),
            "verify_lens": torch.tensor(verify_lens, dtype=torch.int32),
            "block_verification": False,
            "path": path,
        },
    )


@pytest.mark.parametrize("path", ["dense", "sparse"])
def test_a_window_that_is_cut_off(path: str) -> None:
    given = accepting([4, 3, 1], path)
    result = pytorch_verify.accept_sampling(*given.arguments.values())  # type: ignore[arg-type]
    assert [answer(result, row) for row in range(3)] == [(3, [1, 2, 1, 1]), (2, [1, 2, 1, -1]), (0, [1, -1, -1, -1])]


def drawn_calls(rows: int) -> Iterator[Call]:
    """A call of each operator that takes coins and that sglang's kernels compute without a GPU."""
    draw = torch.Generator().manual_seed(3)
    laws = torch.softmax(2 * torch.randn(rows, 7, 6, generator=draw), -1)
    coins = torch.rand(rows, 4, generator=draw)
    candidates = torch.randint(0, 6, (rows, 4), generator=draw)
    shared = {"coins": coins[:, :3].clone(), "final_coins": coins[:, 3].clone()}
    for block in (False, True):
        probabilities = {"target_probs": laws[:, :4].clone(), "draft_probs": laws[:, 4:].clone()}
        arguments = {"candidates": candidates, **probabilities, **shared, "block_verification": block}
        yield Call("chain_verify", arguments)
    for path in ("dense", "sparse"):
        call = accepting([4, 3, 2, 1][:rows] * (rows // 4), path)
        limits = {"temperature": 0.5 + coins[:, 0], "top_p": 0.7 + 0.3 * coins[:, 1]}
        logits = {"target_logits": torch.randn(rows, 4, 4, generator=draw)}
        yield call.with_arguments(candidates=candidates % 4, **logits, **limits, **shared)
    links = {name: value.repeat(rows, 1) for name, value in TREE.items()}
    predict = {"target_predict": torch.randint(0, 3, (rows, 4), generator=draw)}
    yield Call("tree_verify_greedy", {**links, **predict, "depth": 3})


@needs_sglang
def test_sglang_agrees_in_the_interpreter() -> None:
    known = {one.operator: one for one in (*sglang_verify.IMPLEMENTATIONS[:3], *sglang_accept.IMPLEMENTATIONS)}
    launched = set()
    pool = WorkerPool()
    try:
        for call in drawn_calls(8):
            outcome = pool.call(Subject(known[call.operator], "interpret"), call, 60.0, 1)
            assert outcome.error is None, outcome.error
            assert not outcome.incidents
            launched |= {launch["kernel"] for launch in outcome.launches}
            expected = getattr(pytorch_verify, call.operator)(*call.arguments.values())
            for row in range(8):
                same = answer(outcome.outputs, row) == answer(expected, row)  # type: ignore[arg-type]
                count, tokens = answer(outcome.outputs, row)  # type: ignore[arg-type]
                got = Outcome(count, tuple(tokens[: count + 1]))
                assert same or got in legal(decision(call, row), coins_of(call, row))
    finally:
        pool.close()
    assert {"speculative_sampling_classic_kernel", "verify_tree_greedy_kernel_triton"} < launched
    assert {"_cap_correct_len_kernel", "_gather_two_level_bonus_kernel"} < launched


@needs_transformers
@pytest.mark.parametrize(("coin", "final"), [(0.25, 0.0), (0.25, 0.75), (0.75, 0.5)])
def test_transformers_agrees_off_the_edges(coin: float, final: float) -> None:
    call = chain(HALF, PROPOSAL, [0], [coin], final)
    assert answer(transformers_verify.chain_verify(*call.arguments.values())) == torch_answer(call)  # type: ignore[arg-type]


@needs_transformers
def test_transformers_accepts_on_the_edge() -> None:
    never = chain([[0.0, 0.5, 0.5]] * 2, PROPOSAL, [0], [0.0], 0.5)  # p of the draft token is 0
    assert torch_answer(never)[0] == 0
    assert answer(transformers_verify.chain_verify(*never.arguments.values()))[0] == 1  # type: ignore[arg-type]


@needs_transformers
def test_transformers_raises_on_an_empty_residual() -> None:
    same = [0.5, 0.5, 0.0]
    rejected = chain([same, same], [same], [2], [0.5], 0.5)
    with pytest.raises(RuntimeError, match="probability tensor contains"):
        transformers_verify.chain_verify(*rejected.arguments.values())  # type: ignore[arg-type]


def test_coins_are_used_as_they_were_given() -> None:
    coins, final = torch.zeros(2, 3), torch.zeros(2)
    with sglang_accept.torch_rand_answered(coins, final):
        assert torch.equal(torch.rand((2, 3), dtype=torch.float32, device="cpu"), coins)
        with pytest.raises(RuntimeError, match=r"\[3\] random numbers"):
            torch.rand((3,), dtype=torch.float32)
        assert torch.equal(torch.rand((2,), dtype=torch.float32), final)
    assert torch.rand(1).shape == (1,)
    with pytest.raises(RuntimeError, match="1 of 1 sets of coins"), sglang_accept.torch_rand_answered(coins):
        pass


def test_seeds_decide_and_differ() -> None:
    logits = torch.zeros(256, 3, 4)
    given = (torch.ones(256, 3, dtype=torch.long), logits, logits[:, :2], torch.ones(256), torch.ones(256))
    one, again, other = (pytorch_verify.seeded_chain_verify(*given, seed)[1] for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_registered_functions_exist_and_stand_alone() -> None:
    modules = (pytorch_verify, sglang_accept, sglang_verify, transformers_verify)
    mine: list[Implementation] = [one for module in modules for one in module.IMPLEMENTATIONS]
    mine += [sglang_eagle.WITH_REJECTION_SAMPLING, sglang_eagle.WITHOUT_REJECTION_SAMPLING]
    mine += [one for one in flashinfer_kernels.IMPLEMENTATIONS if one.operator == "seeded_chain_verify"]
    named = {module.__name__.rpartition(".")[2]: module for module in (*modules, sglang_eagle, flashinfer_kernels)}
    for one in mine:
        module, _, function = one.load.partition(":")
        one.contract.check_arity(getattr(named[module.rpartition(".")[2]], function))
        assert one.variant in one.contract.variants
        assert one.provider == "torch" or "waveproof" not in adapter_source(one.load)
    known = builtin_implementations()
    assert {one.operator for one in mine} <= {one.operator for one in known}
    places = [(one.provider, one.operator, runtime) for one in known for runtime in one.runtimes]
    assert len(places) == len(set(places))
