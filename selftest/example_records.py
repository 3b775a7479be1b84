"""A made-up run of some 120 cases with everything that a report has to show, for the tests of ``reports``."""

from __future__ import annotations

import random
from collections.abc import Iterator

from waveproof.reports.verdicts import Failure, Record, RuleFigure, Verdict

VERSIONS = {
    "python": "3.11.9",
    "torch": "2.13.0+cpu",
    "triton": "3.9.0",
    "sglang": "0.5.23",
    "amd-aiter": "0.1.7.post2.dev18",
    "hypothesis": "6.140.0",
}
COMMIT = "4f0c2a9d1be7"
FILE = "conformance/test_renorm.py"

NO_AMD = "no AMD GPU: /dev/kfd does not exist"
NO_NVIDIA = "no NVIDIA GPU: /dev/nvidiactl does not exist"
NO_AITER = "aiter not installed (python -m pip install --no-deps amd-aiter)"
WRONG_BF16 = "the interpreter's canary refuses bfloat16: 0.1 * 3 gave 0.298828, expected 0.300781"

DERIVATION = (
    "gamma_{d(V) + 3} with d(V) = ceil(V / 64) + 6 additions in the longest chain of a wavefront's sum, a reciprocal, "
    "one product and one store, float32 (Higham 2002, section 3.1)"
)

_OPERATORS = ("top_k_renorm_prob", "top_p_renorm_prob", "target_probs")
_RUNS = {
    "torch": ("cpu", "hip", "cuda"),
    "waveproof": ("interpret", "compile gfx942", "compile gfx950", "hip", "cuda"),
    "sglang": ("interpret", "compile gfx942", "compile gfx950", "hip", "cuda"),
    "aiter": ("hip",),
    "flashinfer": ("cuda",),
}
_ORIGINS = {
    "sglang": "sglang/kernels/ops/sampling/renorm_triton.py",
    "aiter": "aiter/ops/sampling.py",
    "flashinfer": "flashinfer/sampling.py",
}
_TESTS = ("values-float32", "values-strided", "edges-V=1", "edges-V=33", "ties", "refusals", "row_independence")

TIE_FAILURE = Failure(
    rule="kept set",
    message="a token whose probability equals the boundary value is zero, but 'threshold' keeps every tie",
    figure=1,
    bound=0,
    unit="tokens",
    derivation="decided by comparing inputs, so exact",
    index=(0, 17),
    expected="0.2 (= 0.125 / 0.625)",
    got="0.0",
    call="top_k_renorm_prob(probs=float32[1, 33], top_k=3)",
    repro="repro_top_k_ties_sglang_interpret.py",
    repro_confirmed=True,
)
SCALE_FAILURE = Failure(
    rule="kept values",
    message="a kept probability is off by 3.4e-4 relatively, more than 3.1 times what rounding explains",
    figure=3.4e-4,
    bound=1.1e-4,
    unit="relative error",
    derivation=DERIVATION,
    index=(2, 151_935),
    expected="1.204551e-05 within 1.1e-4",
    got="1.204961e-05",
    call="top_p_renorm_prob(probs=float32[4, 151936], top_p=0.9)",
    repro="repro_top_p_values_waveproof_interpret.py",
    repro_confirmed=False,
)
WAIVED_FAILURE = Failure(
    rule="no filter",
    message="k = -1 keeps one token instead of all of them",
    figure=1,
    bound=0,
    index=(0, 1),
    expected="0.25",
    got="0.0",
    call="top_k_renorm_prob(probs=float32[1, 4], top_k=-1)",
)
WAIVER_ID = f"{FILE}::test_top_k_edges[top_k_renorm_prob-sglang-*-k=-1]"
WAIVER_REASON = "Upstream reads k <= 0 as k = 1; being fixed. (sgl-project/sglang#12345)"


def example_records() -> tuple[Record, ...]:
    """The run: three operators, five providers, every runtime, every verdict; the same each time."""
    return tuple(_subjects()) + tuple(_single_cases())


def passing(identity: str = f"{FILE}::test_values[top_k_renorm_prob-torch-cpu]", **changes: object) -> Record:
    """One case that passes."""
    given: dict[str, object] = {
        "id": identity,
        "test": "test_values",
        "verdict": Verdict.PASS,
        "operator": "top_k_renorm_prob",
        "family": "renorm",
        "provider": "torch",
        "variant": "threshold",
        "runtime": "cpu",
        "versions": VERSIONS,
        "commit": COMMIT,
        "figures": (RuleFigure(rule="kept values", figure=3.4e-5, bound=1.1e-4, unit="relative error"),),
        "seconds": 0.1,
    }
    return Record.model_validate({**given, **changes})


def failing(failure: Failure = TIE_FAILURE, **changes: object) -> Record:
    """One case that fails."""
    return Record.model_validate({**dict(passing()), "verdict": Verdict.FAIL, "failure": failure, **changes})


def _subjects() -> Iterator[Record]:
    draw = random.Random(7)
    for operator in _OPERATORS:
        for provider, places in _RUNS.items():
            if provider in ("aiter", "flashinfer") and operator == "target_probs":
                continue
            if provider == "aiter" and operator == "top_p_renorm_prob":
                continue
            for place in places:
                yield from _cases(draw, operator, provider, *place.partition(" ")[::2])


def _cases(draw: random.Random, operator: str, provider: str, runtime: str, arch: str) -> Iterator[Record]:
    subject = "-".join(part for part in (operator, provider, runtime, arch) if part)
    short = operator.removesuffix("_renorm_prob")
    origin = f"{_ORIGINS[provider]}:{operator}" if provider in _ORIGINS else ""
    absent = {"hip": NO_AITER if provider == "aiter" else NO_AMD, "cuda": NO_NVIDIA}.get(runtime, "")
    tests = ("compiles",) if runtime == "compile" else ("values", "edges") if absent else _TESTS
    for test in tests:
        name = f"test_{short}_{test.partition('-')[0]}"
        parameters = f"-{test.partition('-')[2]}" if "-" in test else ""
        changes: dict[str, object] = {
            "test": name,
            "operator": operator,
            "provider": provider,
            "runtime": runtime,
            "arch": arch,
            "origin": origin,
            "seed": draw.randrange(1 << 16),
            "seconds": round(draw.uniform(0.02, 2.5), 2),
            "calls": draw.randrange(10, 60),
            "shapes": ("[1, 33]", "[4, 2000]"),
            "dtypes": ("float32",),
        }
        if absent:
            changes |= {"verdict": Verdict.UNAVAILABLE, "reason": absent, "figures": (), "seconds": 0.0}
        elif runtime == "compile":
            changes |= {"figures": _spills(provider, operator, arch), "resources": _resources(provider, operator, arch)}
        elif test in ("refusals", "ties"):
            changes |= {"figures": (RuleFigure(rule="kept set", figure=0, bound=0, unit="tokens"),)}
        else:
            figure = round(draw.uniform(0.01, 0.6), 3) * 1.1e-4
            rule = "row sum" if operator == "target_probs" else "kept values"
            changes |= {"figures": (RuleFigure(rule=rule, figure=figure, bound=1.1e-4, unit="relative error"),)}
        yield passing(f"{FILE}::{name}[{subject}{parameters}]", **changes)


def _spills(provider: str, operator: str, arch: str) -> tuple[RuleFigure, ...]:
    spilled = 6 if (provider, operator, arch) == ("sglang", "target_probs", "gfx942") else 0
    return (RuleFigure(rule="vector spills", figure=spilled, bound=16, unit="registers"),)


def _resources(provider: str, operator: str, arch: str) -> tuple[dict[str, object], ...]:
    vgpr = 18 if provider == "sglang" else 24
    spilled = (provider, operator, arch) == ("sglang", "target_probs", "gfx942")
    return (
        {
            "kernel": f"_{operator}_kernel",
            "arch": arch,
            "vgpr": 512 if spilled else vgpr,
            "agpr": 256 if spilled else 0,
            "sgpr": 30,
            "vgpr_spill": 6 if spilled else 0,
            "sgpr_spill": 0,
            "scratch_bytes": 28 if spilled else 0,
            "lds_bytes": 32,
            "max_workgroup": 256,
            "mfma": 0,
            "waves_per_simd": 1 if spilled else 8,
        },
    )


def _single_cases() -> Iterator[Record]:
    """What makes a run worth a report."""
    top_k, top_p, target = _OPERATORS
    sglang: dict[str, object] = {"provider": "sglang", "runtime": "interpret", "seconds": 3.2}
    for number, k in enumerate((3, 5, 1)):
        yield failing(
            TIE_FAILURE.model_copy(update={} if number == 0 else {"repro": "", "repro_confirmed": None}),
            id=f"{FILE}::test_top_k_ties[{top_k}-sglang-interpret-k={k}]",
            test="test_top_k_ties",
            figures=(RuleFigure(rule="kept set", figure=1, bound=0, unit="tokens", holds=False),),
            origin=f"{_ORIGINS['sglang']}:{top_k}",
            **sglang,
        )
    for k in (-1, 0):
        yield failing(
            WAIVED_FAILURE,
            id=f"{FILE}::test_top_k_edges[{top_k}-sglang-interpret-k={k}]",
            test="test_top_k_edges",
            verdict=Verdict.WAIVED,
            waiver=WAIVER_ID,
            reason=WAIVER_REASON,
            figures=(RuleFigure(rule="no filter", figure=1, bound=0, holds=False),),
            **sglang,
        )
    yield failing(
        SCALE_FAILURE,
        id=f"{FILE}::test_top_p_values[{top_p}-waveproof-interpret-vocab=151936]",
        test="test_top_p_values",
        operator=top_p,
        provider="waveproof",
        runtime="interpret",
        figures=(
            RuleFigure(rule="kept values", figure=3.4e-4, bound=1.1e-4, unit="relative error", holds=False),
            RuleFigure(rule="row sum", figure=2e-5, bound=1.1e-4, unit="relative error"),
        ),
        seconds=9.7,
    )
    yield failing(
        Failure(
            rule="survives",
            message="the process that ran it was ended by signal 11 (SIGSEGV)",
            call="target_probs(logits=bfloat16[4, 5000], temperature=float32[4], top_k=20, top_p=0.9, path='sparse')",
            repro="repro_target_probs_crash.py",
            repro_confirmed=True,
        ),
        id=f"{FILE}::test_target_probs_paths[{target}-torch-cpu-sparse]",
        test="test_target_probs_paths",
        operator=target,
        verdict=Verdict.CRASH,
        figures=(),
    )
    yield passing(
        f"{FILE}::test_target_probs_values[{target}-sglang-interpret-bfloat16]",
        test="test_target_probs_values",
        operator=target,
        verdict=Verdict.INCONCLUSIVE,
        reason=WRONG_BF16,
        figures=(),
        **sglang,
    )
    for symbol in ("top_k_renorm_prob", "top_p_renorm_prob", "tree_speculative_sampling_target_only"):
        yield Record(
            id=f"conformance/test_symbols.py::test_symbol_is_bound[{symbol}]",
            test="test_symbol_is_bound",
            verdict=Verdict.PASS,
            versions=VERSIONS,
            commit=COMMIT,
            seconds=0.2,
        )
