"""Captures of family ``mla`` on trial: who is asked for what, and what a diff finds in the answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from waveproof.golden import mla_cases
from waveproof.golden.capture import REFERENCE, Answer, Source, capture
from waveproof.golden.cases import Case
from waveproof.golden.compare import compare_store
from waveproof.golden.store import GoldenStore
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.mla import NARROW, WIDE
from waveproof.kernels.providers import padded_mla, pytorch_mla
from waveproof.kernels.providers.registry import Implementation, builtin_implementations
from waveproof.kernels.runtimes.process import WorkerPool
from waveproof.reports import golden_sources
from waveproof.reports.cli import app
from waveproof.selftest.test_mla_goldens import (
    DECODE,
    EXTEND,
    HELD,
    MERGE,
    PREFILL,
    PROVENANCE,
    Outputs,
    correct,
    diffed,
    named,
    same,
)


@pytest.fixture(scope="module")
def cases() -> tuple[Case, ...]:
    return mla_cases.small_cases()


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool()
    yield pool
    pool.close()


# Implementations ------------------------------------------------------------------------------------------------------


def test_torch_on_the_cpu_is_captured_and_agrees_with_float64(
    tmp_path: Path, cases: tuple[Case, ...], pool: WorkerPool
) -> None:
    store = GoldenStore(tmp_path)
    sources = golden_sources.implementation_sources("cpu", pytorch_mla.IMPLEMENTATIONS, pool)
    assert {attempt.result for attempt in capture(sources, store, cases)} == {"stored"}
    comparisons = list(compare_store(store))
    assert len(comparisons) == len(cases)
    assert {item for comparison in comparisons for item in comparison.disagreements} == set()
    assert all(0 < comparison.severity <= 1 for comparison in comparisons)
    assert store.verify() == ()
    back = store.load("mla_prefill-wide-h2-q2-kv9-fp16-full-ragged-noise-torch-cpu").call.arguments
    assert back["causal"] is False


def test_padded_heads_on_the_emulated_device_are_held_to_the_committed_inputs(
    tmp_path: Path, cases: tuple[Case, ...], pool: WorkerPool
) -> None:
    """Twelve heads, two queries, on AITER's objects for sixteen; and sixteen, which need no padding."""
    decode = [item for item in padded_mla.IMPLEMENTATIONS if item.operator == DECODE]
    sources = golden_sources.implementation_sources("emulate", tuple(decode), pool)
    native = [source for source in sources if source.runtime == "emulate-gfx950"]
    chosen = [case for case in cases if case.name.startswith(("h12-q2", "h16-q1")) and "bf16-p1" in case.name]
    store, committed = GoldenStore(tmp_path), GoldenStore()
    attempts = list(capture(native, store, chosen))
    if "not installed" in attempts[0].reason:
        pytest.skip(attempts[0].reason)
    assert [(attempt.result, attempt.reason) for attempt in attempts] == [("stored", "")] * 2
    for comparison in compare_store(store):
        assert not comparison.disagreements
        assert tuple(comparison.golden.outputs) == ("out",)
        ours = store.load(comparison.golden.id)
        theirs = committed.load(f"{DECODE}-{WIDE}-{comparison.golden.case}-{REFERENCE}")
        assert all(map(same, ours.call.arguments.values(), theirs.call.arguments.values()))
        assert (ours.outputs[0].double() - theirs.outputs[0]).norm() < 2.0**-7 * theirs.outputs[0].norm()


def _one_head_off(outputs: Outputs) -> Outputs:
    outputs[0][0, 1] *= 1.02
    return outputs


def _swapped_heads(outputs: Outputs) -> Outputs:
    return outputs[0].roll(1, 1), outputs[1]


def _nan(outputs: Outputs) -> Outputs:
    outputs[0][0, 0, 3] = torch.nan
    return outputs


def _zeros(outputs: Outputs) -> Outputs:
    return torch.zeros_like(outputs[0]), outputs[1]


def _lse_to_base_two(outputs: Outputs) -> Outputs:
    return outputs[0], outputs[1] / math.log(2.0)


def _lse_off(outputs: Outputs) -> Outputs:
    outputs[1][0, 0] += 1e-3
    return outputs


_PLANTED: dict[Callable[[Outputs], Outputs], str] = {
    _one_head_off: "head scale",
    _swapped_heads: "attention output",
    _nan: "attention output",
    _zeros: "attention output",
    _lse_to_base_two: "natural LSE",
    _lse_off: "natural LSE",
}


@pytest.mark.parametrize("fault", _PLANTED, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize(
    ("operator", "word"), [(DECODE, "h12-q2"), (DECODE, "h16-q1-kv9-fp8"), (EXTEND, "h3"), (PREFILL, "h12")]
)
def test_a_planted_difference_is_found(
    tmp_path: Path, cases: tuple[Case, ...], operator: str, word: str, fault: Callable[[Outputs], Outputs]
) -> None:
    case = named(cases, operator, word)
    assert not diffed(tmp_path / "right", case, lambda outputs: outputs).disagreements
    found = diffed(tmp_path / "wrong", case, fault)
    assert _PLANTED[fault] in [item.rule for item in found.disagreements]
    assert found.severity > 1


@pytest.mark.parametrize(
    ("fault", "rule"), [(_nan, "merged output"), (_zeros, "merged output"), (_lse_off, "merged LSE")]
)
def test_a_planted_difference_of_a_merge_is_found(
    tmp_path: Path, cases: tuple[Case, ...], fault: Callable[[Outputs], Outputs], rule: str
) -> None:
    for case in (case for case in cases if case.operator == MERGE):
        assert not diffed(tmp_path / "right" / case.name, case, lambda outputs: outputs).disagreements
        assert rule in [item.rule for item in diffed(tmp_path / "wrong" / case.name, case, fault).disagreements]


def test_the_narrow_variant_is_allowed_what_the_wide_one_is_not(tmp_path: Path, cases: tuple[Case, ...]) -> None:
    case = named(cases, DECODE, "kv130")

    def rounded_weights(call: Call) -> Answer:
        out, lse = correct(call)
        return Answer((out * 1.02, lse), PROVENANCE)

    store = GoldenStore(tmp_path)
    sources = [Source("made-up", DECODE, variant, "cpu", rounded_weights) for variant in (WIDE, NARROW)]
    list(capture(sources, store, [case]))
    found = {comparison.golden.variant: bool(comparison.disagreements) for comparison in compare_store(store)}
    assert found == {WIDE: True, NARROW: False}


def test_an_omitted_lse_is_judged_by_nothing_and_only_where_it_is_declared(
    tmp_path: Path, cases: tuple[Case, ...]
) -> None:
    case = named(cases, DECODE, "h2-q4")
    omitted = diffed(tmp_path / "declared", case, lambda outputs: outputs[:1], omits=("lse",))
    assert not omitted.disagreements
    assert tuple(omitted.golden.outputs) == ("out",)
    (wrong,) = diffed(tmp_path / "form", case, lambda o: (o[0].float(),), omits=("lse",)).disagreements
    assert wrong.rule == "form"

    def run(call: Call) -> Answer:
        return Answer(correct(call)[:1], PROVENANCE)

    (attempt,) = capture([Source("made-up", DECODE, WIDE, "cpu", run)], GoldenStore(tmp_path / "undeclared"), [case])
    assert attempt.reason == "mla_decode returns 2 tensors, here are 1"
    misdeclared = Source("made-up", DECODE, WIDE, "cpu", run, omits=("out",))
    with pytest.raises(ValueError, match="outputs are lse; mla_decode has out, lse"):
        list(capture([misdeclared], GoldenStore(tmp_path / "misdeclared"), [case]))


# Sources --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "word", "taken"),
    [
        ({}, "h12-q2", True),
        ({"heads": (16, 128)}, "h12-q2", False),
        ({"heads": (16, 128)}, "h16-q1-kv9", True),
        ({"dtypes": ("bfloat16/bfloat16",)}, "kv130", False),
        ({"dtypes": ("bfloat16/float8_e4m3fn",)}, "kv130", True),
        ({"longest_query": 1}, "h12-q2", False),
        ({"page_sizes": (1,)}, "kv130", False),
        ({"most_requests": 1}, "ragged", False),
        ({"equal_queries": True}, "ragged", False),
    ],
    ids=str,
)
def test_an_implementation_is_asked_for_what_it_declares(
    cases: tuple[Case, ...], limits: dict[str, object], word: str, taken: bool
) -> None:
    implementation = replace(pytorch_mla.IMPLEMENTATIONS[0], **limits)  # type: ignore[arg-type]
    assert golden_sources.computes(implementation, named(cases, DECODE, word).call) is taken


def test_every_implementation_on_cuda_is_asked_for_something(pool: WorkerPool) -> None:
    """The sources of the day on which a GPU is there; nothing runs here."""
    cases = (*mla_cases.small_cases(), *mla_cases.serving_cases())
    sources = [
        source
        for source in golden_sources.implementation_sources("cuda", builtin_implementations(), pool)
        if source.operator in HELD
    ]
    asked = {(source.provider, source.operator): [case for case in cases if source.takes(case)] for source in sources}
    assert {provider for provider, _ in asked} >= {"torch", "sglang", "sglang_fp8"}
    assert [who for who, taken in asked.items() if not taken] == []
    assert any(case.name.startswith("h12") for case in asked["sglang", DECODE])


def test_keys_of_prefill_must_be_its_queries_where_that_is_declared(cases: tuple[Case, ...]) -> None:
    implementation = replace(pytorch_mla.IMPLEMENTATIONS[3], keys_are_queries=True)
    computed = [
        case.name for case in cases if case.operator == PREFILL and golden_sources.computes(implementation, case.call)
    ]
    assert computed == ["h12-q2-kv2-bf16-noise"]


_SLOW = """
import time
import torch

def merge(out_a, lse_a, out_b, lse_b):
    time.sleep(0.4)
    return out_a.clone(), lse_a.clone()
"""


def test_the_first_call_may_take_longer_than_the_others(
    tmp_path: Path, cases: tuple[Case, ...], pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(golden_sources, "CALL_SECONDS", 0.2)
    file = tmp_path / "slow.py"
    file.write_text(_SLOW)
    slow = Implementation("slow", MERGE, "natural", ("cpu",), f"{file}:merge")
    few = [case for case in cases if case.operator == MERGE][:2]
    sources = golden_sources.implementation_sources("cpu", (slow,), pool)
    attempts = list(capture(sources, GoldenStore(tmp_path / "store"), few))
    assert [attempt.result for attempt in attempts] == ["stored", "refused"]
    assert "no answer after 0.2 s" in attempts[1].reason


def test_the_command_captures_one_family_and_compares_it(tmp_path: Path) -> None:
    def run(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["golden", *map(str, arguments)], env={"COLUMNS": "200", "NO_COLOR": "1"})
        return result.exit_code, result.output

    store = tmp_path / "store"
    captured = ("capture", "--runtime", "cpu", "--family", "mla", "--provider", "torch", "--out", store)
    code, said = run(*captured)
    assert (code, "torch mla_decode wide: 7 stored" in said, "renorm" in said) == (0, True, False)
    assert run("verify", store)[0] == 0
    code, said = run("diff", store)
    assert (code, "mla_prefill" in said, "disagreements" in said) == (0, True, False)
    code, said = run(*captured[:4], "mlaa", *captured[5:])
    assert code == 2
    assert "no cases of family 'mlaa'; there are: renorm, mla" in said
