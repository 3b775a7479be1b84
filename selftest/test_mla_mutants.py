"""The planted faults of family ``mla`` before any conformance test: each is one, and the right ones are right.

A few calls for each operator, chosen so that every fault shows in one of them; the judges are those of the suite, and
what a fault does to memory is seen by the worker's guards. How the suite's tests fare is the kill matrix's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch

from waveproof.fixtures.strategies.mla import AttentionCase, MergeCase
from waveproof.fixtures.strategies.mla_calls import moved_to_the_end
from waveproof.golden.judges import conformance, relations
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.mla import PAD_MODES
from waveproof.kernels.providers.external import parse_provider
from waveproof.kernels.providers.registry import Implementation
from waveproof.kernels.runtimes.execution import Execution, open_execution
from waveproof.kernels.runtimes.memory import Incident
from waveproof.kernels.runtimes.worker import run
from waveproof.selftest.mutants.mla import (
    ABSORBED,
    CORRECT,
    DECODE,
    EXTEND,
    MERGE,
    MUTANTS,
    PAD,
    PREFILL,
    REFUSED,
    SURVIVES,
    UNPAD,
)
from waveproof.selftest.mutants.mutant import Mutant
from waveproof.selftest.suite_runs import ROOT

FN, FNUZ = "float8_e4m3fn", "float8_e4m3fnuz"
CASES: dict[str, tuple[AttentionCase, ...]] = {
    DECODE: (
        AttentionCase(12, ((2, 40), (1, 65), (4, 17)), "spotlight", 16, garbage="nan"),
        AttentionCase(20, ((1, 300), (2, 70), (1, 0)), "offset", 1, "float16", layout="strided"),
        AttentionCase(5, ((1, 40), (1, 5), (1, 129), (2, 33)), "offset", 64, "bfloat16", FN),
        AttentionCase(16, ((1, 131),), "noise", 16, FNUZ, FNUZ),
        AttentionCase(12, ((1, 300), (4, 66), (3, 1)), "large"),
        AttentionCase(12, ((1, 7), (1, 64), (2, 2)), "newest", 16),
        AttentionCase(2, ((1, 4096),), "flat", 16),
    ),
    ABSORBED: (
        AttentionCase(12, ((70, 70), (5, 90), (33, 128)), "offset", 1),
        AttentionCase(5, ((17, 17), (3, 70)), "spotlight", 16, "bfloat16", FN, garbage="nan"),
    ),
    EXTEND: (
        AttentionCase(12, ((5, 40), (7, 0), (3, 17)), "offset", 16, "bfloat16", FN, garbage="nan"),
        AttentionCase(4, ((4, 20), (2, 100), (9, 31)), "spotlight", 16),
    ),
    PREFILL: (
        AttentionCase(12, ((2, 20), (70, 70), (3, 1), (5, 90)), "offset", layout="strided"),
        AttentionCase(6, ((9, 40), (3, 17)), "spotlight", kv_dtype=FN, causal=False),
    ),
}
"""Of attention; the first shows most faults."""


@cache
def calls(operator: str, implementation: Implementation) -> tuple[Call, ...]:
    """What an implementation is called with, twice each."""
    generator = torch.Generator().manual_seed(3)
    if operator == MERGE:
        cases = [
            MergeCase(4, 5, dtype="float16", difference=1.0),
            *(MergeCase(3, 5, empty=empty, leftovers=float("nan")) for empty in ("a", "b", "ab")),
            MergeCase(4, 5, dtype="float32", difference=200.0),
            MergeCase(4, 5, difference=-200.0),
        ]
        merged = [case.call(2) for case in cases]
        return (*merged, merged[0].with_arguments(out_a=_wide(merged[0], "out_a"), out_b=_wide(merged[0], "out_b")))
    if operator in (PAD, UNPAD):
        many = [torch.randn(3, heads, 64, generator=generator) for heads in (12, 5, 8, 16)]
        padded = [*(x.bfloat16() for x in many), many[0], many[0].transpose(0, 1).contiguous().transpose(0, 1)]
        whole = [many[-1], many[-1][..., 0].contiguous()]
        pads = [(x, target, mode) for x in padded for target in (16, 24) for mode in PAD_MODES]
        unpads = [(x, heads, mode) for x in whole for heads in (12, 8, 4) for mode in PAD_MODES]
        name = "target" if operator == PAD else "heads"
        chosen = [
            (x, count, mode)
            for x, count, mode in (pads if operator == PAD else unpads)
            if mode != "repeat" or max(count, x.shape[1]) % min(count, x.shape[1]) == 0
        ]
        return tuple(Call(operator, {"x": x, name: count, "mode": mode}, 2) for x, count, mode in chosen)
    made = [within(case, implementation).call(operator, 2) for case in CASES[operator]]
    made.append(made[0].with_arguments(sm_scale=0.11))
    if operator == PREFILL:
        made.append(made[0].with_arguments(k=_wide(made[0], "k"), v=_wide(made[0], "v")))
        return tuple(made)
    made.append(made[0].with_arguments(kv_cache=_wide(made[0], "kv_cache")))
    if operator == DECODE:
        made += [_shared_prefix(implementation), _low_scores(implementation)]
    return tuple(made)


def within(case: AttentionCase, implementation: Implementation) -> AttentionCase:
    """The case, or the one of 16 heads, one query, bfloat16 and pages of one token that all declare to compute."""
    if not implementation.heads:
        return case
    requests = tuple((1, max(1, tokens)) for _, tokens in case.requests)
    return replace(case, heads=16, requests=requests, dtype="bfloat16", kv_dtype="", page_size=1)


def _wide(call: Call, name: str) -> torch.Tensor:
    """The same values as part of a wider tensor."""
    value = call.arguments[name]
    assert isinstance(value, torch.Tensor)
    wide = torch.zeros(*value.shape[:-1], value.shape[-1] + 64).to(value.dtype)
    wide[..., : value.shape[-1]] = value
    return wide[..., : value.shape[-1]]


def _shared_prefix(implementation: Implementation) -> Call:
    """Two requests whose first pages are the same."""
    call = within(AttentionCase(16, ((1, 48), (1, 48)), "spotlight", 16), implementation).call(DECODE, 2)
    pages = call.arguments["kv_indices"]
    assert isinstance(pages, torch.Tensor)
    own = len(pages) // 2
    return call.with_arguments(kv_indices=torch.cat([pages[:own], pages[: own - 1], pages[-1:]]))


def _low_scores(implementation: Implementation) -> Call:
    """Scores of about -170 for all keys."""
    call = within(AttentionCase(16, ((1, 40), (1, 130)), "noise"), implementation).call(DECODE, 2)
    q, cache = call.arguments["q"], call.arguments["kv_cache"]
    assert isinstance(q, torch.Tensor)
    assert isinstance(cache, torch.Tensor)
    q, cache = q.clone(), cache.clone()
    q[..., -1], cache[..., -1] = torch.tensor(-48.0).to(q.dtype), torch.tensor(48.0).to(cache.dtype)
    return call.with_arguments(q=q, kv_cache=cache)


def refused_calls(mutant: Mutant, implementation: Implementation) -> Iterator[Call]:
    """What it declares not to compute, or what nobody may."""
    if mutant.operator == DECODE:
        whole = within(AttentionCase(16, ((1, 40), (1, 5)), "noise", 1), implementation)
        if implementation.heads:
            yield replace(whole, heads=12).call(DECODE)
        if implementation.longest_query:
            yield replace(whole, requests=((2, 40), (1, 5))).call(DECODE)
        if implementation.page_sizes:
            yield replace(whole, page_size=16).call(DECODE)
        return
    x, name = torch.zeros(2, 12, 4), "target" if mutant.operator == PAD else "heads"
    beyond = 8 if mutant.operator == PAD else 16
    for count, mode in ((beyond, "zero"), (beyond, "mirror"), (24 - beyond, "mirror"), (24 - beyond, "repeat")):
        yield Call(mutant.operator, {"x": x, name: count, "mode": mode})


@pytest.fixture(scope="module")
def cpu() -> Execution:
    return open_execution("cpu", "")


def broken_rules(
    mutant: Mutant, implementation: Implementation, cpu: Execution, given: Iterator[Call]
) -> Iterator[str]:
    """Rules that the calls break, one after the other."""
    due = [result.name not in implementation.omits for result in implementation.contract.returns]
    for call in given:
        reply, outputs = run(cpu, mutant.function(), sum(due), call)
        judgements = [
            relations.judge_incidents([Incident(**incident) for incident in reply["incidents"]], call),
            relations.judge_returned(reply["error"], call),
        ]
        if all(judgement.holds for judgement in judgements):
            results = [outputs[name] for name in reply["outputs"]]
            forms = [form for form, is_due in zip(conformance.forms(call), due, strict=True) if is_due]
            judgements += conformance.judge_forms(results, forms, call)
            if all(judgement.holds for judgement in judgements):
                judgements += conformance.judge_outputs(results, call, mutant.variant)
        yield from (f"{judgement.rule}: {judgement.message}" for judgement in judgements if not judgement.holds)


def declared(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> Implementation:
    """What the table says of it, read as the suite reads it; of one name, so that equal ones share their calls."""
    monkeypatch.chdir(ROOT)
    return replace(parse_provider(mutant.option(ROOT)), provider="on-trial", load="", origin="")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.operator}:{mutant.name}")
def test_is_a_fault(mutant: Mutant, cpu: Execution, monkeypatch: pytest.MonkeyPatch) -> None:
    """It breaks a rule, or answers what it must refuse; what takes the process down is left to the kill matrix."""
    implementation = declared(mutant, monkeypatch)
    if mutant.seen_by == SURVIVES:
        return
    if mutant.seen_by == REFUSED or implementation.heads or implementation.longest_query or implementation.page_sizes:
        results = len(implementation.contract.returns)
        replies = [run(cpu, mutant.function(), results, call)[0] for call in refused_calls(mutant, implementation)]
        assert any(reply["error"] is None for reply in replies)
    elif mutant.name == "offsets_in_31_bits":
        call = calls(DECODE, implementation)[0]
        outputs = [run(cpu, mutant.function(), 2, each)[1]["out0"] for each in (call, moved_to_the_end(call))]
        assert not torch.equal(*outputs)
    else:
        given = iter(calls(mutant.operator, implementation))
        assert next(broken_rules(mutant, implementation, cpu, given), None), f"not to be seen: {mutant.fault}"


@pytest.mark.parametrize("mutant", CORRECT, ids=lambda mutant: f"{mutant.operator}:{mutant.name}")
def test_is_right(mutant: Mutant, cpu: Execution, monkeypatch: pytest.MonkeyPatch) -> None:
    implementation = declared(mutant, monkeypatch)
    given = iter(calls(mutant.operator, implementation))
    assert not list(broken_rules(mutant, implementation, cpu, given))
    if mutant.operator in (PAD, UNPAD) or implementation.heads:
        for call in refused_calls(mutant, implementation):
            assert relations.judge_refused(run(cpu, mutant.function(), 1, call)[0]["error"], "declared", call).holds
