"""The fixed cases of family ``renorm`` that goldens are captured for.

Small cases go with the suite; those with a serving vocabulary are for captures on a GPU. Whoever changes what a case
holds raises ``GENERATOR``: stored goldens of the old one stay comparable, for they carry their inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from waveproof.golden.cases import Case, make_case, stream
from waveproof.kernels.operators.contract import Value
from waveproof.kernels.operators.renorm import TARGET_PROBS, TOP_K_ALL, TOP_K_RENORM_PROB, TOP_P_RENORM_PROB

GENERATOR = "renorm-cases/1"

SEED = 20_240_701

SERVING_VOCABULARIES = (128_256, 151_936, 163_840)
"""Llama 3, Qwen 3 and Kimi K2 (``vocab_size`` in their ``config.json``)."""


def small_cases(seed: int = SEED) -> tuple[Case, ...]:
    """Cases up to V = 32,000, whose goldens are small enough to be committed."""
    return (*_top_k_cases(seed), *_top_p_cases(seed), *_target_probs_cases(seed))


def serving_cases(seed: int = SEED) -> tuple[Case, ...]:
    """Cases at serving vocabularies, 0.5 to 1.3 MB of input each."""
    cases = []
    for vocab_size in SERVING_VOCABULARIES:
        name = f"v{vocab_size}"
        rows = 2 if vocab_size == max(SERVING_VOCABULARIES) else 1
        k = _ints([50, 4096][:rows])
        p = _floats([0.95, 0.9999][:rows])
        probs = {"probs": _softmax_rows(seed, name, rows, vocab_size)}
        logits = _logits(seed, name, rows, vocab_size).bfloat16()
        cases += [
            _case(seed, TOP_K_RENORM_PROB.name, name, {**probs, "top_k": k}),
            _case(seed, TOP_P_RENORM_PROB.name, name, {**probs, "top_p": p}),
            *(
                _target(seed, f"{path}-{name}", logits, _floats([0.7, 1.0][:rows]), k, p, path)
                for path in ("dense", "sparse")
            ),
        ]
    return tuple(cases)


def _top_k_cases(seed: int) -> list[Case]:
    softmax = _softmax_rows(seed, "softmax", 3, 129)
    ties = _bf16_rows(seed, "ties", 3, 129)
    edges = _softmax_rows(seed, "edges", 8, 64)
    inputs: dict[str, tuple[torch.Tensor, Value]] = {
        "softmax-v129": (softmax, 50),
        "k1-v129": (softmax, 1),
        "no-filter-v129": (softmax, TOP_K_ALL),
        "one-k-tensor-v129": (softmax, _ints([20])),
        "k-edges-v64": (edges, _ints([1, 2, 63, 64, 65, 0, -1, TOP_K_ALL])),
        "per-row-k-int64-v64": (edges[:3], _ints([3, 17, 40]).long()),
        "bf16-ties-v129": (ties, _ints([5, 40, 100])),
        "tie-at-k-v8": (_rows([[4, 3, 2, 2, 2, 1, 1, 1], [1, 2, 2, 2, 2, 2, 2, 3]]), 3),
        "uniform-v128": (_rows([[1] * 128]), 7),
        "peaked-v129": (_peaked_rows(seed, "peaked", 2, 129), _ints([2, 100])),
        "one-hot-v65": (_rows([[0] * 40 + [1] + [0] * 24]), 5),
        "single-token-v1": (_rows([[1], [1]]), 1),
        "below-normal-v65": (_rows([[1.0] + [2.0**-127] * 64]), 10),
    }
    cases = [_case(seed, TOP_K_RENORM_PROB.name, n, {"probs": probs, "top_k": k}) for n, (probs, k) in inputs.items()]
    wide = _softmax_rows(seed, "wide", 1, 8192)
    return [*cases, _case(seed, TOP_K_RENORM_PROB.name, "wide-v8192", {"probs": wide, "top_k": 1000}, ("threshold",))]


def _top_p_cases(seed: int) -> list[Case]:
    softmax = _softmax_rows(seed, "softmax", 3, 129)
    ties = _bf16_rows(seed, "ties", 3, 129)
    halves = _rows([[2.0**-n for n in range(1, 16)] + [2.0**-15]])
    inputs: dict[str, tuple[torch.Tensor, Value]] = {
        "softmax-v129": (softmax, 0.9),
        "least-p-v129": (softmax, 1e-6),
        "no-filter-v129": (softmax, 1.0),
        "one-p-tensor-v129": (softmax, _floats([0.5])),
        "per-row-p-v64": (_softmax_rows(seed, "edges", 4, 64), _floats([0.1, 0.5, 0.99, 1.0])),
        "bf16-ties-v129": (ties, _floats([0.3, 0.6, 0.95])),
        "at-boundary-v16": (halves, 0.75),
        "under-boundary-v16": (halves, 0.7499),
        "over-boundary-v16": (halves, 0.7501),
        "tie-at-boundary-v8": (_rows([[4, 3, 2, 2, 2, 1, 1, 1]]), 0.5),
        "uniform-v128": (_rows([[1] * 128]), 0.4),
        "peaked-v129": (_peaked_rows(seed, "peaked", 2, 129), _floats([0.5, 0.9999])),
        "one-hot-v65": (_rows([[0] * 40 + [1] + [0] * 24]), 0.3),
        "single-token-v1": (_rows([[1], [1]]), 0.5),
    }
    cases = [_case(seed, TOP_P_RENORM_PROB.name, n, {"probs": probs, "top_p": p}) for n, (probs, p) in inputs.items()]
    wide = _softmax_rows(seed, "wide", 1, 32_000)
    return [*cases, _case(seed, TOP_P_RENORM_PROB.name, "wide-v32000", {"probs": wide, "top_p": 0.95}, ("threshold",))]


def _target_probs_cases(seed: int) -> list[Case]:
    logits = _logits(seed, "logits", 3, 129)
    warm, k, p = _floats([0.6, 1.0, 1.5]), _ints([10, 50, 100]), _floats([0.9, 0.95, 0.5])
    no_k, no_p = _ints([TOP_K_ALL] * 3), _floats([1.0] * 3)
    flat = torch.zeros(2, 97)
    wide = _logits(seed, "wide", 1, 8192).bfloat16()
    return [
        _target(seed, "dense-v129", logits, warm, k, p, "dense"),
        _target(seed, "sparse-v129", logits, warm, k, p, "sparse"),
        _target(seed, "dense-no-filter-v129", logits, warm, no_k, no_p, "dense"),
        _target(seed, "dense-top-k-only-v129", logits, warm, k, no_p, "dense"),
        _target(seed, "sparse-top-k-only-v129", logits, warm, k, no_p, "sparse"),
        _target(seed, "dense-top-p-only-v129", logits, warm, no_k, p, "dense"),
        _target(seed, "dense-bf16-ties-v129", logits.bfloat16(), warm, k, no_p, "dense"),
        _target(seed, "sparse-bf16-ties-v129", logits.bfloat16(), warm, k, no_p, "sparse"),
        _target(seed, "dense-f16-v129", logits.half(), warm, k, p, "dense"),
        _target(seed, "dense-cold-v129", logits, _floats([0.01] * 3), k, p, "dense"),
        _target(seed, "dense-greedy-v129", logits, warm, _ints([1] * 3), no_p, "dense"),
        _target(seed, "sparse-greedy-v129", logits, warm, _ints([1] * 3), no_p, "sparse"),
        _target(seed, "dense-flat-v97", flat, _floats([1.0] * 2), _ints([5, 96]), _floats([1.0] * 2), "dense"),
        _target(seed, "sparse-flat-v97", flat, _floats([1.0] * 2), _ints([5, 96]), _floats([1.0] * 2), "sparse"),
        _target(seed, "dense-wide-v8192", wide, _floats([0.8]), _ints([200]), _floats([0.95]), "dense", ("threshold",)),
    ]


def _case(seed: int, operator: str, name: str, arguments: dict[str, Value], variants: tuple[str, ...] = ()) -> Case:
    return make_case(GENERATOR, seed, operator, name, arguments, variants)


def _target(
    seed: int,
    name: str,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    path: str,
    variants: tuple[str, ...] = (),
) -> Case:
    arguments: dict[str, Value] = {
        "logits": logits,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "path": path,
    }
    return _case(seed, TARGET_PROBS.name, name, arguments, variants)


def _logits(seed: int, name: str, rows: int, vocab_size: int) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=stream(seed, name)) * 3.0


def _softmax_rows(seed: int, name: str, rows: int, vocab_size: int) -> torch.Tensor:
    return torch.softmax(_logits(seed, name, rows, vocab_size).double(), -1).float()


def _bf16_rows(seed: int, name: str, rows: int, vocab_size: int) -> torch.Tensor:
    """Probabilities as a bfloat16 model gives them: many equal ones. Dividing by the row's sum keeps equals equal."""
    rounded = _softmax_rows(seed, name, rows, vocab_size).bfloat16().double()
    return (rounded / rounded.sum(-1, keepdim=True)).float()


def _peaked_rows(seed: int, name: str, rows: int, vocab_size: int) -> torch.Tensor:
    """Nearly all mass on one token, the rest two ten-thousandths of it in all."""
    rows_of_logits = _logits(seed, name, rows, vocab_size)
    rows_of_logits[torch.arange(rows), torch.arange(rows) * 100 + 7] = 18.0
    return torch.softmax(rows_of_logits.double(), -1).float()


def _rows(weights: Sequence[Sequence[float]]) -> torch.Tensor:
    exact = torch.tensor(weights, dtype=torch.float64)
    return (exact / exact.sum(-1, keepdim=True)).float()


def _ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _floats(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)
