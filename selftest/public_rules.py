"""What comparison rules in public use say of the same planted faults, each rule in the set-up that it is used in.

The rules are rebuilt from their description, none is copied:

* *close*: top-p and top-k renorm held to a sorted reference with rtol = atol = 1e-3, on uniform random rows.
* *sum and count*: a top-k row sums to 1 within 1e-3 and keeps k tokens, ties granted; no value is looked at.
* *check, as logged*: rtol = atol = 1e-2 where up to 5 % of the elements may differ.
* *check, as run*: the same, whose result is a ratio that nobody reads and no exception: the process exits with 0.

Fresh memory is poisoned here as in the suite, which helps the rules: in their own surroundings it mostly holds zeros.

Set-up: rows of uniform random numbers divided by their sum, V = 32,000 and 128,256, float32, contiguous, scalar limits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from waveproof.kernels.runtimes.memory import POISONS, guarded_allocations
from waveproof.selftest.kill_matrix import Trial
from waveproof.selftest.mutants.renorm import MUTANTS, TOP_K, TOP_P, Mutant

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


@dataclass(frozen=True)
class PublicVerdicts:
    """Which of the public rules reject a planted fault; None where a rule is not in use for the operator."""

    mutant: Mutant
    rejects: dict[str, bool | None]


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


def public_verdicts(mutant: Mutant) -> PublicVerdicts:
    """What each rule says of a planted fault in plain torch, over all vocabularies and limits."""
    module = importlib.import_module(f"waveproof.selftest.mutants.{mutant.path.stem}")
    function = getattr(module, mutant.name)
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


def in_plain_torch() -> tuple[Mutant, ...]:
    """The planted faults that the rules can be applied to: plain torch, an operator that has public tests."""
    return tuple(mutant for mutant in MUTANTS if mutant.operator in LIMITS and mutant.runtimes == ("cpu",))


def public_rules(trials: Sequence[Trial], console: Console) -> None:
    """Apply the rules to every planted fault that they can be applied to, or to those on trial, and print the table."""
    ours = {trial.mutant for trial in trials}
    chosen = [mutant for mutant in in_plain_torch() if mutant in ours or not ours]
    render([public_verdicts(mutant) for mutant in chosen], trials, console)


def render(verdicts: Sequence[PublicVerdicts], trials: Sequence[Trial], console: Console) -> None:
    """Print which rule rejects what, and the totals; our own verdicts beside them where ``trials`` has them."""
    ours = {(trial.mutant.operator, trial.mutant.name): trial.killed for trial in trials}
    columns = [Column(name, justify="center") for name in RULES]
    table = Table(Column("planted fault", no_wrap=True), *columns, *(["waveproof"] if ours else []), box=None)
    operator = ""
    for verdict in verdicts:
        if verdict.mutant.operator != operator:
            operator = verdict.mutant.operator
            table.add_row(Text(operator, "bold"))
        cells = [_cell(verdict.rejects[name]) for name in RULES]
        own = [_cell(ours.get((operator, verdict.mutant.name)))] if ours else []
        table.add_row(Text(f"  {verdict.mutant.name}"), *cells, *own)
    totals = []
    for name in RULES:
        said = [verdict.rejects[name] for verdict in verdicts if verdict.rejects[name] is not None]
        totals.append(f"{sum(map(bool, said))} of {len(said)}")
    if ours:
        said = [ours.get((verdict.mutant.operator, verdict.mutant.name)) for verdict in verdicts]
        totals.append(f"{sum(map(bool, said))} of {len(said)}")
    table.add_row(Text("rejected", "bold"), *(Text(total, "bold") for total in totals))
    console.print(table)
    anyone = sum(any(verdict.rejects.values()) for verdict in verdicts)
    console.print(f"{anyone} of {len(verdicts)} planted faults are rejected by at least one of the public rules")


def _cell(rejects: bool | None) -> Text:
    if rejects is None:
        return Text("-", "dim")
    return Text("rejected") if rejects else Text("passes", "red")
