"""The judges and references of family ``renorm``, called directly: right results pass, wrong ones do not."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest
import torch

from waveproof.fixtures.strategies.layouts import LAYOUTS
from waveproof.fixtures.strategies.renorm import ROW_KINDS, Case, LawCase, make_rows
from waveproof.golden.judges.judgement import Judgement
from waveproof.golden.judges.relations import judge_close_rows, judge_incidents, judge_refused, judge_same_rows
from waveproof.golden.judges.tolerance import judge_distribution, judge_form
from waveproof.golden.references.renorm import mass_before, reference, top_k_mask
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.renorm import mass_band, value_tolerance
from waveproof.kernels.runtimes.memory import Incident
from waveproof.selftest.mutants import correct_renorm, renorm_target_probs, renorm_top_k, renorm_top_p
from waveproof.selftest.mutants.mutant import Mutant
from waveproof.selftest.mutants.renorm import CORRECT, KEPT, LAW, MUTANTS, TOP_K, TOP_P, VALUES


def judge(output: torch.Tensor, call: Call, variant: str) -> Judgement | None:
    """The first rule that does not hold, None if all do."""
    form = judge_form(output, tuple(next(iter(call.arguments.values())).shape), torch.float32, call)  # type: ignore[union-attr]
    if not form.holds:
        return form
    return next((one for one in judge_distribution(output, reference(call, variant), call) if not one.holds), None)


def top_k_call(rows: torch.Tensor, k: int | torch.Tensor) -> Call:
    return Call(TOP_K, {"probs": rows, "top_k": k})


def top_p_call(rows: torch.Tensor, p: float | torch.Tensor) -> Call:
    return Call(TOP_P, {"probs": rows, "top_p": p})


# References against a second method -----------------------------------------------------------------------------------


def counted(values: list[float], k: int, variant: str) -> list[bool]:
    """Top-k by counting: a token stays if fewer than k come before it; nothing is sorted."""
    limit = k if 0 < k < len(values) else len(values)
    return [
        sum(
            other > value or (variant != "threshold" and other == value and place < index)
            for place, other in enumerate(values)
        )
        < limit
        for index, value in enumerate(values)
    ]


@pytest.mark.parametrize("variant", ["threshold", "exact-k"])
@pytest.mark.parametrize("kind", ROW_KINDS)
def test_top_k_mask_counts(kind: str, variant: str) -> None:
    rows = make_rows((kind,) * 3, 33, 7).double()
    for k in (-1, 0, 1, 2, 16, 32, 33, 34):
        mask = top_k_mask(rows, torch.full((3,), k), variant)
        assert mask.tolist() == [counted(row, k, variant) for row in rows.tolist()], k


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("kind", ROW_KINDS)
def test_mass_before_is_the_exact_sum(kind: str, stable: bool) -> None:
    rows = make_rows((kind,) * 2, 23, 3)
    before = mass_before(rows.double(), stable)
    for row, values in enumerate(rows.tolist()):
        exact = [Fraction(value) for value in values]
        for index, value in enumerate(exact):
            larger = [
                other
                for place, other in enumerate(exact)
                if other > value or (stable and other == value and place < index)
            ]
            assert abs(Fraction(before[row, index].item()) - sum(larger)) < Fraction(1, 10**14)


@pytest.mark.parametrize(("operator", "limits"), [(TOP_K, (1, 5, 16)), (TOP_P, (0.25, 0.75, 0.9999))])
def test_values_are_the_exact_quotients(operator: str, limits: tuple[float, ...]) -> None:
    for kind, limit in itertools.product(ROW_KINDS, limits):
        call = Case(17, (kind,), (limit,), seed=11).call(operator)
        expected = reference(call, "threshold")
        exact = [Fraction(value) for value in expected.weights[0].tolist()]
        mass = sum(value for value, kept in zip(exact, expected.certain[0].tolist(), strict=True) if kept)
        for value, kept, found in zip(exact, expected.certain[0].tolist(), expected.value[0].tolist(), strict=True):
            due = value / mass if kept else Fraction(0)
            assert abs(Fraction(found) - due) <= due * Fraction(1, 2**48)


def test_target_probs_against_a_loop_in_fractions_of_exp() -> None:
    """Sort-free, one request at a time, top-k counted and top-p added up token by token."""
    case = LawCase(19, ("softmax", "quantised", "flat"), (0.7, 1.0, 1.3), (6, 3, 19), (0.8, 1.0, 0.5), seed=5)
    call = case.call("dense")
    expected = reference(call, "threshold")
    logits = call.arguments["logits"].tolist()  # type: ignore[union-attr]
    limits = zip(logits, case.temperatures, case.top_k, case.top_p, strict=True)
    for row, (values, temperature, k, p) in enumerate(limits):
        t = float(torch.tensor(temperature))
        weights = [float(torch.exp(torch.tensor((x - max(values)) / t, dtype=torch.float64))) for x in values]
        kept = [i for i, stays in enumerate(counted(values, k, "threshold")) if stays]
        mass = sum(weights[i] for i in kept)
        stays = [
            i for i in kept if p >= 1 or sum(weights[j] for j in kept if weights[j] > weights[i]) / mass < p - 1e-6
        ]
        share = sum(weights[i] for i in stays)
        due = [weights[i] / share if i in stays else 0.0 for i in range(19)]
        assert expected.value[row].tolist() == pytest.approx(due, rel=1e-9)


# Right results pass ---------------------------------------------------------------------------------------------------

CONTROLS: dict[tuple[str, str], tuple[Callable[..., torch.Tensor], ...]] = {
    (TOP_K, "threshold"): (correct_renorm.top_k_threshold, correct_renorm.top_k_reciprocal),
    (TOP_K, "exact-k"): (correct_renorm.top_k_stable_sort, correct_renorm.top_k_heap),
    (TOP_P, "threshold"): (correct_renorm.top_p_threshold, correct_renorm.top_p_bisection),
    (TOP_P, "exact-p"): (correct_renorm.top_p_numpy,),
    (LAW, "threshold"): (correct_renorm.target_probs_threshold,),
    (LAW, "any-k"): (correct_renorm.target_probs_selection,),
}
SEEDS = 500


def varied(operator: str) -> Iterator[Call]:
    """One call a seed, everything about it drawn from the seed."""
    for seed in range(SEEDS):
        draw = torch.Generator().manual_seed(seed)

        def pick(choices: tuple, draw: torch.Generator = draw) -> object:
            return choices[int(torch.randint(len(choices), (), generator=draw))]

        vocab_size = int(pick((1, 2, 7, 31, 64, 65, 200, 257)))  # type: ignore[call-overload]
        rows = int(pick((1, 2, 3)))  # type: ignore[call-overload]
        kinds = tuple(str(pick(ROW_KINDS)) for _ in range(rows))
        k = tuple(int(torch.randint(-1, vocab_size + 2, (), generator=draw)) for _ in range(rows))
        p = tuple(float(pick((1e-6, 0.1, 0.3, 0.5, 0.9, 0.95, 0.999, 1.0))) for _ in range(rows))  # type: ignore[arg-type]
        if operator == LAW:
            temperatures = tuple(float(pick((0.1, 0.5, 1.0, 2.0))) for _ in range(rows))  # type: ignore[arg-type]
            dtype = str(pick(("float32", "bfloat16", "float16")))
            path = str(pick(("dense", "sparse")))
            yield LawCase(vocab_size, kinds, temperatures, k, p, dtype, seed).call(path)
        else:
            limits = k if operator == TOP_K else p
            if seed % 2:
                limits = limits[:1]
            yield Case(vocab_size, kinds, limits, str(pick(LAYOUTS)), seed).call(operator)


@pytest.mark.parametrize(("operator", "variant"), CONTROLS)
def test_right_implementations_pass_every_seed(operator: str, variant: str) -> None:
    rejected = []
    for call in varied(operator):
        for function in CONTROLS[operator, variant]:
            broken = judge(function(*call.arguments.values()), call, variant)
            if broken is not None:
                rejected.append(f"{function.__name__}({call.describe()}) {dict(call.labels)}: {broken.message}")
    assert not rejected


@pytest.mark.parametrize("operator", [TOP_K, TOP_P, LAW])
def test_interval_contains_right_results(operator: str) -> None:
    """What a repro compares with: low <= every right result <= high, and high is no blank cheque."""
    variant = "threshold"
    for call in itertools.islice(varied(operator), 0, SEEDS, 5):
        expected = reference(call, variant)
        for function in CONTROLS[operator, variant]:
            output = function(*call.arguments.values()).double()
            live = ~expected.degenerate
            assert (expected.low <= output)[live].all()
            assert (output <= expected.high)[live].all()
        alone = live & (expected.certain == expected.possible).all(-1)
        assert (expected.high - expected.low <= 2.1 * expected.tolerance * expected.value + 3e-38)[alone].all()


# Wrong results do not -------------------------------------------------------------------------------------------------

IN_VALUES = [mutant for mutant in MUTANTS if mutant.seen_by in (KEPT, VALUES) and mutant.runtimes == ("cpu",)]
NEEDS_MORE = {
    # Faults that show in a batch, a layout, a dtype or a size that the rows below do not have.
    "columns_in_16_bits",
    "drops_last_chunk",
    "exact_k_at_large_vocabulary",
    "first_fifty_rows",
    "ignores_storage_offset",
    "ignores_strides",
    "int64_k_as_int32",
    "negative_zero_is_largest",
    "one_more_at_large_k",
    "selects_from_thousand",
    "softmax_without_maximum",
    "stale_output",
    "thousand_candidates",
    "tie_rule_by_batch",
    "bad_row_spoils_batch",
    "dropped_tokens_unwritten",
    "last_row_unwritten",
}


def function_of(mutant: Mutant) -> Callable[..., torch.Tensor]:
    modules = {TOP_K: renorm_top_k, TOP_P: renorm_top_p, LAW: renorm_target_probs}
    return getattr(modules[mutant.operator], mutant.name)


@pytest.mark.parametrize(
    "mutant", [m for m in IN_VALUES if m.name not in NEEDS_MORE], ids=lambda m: f"{m.operator}-{m.name}"
)
def test_planted_fault_is_rejected_by_the_judges_alone(mutant: Mutant) -> None:
    torch.manual_seed(0)
    for call in varied(mutant.operator):
        if judge(function_of(mutant)(*call.arguments.values()), call, mutant.variant) is not None:
            return
    pytest.fail(f"no judge rejected it in {SEEDS} calls: {mutant.fault}")


@pytest.mark.parametrize("name", ["columns_in_16_bits", "drops_last_chunk", "exact_k_at_large_vocabulary"])
def test_fault_at_a_serving_vocabulary_is_rejected(name: str) -> None:
    call = Case(128_256, ("quantised",), (40_000,), seed=1).call(TOP_K)
    assert judge(correct_renorm.top_k_threshold(*call.arguments.values()), call, "threshold") is None  # type: ignore[arg-type]
    assert judge(getattr(renorm_top_k, name)(*call.arguments.values()), call, "threshold") is not None


@pytest.mark.parametrize("operator", [TOP_K, TOP_P])
@pytest.mark.parametrize("where", ["kept", "dropped"])
def test_nan_is_never_inside_a_tolerance(operator: str, where: str) -> None:
    call = Case(64, ("softmax", "flat"), (10,) if operator == TOP_K else (0.5,), seed=2).call(operator)
    output = CONTROLS[operator, "threshold"][0](*call.arguments.values())
    index = torch.nonzero(output[1] > 0 if where == "kept" else output[1] == 0)[0]
    for value in (float("nan"), float("inf"), -float("inf")):
        spoilt = output.clone()
        spoilt[1, index] = value
        assert judge(spoilt, call, "threshold") is not None, value


def test_negative_and_tiny_leaks_are_rejected() -> None:
    call = Case(64, ("softmax",), (10,), seed=2).call(TOP_K)
    output = correct_renorm.top_k_threshold(*call.arguments.values())  # type: ignore[arg-type]
    dropped = torch.nonzero(output[0] == 0)[0]
    for value in (-1e-3, 1e-30, 2.0**-149, -(2.0**-149)):
        spoilt = output.clone()
        spoilt[0, dropped] = value
        broken = judge(spoilt, call, "threshold")
        assert broken is not None, value
        assert broken.rule == "kept set"


# Bounds ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", [TOP_K, TOP_P])
def test_smallest_detectable_scale_error(operator: str) -> None:
    """At every vocabulary a scale error of the stated size is seen, and it stays below 0.1 % at the largest one."""
    for vocab_size in (2, 31, 1000, 32_000, 163_840):
        tolerance = value_tolerance(vocab_size)
        assert tolerance < 1e-3
        call = Case(vocab_size, ("softmax",), (min(50, vocab_size),) if operator == TOP_K else (0.9,)).call(operator)
        output = CONTROLS[operator, "threshold"][0](*call.arguments.values())
        assert judge(output, call, "threshold") is None
        for factor in (1 + 2 * tolerance + 2**-23, 1 - 2 * tolerance - 2**-23, 1.001, 0.999):
            assert judge(output * factor, call, "threshold") is not None, (vocab_size, factor)


@pytest.mark.parametrize("k", [50, 1000, 163_839])
def test_uniform_over_the_kept_set_is_rejected_at_the_largest_vocabulary(k: int) -> None:
    call = Case(163_840, ("softmax",), (k,), seed=4).call(TOP_K)
    broken = judge(renorm_top_k.uniform_over_kept(*call.arguments.values()), call, "threshold")  # type: ignore[arg-type]
    assert broken is not None
    assert broken.rule == "kept values"


def test_boundary_token_is_open_inside_the_band_only() -> None:
    """top_p one band away from a boundary decides; within it both sets pass, and nothing else does."""
    rows = torch.tensor([[2.0**-n for n in range(1, 16)] + [2.0**-15]])
    band = mass_band(16)

    def kept(count: int) -> torch.Tensor:
        masked = torch.where(torch.arange(16) < count, rows, 0.0)
        return masked / masked.sum(-1, keepdim=True)

    for p, passing in ((0.75 - 2 * band, {2}), (0.75, {2, 3}), (0.75 + 2 * band, {3})):
        call = Call(TOP_P, {"probs": rows.double().float(), "top_p": torch.tensor([p], dtype=torch.float32)})
        for count in (1, 2, 3, 4):
            assert (judge(kept(count), call, "threshold") is None) == (count in passing), (p, count)


def test_degenerate_rows_are_open_and_their_neighbours_are_not() -> None:
    rows = make_rows(("softmax", "one-nan", "softmax"), 40, 9)
    call = top_k_call(rows, 5)
    output = correct_renorm.top_k_threshold(rows, 5)
    for value in (float("nan"), 0.0, -7.0):
        spoilt = output.clone()
        spoilt[1] = value
        assert judge(spoilt, call, "threshold") is None
        spoilt[2] = value
        assert judge(spoilt, call, "threshold") is not None


def test_degenerate_logits_are_open_and_their_neighbours_are_not() -> None:
    case = LawCase(40, ("softmax", "flat", "softmax"), (1.0,) * 3, (5,) * 3, (0.9,) * 3)
    call = case.call("dense")
    logits = call.arguments["logits"].clone()  # type: ignore[union-attr]
    logits[1, 3] = torch.nan
    call = call.with_arguments(logits=logits)
    output = correct_renorm.target_probs_threshold(*call.arguments.values())  # type: ignore[arg-type]
    assert judge(output, call, "threshold") is None
    output[2, int(output[2].argmax())] *= 1.01
    assert judge(output, call, "threshold") is not None


@pytest.mark.parametrize("variant", ["threshold", "exact-k"])
def test_tie_rule_decides(variant: str) -> None:
    call = top_k_call(torch.tensor([[0.4, 0.3, 0.3, 0.0]]), 2)
    both, first, second = ([4, 3, 3, 0], [4, 3, 0, 0], [4, 0, 3, 0])
    passing = {"threshold": both, "exact-k": first}[variant]
    for weights in (both, first, second):
        output = torch.tensor([weights], dtype=torch.float64)
        output = (output / output.sum()).float()
        assert (judge(output, call, variant) is None) == (weights == passing)


# Relations ------------------------------------------------------------------------------------------------------------


def test_same_bits_means_bits() -> None:
    call = top_k_call(torch.ones(1, 2), 1)
    row = torch.tensor([[0.0, float("nan")]])
    assert judge_same_rows(row, row.clone(), ((0,), (0,)), (call, call), "").holds
    assert not judge_same_rows(row, torch.tensor([[-0.0, float("nan")]]), ((0,), (0,)), (call, call), "").holds
    near = torch.tensor([[0.5, 0.5]])
    assert not judge_same_rows(near, torch.nextafter(near, near * 2), ((0,), (0,)), (call, call), "").holds


def test_same_law_bounds_values_and_keeps_the_set() -> None:
    call = top_k_call(torch.ones(1, 2), 1)
    row = torch.tensor([[0.5, 0.5, 0.0]])
    for other, holds in (
        (row * (1 + 1.5e-6), True),
        (row * (1 + 3e-6), False),
        (torch.tensor([[0.5, 0.5, 1e-30]]), False),
        (torch.tensor([[0.5, float("nan"), 0.0]]), False),
    ):
        assert judge_close_rows(row, other, ((0,), (0,)), 1e-6, (call, call), "").holds is holds


@pytest.mark.parametrize("kind", ["input-changed", "out-of-bounds", "unrepeatable"])
def test_incidents_break_a_rule(kind: str) -> None:
    call = top_k_call(torch.ones(1, 2), 1)
    assert judge_incidents((), call).holds
    assert not judge_incidents((Incident(kind, "probs", 3, "one byte changed"),), call).holds


def test_only_value_and_type_errors_are_refusals() -> None:
    call = top_k_call(torch.ones(2), 1)
    for name, bases, holds in (
        ("ValueError", ["ValueError", "Exception"], True),
        ("ContractBreach", ["ContractBreach", "ValueError"], True),
        ("AssertionError", ["AssertionError", "Exception"], False),
        ("RuntimeError", ["RuntimeError", "Exception"], False),
    ):
        assert judge_refused({"type": name, "bases": bases, "message": ""}, "", call).holds is holds
    assert not judge_refused(None, "", call).holds


def test_form_is_shape_and_dtype() -> None:
    call = top_k_call(torch.ones(2, 3), 1)
    for output, holds in (
        (torch.ones(2, 3), True),
        (torch.ones(2, 3).double(), False),
        (torch.ones(6), False),
        (torch.ones(2, 3, 1), False),
        (None, False),
    ):
        assert judge_form(output, (2, 3), torch.float32, call).holds is holds


def test_table_names_controls_that_exist() -> None:
    for mutant in CORRECT:
        if mutant.runtimes == ("cpu",):
            assert callable(getattr(importlib.import_module("waveproof.selftest.mutants.correct_renorm"), mutant.name))


@pytest.mark.parametrize("operator", [TOP_K, TOP_P, LAW])
def test_what_is_certain_is_possible(operator: str) -> None:
    for call in itertools.islice(varied(operator), 0, SEEDS, 7):
        expected = reference(call, "threshold")
        assert not (expected.certain & ~expected.possible).any()
