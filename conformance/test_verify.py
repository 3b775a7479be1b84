"""Verification of draft tokens: chains, token by token and as a block, from probabilities and from logits.

The contract, its error model and its sources: ``kernels/operators/verify.py``. How a law is read off coins:
``golden/judges/law.py``. Trees and target-only verification: ``test_verify_trees.py``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given

from waveproof.fixtures.bench import Bench
from waveproof.fixtures.strategies.verify import (
    BAD_Q,
    CHAIN_KINDS,
    LAST_COIN,
    AcceptCase,
    ChainCase,
    accept_cases,
    chain_cases,
)
from waveproof.golden.judges.relations import judge_refused, judge_same_rows
from waveproof.golden.judges.sampled import (
    judge_neighbours,
    judge_really_other,
    judge_really_samples,
    judge_sampled_law,
)
from waveproof.golden.references.decisions import Node, Outcome, law
from waveproof.golden.references.verify import decision
from waveproof.kernels.operators.contract import Call, Value
from waveproof.kernels.operators.renorm import TOP_K_ALL

pytestmark = pytest.mark.rocm

CHAIN, ACCEPT, SEEDED = "chain_verify", "accept_sampling", "seeded_chain_verify"
BLOCKS = pytest.mark.parametrize("block", [False, True], ids=["tokens", "block"])


# Outcomes for given coins -------------------------------------------------------------------------------------------


@pytest.mark.operator(CHAIN)
@pytest.mark.broad
@given(case=chain_cases())
def test_chain_follows_its_coins(bench: Bench, case: ChainCase) -> None:
    assume(not (case.block and bench.subject.implementation.token_by_token))
    bench.conforms(case.call())


@pytest.mark.operator(ACCEPT)
@pytest.mark.broad
@given(case=accept_cases())
def test_accept_sampling_follows_its_coins(bench: Bench, case: AcceptCase) -> None:
    bench.conforms(case.call(ACCEPT, bench.path))


@pytest.mark.operator(CHAIN)
@pytest.mark.one_arch
@BLOCKS
@pytest.mark.parametrize("coin", [0.0, LAST_COIN], ids=["zero", "last"])
def test_coin_at_the_end_of_its_range(bench: Bench, coin: float, block: bool, seed: int) -> None:
    # No coin may ever draw a token without probability: not 0, and not the last float below 1 (sglang#35771).
    call = ChainCase(300, 3, CHAIN_KINDS, block, seed=seed).call()
    for coins, final in ((coin, 0.5), (LAST_COIN, coin), (0.0, coin)):
        batch, drafts = call.tensor("coins").shape
        bench.conforms(
            call.with_arguments(coins=torch.full((batch, drafts), coins), final_coins=torch.full((batch,), final))
        )


@pytest.mark.operator(CHAIN)
@pytest.mark.broad
@BLOCKS
@pytest.mark.parametrize("value", BAD_Q)
def test_draft_token_without_a_probability_is_rejected(bench: Bench, value: str, block: bool, seed: int) -> None:
    # A `q == q` guard lets inf pass, and a corrupt q accepts always (sglang#37134).
    call = ChainCase(9, 3, ("near", "far", "equal", "near"), block, "zero", seed=seed).call()
    q, candidates = call.tensor("draft_probs").clone(), call.tensor("candidates")
    for row in range(4):
        q[row, row % 2, candidates[row, 1 + row % 2]] = BAD_Q[value]
    bench.conforms(call.with_arguments(draft_probs=q))


@pytest.mark.operator(CHAIN)
@pytest.mark.broad
@BLOCKS
@pytest.mark.parametrize("value", ["nan", "inf", "negative"])
def test_bad_q_elsewhere_leaves_the_law_alone(bench: Bench, value: str, block: bool, seed: int) -> None:
    call = ChainCase(9, 4, ("far", "near", "far"), block, seed=seed).call()
    q, candidates = call.tensor("draft_probs").clone(), call.tensor("candidates")
    for row in range(3):
        other = next(token for token in range(9) if token not in candidates[row, 1:])
        q[row, row:, other] = BAD_Q[value]
    bench.has_law(call.with_arguments(draft_probs=q))


@pytest.mark.operator(CHAIN)
@pytest.mark.one_arch
@BLOCKS
def test_empty_residual_gives_a_token_with_probability(bench: Bench, block: bool) -> None:
    # p = q, and the draft token is none that q proposes: what is left of p after q is nothing. First and last token
    # have no probability.
    both = torch.tensor([0.0, 0.25, 0.75, 0.0]).expand(1, 3, 4).contiguous()
    arguments: dict[str, Value] = {
        "candidates": torch.tensor([[0, 3, 1]]),
        "target_probs": both,
        "draft_probs": both[:, :-1].clone(),
        "coins": torch.full((1, 2), 0.5),
        "final_coins": torch.tensor([0.5]),
        "block_verification": block,
    }
    bench.conforms(Call(CHAIN, arguments))


@pytest.mark.operator(CHAIN)
@pytest.mark.one_arch
@BLOCKS
@pytest.mark.parametrize("coin", [0.25, 0.5, 0.75])
def test_step_itself_belongs_to_what_lies_above(bench: Bench, coin: float, block: bool) -> None:
    # Powers of two: float32 makes no rounding, so a coin on the step decides (p/q and the cumulative law).
    p = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.25, 0.0, 0.25, 0.5], [0.5, 0.25, 0.25, 0.0]])
    q = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.5, 0.25, 0.25, 0.0]])
    rows = 4
    arguments = {
        "candidates": torch.tensor([[3, 0, 0], [3, 1, 1], [3, 0, 2], [3, 1, 0]]),
        "target_probs": p.expand(rows, 3, 4).contiguous(),
        "draft_probs": q.expand(rows, 2, 4).contiguous(),
        "coins": torch.full((rows, 2), coin),
        "final_coins": torch.full((rows,), coin),
    }
    bench.conforms(Call(CHAIN, {**arguments, "block_verification": block}))


# Laws -----------------------------------------------------------------------------------------------------------------


@pytest.mark.operator(CHAIN)
@pytest.mark.broad
@BLOCKS
def test_law_of_a_chain(bench: Bench, block: bool, seed: int) -> None:
    extracted = bench.has_law(ChainCase(8, 3, CHAIN_KINDS, block, seed=seed).call())
    bench.note(
        f"law of {extracted.rows} rows within {max(extracted.bound):.1e} of total variation: {extracted.steps} steps, "
        f"{extracted.probes} probes in {extracted.launches} launches"
    )


@pytest.mark.operator(CHAIN)
@pytest.mark.broad
@BLOCKS
def test_law_of_a_larger_vocabulary(bench: Bench, block: bool, seed: int) -> None:
    bench.has_law(ChainCase(33, 2, ("near", "far"), block, seed=seed).call())


@pytest.mark.operator(CHAIN)
@pytest.mark.broad
@BLOCKS
def test_joint_law_of_a_block(bench: Bench, block: bool, seed: int) -> None:
    # Every draft that there is, weighed with its probability: what comes out is what the target alone would say.
    vocab_size = 3
    case = ChainCase(vocab_size, 3, ("far",), block, seed=seed).call()
    drafts = torch.cartesian_prod(torch.arange(vocab_size), torch.arange(vocab_size))
    rows = len(drafts)
    generator = torch.Generator().manual_seed(seed)
    following = torch.softmax(torch.randn((vocab_size, vocab_size, vocab_size), generator=generator), -1)
    q = torch.softmax(2.0 * torch.randn((vocab_size + 1, vocab_size), generator=generator), -1)
    first = case.tensor("target_probs")[0, 0]
    after = torch.softmax(torch.randn((vocab_size, vocab_size), generator=generator), -1)
    p = torch.stack([torch.stack([first, after[a], following[a, b]]) for a, b in drafts.tolist()])
    call = case.with_arguments(
        candidates=torch.cat([torch.zeros(rows, 1, dtype=torch.long), drafts], 1),
        target_probs=p,
        draft_probs=torch.stack([torch.stack([q[0], q[1 + a]]) for a, _ in drafts.tolist()]),
        coins=torch.zeros(rows, 2),
        final_coins=torch.zeros(rows),
    )
    extracted = bench.has_law(call)
    weights = [float(q[0, a] * q[1 + a, b]) for a, b in drafts.tolist()]
    bench.note(
        f"joint law of a block of 3 within {sum(w * b for w, b in zip(weights, extracted.bound, strict=True)):.1e} of "
        "autoregressive sampling"
    )


@pytest.mark.operator(ACCEPT)
@pytest.mark.broad
@BLOCKS
@pytest.mark.parametrize("filtered", [False, True], ids=["unfiltered", "filtered"])
def test_law_of_accept_sampling(bench: Bench, filtered: bool, block: bool, seed: int) -> None:
    top_k, top_p = ((4, 3, 8, 5), (0.9, 1.0, 0.7, 0.95)) if filtered else ((TOP_K_ALL,) * 4, (1.0,) * 4)
    case = AcceptCase(8, 3, (1.0, 0.5, 1.5, 0.7), top_k, top_p, block, (0, 0, 1, 2), seed=seed)
    bench.has_law(case.call(ACCEPT, bench.path))


# At vocabulary --------------------------------------------------------------------------------------------------------


@pytest.mark.operator(CHAIN)
@pytest.mark.broad
@BLOCKS
def test_chain_at_vocabulary(bench: Bench, vocab_size: int, block: bool, seed: int) -> None:
    # Final coins that fall on both sides of the edges of tiles, and into the last token.
    places = [place for place in (0, 1023, 1024, 4095, 4096, 8191, 32767, 32768) if place < vocab_size - 1]
    places = [*places[-5:], vocab_size - 1]
    rows = 4 * len(places)
    case = ChainCase(vocab_size, 2, ("near",) * rows, block, seed=seed).call()
    p, q = case.tensor("target_probs").clone(), case.tensor("draft_probs").clone()
    final = torch.empty(rows)
    for row in range(rows):
        accepted = row % 2
        place, behind = places[row // 4], row % 4 > 1
        p[row, accepted] = p[row, accepted] * 0.5
        p[row, accepted, place] += 0.5
        q[row, :, place] = 0.0
        weights = p[row, accepted].double() if accepted else (p[row, 0].double() - q[row, 0].double()).clamp(min=0.0)
        cumulative = weights.cumsum(0) / weights.sum()
        middle = float(cumulative[place] - 0.5 * weights[place] / weights.sum())
        # In the middle of the heavy token, and halfway through what lies behind it.
        final[row] = min(0.5 * (1.0 + float(cumulative[place])), LAST_COIN) if behind else middle
    coins = torch.tensor([[LAST_COIN], [0.0]]).repeat(2 * len(places), 1)
    candidates = case.tensor("candidates").clone()
    for row in range(rows):
        # Even rows: a draft token with next to no chance; odd rows: one that is certain.
        ratio = (p[row, 0] / q[row, 0]).nan_to_num(0.0, 0.0, 0.0)
        candidates[row, 1] = torch.where(q[row, 0] > 0, ratio, torch.inf).argmin() if row % 2 == 0 else ratio.argmax()
    bench.conforms(
        case.with_arguments(target_probs=p, draft_probs=q, coins=coins, final_coins=final, candidates=candidates)
    )


@pytest.mark.operator(ACCEPT)
@pytest.mark.broad
def test_accept_sampling_at_vocabulary(bench: Bench, vocab_size: int, seed: int) -> None:
    case = AcceptCase(max(vocab_size, 2), 3, (0.7, 1.0), (50, TOP_K_ALL), (1.0, 1.0), dtype="bfloat16", seed=seed)
    bench.conforms(case.call(ACCEPT, bench.path))


# Rows among others ----------------------------------------------------------------------------------------------------


@pytest.mark.operator(CHAIN)
@pytest.mark.broad
@BLOCKS
def test_row_does_not_depend_on_its_neighbours(bench: Bench, block: bool, seed: int) -> None:
    call = ChainCase(17, 4, ("near", "far", "ties", "near", "equal"), block, seed=seed).call()
    order = [3, 0, 4]
    rows = {name: value[order] for name, value in call.arguments.items() if isinstance(value, torch.Tensor)}
    fewer = call.with_arguments(**rows)
    alone, among = bench.conforms(fewer), bench.conforms(call)
    because = "fewer rows stand beside it"
    bench.hold(judge_same_rows(among, alone, (order, range(3)), (call, fewer), because))


@pytest.mark.operator(CHAIN)
@pytest.mark.broad
@BLOCKS
@pytest.mark.parametrize("kind", ["nan", "inf", "zero", "negative"])
def test_degenerate_target_row_stays_alone(bench: Bench, kind: str, block: bool, seed: int) -> None:
    call = ChainCase(17, 3, ("near", "far", "near"), block, seed=seed).call()
    p = call.tensor("target_probs").clone()
    p[1] = {"nan": torch.nan, "inf": torch.inf, "zero": 0.0, "negative": -0.25}[kind]
    bench.conforms(call.with_arguments(target_probs=p))


@pytest.mark.operator(ACCEPT)
@pytest.mark.broad
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_degenerate_logits_stay_alone(bench: Bench, value: float, seed: int) -> None:
    call = AcceptCase(16, 3, (1.0,) * 3, (4, 8, TOP_K_ALL), (0.9, 1.0, 0.8), seed=seed).call(ACCEPT, bench.path)
    logits = call.tensor("target_logits").clone()
    logits[1, :, :: 1 if value < 0 else 5] = value
    bench.conforms(call.with_arguments(target_logits=logits))


@pytest.mark.operator(ACCEPT)
@pytest.mark.broad
def test_top_k_in_64_bits(bench: Bench, seed: int) -> None:
    call = AcceptCase(16, 3, (1.0,) * 3, (4, 9, 2), (1.0,) * 3, seed=seed).call(ACCEPT, bench.path)
    bench.conforms(call.with_arguments(top_k=call.tensor("top_k").long()))


@pytest.mark.operator(ACCEPT)
@pytest.mark.one_arch
@pytest.mark.parametrize("coin", ["zero", "last"])
def test_filtered_token_is_never_given(bench: Bench, coin: str, seed: int) -> None:
    case = AcceptCase(16, 3, (1.0,) * 8, (3,) * 8, (1.0,) * 8, coins="zero", final_coins=coin, seed=seed)
    bench.conforms(case.call(ACCEPT, bench.path))


@pytest.mark.operator(ACCEPT)
@pytest.mark.broad
def test_slots_behind_the_cut_do_not_decide(bench: Bench, seed: int) -> None:
    # The logits of slots that were cut off belong to nobody.
    case = AcceptCase(16, 5, (1.0,) * 6, (TOP_K_ALL,) * 6, (1.0,) * 6, False, (3, 2, 1, 3, 2, 1), seed=seed)
    call = case.call(ACCEPT, bench.path)
    logits = call.tensor("target_logits").clone()
    for row, length in enumerate(call.tensor("verify_lens").tolist()):
        logits[row, length:] = torch.randn(logits[row, length:].shape, generator=torch.Generator().manual_seed(seed))
    changed = call.with_arguments(target_logits=logits)
    before, after = bench.conforms(call), bench.conforms(changed)
    because = "only the logits behind the cut changed"
    bench.hold(judge_same_rows(before, after, (range(6), range(6)), (call, changed), because))


@pytest.mark.operator(CHAIN)
@pytest.mark.broad
@BLOCKS
def test_chain_repeats_itself(bench: Bench, block: bool, seed: int) -> None:
    bench.conforms(ChainCase(1000, 4, ("near", "far", "filtered-target"), block, seed=seed).call(repeats=3))


@pytest.mark.operator(CHAIN)
@pytest.mark.broad
@BLOCKS
@pytest.mark.parametrize("rows", [0, 1, 65])
def test_batch_of(bench: Bench, rows: int, block: bool, seed: int) -> None:
    call = ChainCase(5, 3, ("near",) * max(rows, 1), block, seed=seed).call()
    cut = {name: value[:rows] for name, value in call.arguments.items() if isinstance(value, torch.Tensor)}
    bench.conforms(call.with_arguments(**cut))


@pytest.mark.operator(CHAIN)
@pytest.mark.broad
@BLOCKS
def test_chain_without_drafts_samples(bench: Bench, block: bool, seed: int) -> None:
    bench.conforms(ChainCase(8, 1, ("near", "dyadic", "tails"), block, seed=seed).call())


# Sampling -------------------------------------------------------------------------------------------------------------


@pytest.mark.operator(CHAIN, ACCEPT, SEEDED, asks="really samples")
@pytest.mark.one_arch
def test_really_samples_above_temperature_zero(bench: Bench, seed: int) -> None:
    # The cheapest check there is of a verifier that is silently greedy (sglang#37134): 64 draws, two equal logits.
    draws, generator = 64, torch.Generator().manual_seed(seed)
    half = torch.full((draws, 2, 2), 0.5)
    common: dict[str, Value] = {"candidates": torch.randint(2, (draws, 2), generator=generator)}
    coins: dict[str, Value] = {
        "coins": torch.rand((draws, 1), generator=generator),
        "final_coins": torch.rand(draws, generator=generator),
    }
    one: dict[str, Value] = {"temperature": torch.ones(draws)}
    limits: dict[str, Value] = {"top_k": torch.full((draws,), TOP_K_ALL, dtype=torch.int32), "top_p": torch.ones(draws)}
    logits: dict[str, Value] = {"target_logits": torch.zeros(draws, 2, 2)}
    arguments: dict[str, dict[str, Value]] = {
        CHAIN: {
            **common,
            "target_probs": half,
            "draft_probs": half[:, :1].clone(),
            **coins,
            "block_verification": False,
        },
        ACCEPT: {
            **common,
            **logits,
            "draft_probs": half[:, :1].clone(),
            **one,
            **limits,
            **coins,
            "verify_lens": torch.full((draws,), 2, dtype=torch.int32),
            "block_verification": False,
            "path": bench.path,
        },
        SEEDED: {
            **common,
            **logits,
            "draft_logits": torch.zeros(draws, 1, 2),
            **one,
            "draft_temperature": torch.ones(draws),
            "seed": seed + 1,
        },
    }
    call = Call(bench.operator, arguments[bench.operator])
    bench.hold(judge_really_samples(bench.results(call), call))


# A verifier with random numbers of its own --------------------------------------------------------------------------


@pytest.mark.operator(SEEDED)
@pytest.mark.broad
@pytest.mark.parametrize("case", ["alike", "warm", "twice"])
def test_law_of_a_verifier_with_random_numbers_of_its_own(bench: Bench, case: str, seed: int) -> None:
    # Rows are alike but for what they draw, and of two temperatures: their outcomes are two samples of two laws.
    rows = bench.budget(4000, 600)
    call = seeded_call(case, rows, seed + 7)
    outputs = bench.all_conform(call)
    for first in (0, 1):
        due = {one: mass for one, mass in law(seeded_tree(call, first)).items() if isinstance(one, Outcome)}
        drawn = [output[first::2] for output in outputs]
        judgement, evidence = judge_sampled_law(drawn, due, call)
        bench.note(f"{evidence.n} rows of {case} find a total variation of {evidence.detectable:.3f}")
        bench.hold(judgement)
        bench.hold(judge_neighbours(drawn, due, call))


@pytest.mark.operator(SEEDED)
@pytest.mark.broad
def test_seed_decides(bench: Bench, seed: int) -> None:
    call = replace(seeded_call("alike", 128, seed + 7), repeats=2)
    other = call.with_arguments(seed=seed + 8)
    bench.hold(judge_really_other(bench.results(call), bench.results(other), call))


def seeded_call(case: str, rows: int, seed: int) -> Call:
    """Rows in two kinds by turns: temperatures 1 and 0.7, the draft's 1.3 and 1; ``twice``: one draft token twice."""
    target = torch.tensor([0.30, 0.25, 0.20, 0.15, 0.06, 0.04])
    draft = torch.tensor([0.10, 0.10, 0.35, 0.35, 0.06, 0.04])
    drafts = [2, 2] if case == "twice" else [2, 3]
    two = torch.tensor([1.0, 0.7] if case != "alike" else [1.0, 1.0]).repeat(rows // 2)
    drafted = torch.tensor([1.3, 1.0] if case == "warm" else [1.0, 1.0]).repeat(rows // 2)
    arguments: dict[str, Value] = {
        "candidates": torch.tensor([[0, *drafts]]).repeat(rows, 1),
        "target_logits": torch.log(target).repeat(rows, 3, 1),
        "draft_logits": torch.log(draft).repeat(rows, 2, 1),
        "temperature": two,
        "draft_temperature": drafted,
        "seed": seed,
    }
    return Call(SEEDED, arguments)


def seeded_tree(call: Call, row: int) -> Node:
    """The decision tree of a row with coins of its own."""
    laws = {
        name: torch.softmax(call.tensor(f"{name}_logits")[row].double() / call.tensor(temperature)[row], -1).float()
        for name, temperature in (("target", "temperature"), ("draft", "draft_temperature"))
    }
    arguments: dict[str, Value] = {
        "candidates": call.tensor("candidates")[row : row + 1],
        "target_probs": laws["target"][None],
        "draft_probs": laws["draft"][None],
        "block_verification": False,
    }
    return decision(Call(CHAIN, arguments), 0)


@pytest.mark.operator(ACCEPT)
@pytest.mark.one_arch
def test_unknown_path_is_refused(bench: Bench, seed: int) -> None:
    call = AcceptCase(8, 2, (1.0,), (4,), (0.9,), seed=seed).call(ACCEPT, "sideways")
    bench.hold(judge_refused(bench.run(call).error, "path = 'sideways'", call))
