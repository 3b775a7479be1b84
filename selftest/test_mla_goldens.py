"""Goldens of family ``mla`` on trial: several outputs, omitted ones, 8-bit tensors and flags are stored and judged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from waveproof.golden import mla_cases, renorm_cases
from waveproof.golden.capture import REFERENCE, Answer, Source, capture, provenance_of, reference_sources
from waveproof.golden.cases import Case
from waveproof.golden.compare import Comparison, compare_store
from waveproof.golden.manifest import MANIFEST, BadManifest, describe_arguments, describe_outputs
from waveproof.golden.references.outputs import distinct_variants, reference_outputs
from waveproof.golden.store import GoldenStore
from waveproof.kernels.operators.contract import Call, Value
from waveproof.kernels.operators.mla import NARROW, OPERATORS, WIDE

PROVENANCE = provenance_of("made-up", "1", "cpu", "cpu", {"torch": torch.__version__})
DECODE, EXTEND, PREFILL, MERGE = "mla_decode", "mla_extend", "mla_prefill", "merge_state"
HELD = (DECODE, EXTEND, PREFILL, MERGE)
"""Operators with committed goldens."""

Outputs = tuple[torch.Tensor, ...]


@pytest.fixture(scope="module")
def cases() -> tuple[Case, ...]:
    return mla_cases.small_cases()


def named(cases: tuple[Case, ...], operator: str, word: str) -> Case:
    (case,) = (case for case in cases if case.operator == operator and word in case.name)
    return case


def correct(call: Call, variant: str = WIDE) -> Outputs:
    """Float64 rounded to the form that is due."""
    first = next(value for value in call.arguments.values() if isinstance(value, torch.Tensor))
    dtype = torch.bfloat16 if first.dtype.itemsize == 1 else first.dtype
    out, lse = (exact.value for exact in reference_outputs(call, variant))
    return out.to(dtype), lse.float()


def same(one: Value, two: Value) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        shape = one.shape == two.shape and one.dtype == two.dtype
        return shape and torch.equal(one.contiguous().view(torch.uint8), two.contiguous().view(torch.uint8))
    return type(one) is type(two) and one == two


def diffed(
    folder: Path,
    case: Case,
    change: Callable[[Outputs], Outputs],
    provider: str = "made-up",
    omits: tuple[str, ...] = (),
) -> Comparison:
    """What a diff says of a correct result into which something was planted."""

    def run(call: Call) -> Answer:
        return Answer(change(correct(call)), PROVENANCE)

    store = GoldenStore(folder)
    source = Source(provider, case.operator, case.variants[0], "cpu", run, omits=omits)
    assert [attempt.result for attempt in capture([source], store, [case])] == ["stored"]
    (comparison,) = compare_store(store)
    return comparison


# Cases ----------------------------------------------------------------------------------------------------------------


def test_cases_are_named_once_and_the_same_each_time(cases: tuple[Case, ...]) -> None:
    every = (*cases, *mla_cases.serving_cases())
    assert {case.operator for case in cases} == set(HELD)
    assert len({(case.operator, case.name) for case in every}) == len(every)
    assert {case.generator for case in every} == {mla_cases.GENERATOR}
    for one, two in zip(every, (*mla_cases.small_cases(), *mla_cases.serving_cases()), strict=True):
        assert all(map(same, one.call.arguments.values(), two.call.arguments.values())), one.name
    assert not same(cases[0].call.arguments["q"], mla_cases.small_cases(seed=1)[0].call.arguments["q"])


def test_cases_are_what_their_names_say(cases: tuple[Case, ...]) -> None:
    for case in (*cases, *mla_cases.serving_cases()):
        if case.operator == MERGE:
            continue
        q, qo_indptr = case.call.arguments["q"], case.call.arguments["qo_indptr"]
        assert isinstance(q, torch.Tensor)
        assert isinstance(qo_indptr, torch.Tensor)
        heads, queries, *_ = case.name.split("-")
        assert (heads, queries) == (f"h{q.shape[1]}", f"q{int(qo_indptr.diff().max())}")
        cache = case.call.arguments.get("kv_cache")
        if isinstance(cache, torch.Tensor):
            assert f"-p{cache.shape[1]}-" in case.name
            assert ("fp8" in case.name) == (cache.dtype is torch.float8_e4m3fn)
            # What a kernel that rounds queries to the cache's type sees is what stands there.
            assert cache.itemsize > 1 or torch.equal(q.float(), q.float().to(cache.dtype).float())
    names = [case.name for case in cases if case.operator == DECODE]
    assert {name.partition("-")[0] for name in names} >= {"h12", "h16"}
    assert {name.split("-")[1] for name in names} == {"q1", "q2", "q4"}


def test_large_scores_are_large_and_hidden_tokens_would_show(cases: tuple[Case, ...]) -> None:
    assert float(reference_outputs(named(cases, DECODE, "large").call, WIDE)[1].value.max()) > math.log(3.4e38)
    newest = named(cases, DECODE, "h12-q2").call
    shown = newest.with_arguments(q=torch.as_tensor(newest.arguments["q"])[:1], qo_indptr=torch.tensor([0, 1]))
    hidden, seen = (reference_outputs(call, WIDE)[0].value[0] for call in (newest, shown))
    assert ((seen - hidden).norm(dim=-1) > 0.05 * hidden.norm(dim=-1)).all()


def test_the_cases_of_renorm_are_what_they_were(cases: tuple[Case, ...]) -> None:
    """Both families share what makes a case; the committed inputs were made before they did."""
    made = {(case.operator, case.name): case for case in (*renorm_cases.small_cases(), *cases)}
    store = GoldenStore()
    for entry in store.entries():
        stored, case = store.load(entry.golden.id), made[entry.golden.operator, entry.golden.case]
        assert case.generator == entry.golden.generator
        assert all(map(same, stored.call.arguments.values(), case.call.arguments.values())), entry.golden.id


# The committed goldens ------------------------------------------------------------------------------------------------


def test_every_small_case_is_committed_in_float64_and_they_are_small(cases: tuple[Case, ...]) -> None:
    store = GoldenStore()
    entries = [entry for entry in store.entries() if entry.golden.generator == mla_cases.GENERATOR]
    assert {(entry.golden.operator, entry.golden.case) for entry in entries} == {
        (case.operator, case.name) for case in cases
    }
    assert len(entries) == len(cases)
    assert sum(entry.size for entry in entries) < 1_000_000
    for entry in entries:
        stored = store.load(entry.golden.id)
        assert entry.golden.provider == REFERENCE
        assert tuple(entry.golden.outputs) == ("out", "lse")
        assert {output.dtype for output in stored.outputs} == {torch.float64}
        assert not any(output.isnan().any() for output in stored.outputs)


def test_the_reference_is_stored_once_for_variants_that_share_their_values() -> None:
    variants = {operator.name: distinct_variants(operator) for operator in OPERATORS}
    assert (variants[DECODE], variants[MERGE], variants["pad_heads"]) == ((WIDE,), ("natural",), ())
    assert {source.operator for source in reference_sources()} > set(HELD)
    call = named(mla_cases.small_cases(), DECODE, "kv9-fp8").call
    wide, narrow = (reference_outputs(call, variant) for variant in (WIDE, NARROW))
    assert all(torch.equal(one.value, two.value) for one, two in zip(wide, narrow, strict=True))


@pytest.mark.parametrize("at", [0, 1], ids=["out", "lse"])
@pytest.mark.parametrize("operator", HELD)
def test_a_reference_that_has_moved_is_found(tmp_path: Path, cases: tuple[Case, ...], operator: str, at: int) -> None:
    case = next(case for case in cases if case.operator == operator)
    values = [exact.value for exact in reference_outputs(case.call, case.variants[0])]

    def exact(outputs: Outputs) -> Outputs:
        return tuple(values)

    def moved(outputs: Outputs) -> Outputs:
        return tuple(value * (1.0 + 1e-9) if index == at else value for index, value in enumerate(values))

    assert not diffed(tmp_path / "still", case, exact, REFERENCE).disagreements
    (found,) = diffed(tmp_path / "moved", case, moved, REFERENCE).disagreements
    assert found.rule == "reference unmoved"
    assert f"stored {('out', 'lse')[at]} " in found.message


# Store ----------------------------------------------------------------------------------------------------------------


def test_eight_bit_tensors_and_garbage_come_back_bit_for_bit(tmp_path: Path, cases: tuple[Case, ...]) -> None:
    store = GoldenStore(tmp_path)
    list(capture(reference_sources(), store, cases))
    for case in cases:
        back = store.load(f"{case.operator}-{case.variants[0]}-{case.name}-{REFERENCE}").call.arguments
        assert list(back) == list(case.call.arguments)
        assert all(same(back[name], value) for name, value in case.call.arguments.items()), case.name
    nan = named(cases, DECODE, "ragged").call.arguments["kv_cache"]
    assert isinstance(nan, torch.Tensor)
    assert nan.isnan().any()


def test_a_flag_is_a_flag_and_nothing_else_is(tmp_path: Path, cases: tuple[Case, ...]) -> None:
    call = named(cases, PREFILL, "full").call
    assert {item.name: item.scalar for item in describe_arguments(call)}["causal"] is False
    for name, value in (("causal", 0), ("causal", None), ("causal", 0.0), ("sm_scale", True)):
        with pytest.raises(BadManifest):
            describe_arguments(call.with_arguments(**{name: value}))
    store = GoldenStore(tmp_path)
    list(capture(reference_sources(), store, [named(cases, PREFILL, "full")]))
    document = json.loads((tmp_path / MANIFEST).read_text())
    for name, value, rule in (("causal", 0, "True or False"), ("k_scale", True, "no flag")):
        edited = json.loads(json.dumps(document))
        arguments = edited["goldens"][0]["golden"]["arguments"]
        next(item for item in arguments if item["name"] == name)["scalar"] = value
        (tmp_path / MANIFEST).write_text(json.dumps(edited))
        with pytest.raises(BadManifest, match=rule):
            store.entries()


def test_a_golden_without_a_result_that_is_due_is_refused(tmp_path: Path, cases: tuple[Case, ...]) -> None:
    case = named(cases, MERGE, "fp32")
    store = GoldenStore(tmp_path)
    list(capture(reference_sources(), store, [case]))
    document = json.loads((tmp_path / MANIFEST).read_text())
    document["goldens"][0]["golden"]["outputs"].pop("lse")  # a merge may not omit it
    (tmp_path / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(BadManifest, match="outputs are out; merge_state has out, lse"):
        store.entries()
    with pytest.raises(BadManifest, match="returns 2 tensors, here are 1"):
        describe_outputs(case.call, correct(case.call)[:1])
