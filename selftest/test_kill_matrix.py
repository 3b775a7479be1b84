"""The suite on trial as a whole: all planted faults of each family rejected, all right implementations passed."""

from __future__ import annotations

import io
from functools import cache

import pytest
from rich.console import Console

from waveproof.reports.verdicts import Failure, Record, Verdict
from waveproof.selftest.kill_matrix import Trial, of_profile, render, run_trials, verdict_on, well
from waveproof.selftest.mutants.mla import DECODE
from waveproof.selftest.mutants.mutant import Mutant
from waveproof.selftest.mutants.renorm import CORRECT, MUTANTS, TOP_K
from waveproof.selftest.mutants.tables import PLANTED, RIGHT, UnknownFamily, on_trial
from waveproof.selftest.public_rules import public_verdicts

ON_TRIAL = [
    (family, mutant, runtime)
    for family in PLANTED
    for mutant in of_profile(on_trial(family), "quick")
    for runtime in mutant.runtimes
]


def _id(case: tuple[str, Mutant, str]) -> str:
    # Without hyphens the plugin's scheduling keeps them on one worker, which runs each matrix once for all.
    return ":".join((case[1].operator, case[1].name, case[2]))


@cache
def trials(family: str) -> dict[tuple[str, str, str], Trial]:
    """All of a family in one run, by operator, name and runtime."""
    found = run_trials(of_profile(on_trial(family), "quick"))
    return {(trial.mutant.operator, trial.mutant.name, trial.runtime): trial for trial in found}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", ON_TRIAL, ids=_id)
def test_comes_out_as_it_must(case: tuple[str, Mutant, str]) -> None:
    """A planted fault breaks the rule that is there for it and has a repro; a right implementation breaks none."""
    family, mutant, runtime = case
    trial = trials(family)[mutant.operator, mutant.name, runtime]
    assert not trial.accidents
    assert trial.cases
    if mutant.seen_by:
        assert trial.killed, f"survived: {mutant.fault}"
        assert mutant.seen_by in trial.kills, f"broke {trial.kills} and not {mutant.seen_by!r}: {mutant.fault}"
        assert trial.shown, "no repro fails in a clean process"
    else:
        assert not trial.killed, f"rejected by {trial.tests}: {trial.kills}"
    assert trial.as_due


def test_every_fault_has_a_docstring_and_a_function() -> None:
    for mutant in on_trial():
        assert mutant.fault, mutant.name
    names = [(mutant.operator, mutant.name, runtime) for mutant in on_trial() for runtime in mutant.runtimes]
    assert len(names) == len(set(names))
    assert len(PLANTED["renorm"]) >= 100
    assert len(PLANTED["mla"]) >= 50


def test_families_are_told_apart() -> None:
    assert on_trial("mla") == PLANTED["mla"] + RIGHT["mla"]
    assert set(on_trial()) == {mutant for table in (PLANTED, RIGHT) for each in table.values() for mutant in each}
    with pytest.raises(UnknownFamily, match="there are: renorm, mla"):
        on_trial("kda")


def _record(verdict: Verdict, rule: str = "", provider: str = "zeros", **changes: object) -> Record:
    failure = Failure(rule=rule, message="wrong", repro="repro_1.py", repro_confirmed=True) if rule else None
    fields = {"id": "x", "test": "test_x", "operator": TOP_K, "provider": provider, "runtime": "cpu", "calls": 1}
    reason = "" if verdict in (Verdict.PASS, Verdict.FAIL) else "no GPU"
    return Record(**{**fields, "verdict": verdict, "failure": failure, "reason": reason, **changes})  # type: ignore[arg-type]


class TestVerdictOnAMutant:
    ZEROS = Mutant("zeros", TOP_K, "kept set", "threshold", "renorm_top_k.py")
    RIGHT = Mutant("right", TOP_K, "", "threshold", "renorm_triton.py")

    def test_killed_by_the_rule_that_is_due(self) -> None:
        trial = verdict_on(self.ZEROS, "cpu", [_record(Verdict.PASS), _record(Verdict.FAIL, "kept set")])
        assert trial.kills == {"kept set": 1}
        assert trial.cases == 2
        assert trial.as_due
        assert trial.repro

    def test_killed_by_another_rule_is_not_as_due(self) -> None:
        trial = verdict_on(self.ZEROS, "cpu", [_record(Verdict.FAIL, "form")])
        assert trial.killed
        assert not trial.as_due

    def test_a_fault_that_does_not_load_is_not_killed(self) -> None:
        trial = verdict_on(self.ZEROS, "cpu", [_record(Verdict.FAIL, "loads", calls=0)])
        assert not trial.killed
        assert trial.accidents

    def test_absence_is_no_kill_and_no_pass(self) -> None:
        for mutant in (self.ZEROS, self.RIGHT):
            trial = verdict_on(mutant, "cpu", [_record(Verdict.UNAVAILABLE, provider=mutant.name, calls=0)])
            assert not trial.killed
            assert not trial.as_due

    def test_nothing_executed_is_no_pass(self) -> None:
        assert not verdict_on(self.RIGHT, "cpu", []).as_due

    def test_other_runtimes_and_names_do_not_count(self) -> None:
        others = [_record(Verdict.FAIL, "kept set", provider="other"), _record(Verdict.FAIL, "form", runtime="hip")]
        assert not verdict_on(self.ZEROS, "cpu", others).killed

    def test_an_unconfirmed_repro_is_not_shown(self) -> None:
        failure = Failure(rule="kept set", message="wrong", repro="repro_1.py", repro_confirmed=False)
        trial = verdict_on(self.ZEROS, "cpu", [_record(Verdict.FAIL, failure=failure)])
        assert trial.as_due
        assert not trial.shown
        assert not well([trial])

    def test_a_survivor_is_told_by_name(self) -> None:
        trial = verdict_on(self.ZEROS, "cpu", [_record(Verdict.PASS)])
        stream = io.StringIO()
        render([trial], 1.0, Console(file=stream, width=160))
        assert "SURVIVED: top_k_renorm_prob zeros: Nothing but zeros." in stream.getvalue()
        assert not well([trial])


class TestPublicRules:
    """Facts that were measured before: what these rules let through, and that they reject something."""

    def test_zeros_pass_for_top_p(self) -> None:
        zeros = next(mutant for mutant in MUTANTS if (mutant.operator, mutant.name) == ("top_p_renorm_prob", "zeros"))
        assert not any(public_verdicts(zeros).rejects.values())

    def test_uniform_passes_for_top_k_and_zeros_do_not(self) -> None:
        named = {mutant.name: mutant for mutant in MUTANTS if mutant.operator == TOP_K}
        assert not any(public_verdicts(named["uniform_over_kept"]).rejects.values())
        assert public_verdicts(named["zeros"]).rejects["close 1e-3"]

    def test_right_implementations_pass(self) -> None:
        for mutant in CORRECT:
            if mutant.operator != "target_probs" and mutant.runtimes == ("cpu",) and mutant.name != "top_k_heap":
                assert not any(public_verdicts(mutant).rejects.values()), mutant.name

    @pytest.mark.parametrize("name", ["half_scale", "dead_head"])
    def test_a_tenth_lets_large_faults_of_mla_decode_pass(self, name: str) -> None:
        fault = next(mutant for mutant in PLANTED["mla"] if (mutant.operator, mutant.name) == (DECODE, name))
        verdicts = public_verdicts(fault)
        assert verdicts.shows
        assert not verdicts.rejects["0.1, 5 %"]
        assert verdicts.rejects["cosine > 0.99"]

    def test_an_exit_status_sees_no_zeros(self) -> None:
        zeros = next(mutant for mutant in PLANTED["mla"] if (mutant.operator, mutant.name) == (DECODE, "zeros"))
        assert [name for name, rejects in public_verdicts(zeros).rejects.items() if not rejects] == [
            "1e-2, 5 % (exit status)"
        ]

    def test_right_decodes_pass(self) -> None:
        for name in ("decode_by_tiles", "decode_by_splits"):
            right = next(mutant for mutant in RIGHT["mla"] if mutant.name == name)
            assert not any(public_verdicts(right).rejects.values()), name
