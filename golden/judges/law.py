"""The law that a verifier realises, read off from its coins instead of sampled.

Coins are inputs, so the outcome of a row is a step function of each of them, and its decision tree
(``golden/references/decisions.py``) says where every step lies. Each step is bracketed from both sides, a few float32
ulps away, and each level between two steps is probed in its middle and at random; all of it in few launches. Where a
bracket fails at the distance that float32's roundings allow, the coin is scanned and every change of the outcome is
bisected to the last float: then the law that the kernel really has is reported.

*What it sees.* A step that lies elsewhere by more than the bracket; a level that gives another outcome. One row of
eight tokens takes a few hundred evaluations and bounds the total variation between the kernel's law and the due one
near 1e-6; `waveproof figures law` prints how many draws a test of a sample would take for a hundred times as much.
*What it does not see.* A fault on an interval between two probes of one level that contains neither: the outcome is
taken to be constant there, as it is for every comparison of a coin with a figure that does not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from waveproof.golden.judges.judgement import Judgement
from waveproof.golden.judges.law_probes import Asker, Run, Trial, bracket, fits, placed_trial, probing
from waveproof.golden.judges.verify import judge_rows, vocabulary
from waveproof.golden.references.decisions import Outcome, visits
from waveproof.golden.references.verify import decision
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.verify import LAST_COIN, NO_TOKEN

LAW = "law"
"""Rule: every step of the outcome lies where it is due."""

FINEST = 2.0**-34
"""Where bisection stops near 0, whose neighbours in float32 are 2^-149 apart."""

SCANNED = 64
"""Coins of a first scan of a choice whose law is not the due one."""


@dataclass(frozen=True)
class Misplaced:
    """A choice whose law is not the due one."""

    row: int
    name: str
    coin: int
    reach: float
    """Probability that the choice is reached."""
    total_variation: float
    """Between the kernel's law of this choice and the due one."""
    steps: tuple[float, ...]
    """Where the kernel's outcome changes, each to the last float."""
    due: tuple[float, ...]
    """Where it should, in float64."""
    probe: tuple[float, ...]
    """Coins of the row that show it."""
    got: Outcome | None
    """What they gave."""


@dataclass(frozen=True)
class Extracted:
    """What was found of the rows of one call."""

    rows: int
    steps: int
    """Steps that were bracketed."""
    probes: int
    launches: int
    seconds: float
    """In the kernel's runtime."""
    total_variation: tuple[float, ...]
    """Of each row: between the law that was found and the due one; 0 where every bracket holds."""
    bound: tuple[float, ...]
    """Of each row: how far the true total variation may be from that figure."""
    allowed: tuple[float, ...]
    """Of each row: what the roundings of float32 may come to."""
    misplaced: tuple[Misplaced, ...]

    @property
    def holds(self) -> bool:
        """Whether every step lies where it is due."""
        return not self.misplaced


def extract(run: Run, call: Call, seed: int = 0) -> Extracted:
    """Read the law of every row of a call off an implementation.

    Args:
        run: the implementation; called with other coins and with rows of the call repeated.
        call: of an operator of family ``verify`` that takes coins; its own coins do not matter.
        seed: of the coins that are drawn.
    """
    rng = np.random.default_rng(seed)
    batch, count = call.tensor("coins").shape
    trees = [decision(call, row) for row in range(batch)]
    trials: list[Trial] = []
    bound = np.zeros(batch)
    for row, tree in enumerate(trees):
        for visit in visits(tree):
            trial = None if isinstance(visit, float) else placed_trial(tree, row, visit, count + 1, call, rng)
            if trial is not None:
                trials.append(trial)
            else:
                bound[row] += visit if isinstance(visit, float) else visit.reach
    ask = Asker(run, call)
    shown, widths = bracket(ask, trees, trials, vocabulary(call), rng)
    allowed, variation = np.zeros(batch), np.zeros(batch)
    for trial, width in zip(trials, widths, strict=True):
        allowed[trial.row] += trial.visit.reach * sum(one.high - one.low + one.slack for one in trial.boundaries())
        bound[trial.row] += trial.visit.reach * width
    misplaced = _bisected(ask, trials, shown) if shown else []
    for one in misplaced:
        variation[one.row] += one.reach * one.total_variation
    steps = sum(len(trial.boundaries()) for trial in trials)
    return Extracted(
        rows=batch,
        steps=steps,
        probes=ask.probes,
        launches=ask.launches,
        seconds=ask.seconds,
        total_variation=tuple(variation.tolist()),
        bound=tuple(bound.tolist()),
        allowed=tuple(allowed.tolist()),
        misplaced=tuple(misplaced),
    )


def judge_law(extracted: Extracted, call: Call) -> Judgement:
    """Whether every step lies where it is due; the figure is the largest total variation of a row."""
    derivation = "sum over steps of what float32's roundings may move them (kernels/operators/verify.py)"
    if extracted.holds:
        return Judgement(LAW, True, 0.0, max(extracted.allowed, default=0.0), "total variation", derivation)
    first = max(extracted.misplaced, key=lambda one: extracted.total_variation[one.row] - extracted.allowed[one.row])
    figure, limit = extracted.total_variation[first.row], extracted.allowed[first.row]
    probe = probing(call, [first.row], [first.probe])
    width = int(call.number("depth")) if "depth" in call.arguments else call.tensor("candidates").shape[1]
    outputs = _outputs(first.got, width)
    shown = judge_rows(outputs, probe, [decision(probe, 0)])
    return replace(
        shown,
        rule=LAW,
        holds=False,
        figure=figure,
        bound=limit,
        unit="total variation",
        derivation=derivation,
        message=f"row {first.row}, {first.name}: the outcome changes at {_positions(first.steps)} of coin "
        f"{first.coin}, due at {_positions(first.due)}",
        index=(first.row,),
    )


def _outputs(got: Outcome | None, width: int) -> list[torch.Tensor]:
    tokens = torch.full((1, width), NO_TOKEN, dtype=torch.int32)
    if got is None:
        return [torch.tensor([-1], dtype=torch.int32), tokens]
    tokens[0, : got.accepted + 1] = torch.tensor(got.tokens, dtype=torch.int32)
    return [torch.tensor([got.accepted], dtype=torch.int32), tokens]


def _positions(steps: Sequence[float]) -> str:
    text = ", ".join(f"{step:.9g}" for step in steps[:6])
    return f"[{text}{', ...' if len(steps) > 6 else ''}]"


# What the law really is -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Change:
    """Two coins of a trial between which the outcome changes."""

    trial: int
    low: float
    high: float
    left: Outcome | None
    right: Outcome | None


def _bisected(
    ask: Asker, trials: Sequence[Trial], shown: Mapping[int, tuple[list[float], Outcome | None]]
) -> list[Misplaced]:
    """Scan the coins of choices and bisect every change of the outcome to the last float, all in the same launches."""
    scans = {at: _scan(trials[at]) for at in shown}
    answers = iter(ask([(trials[at].row, trials[at].at(coin)) for at, coins in scans.items() for coin in coins]))
    first: dict[int, Outcome | None] = {}
    changes: list[_Change] = []
    for at, coins in scans.items():
        outcomes = [next(answers) for _ in coins]
        first[at] = outcomes[0]
        neighbours = pairwise(zip(coins, outcomes, strict=True))
        changes += [_Change(at, low, high, left, right) for (low, left), (high, right) in neighbours if left != right]
    steps: dict[int, list[tuple[float, Outcome | None]]] = {at: [] for at in shown}
    while changes:
        middles = [float(np.float32(0.5 * (one.low + one.high))) for one in changes]
        between = ask(
            [(trials[one.trial].row, trials[one.trial].at(c)) for one, c in zip(changes, middles, strict=True)]
        )
        following = []
        for one, middle, found in zip(changes, middles, between, strict=True):
            if middle in (one.low, one.high) or one.high - one.low < FINEST:
                steps[one.trial].append((one.high, one.right))
                continue
            if found != one.left:
                following.append(replace(one, high=middle, right=found))
            if found != one.right:
                following.append(replace(one, low=middle, left=found))
        changes = following
    return [
        _misplaced(trials[at], sorted(steps[at], key=lambda step: step[0]), first[at], vocabulary(ask.call), *probe)
        for at, probe in shown.items()
    ]


def _scan(trial: Trial) -> list[float]:
    """Coins of a first look: evenly, and in the middle of every level."""
    positions = {0.0, LAST_COIN, *np.linspace(0.0, 1.0, SCANNED, endpoint=False).tolist()}
    positions |= {trial.middle(branch) for branch, due in enumerate(trial.due) if due is not None}
    return sorted({float(np.float32(position)) for position in positions})


def _misplaced(
    trial: Trial,
    steps: Sequence[tuple[float, Outcome | None]],
    first: Outcome | None,
    vocab_size: int,
    probe: list[float],
    got: Outcome | None,
) -> Misplaced:
    masses: dict[Outcome | None, float] = {}
    start, current = 0.0, first
    for position, outcome in [*steps, (1.0, None)]:
        masses[current] = masses.get(current, 0.0) + position - start
        start, current = position, outcome
    return Misplaced(
        row=trial.row,
        name=trial.choice.name,
        coin=trial.choice.coin,
        reach=trial.visit.reach,
        total_variation=_distance(trial, masses, vocab_size),
        steps=tuple(position for position, _ in steps),
        due=tuple(trial.choice.edges.tolist()),
        probe=tuple(probe),
        got=got,
    )


def _distance(trial: Trial, masses: dict[Outcome | None, float], vocab_size: int) -> float:
    """Total variation between the masses of outcomes that were found and those of the branches."""
    unmatched = dict(masses)
    surplus = 0.0
    for branch, due in enumerate(trial.due):
        found = sum(unmatched.pop(one) for one in list(unmatched) if due is not None and fits(due, one, vocab_size))
        surplus += max(found - trial.choice.width(branch), 0.0)
    return surplus + sum(unmatched.values())
