"""The end-to-end cases on trial: three verdicts of the judge, the table, the loop around right and wrong verifiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from waveproof.fixtures.engines import loop
from waveproof.fixtures.engines.engine import ALPHA, PLAIN, Sampled, judge
from waveproof.fixtures.engines.table import CONTROL, LAW, EngineTable, lines
from waveproof.fixtures.models.trigram import Trigram, trigram
from waveproof.golden.judges.judgement import Nonconformance
from waveproof.golden.references.joint_law import TEMPERATURE_LAST, Filter, joint_law
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.providers import pytorch_verify
from waveproof.selftest.suite_runs import run_suite

PROMPT = (1, 2)
FILTER = Filter(0.8, 5, 0.95)
STREAMS = 4000


@cache
def model() -> Trigram:
    return trigram(6, seed=0)


@cache
def law(filter: Filter = FILTER) -> Mapping[tuple[int, ...], float]:
    return joint_law(model().after, PROMPT, 2, filter)


def drawn(filter: Filter = FILTER, streams: int = STREAMS) -> list[tuple[int, ...]]:
    """Sequences drawn from the joint law itself."""
    cells = list(law(filter))
    chosen = torch.multinomial(
        torch.tensor([law(filter)[cell] for cell in cells], dtype=torch.float64),
        streams,
        replacement=True,
        generator=torch.Generator().manual_seed(0),
    )
    return [cells[at] for at in chosen.tolist()]


HONEST = Sampled("engine", "draft", drawn(), drafted=100, accepted=60, steps=50, seconds=1.0)


# The judge ----------------------------------------------------------------------------------------------------------


def test_honest_engine_is_faithful() -> None:
    evidence, verdict, reason = judge(HONEST, law(), ALPHA)
    assert (verdict, reason, evidence.n, evidence.alpha) == ("faithful", "", STREAMS, ALPHA)
    assert HONEST.accepted_per_step == 1.2
    assert HONEST.rejected_per_step == 0.8


@pytest.mark.parametrize("accepted", [0, 100])
def test_speculation_that_shows_nothing_is_inconclusive(accepted: int) -> None:
    judged = judge(replace(HONEST, accepted=accepted), law(), ALPHA)
    assert judged.verdict == "inconclusive"
    assert "none of 100 draft tokens" in judged.reason


def test_plain_engine_has_nothing_to_accept() -> None:
    assert judge(replace(HONEST, draft_kind=PLAIN, drafted=0, accepted=0, steps=0), law(), ALPHA).verdict == "faithful"


def test_too_few_generations_are_inconclusive() -> None:
    judged = judge(replace(HONEST, sequences=drawn(streams=100)), law(), ALPHA)
    assert judged.verdict == "inconclusive"
    assert "has to show" in judged.reason


def test_another_temperature_is_unfaithful_even_where_nothing_was_accepted() -> None:
    other = replace(HONEST, sequences=drawn(replace(FILTER, temperature=1.6)), accepted=0)
    assert judge(other, law(), ALPHA).verdict == "unfaithful"


def test_one_leaked_token_is_unfaithful() -> None:
    outside = next(token for token in range(6) if not any(tokens[0] == token for tokens in law()))
    judged = judge(replace(HONEST, sequences=[*HONEST.sequences, (outside, 0)]), law(), ALPHA)
    assert judged.verdict == "unfaithful"
    assert "1 generations have no probability" in judged.reason


def test_longer_generations_are_cut_and_shorter_ones_refused() -> None:
    assert (
        judge(replace(HONEST, sequences=[(*tokens, 0) for tokens in HONEST.sequences]), law(), ALPHA)[1] == "faithful"
    )
    with pytest.raises(ValueError, match="must have the 2 tokens"):
        judge(replace(HONEST, sequences=[*HONEST.sequences, (1,)]), law(), ALPHA)


# The table ----------------------------------------------------------------------------------------------------------


def test_table_holds_what_was_expected_and_what_was_not() -> None:
    table = EngineTable()
    table.expect(HONEST, law(), ALPHA)
    with pytest.raises(Nonconformance, match="passes for faithful"):
        table.expect(HONEST, law(), ALPHA, "unfaithful")
    with pytest.raises(Nonconformance, match="inconclusive: none of 100"):
        table.expect(replace(HONEST, accepted=0), law(), ALPHA)
    # Nor does a control pass for having shown nothing.
    with pytest.raises(Nonconformance, match="inconclusive: none of 100"):
        table.expect(replace(HONEST, accepted=0), law(), ALPHA, "unfaithful")
    with pytest.raises(Nonconformance, match="does not sample"):
        table.expect(replace(HONEST, sequences=drawn(replace(FILTER, temperature=1.6))), law(), ALPHA)
    assert [judgement.rule for judgement in table.judgements] == [LAW, CONTROL, LAW, LAW, LAW]
    assert table.judgements[0].severity < 1 < table.judgements[4].severity
    printed = lines(table.records)
    assert len(printed) == 7
    assert printed[0].split()[:3] == ["engine", "draft", "n"]
    assert "faithful (must be unfaithful)" in printed[2]
    assert lines([]) == []


@pytest.mark.parametrize("options", [(), ("-n2",)], ids=["alone", "spread"])
def test_row_of_a_run_is_printed_and_recorded(tmp_path: Path, options: tuple[str, ...]) -> None:
    run = run_suite(tmp_path, "--runtime=cpu", "-k", "chain_over_a_table and torch", *options)
    assert run.exit_status == 0, run.printed
    (record,) = run.of("torch")
    assert [row["verdict"] for row in record.engines] == ["faithful"]
    assert any(figure.rule == LAW for figure in record.figures)
    row = next(line for line in run.printed.splitlines() if line.startswith("loop: torch cpu"))
    assert row.split()[-2] == "faithful"


# The loop -----------------------------------------------------------------------------------------------------------


def torch_verifier(call: Call) -> loop.Verified:
    return getattr(pytorch_verify, call.operator)(*call.arguments.values())


def setting(asking: loop.Asking, greedy: bool = False) -> loop.Setting:
    return loop.Setting("draft", loop.chain(model().with_noise(1.0, seed=1), 2, greedy), asking)


def run(setting: loop.Setting, verifying: loop.Verifying = torch_verifier, filter: Filter = FILTER) -> Sampled:
    return loop.generate("loop", setting, verifying, model(), PROMPT, 2, STREAMS, filter, seed=0)


TREE = loop.tree(model().with_noise(1.0, seed=1), (3, 2))
SETTINGS = {
    "token": setting(loop.chain_verify(False)),
    "block": setting(loop.chain_verify(True)),
    "argmax": setting(loop.chain_verify(False), greedy=True),
    "dense": setting(loop.accept_sampling(False, "dense")),
    "sparse": setting(loop.accept_sampling(True, "sparse")),
    "tree": loop.Setting("tree", TREE, loop.target_only_verify()),
    "target-only": setting(loop.target_only_accept_sampling("dense"), greedy=True),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_right_verifier_is_faithful(name: str) -> None:
    sampled = run(SETTINGS[name])
    judged = judge(sampled, law(), ALPHA)
    assert judged.verdict == "faithful", judged.reason
    assert 0.1 < sampled.accepted_per_step < 1.9
    assert sampled.accepted_per_step + sampled.rejected_per_step == pytest.approx(2.0)
    assert sampled.accepted + sampled.steps == sum(map(len, sampled.sequences))


def target_for_residual(call: Call) -> loop.Verified:
    accept_len, tokens = torch_verifier(call)
    rows = torch.arange(len(tokens))
    again = torch.multinomial(call.tensor("target_probs")[rows, accept_len.long()], 1)[:, 0]
    return accept_len, tokens.index_put((rows, accept_len.long()), again.to(tokens.dtype))


def draft_ignored(call: Call) -> loop.Verified:
    probs = call.tensor("draft_probs")
    return torch_verifier(call.with_arguments(draft_probs=torch.full_like(probs, 1.0 / probs.shape[-1])))


def one_coin(call: Call) -> loop.Verified:
    coins = call.tensor("coins")
    return torch_verifier(call.with_arguments(final_coins=coins[:, 0].clone(), coins=coins[:, :1].expand_as(coins)))


def draft_always_accepted(call: Call) -> loop.Verified:
    return torch_verifier(call.with_arguments(coins=torch.zeros_like(call.tensor("coins"))))


def final_coin_ignored(call: Call) -> loop.Verified:
    return torch_verifier(call.with_arguments(final_coins=torch.zeros_like(call.tensor("final_coins"))))


@pytest.mark.parametrize(
    "fault", [target_for_residual, draft_ignored, one_coin, draft_always_accepted, final_coin_ignored]
)
def test_wrong_verifier_is_found(fault: loop.Verifying) -> None:
    torch.manual_seed(0)
    assert judge(run(SETTINGS["token"], fault), law(), ALPHA).verdict == "unfaithful"


def test_lossy_threshold_is_found() -> None:
    lossy = loop.Setting("tree", TREE, loop.target_only_verify(threshold_acc=0.5))
    assert judge(run(lossy), law(), ALPHA).verdict == "unfaithful"


def test_equal_seeds_give_equal_streams() -> None:
    assert run(SETTINGS["token"]).sequences == run(SETTINGS["token"]).sequences


@pytest.mark.parametrize(
    "spoil",
    [
        lambda accept_len, tokens: (accept_len + 3, tokens),
        lambda accept_len, tokens: (accept_len - 3, tokens),
        lambda accept_len, tokens: (accept_len, tokens + 6),
        lambda accept_len, tokens: (accept_len, torch.full_like(tokens, -1)),
    ],
)
def test_answer_outside_the_vocabulary_ends_the_loop(spoil: Callable[..., loop.Verified]) -> None:
    with pytest.raises(loop.BrokenVerifier, match="vocabulary of 6"):
        run(SETTINGS["token"], lambda call: spoil(*torch_verifier(call)))


def test_filters_that_the_operators_do_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="bans nothing"):
        run(SETTINGS["token"], filter=Filter(order=TEMPERATURE_LAST))
    with pytest.raises(ValueError, match="no top-k or top-p"):
        run(setting(loop.seeded_chain_verify()))
