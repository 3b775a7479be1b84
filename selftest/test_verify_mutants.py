"""The planted faults of family ``verify`` before any conformance test: each is one, and the right ones agree.

A fault gives another answer to some call of ``verify_rows.py`` than the first right implementation, or breaks a form or
a memory rule. How the suite's tests fare is the kill matrix's business.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from waveproof.golden.judges.evidence import g_test
from waveproof.kernels.operators.contract import Call, Value
from waveproof.kernels.runtimes.execution import Execution, open_execution
from waveproof.kernels.runtimes.worker import run
from waveproof.selftest.mutants.mutant import Mutant
from waveproof.selftest.mutants.verify import (
    ACCEPT,
    CHAIN,
    CORRECT,
    GREEDY_TREE,
    MUTANTS,
    REFUSED,
    SEEDED,
    SURVIVES,
    TARGET_ONLY,
    TREE,
)
from waveproof.selftest.mutants.verify_steps import tempered
from waveproof.selftest.verify_rows import (
    Given,
    accept_calls,
    chain_calls,
    first_right,
    greedy_tree_calls,
    target_only_calls,
    tree_calls,
)

# What comes out -------------------------------------------------------------------------------------------------------


@cache
def calls(operator: str) -> tuple[Given, ...]:
    made = {
        CHAIN: chain_calls,
        TREE: tree_calls,
        GREEDY_TREE: greedy_tree_calls,
        ACCEPT: accept_calls,
        TARGET_ONLY: target_only_calls,
    }
    return tuple(made[operator]())


@cache
def due(operator: str, at: int) -> tuple[Tensor, Tensor]:
    """What the first right implementation gives."""
    accept_len, tokens = first_right(operator).function()(*calls(operator)[at].call.arguments.values())
    return accept_len, tokens


def flaw(mutant: Mutant, at: int, cpu: Execution) -> str:
    """What is wrong with an answer; empty where it is the due one."""
    call, certain = calls(mutant.operator)[at].call, calls(mutant.operator)[at].settled
    reply, outputs = run(cpu, mutant.function(), 2, call)
    if reply["error"]:
        return f"raised {reply['error']['type']}: {reply['error']['message']}"
    if reply["incidents"]:
        return str(reply["incidents"][0])
    accept_len, tokens = (outputs[name] for name in reply["outputs"])
    expected = due(mutant.operator, at)
    for got, wanted in zip((accept_len, tokens), expected, strict=True):
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            return f"gave {got.dtype}{list(got.shape)}, due {wanted.dtype}{list(wanted.shape)}"
    given = [call.tensor(name).shape[-1] for name in ("target_probs", "target_logits") if name in call.arguments]
    if given and tokens.numel() and int(tokens.max()) >= given[0]:
        return f"token {int(tokens.max())} of {given[0]}"
    for row in torch.nonzero(certain)[:, 0].tolist():
        count, line = int(expected[0][row]), expected[1][row].tolist()
        told = tokens[row].tolist()
        if int(accept_len[row]) == count and told[count] != line[count] and may_be_any(call, row, count, told[count]):
            told[count] = line[count]
        if int(accept_len[row]) != count or told != line:
            return f"row {row}: {int(accept_len[row])} {tokens[row].tolist()}, due {count} {line}"
    return ""


def may_be_any(call: Call, row: int, count: int, token: int) -> bool:
    """Whether the residual is empty and this token has p > 0."""
    if call.operator != CHAIN or count == call.tensor("candidates").shape[1] - 1:
        return False
    p, q = call.tensor("target_probs")[row, count], call.tensor("draft_probs")[row, count]
    rest = p - torch.where((q >= 0.0) & (q <= 1.0), q, 0.0)
    return not bool((rest > 0.0).any()) and 0 <= token < len(p) and bool(p[token] > 0.0)


# By what it draws -----------------------------------------------------------------------------------------------------

KINDS = ((0.6, 1.5, (2, 0)), (1.6, 0.7, (3, 3)), (1.0, 1.0, (3, 3)), (1.6, 1.0, (3, 1)))
"""Temperature, temperature of the draft and draft tokens of four kinds of rows. Token 3 has p below q in both slots."""


def seeded_call(seed: int, rows: int = 8000) -> Call:
    """All kinds of rows in turn; their logits are one."""
    generator = torch.Generator().manual_seed(9)
    target, draft = (1.2 * torch.randn(1, count, 5, generator=generator) for count in (3, 2))
    turns = rows // len(KINDS)
    arguments: dict[str, Value] = {
        "candidates": torch.tensor([[0, *drafts] for _, _, drafts in KINDS]).repeat(turns, 1),
        "target_logits": target.repeat(rows, 1, 1),
        "draft_logits": draft.repeat(rows, 1, 1),
        "temperature": torch.tensor([temperature for temperature, _, _ in KINDS]).repeat(turns),
        "draft_temperature": torch.tensor([temperature for _, temperature, _ in KINDS]).repeat(turns),
        "seed": seed,
    }
    return Call(SEEDED, arguments, 1 + seed % 2)


@cache
def laws() -> tuple[dict[tuple[int, ...], float], ...]:
    """Of each kind of row: probability of each outcome, summed up from the formulas."""
    call = seeded_call(0, len(KINDS))
    names = (("target_logits", "temperature"), ("draft_logits", "draft_temperature"))
    p, q = (tempered(call.tensor(a), call.tensor(b)).double().numpy() for a, b in names)
    found = []
    for kind, (_, _, drafts) in enumerate(KINDS):
        law: dict[tuple[int, ...], float] = {}
        reach = 1.0
        for step, token in enumerate(drafts):
            stands = min(1.0, p[kind, step, token] / q[kind, step, token])
            rest = np.maximum(p[kind, step] - q[kind, step], 0.0)
            for last, weight in enumerate(rest / rest.sum()):
                law[(*drafts[:step], last)] = law.get((*drafts[:step], last), 0.0) + reach * (1.0 - stands) * weight
            reach *= stands
        for last, weight in enumerate(p[kind, 2]):
            law[(*drafts, last)] = reach * weight
        found.append(law)
    return tuple(found)


def seeded_flaw(mutant: Mutant, cpu: Execution) -> str:
    """What is wrong with what it draws: its law, two rows, two seeds, two calls; empty where nothing is."""
    drawn = []
    for seed in (11, 12):
        reply, outputs = run(cpu, mutant.function(), 2, seeded_call(seed))
        if reply["error"] or reply["incidents"]:
            return str(reply["error"] or reply["incidents"][0])
        drawn.append(outputs["out1"])
    if torch.equal(*drawn):
        return "two seeds give the same"
    for kind, law in enumerate(laws()):
        lines = Counter(tuple(line[: line.index(-1)] if -1 in line else line) for line in drawn[0][kind::4].tolist())
        outcomes = [*law, *(one for one in lines if one not in law)]
        counts = np.array([lines[one] for one in outcomes])
        evidence = g_test(counts, np.array([law.get(one, 0.0) for one in outcomes]) / sum(law.values()), 1e-6)
        if evidence.rejects:
            return f"kind {kind}: p-value {evidence.p_value:.1e} of {evidence.n}"
    reply, outputs = run(cpu, mutant.function(), 2, alike_call(13))
    same = float((outputs["out1"][::2] == outputs["out1"][1::2]).all(-1).float().mean())
    return f"{same:.0%} of neighbours draw the same" if same > 0.9 else ""


def alike_call(seed: int) -> Call:
    """Two thousand rows of the third kind."""
    call = seeded_call(seed, len(KINDS))
    rows = {name: call.tensor(name)[2:3] for name in call.arguments if name != "seed"}
    return call.with_arguments(**{name: x.repeat(2000, *[1] * (x.dim() - 1)) for name, x in rows.items()})


# Tests ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cpu() -> Execution:
    return open_execution("cpu", "")


def _id(mutant: Mutant) -> str:
    return f"{mutant.operator}:{mutant.name}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=_id)
def test_is_a_fault(mutant: Mutant, cpu: Execution) -> None:
    """It answers otherwise somewhere, or where it must refuse; what takes the process down is the kill matrix's."""
    if mutant.seen_by == SURVIVES:
        return
    if mutant.seen_by == REFUSED:
        call = calls(mutant.operator)[0].call.with_arguments(path="sideways")
        assert run(cpu, mutant.function(), 2, call)[0]["error"] is None
    elif mutant.operator == SEEDED:
        assert seeded_flaw(mutant, cpu), f"not to be seen: {mutant.fault}"
    else:
        flaws = (flaw(mutant, at, cpu) for at in range(len(calls(mutant.operator))))
        assert next(filter(None, flaws), ""), f"not to be seen: {mutant.fault}"


@pytest.mark.parametrize("mutant", CORRECT, ids=_id)
def test_is_right(mutant: Mutant, cpu: Execution) -> None:
    """It answers as the first right implementation does, refuses what it must, and draws by the law."""
    if mutant.operator == SEEDED:
        assert not seeded_flaw(mutant, cpu)
        return
    assert not list(filter(None, (flaw(mutant, at, cpu) for at in range(len(calls(mutant.operator))))))
    if mutant.operator in (ACCEPT, TARGET_ONLY):
        call = calls(mutant.operator)[0].call.with_arguments(path="sideways")
        error = run(cpu, mutant.function(), 2, call)[0]["error"]
        assert error is not None
        assert "ValueError" in error["bases"]
