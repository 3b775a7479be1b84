"""Capture and diff on trial: what is captured can be judged, and what is planted in it is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from waveproof.golden.capture import (
    REFERENCE,
    Answer,
    Attempt,
    NoAnswer,
    Source,
    SourceUnavailable,
    capture,
    provenance_of,
    reference_sources,
)
from waveproof.golden.compare import Comparison, compare_store
from waveproof.golden.renorm_cases import SERVING_VOCABULARIES, Case, serving_cases, small_cases
from waveproof.golden.store import GoldenStore
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.renorm import OPERATORS
from waveproof.kernels.providers.pytorch import IMPLEMENTATIONS
from waveproof.kernels.providers.registry import Implementation
from waveproof.kernels.runtimes.process import WorkerPool
from waveproof.reports.golden_sources import NothingExecutes, implementation_sources

PROVENANCE = provenance_of("made-up", "1", "cpu", "cpu", {"torch": torch.__version__})
TOP_K = "top_k_renorm_prob"


@pytest.fixture(scope="module")
def cases() -> tuple[Case, ...]:
    return small_cases()


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool()
    yield pool
    pool.close()


def named(cases: tuple[Case, ...], *names: str) -> tuple[Case, ...]:
    return tuple(case for case in cases if case.operator == TOP_K and case.name in names)


def source_of(run: Callable[[Call], Answer], provider: str = "made-up") -> Source:
    return Source(provider, TOP_K, "threshold", "cpu", run)


def correct(call: Call) -> torch.Tensor:
    """An honest float32 result."""
    from waveproof.golden.references.renorm import reference

    return reference(call, "threshold").value.float()


def diffed(tmp_path: Path, cases: tuple[Case, ...], change: Callable[[torch.Tensor], torch.Tensor]) -> Comparison:
    """What a diff says of a correct result into which something was planted."""
    store = GoldenStore(tmp_path)
    source = source_of(lambda call: Answer((change(correct(call)),), PROVENANCE))
    assert [attempt.result for attempt in capture([source], store, cases)] == ["stored"]
    (comparison,) = compare_store(store)
    return comparison


def test_cases_are_many_named_once_and_the_same_each_time(cases: tuple[Case, ...]) -> None:
    for operator in OPERATORS:
        assert 12 <= sum(case.operator == operator.name for case in cases) <= 20
    assert len({(case.operator, case.name) for case in cases}) == len(cases)
    for one, two in zip(cases, small_cases(), strict=True):
        for left, right in zip(one.call.arguments.values(), two.call.arguments.values(), strict=True):
            if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
                assert torch.equal(left, right)
            else:
                assert left == right
    (one,), (two,) = (named(some, "softmax-v129") for some in (cases, small_cases(seed=1)))
    assert not torch.equal(correct(one.call), correct(two.call))


def test_every_row_of_every_case_is_a_distribution(cases: tuple[Case, ...]) -> None:
    for case in cases:
        if isinstance(probs := case.call.arguments.get("probs"), torch.Tensor):
            assert (probs >= 0).all(), case.name
            assert ((probs.double().sum(-1) - 1).abs() < probs.shape[1] * 2.0**-24).all(), case.name


def test_tie_cases_have_a_tie_that_the_variants_part_on(cases: tuple[Case, ...]) -> None:
    from waveproof.golden.references.renorm import reference

    for case in cases:
        if case.operator == TOP_K and ("tie" in case.name or "uniform" in case.name):
            kept = [reference(case.call, variant).certain for variant in ("threshold", "exact-k")]
            assert (kept[0] & ~kept[1]).any(), case.name


def test_serving_cases_reach_the_largest_vocabulary() -> None:
    sizes = {value.shape[1] for case in serving_cases() for value in list(case.call.arguments.values())[:1]}  # type: ignore[union-attr]
    assert sizes == set(SERVING_VOCABULARIES)


def test_the_reference_is_captured_whole_and_agrees_with_itself(tmp_path: Path, cases: tuple[Case, ...]) -> None:
    store = GoldenStore(tmp_path)
    results = Counter(attempt.result for attempt in capture(reference_sources(), store, cases))
    assert set(results) == {"stored"}
    comparisons = list(compare_store(store))
    assert len(comparisons) == results["stored"] == len(store.entries())
    assert not any(comparison.disagreements for comparison in comparisons)
    assert {comparison.golden.operator for comparison in comparisons} == {operator.name for operator in OPERATORS}
    for entry in store.entries():
        assert torch.isfinite(store.load(entry.golden.id).outputs[0]).all()
    assert store.verify() == ()


def test_torch_on_the_cpu_is_captured_through_its_worker_and_agrees_with_float64(
    tmp_path: Path, cases: tuple[Case, ...], pool: WorkerPool
) -> None:
    store = GoldenStore(tmp_path)
    (source,) = implementation_sources("cpu", IMPLEMENTATIONS[:1], pool)
    attempts = list(capture([source], store, cases))
    assert {attempt.result for attempt in attempts} == {"stored"}
    comparisons = list(compare_store(store))
    assert len(comparisons) == len(attempts) >= 12
    assert not any(comparison.disagreements for comparison in comparisons)
    assert all(0 <= comparison.severity <= 1 for comparison in comparisons)
    made = store.entries()[0].golden.provenance
    assert (made.library, made.version) == ("torch", torch.__version__)
    assert made.device.startswith("cpu")
    assert made.versions["torch"] == torch.__version__


def test_a_capture_that_was_cut_short_is_taken_up_again(tmp_path: Path, cases: tuple[Case, ...]) -> None:
    store, few = GoldenStore(tmp_path), named(cases, "k1-v129", "uniform-v128")
    asked: list[Call] = []

    def run(call: Call) -> Answer:
        asked.append(call)
        return Answer((correct(call),), PROVENANCE)

    list(capture([source_of(run)], store, few[:1]))
    results = [attempt.result for attempt in capture([source_of(run)], store, few)]
    assert results == ["present", "stored"]
    assert len(asked) == 2


def test_an_unavailable_source_is_asked_once_and_a_failing_one_each_time(
    tmp_path: Path, cases: tuple[Case, ...]
) -> None:
    def absent(call: Call) -> Answer:
        raise SourceUnavailable("no GPU")

    def failing(call: Call) -> Answer:
        raise NoAnswer("raised ValueError")

    def too_many(call: Call) -> Answer:
        return Answer((correct(call), correct(call)), PROVENANCE)

    store, few = GoldenStore(tmp_path), named(cases, "k1-v129", "uniform-v128")
    assert [attempt.reason for attempt in capture([source_of(absent)], store, few)] == ["no GPU"]
    assert [attempt.reason for attempt in capture([source_of(failing)], store, few)] == ["raised ValueError"] * 2
    attempts: list[Attempt] = list(capture([source_of(too_many)], store, few))
    assert all("returns 1 tensors, here are 2" in attempt.reason for attempt in attempts)
    assert store.entries() == ()


_MISBEHAVING = """
import os
import torch

def renorm(probs, top_k):
    if top_k == 50:
        raise ValueError("not today")
    if top_k == 1:
        return probs + torch.rand(1)
    if top_k == 5:
        probs.zero_()
        return probs.clone()
    if top_k == 7:
        os.kill(os.getpid(), 9)
"""


def test_an_implementation_that_misbehaves_gives_no_golden(
    tmp_path: Path, cases: tuple[Case, ...], pool: WorkerPool
) -> None:
    file = tmp_path / "misbehaving.py"
    file.write_text(_MISBEHAVING)
    planted = Implementation("misbehaving", TOP_K, "threshold", ("cpu",), f"{file}:renorm")
    store = GoldenStore(tmp_path / "store")
    few = named(cases, "softmax-v129", "k1-v129", "one-hot-v65", "uniform-v128")
    attempts = list(capture(implementation_sources("cpu", (planted,), pool), store, few))
    assert [attempt.result for attempt in attempts] == ["refused"] * 4
    reasons = {attempt.id.split("-")[2]: attempt.reason for attempt in attempts}
    assert reasons["softmax"] == "raised ValueError: not today"
    assert "unrepeatable" in reasons["k1"]
    assert "input-changed" in reasons["one"]
    assert "SIGKILL" in reasons["uniform"]
    assert store.entries() == ()


def test_an_implementation_with_variants_by_path_is_two_sources(pool: WorkerPool, cases: tuple[Case, ...]) -> None:
    paths = (("dense", "threshold"), ("sparse", "any-k"))
    both = replace(IMPLEMENTATIONS[2], paths=paths)
    sources = implementation_sources("cpu", (both,), pool)
    taken = {
        source.variant: {case.call.arguments["path"] for case in cases if source.takes(case)} for source in sources
    }
    assert taken == {"threshold": {"dense"}, "any-k": {"sparse"}}


def test_a_runtime_that_executes_nothing_is_refused(pool: WorkerPool) -> None:
    with pytest.raises(NothingExecutes, match="compile"):
        implementation_sources("compile", IMPLEMENTATIONS, pool)


def _one_percent(value: torch.Tensor) -> torch.Tensor:
    return value * 1.01


def _tenth_percent_of_one(value: torch.Tensor) -> torch.Tensor:
    value[0, value[0].argmax()] *= 1.001
    return value


def _dead_token(value: torch.Tensor) -> torch.Tensor:
    value[1, value[1].argmax()] = 0
    return value


def _one_token_more(value: torch.Tensor) -> torch.Tensor:
    value[0, (value[0] == 0).nonzero()[0]] = 1e-12
    return value


def _nan(value: torch.Tensor) -> torch.Tensor:
    value[2, 3] = torch.nan
    return value


def _zeros(value: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(value)


@pytest.mark.parametrize(
    "fault", [_one_percent, _tenth_percent_of_one, _dead_token, _one_token_more, _nan, _zeros], ids=lambda f: f.__name__
)
def test_a_planted_difference_is_found(
    tmp_path: Path, cases: tuple[Case, ...], fault: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    case = named(cases, "softmax-v129")
    assert not diffed(tmp_path / "right", case, lambda value: value).disagreements
    found = diffed(tmp_path / "wrong", case, fault).disagreements
    assert found[0].rule == "legal interval"
    first = tuple(int(i) for i in torch.nonzero(_outside(case[0].call, fault))[0])
    assert found[0].index == first
    assert found[0].expected.startswith("[")


def _outside(call: Call, fault: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    from waveproof.golden.references.renorm import reference

    expected, got = reference(call, "threshold"), fault(correct(call)).double()
    return ~((got >= expected.low) & (got <= expected.high))


def test_a_result_of_another_dtype_or_shape_is_found(tmp_path: Path, cases: tuple[Case, ...]) -> None:
    case = named(cases, "softmax-v129")
    for name, change in (("dtype", torch.Tensor.double), ("shape", torch.Tensor.t)):
        (found,) = diffed(tmp_path / name, case, change).disagreements
        assert found.rule == "form"


def test_a_reference_that_has_moved_is_found(tmp_path: Path, cases: tuple[Case, ...]) -> None:
    store = GoldenStore(tmp_path)
    moved = source_of(lambda call: Answer((correct(call).double(),), PROVENANCE), REFERENCE)
    list(capture([moved], store, named(cases, "softmax-v129")))
    (comparison,) = compare_store(store)
    assert [item.rule for item in comparison.disagreements] == ["reference unmoved"]


def test_the_committed_goldens_agree_with_float64() -> None:
    comparisons = list(compare_store(GoldenStore()))
    assert comparisons
    assert {comparison.golden.id for comparison in comparisons if comparison.disagreements} == set()
