"""Comparison rules of public tests for top-k and top-p renormalisation, in the set-up that they are used in.

The rules are rebuilt from their description, none is copied:

* *close*: top-p and top-k renorm held to a sorted reference with rtol = atol = 1e-3, on uniform random rows.
* *sum and count*: a top-k row sums to 1 within 1e-3 and keeps k tokens, ties granted; no value is looked at.
* *check, as logged*: rtol = atol = 1e-2 where up to 5 % of the elements may differ.
* *check, as run*: the same, whose result is a ratio that nobody reads and no exception: the process exits with 0.

Set-up: rows of uniform random numbers divided by their sum, V = 32,000 and 128,256, float32, contiguous, scalar limits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from waveproof.kernels.runtimes.memory import POISONS, guarded_allocations
from waveproof.selftest.mutants.mutant import Mutant
from waveproof.selftest.mutants.renorm import TOP_K, TOP_P
from waveproof.selftest.public_verdicts import PublicVerdicts

VOCABULARIES = (32_000, 128_256)
ROWS = 4
LIMITS: dict[str, tuple[float, ...]] = {TOP_K: (10, 100, 500), TOP_P: (0.1, 0.5, 0.9)}

Rule = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], bool]
"""Whether a result passes: result, sorted reference, probabilities, limit."""


def close(result: torch.Tensor, reference: torch.Tensor, probs: torch.Tensor, limit: float) -> bool:
    """All elements within rtol = atol = 1e-3."""
    return result.shape == reference.shape and torch.allclose(result.to(reference.dtype), reference, 1e-3, 1e-3)


def sum_and_count(result: torch.Tensor, reference: torch.Tensor, probs: torch.Tensor, limit: float) -> bool:
    """Row sums near 1 and the right number of tokens that are not zero."""
    if result.dim() != 2:
        return False
    kth = torch.sort(probs, dim=-1, descending=True).values[:, int(limit) - 1, None]
    counts = (result > 0).sum(-1) == (probs >= kth).sum(-1)
    return bool(counts.all()) and torch.allclose(result.double().sum(-1), torch.ones(len(result)).double(), 1e-3, 1e-3)


def check_logged(result: torch.Tensor, reference: torch.Tensor, probs: torch.Tensor, limit: float) -> bool:
    """At most 5 % of the elements outside rtol = atol = 1e-2."""
    if result.shape != reference.shape:
        return False
    return float((~torch.isclose(result.to(reference.dtype), reference, 1e-2, 1e-2)).float().mean()) <= 0.05


def check_run(result: torch.Tensor, reference: torch.Tensor, probs: torch.Tensor, limit: float) -> bool:
    """The same, seen from outside: only shapes that do not fit together end the process."""
    return result.shape == reference.shape


RULES: dict[str, tuple[Rule, tuple[str, ...]]] = {
    "close 1e-3": (close, (TOP_K, TOP_P)),
    "sum, count": (sum_and_count, (TOP_K,)),
    "1e-2, 5 % (logged)": (check_logged, (TOP_K, TOP_P)),
    "1e-2, 5 % (exit status)": (check_run, (TOP_K, TOP_P)),
}
"""By name: the rule and the operators that it is in use for."""


@cache
def uniform_rows(vocab_size: int) -> torch.Tensor:
    """float32[ROWS, V]: uniform random numbers over their sum."""
    rows = torch.rand(ROWS, vocab_size, generator=torch.Generator().manual_seed(42))
    return rows / rows.sum(-1, keepdim=True)


@cache
def sorted_reference(operator: str, vocab_size: int, limit: float) -> torch.Tensor:
    """The usual reference: sort in descending order, mask, divide."""
    probs = uniform_rows(vocab_size)
    ordered, order = torch.sort(probs, dim=-1, descending=True)
    if operator == TOP_K:
        kept = torch.arange(vocab_size)[None] < int(limit)
    else:
        kept = torch.cumsum(ordered, -1) - ordered < limit
    masked = torch.where(kept, ordered, 0.0)
    return torch.zeros_like(probs).scatter_(1, order, masked / masked.sum(-1, keepdim=True))


def verdicts_on(mutant: Mutant) -> PublicVerdicts:
    """What each rule says of a planted fault in plain torch, over all vocabularies and limits."""
    function = mutant.function()
    rejects: dict[str, bool | None] = {
        name: False if mutant.operator in operators else None for name, (_, operators) in RULES.items()
    }
    for vocab_size in VOCABULARIES:
        for limit in LIMITS[mutant.operator]:
            probs = uniform_rows(vocab_size)
            # Guarded because some faults write beyond their memory; what the guard sees is not told to the rules.
            with guarded_allocations(POISONS[0], lambda tensor: tensor):
                result = function(probs.clone(), int(limit) if mutant.operator == TOP_K else limit)
            # A comparison takes the first of several outputs and stumbles over none.
            result = result[0] if isinstance(result, (list, tuple)) else result
            reference = sorted_reference(mutant.operator, vocab_size, limit)
            for name, (rule, operators) in RULES.items():
                if mutant.operator in operators and not rejects[name]:
                    rejects[name] = result is None or not rule(result, reference, probs, limit)
    return PublicVerdicts(mutant, rejects)
