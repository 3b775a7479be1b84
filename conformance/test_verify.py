"""Verification of draft tokens: chains, token by token and as a block, from probabilities and from logits.

The contract, its error model and its sources: ``kernels/operators/verify.py``. How a law is read off coins:
``golden/judges/law.py``. Trees and target-only verification: ``test_verify_trees.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given

from waveproof.fixtures.bench import Bench
from waveproof.fixtures.strategies.verify import BAD_Q, CHAIN_KINDS, AcceptCase, ChainCase, accept_cases, chain_cases
from waveproof.golden.judges.law_probes import coins_beside_steps, probing
from waveproof.golden.judges.relations import judge_refused, judge_same_rows
from waveproof.golden.references.verify import decision
from waveproof.kernels.operators.contract import Call, Value
from waveproof.kernels.operators.renorm import TOP_K_ALL
from waveproof.kernels.operators.verify import LAST_COIN

pytestmark = pytest.mark.rocm

CHAIN, ACCEPT, SEEDED = "chain_verify", "accept_sampling", "seeded_chain_verify"
BLOCKS = pytest.mark.parametrize(
    "block", [False, pytest.param(True, marks=pytest.mark.needs("block verification"))], ids=["tokens", "block"]
)


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
    # Nor one beyond the vocabulary: sums over its end, in the order of a scan, need not stay what they are.
    for vocab_size in (31, 300):
        call = ChainCase(vocab_size, 3, CHAIN_KINDS, block, layout="padded-vocab", seed=seed).call()
        coins_at_the_end(bench, call, coin)


def coins_at_the_end(bench: Bench, call: Call, coin: float) -> None:
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
        for place in [row % 2] if row < 2 else [0, 1]:
            q[row, place, candidates[row, 1 + place]] = BAD_Q[value]
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
    # have no probability; in the second row it happens at the second draft token, and the first slot has others.
    both = torch.tensor([0.0, 0.25, 0.75, 0.0]).repeat(2, 3, 1)
    both[1, 0] = torch.tensor([0.5, 0.0, 0.0, 0.5])
    arguments: dict[str, Value] = {
        "candidates": torch.tensor([[0, 3, 1], [0, 0, 3]]),
        "target_probs": both,
        "draft_probs": both[:, :-1].clone(),
        "coins": torch.full((2, 2), 0.5),
        "final_coins": torch.tensor([0.5, 0.5]),
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


@pytest.mark.operator(CHAIN)
@pytest.mark.broad
@BLOCKS
@pytest.mark.parametrize("slots", [6, 9, 17])
def test_long_chain(bench: Bench, slots: int, block: bool, seed: int) -> None:
    for coins in ("random", "zero"):
        bench.conforms(ChainCase(9, slots, ("near", "far", "equal", "tails") * 4, block, coins, seed=seed).call())


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
def test_law_of_a_longer_chain(bench: Bench, block: bool, seed: int) -> None:
    bench.has_law(ChainCase(5, 6, ("near", "far", "ties"), block, seed=seed).call())


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
    top_k, top_p = (TOP_K_ALL,) * 8, (1.0,) * 8
    if filtered:
        top_k, top_p = (4, 3, 6, 5, 3, 4, 5, 6), (0.7, 1.0, 0.7, 0.8, 0.6, 0.8, 0.9, 0.75)
    case = AcceptCase(8, 3, (1.5, 0.5, 2.0, 0.7) * 2, top_k, top_p, block, (0, 0, 1, 2) * 2, seed=seed)
    bench.has_law(case.call(ACCEPT, bench.path))


@pytest.mark.operator(ACCEPT)
@pytest.mark.broad
@pytest.mark.parametrize(
    "kind", [{"masked": True}, {"shift": 300.0}, {"shift": -300.0}, {"temperature": (0.05, 0.1)}, {"dtype": "bfloat16"}]
)
def test_law_of_accept_sampling_of_logits(bench: Bench, kind: dict[str, Any], seed: int) -> None:
    plain = AcceptCase(8, 6, (0.7, 1.3), (TOP_K_ALL,) * 2, (1.0, 1.0), seed=seed)
    bench.has_law(replace(plain, **kind).call(ACCEPT, bench.path))


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
        final[row] = 0.5 * (1.0 + float(cumulative[place])) if behind and place < vocab_size - 1 else middle
    coins = torch.tensor([[LAST_COIN], [0.0]]).repeat(2 * len(places), 1)
    candidates = case.tensor("candidates").clone()
    for row in range(rows):
        # Even rows: a draft token with next to no chance; odd rows: one that is certain.
        ratio = (p[row, 0] / q[row, 0]).nan_to_num(0.0, 0.0, 0.0)
        candidates[row, 1] = torch.where(q[row, 0] > 0, ratio, torch.inf).argmin() if row % 2 == 0 else ratio.argmax()
    bench.conforms(
        case.with_arguments(target_probs=p, draft_probs=q, coins=coins, final_coins=final, candidates=candidates)
    )


@pytest.mark.operator(CHAIN)
@pytest.mark.broad
@BLOCKS
def test_decisions_at_vocabulary(bench: Bench, vocab_size: int, block: bool, seed: int) -> None:
    # On both sides of what decides, a thousandth away: it is a sum over the whole vocabulary of a later slot.
    call = ChainCase(max(vocab_size, 2), 4, ("near",), block, seed=seed).call()
    coins = coins_beside_steps(decision(call, 0), 4, 1e-3)
    bench.conforms(probing(call, [0] * len(coins), coins))


@pytest.mark.operator(ACCEPT)
@pytest.mark.broad
@BLOCKS
def test_accept_sampling_at_vocabulary(bench: Bench, vocab_size: int, block: bool, seed: int) -> None:
    limits = ((0.7, 1.0), (50, TOP_K_ALL), (0.95, 1.0))
    case = AcceptCase(max(vocab_size, 2), 4, *limits, block=block, cut=(1, 0), dtype="bfloat16", seed=seed)
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
@pytest.mark.parametrize("kind", ["nan", "inf", "zero", "negative", "one-nan", "one-inf"])
def test_degenerate_target_row_stays_alone(bench: Bench, kind: str, block: bool, seed: int) -> None:
    call = ChainCase(17, 3, ("near", "far", "near"), block, seed=seed).call()
    p = call.tensor("target_probs").clone()
    value = {"nan": torch.nan, "inf": torch.inf, "zero": 0.0, "negative": -0.25}[kind.removeprefix("one-")]
    p[1, :, 3 if kind.startswith("one-") else slice(None)] = value
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
    call = AcceptCase(16, 3, (1.0,) * 33, (4, 9, 2) * 11, (1.0,) * 33, seed=seed).call(ACCEPT, bench.path)
    bench.conforms(call.with_arguments(top_k=call.tensor("top_k").long()))


@pytest.mark.operator(ACCEPT)
@pytest.mark.broad
@pytest.mark.parametrize(("rows", "slots"), [(0, 3), (2, 1)], ids=["no-rows", "no-drafts"])
def test_accept_sampling_of_nothing(bench: Bench, rows: int, slots: int, seed: int) -> None:
    call = AcceptCase(8, slots, (1.0,) * 2, (TOP_K_ALL,) * 2, (1.0,) * 2, seed=seed).call(ACCEPT, bench.path)
    cut = {name: value[:rows] for name, value in call.arguments.items() if isinstance(value, torch.Tensor)}
    bench.conforms(call.with_arguments(**cut))


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
    call = ChainCase(1030 if rows > 1 else 5, 3, ("near",) * max(rows, 1), block, seed=seed).call()
    cut = {name: value[:rows] for name, value in call.arguments.items() if isinstance(value, torch.Tensor)}
    bench.conforms(call.with_arguments(**cut))


@pytest.mark.operator(CHAIN)
@pytest.mark.broad
@BLOCKS
def test_chain_without_drafts_samples(bench: Bench, block: bool, seed: int) -> None:
    bench.conforms(ChainCase(8, 1, ("near", "dyadic", "tails"), block, seed=seed).call())


@pytest.mark.operator(ACCEPT)
@pytest.mark.one_arch
def test_unknown_path_is_refused(bench: Bench, seed: int) -> None:
    call = AcceptCase(8, 2, (1.0,), (4,), (0.9,), seed=seed).call(ACCEPT, "sideways")
    bench.hold(judge_refused(bench.run(call).error, "path = 'sideways'", call))
