"""The law that a verifier realises, read off from its coins instead of sampled.

Coins are inputs, so the outcome of a row is a step function of each of them, and its decision tree
(``golden/references/decisions.py``) says where every step lies. Each step is bracketed from both sides, a few float32
ulps away, and each level between two steps is probed in its middle and at random; all of it in few launches. Where a
bracket fails at the distance that float32's roundings allow, the coin is scanned and every change of the outcome is
bisected to the last float: then the law that the kernel really has is reported.

*What it sees.* A step that lies elsewhere by more than the bracket; a level that gives another outcome. One row of
eight tokens takes a few hundred evaluations and bounds the total variation between the kernel's law and the due one
near 1e-6; a sample that could tell such laws apart would take more than 1e10 draws (:mod:`.evidence`).
*What it does not see.* A fault on an interval between two probes of one level that contains neither: the outcome is
taken to be constant there, as it is for every comparison of a coin with a figure that does not depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from waveproof.golden.judges.judgement import Judgement
from waveproof.golden.judges.verify import judge_rows, outcome_of, vocabulary
from waveproof.golden.references.decisions import (
    COIN_GRID,
    NARROWEST,
    Choice,
    Node,
    Open,
    Outcome,
    Visit,
    legal,
    visits,
)
from waveproof.golden.references.verify import decision
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.renorm import UNIT_ROUNDOFF
from waveproof.kernels.operators.verify import NO_TOKEN

LAW = "law"
"""Rule: every step of the outcome lies where it is due."""

Run = Callable[[Call], Sequence[torch.Tensor]]
"""What is on trial: a call of the operator to accept_len and tokens."""

LAST_COIN = 1.0 - 2.0**-24
"""Largest float32 below 1."""

TIGHT = 8.0 * UNIT_ROUNDOFF
"""Relative distance of the first bracket: 4 to 8 ulp."""

MOST_ROWS = 4096
"""Rows of one launch."""

FINEST = 2.0**-34
"""Where bisection stops near 0, whose neighbours in float32 are 2^-149 apart."""

SCANNED = 64
"""Coins of a first scan of a choice whose law is not the due one."""

RANDOM_COINS = 2
"""Coins at random for each choice, beside those that are placed."""


@dataclass(frozen=True)
class _Boundary:
    """Between two branches that can be told apart: the last edge of one and the first of the other."""

    left: int
    right: int
    low: float
    high: float
    slack: float
    """Most that float32 may move either."""


@dataclass(frozen=True)
class _Trial:
    """A choice with everything else held fixed."""

    row: int
    visit: Visit
    coins: tuple[float, ...]
    """Of the row; that of the choice is replaced."""
    due: tuple[Outcome | Open | None, ...]
    """What each branch gives; None for one that is too narrow to stand on."""

    @property
    def choice(self) -> Choice:
        return self.visit.choice

    def at(self, coin: float) -> list[float]:
        """All coins of the row, with this one for the choice."""
        coins = list(self.coins)
        coins[self.choice.coin] = float(np.float32(min(max(coin, 0.0), LAST_COIN)))
        return coins

    def middle(self, branch: int) -> float:
        """Middle of the part where a branch is certain."""
        return 0.5 * sum(self.choice.span(branch))

    def boundaries(self) -> list[_Boundary]:
        """Between neighbours among the branches that can be stood on."""
        standing = [branch for branch, due in enumerate(self.due) if due is not None]
        edges, slack = self.choice.edges, self.choice.slack
        return [
            _Boundary(a, b, float(edges[a]), float(edges[b - 1]), float(max(slack[a:b]))) for a, b in pairwise(standing)
        ]


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


class _Asker:
    """Runs probes in launches of limited size and counts them."""

    def __init__(self, run: Run, call: Call) -> None:
        self.run, self.call = run, call
        self.probes = self.launches = 0
        self.seconds = 0.0

    def __call__(self, probes: Sequence[tuple[int, list[float]]]) -> list[Outcome | None]:
        """Outcomes of (row, coins of the row)."""
        found: list[Outcome | None] = []
        for start in range(0, len(probes), MOST_ROWS):
            part = probes[start : start + MOST_ROWS]
            call = probing(self.call, [row for row, _ in part], [coins for _, coins in part])
            started = time.perf_counter()
            accept_len, tokens = (output.tolist() for output in self.run(call)[:2])
            self.seconds += time.perf_counter() - started
            self.launches += 1
            self.probes += len(part)
            found += [outcome_of(count, line) for count, line in zip(accept_len, tokens, strict=True)]
        return found


def probing(call: Call, rows: Sequence[int], coins: Sequence[Sequence[float]]) -> Call:
    """A call whose row i is row ``rows[i]`` of another with other coins, the final one last."""
    index = torch.tensor(rows, dtype=torch.long)
    table = torch.tensor([list(row) for row in coins], dtype=torch.float32)
    changed = {
        name: value.index_select(0, index)
        for name, value in call.arguments.items()
        if isinstance(value, torch.Tensor) and name not in ("coins", "final_coins")
    }
    return call.with_arguments(**changed, coins=table[:, :-1].contiguous(), final_coins=table[:, -1].contiguous())


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
    trials: list[_Trial] = []
    bound = np.zeros(batch)
    for row, tree in enumerate(trees):
        for visit in visits(tree):
            trial = None if isinstance(visit, float) else _trial(tree, row, visit, count + 1, call, rng)
            if trial is not None:
                trials.append(trial)
            else:
                bound[row] += visit if isinstance(visit, float) else visit.reach
    ask = _Asker(run, call)
    shown, brackets = _bracket(ask, trees, trials, vocabulary(call), rng)
    allowed, variation = np.zeros(batch), np.zeros(batch)
    for trial, bracket in zip(trials, brackets, strict=True):
        allowed[trial.row] += trial.visit.reach * sum(one.high - one.low + one.slack for one in trial.boundaries())
        bound[trial.row] += trial.visit.reach * bracket
    misplaced = _really(ask, trials, shown) if shown else []
    for one in misplaced:
        variation[one.row] += one.reach * one.total_variation
    steps = sum(len(trial.boundaries()) for trial in trials)
    return Extracted(
        batch,
        steps,
        ask.probes,
        ask.launches,
        ask.seconds,
        tuple(variation.tolist()),
        tuple(bound.tolist()),
        tuple(allowed.tolist()),
        tuple(misplaced),
    )


def judge_law(extracted: Extracted, call: Call) -> Judgement:
    """Whether every step lies where it is due; the figure is the largest total variation of a row."""
    worst = int(np.argmax(np.array(extracted.total_variation) - np.array(extracted.allowed)))
    figure, limit = extracted.total_variation[worst], extracted.allowed[worst]
    derivation = "sum over steps of what float32's roundings may move them (kernels/operators/verify.py)"
    if extracted.holds:
        return Judgement(LAW, True, figure, limit, "total variation", derivation)
    first = max(extracted.misplaced, key=lambda one: one.reach * one.total_variation)
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


# Placing the probes ---------------------------------------------------------------------------------------------------


def _trial(tree: Node, row: int, visit: Visit, count: int, call: Call, rng: np.random.Generator) -> _Trial | None:
    """Coins for everything else, so that each branch of the choice gives an outcome of its own; None if not found."""
    choice, path = visit.choice, dict(visit.path)
    branches = range(len(choice.edges) + 1)
    middles = {branch: 0.5 * sum(span) for branch in branches if (span := choice.span(branch))[1] - span[0] > NARROWEST}
    free = [coin for coin in range(count) if coin not in path and coin != choice.coin]
    for _ in range(64):
        coins = [path.get(coin, 0.5) for coin in range(count)]
        for coin in free:
            coins[coin] = float(np.float32(rng.random()))
        due: list[Outcome | Open | None] = [None] * len(branches)
        for branch, middle in middles.items():
            coins[choice.coin] = float(np.float32(middle))
            allowed = legal(tree, coins)
            if len(allowed) > 1:
                break
            due[branch] = allowed[0]
        else:
            if _told_apart([one for one in due if one is not None], vocabulary(call)):
                return _Trial(row, visit, tuple(coins), tuple(due))
    return None


def _told_apart(due: Sequence[Outcome | Open], vocab_size: int) -> bool:
    """Whether no two neighbours can give the same outcome."""
    for a, b in pairwise(due):
        if a == b or any(
            isinstance(one, Open) and isinstance(other, Outcome) and one.admits(other, vocab_size)
            for one, other in ((a, b), (b, a))
        ):
            return False
    return True


def _fits(due: Outcome | Open | None, got: Outcome | None, vocab_size: int) -> bool:
    if isinstance(due, Open):
        return got is not None and due.admits(got, vocab_size)
    return due == got


def _bracket(
    ask: _Asker, trees: Sequence[Node], trials: Sequence[_Trial], vocab_size: int, rng: np.random.Generator
) -> tuple[dict[int, tuple[list[float], Outcome | None]], list[float]]:
    """Levels and tight brackets first, then the wide brackets where a tight one failed.

    Gives, by trial that failed, coins of its row that show it and what they gave; and of each trial the sum of the
    widths of its brackets.
    """
    shown: dict[int, tuple[list[float], Outcome | None]] = {}
    widths = [0.0] * len(trials)
    probes: list[tuple[int, list[float]]] = []
    meant: list[tuple[int, Outcome | Open | None, _Boundary | None]] = []
    for at, trial in enumerate(trials):
        for branch, due in enumerate(trial.due):
            if due is not None:
                probes.append((trial.row, trial.at(trial.middle(branch))))
                meant.append((at, due, None))
        for boundary in trial.boundaries():
            for side in _sides(trial, boundary, min(TIGHT * boundary.high, boundary.slack)):
                probes.append((trial.row, side[0]))
                meant.append((at, side[1], boundary))
        for coin in rng.random(RANDOM_COINS):
            probes.append((trial.row, trial.at(float(coin))))
            allowed = legal(trees[trial.row], probes[-1][1])
            if len(allowed) == 1:
                meant.append((at, allowed[0], None))
            else:
                probes.pop()
        for boundary in trial.boundaries() if trial.choice.exact else ():
            if (boundary.low * COIN_GRID).is_integer() and boundary.low < 1.0 and boundary.low == boundary.high:
                probes.append((trial.row, trial.at(boundary.low)))
                meant.append((at, trial.due[boundary.right], None))
    loose: dict[tuple[int, _Boundary], None] = {}
    for (at, due, boundary), (_, coins), got in zip(meant, probes, ask(probes), strict=True):
        if _fits(due, got, vocab_size):
            continue
        if boundary is None:
            shown.setdefault(at, (coins, got))
        else:
            loose[at, boundary] = None
    probes = []
    again = []
    for at, step in loose:
        for coins, due in _sides(trials[at], step, 1.02 * step.slack + 2.0**-26):
            probes.append((trials[at].row, coins))
            again.append((at, due))
    for (at, due), (_, coins), got in zip(again, probes, ask(probes), strict=True):
        if not _fits(due, got, vocab_size):
            shown.setdefault(at, (coins, got))
    for at, trial in enumerate(trials):
        for step in trial.boundaries():
            held = step.slack if (at, step) in loose else min(TIGHT * step.high, step.slack)
            widths[at] += step.high - step.low + held
    return shown, widths


def _sides(trial: _Trial, boundary: _Boundary, width: float) -> list[tuple[list[float], Outcome | Open | None]]:
    """Coins just below and just above a step, never beyond the middle of the level, with what is due there."""
    below = max(boundary.low - width, trial.middle(boundary.left))
    above = min(boundary.high + width, trial.middle(boundary.right))
    return [(trial.at(below), trial.due[boundary.left]), (trial.at(above), trial.due[boundary.right])]


# What the law really is -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Change:
    """Two coins of a trial between which the outcome changes."""

    trial: int
    low: float
    high: float
    left: Outcome | None
    right: Outcome | None


def _really(
    ask: _Asker, trials: Sequence[_Trial], shown: Mapping[int, tuple[list[float], Outcome | None]]
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


def _scan(trial: _Trial) -> list[float]:
    """Coins of a first look: evenly, and in the middle of every level."""
    positions = {0.0, LAST_COIN, *np.linspace(0.0, 1.0, SCANNED, endpoint=False).tolist()}
    positions |= {trial.middle(branch) for branch, due in enumerate(trial.due) if due is not None}
    return sorted({float(np.float32(position)) for position in positions})


def _misplaced(
    trial: _Trial,
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
        trial.row,
        trial.choice.name,
        trial.choice.coin,
        trial.visit.reach,
        _distance(trial, masses, vocab_size),
        tuple(position for position, _ in steps),
        tuple(trial.choice.edges.tolist()),
        tuple(probe),
        got,
    )


def _distance(trial: _Trial, masses: dict[Outcome | None, float], vocab_size: int) -> float:
    """Total variation between the masses of outcomes that were found and those of the branches."""
    unmatched = dict(masses)
    surplus = 0.0
    for branch, due in enumerate(trial.due):
        found = sum(unmatched.pop(one) for one in list(unmatched) if due is not None and _fits(due, one, vocab_size))
        surplus += max(found - trial.choice.width(branch), 0.0)
    return surplus + sum(unmatched.values())
