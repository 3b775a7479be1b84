"""The end-to-end cases on trial: three verdicts of the judge, the table, the loop around right and wrong verifiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from waveproof.fixtures.engines import loop
from waveproof.fixtures.engines.table import EngineTable
from waveproof.fixtures.models.trigram import Trigram, trigram
from waveproof.golden.judges.evidence import CASE_ALPHA
from waveproof.golden.judges.generated import CONTROL, LAW, PLAIN, Sampled, judge, judge_same
from waveproof.golden.judges.judgement import Nonconformance
from waveproof.golden.references.joint_law import TEMPERATURE_LAST, Filter, joint_law
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.providers import pytorch_verify
from waveproof.reports.engine_rows import render_engines
from waveproof.reports.verdicts import Record, Verdict
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


def drawn(filter: Filter = FILTER, streams: int = STREAMS, seed: int = 0) -> list[tuple[int, ...]]:
    """Sequences drawn from the joint law itself."""
    cells = list(law(filter))
    chosen = torch.multinomial(
        torch.tensor([law(filter)[cell] for cell in cells], dtype=torch.float64),
        streams,
        replacement=True,
        generator=torch.Generator().manual_seed(seed),
    )
    return [cells[at] for at in chosen.tolist()]


HONEST = Sampled(
    engine="engine", draft_kind="draft", sequences=drawn(), drafted=100, accepted=60, steps=50, seconds=1.0
)


# The judge ----------------------------------------------------------------------------------------------------------


def test_honest_engine_is_faithful() -> None:
    evidence, verdict, reason = judge(HONEST, law(), CASE_ALPHA)
    assert (verdict, reason, evidence.n, evidence.alpha) == ("faithful", "", STREAMS, CASE_ALPHA)
    assert HONEST.accepted_per_step == 1.2
    assert HONEST.rejected_per_step == 0.8


@pytest.mark.parametrize("accepted", [0, 100])
def test_speculation_that_shows_nothing_is_inconclusive(accepted: int) -> None:
    judged = judge(replace(HONEST, accepted=accepted), law(), CASE_ALPHA)
    assert judged.verdict == "inconclusive"
    assert "none of 100 draft tokens" in judged.reason


def test_plain_engine_has_nothing_to_accept() -> None:
    assert (
        judge(replace(HONEST, draft_kind=PLAIN, drafted=0, accepted=0, steps=0), law(), CASE_ALPHA).verdict
        == "faithful"
    )


def test_too_few_generations_are_inconclusive() -> None:
    judged = judge(replace(HONEST, sequences=drawn(streams=100)), law(), CASE_ALPHA)
    assert judged.verdict == "inconclusive"
    assert "has to show" in judged.reason


def test_another_temperature_is_unfaithful_even_where_nothing_was_accepted() -> None:
    other = replace(HONEST, sequences=drawn(replace(FILTER, temperature=1.6)), accepted=0)
    assert judge(other, law(), CASE_ALPHA).verdict == "unfaithful"


def test_one_leaked_token_is_unfaithful() -> None:
    outside = next(token for token in range(6) if not any(tokens[0] == token for tokens in law()))
    judged = judge(replace(HONEST, sequences=[*HONEST.sequences, (outside, 0)]), law(), CASE_ALPHA)
    assert judged.verdict == "unfaithful"
    assert "1 generations have no probability" in judged.reason


def test_longer_generations_are_cut_and_shorter_ones_refused() -> None:
    assert (
        judge(replace(HONEST, sequences=[(*tokens, 0) for tokens in HONEST.sequences]), law(), CASE_ALPHA)[1]
        == "faithful"
    )
    with pytest.raises(ValueError, match="must have the 2 tokens"):
        judge(replace(HONEST, sequences=[*HONEST.sequences, (1,)]), law(), CASE_ALPHA)


def test_plain_decoding_of_the_same_law_is_faithful_and_of_another_is_not() -> None:
    plain = replace(HONEST, draft_kind=PLAIN, sequences=drawn(seed=1))
    evidence, verdict, _ = judge_same(plain, HONEST, CASE_ALPHA)
    assert (verdict, evidence.n) == ("faithful", 2 * STREAMS)
    other = replace(plain, sequences=drawn(replace(FILTER, temperature=1.6)))
    _, verdict, reason = judge_same(other, HONEST, CASE_ALPHA)
    assert verdict == "unfaithful"
    assert "its own plain decoding" in reason


@pytest.mark.parametrize("accepted", [0, 100])
def test_against_plain_decoding_too_speculation_has_to_show_something(accepted: int) -> None:
    judged = judge_same(replace(HONEST, sequences=drawn(seed=1)), replace(HONEST, accepted=accepted), CASE_ALPHA)
    assert judged.verdict == "inconclusive"
    assert "none of 100 draft tokens" in judged.reason


def test_generations_of_two_lengths_are_not_compared() -> None:
    shorter = [tokens[:1] for tokens in HONEST.sequences]
    with pytest.raises(ValueError, match=r"of one length, got \[1, 2\]"):
        judge_same(replace(HONEST, sequences=shorter), HONEST, CASE_ALPHA)


# The table ----------------------------------------------------------------------------------------------------------


def test_table_holds_what_was_expected_and_what_was_not() -> None:
    table = EngineTable()
    table.expect(HONEST, law(), CASE_ALPHA)
    with pytest.raises(Nonconformance, match="passes for faithful"):
        table.expect(HONEST, law(), CASE_ALPHA, "unfaithful")
    with pytest.raises(Nonconformance, match="inconclusive: none of 100"):
        table.expect(replace(HONEST, accepted=0), law(), CASE_ALPHA)
    # Nor does a control pass for having shown nothing.
    with pytest.raises(Nonconformance, match="inconclusive: none of 100"):
        table.expect(replace(HONEST, accepted=0), law(), CASE_ALPHA, "unfaithful")
    with pytest.raises(Nonconformance, match="does not sample"):
        table.expect(replace(HONEST, sequences=drawn(replace(FILTER, temperature=1.6))), law(), CASE_ALPHA)
    assert [judgement.rule for judgement in table.judgements] == [LAW, CONTROL, LAW, LAW, LAW]
    assert table.judgements[0].severity < 1 < table.judgements[4].severity
    printed = render_engines(table.rows, 120, colour=False).splitlines()
    assert printed[0].split()[:2] == ["engine", "n"]
    assert printed[2] == "engine"
    assert [line.split()[-1] for line in printed[3:8]] == [
        "faithful",
        "unfaithful",
        "faithful",
        "unfaithful",
        "faithful",
    ]
    assert render_engines([], 120, colour=False) == ""


def test_two_samples_are_one_row() -> None:
    table = EngineTable()
    table.expect_same_law(replace(HONEST, draft_kind=PLAIN, sequences=drawn(seed=1)), HONEST, CASE_ALPHA)
    (row,) = table.rows
    assert (row.draft_kind, row.n, row.seconds, row.verdict) == ("draft", 2 * STREAMS, 2.0, "faithful")
    with pytest.raises(Nonconformance, match="plain decoding"):
        table.expect_same_law(replace(HONEST, sequences=drawn(replace(FILTER, temperature=1.6))), HONEST, CASE_ALPHA)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_table_fits_the_terminal(width: int) -> None:
    """With figures whole, and both error rates below: the power is that of the row that has least."""
    table = EngineTable()
    kind = "a draft that is described in more words than there is room for, T=0.8 k=5 p=0.9"
    table.expect(replace(HONEST, draft_kind=kind, seconds=1234.5), law(), CASE_ALPHA)
    weaker = table.rows[0].model_copy(update={"power": 0.95, "verdict": "unfaithful", "expected": "unfaithful"})
    printed = render_engines([*table.rows, weaker], width, colour=False)
    assert max(map(len, printed.splitlines())) <= width
    # What is flush left is the header, the engine and the last lines, and never the rest of a draft.
    assert [line.split()[0] for line in printed.splitlines() if line[0] != " "][:3] == ["engine", "engine", "2"]
    assert printed.count("1234.5") == printed.count("1.20") == printed.count("0.80") == 2
    words = " ".join(printed.split())
    assert "unfaithful" in words
    assert words.endswith(
        "2 tests of samples: 2.0e-06 false alarms a run; the bias that is said to be seen is found with power 0.95"
    )
    assert ("unfaithful, as due" in printed) == (width > 80)


def test_infinite_statistic_survives_the_record() -> None:
    table = EngineTable()
    outside = next(token for token in range(6) if not any(tokens[0] == token for tokens in law()))
    table.expect(replace(HONEST, sequences=[*HONEST.sequences, (outside, 0)]), law(), CASE_ALPHA, "unfaithful")
    record = Record(id="x", test="x", verdict=Verdict.PASS, engines=tuple(table.rows))
    assert Record.model_validate_json(record.model_dump_json()).engines[0].statistic == float("inf")


@pytest.mark.parametrize("options", [(), ("-n2",)], ids=["alone", "spread"])
def test_row_of_a_run_is_printed_and_recorded(tmp_path: Path, options: tuple[str, ...]) -> None:
    run = run_suite(tmp_path, "--runtime=cpu", "--profile=default", "-k", "chain_over_a_table and torch", *options)
    assert run.exit_status == 0, run.printed
    (record,) = run.of("torch")
    assert [row.verdict for row in record.engines] == ["faithful"]
    assert any(figure.rule == LAW for figure in record.figures)
    lines = run.printed.splitlines()
    row = lines[lines.index("loop: torch cpu") + 1]
    assert row.split()[-1] == "faithful"


def test_absent_engine_is_listed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a package cannot be imported the cases are unavailable, with the engine, and not left unsaid."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['xllamacpp'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = run_suite(tmp_path, "--profile=default", "-k", "test_log_probabilities or test_planted_fault")
    assert {record.verdict for record in run.of("llama.cpp")} == {Verdict.UNAVAILABLE}
    assert {record.reason for record in run.of("llama.cpp")} == {"xllamacpp not installed"}
    assert len(run.of("llama.cpp")) == 7
    assert "llama.cpp" in [line.strip() for line in run.printed.splitlines()]


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
    judged = judge(sampled, law(), CASE_ALPHA)
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
    assert judge(run(SETTINGS["token"], fault), law(), CASE_ALPHA).verdict == "unfaithful"


def test_lossy_threshold_is_found() -> None:
    lossy = loop.Setting("tree", TREE, loop.target_only_verify(threshold_acc=0.5))
    assert judge(run(lossy), law(), CASE_ALPHA).verdict == "unfaithful"


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
