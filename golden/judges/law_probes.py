"""Where the probes of a law are placed: on every level, and on both sides of every step (see :mod:`.law`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from waveproof.golden.judges.verify import outcome_of, vocabulary
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
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.renorm import UNIT_ROUNDOFF
from waveproof.kernels.operators.verify import LAST_COIN

Run = Callable[[Call], Sequence[torch.Tensor]]
"""What is on trial: a call of the operator to accept_len and tokens."""

COIN_STEP = 2.0**-24
"""Largest distance between neighbouring float32 below 1."""

TRIES = 64
"""Draws of the other coins of a row, until each branch of a choice gives an outcome of its own."""

TIGHT = 8.0 * UNIT_ROUNDOFF
"""Relative distance of the first bracket: 4 to 8 ulp."""

MOST_ROWS = 4096
"""Rows of one launch."""

RANDOM_COINS = 2
"""Coins at random for each choice, beside those that are placed."""


@dataclass(frozen=True)
class Boundary:
    """Between two branches that can be told apart: the last edge of one and the first of the other."""

    left: int
    right: int
    low: float
    high: float
    slack: float
    """Most that float32 may move either."""


@dataclass(frozen=True)
class Trial:
    """A choice with everything else held fixed."""

    row: int
    visit: Visit
    coins: tuple[float, ...]
    """Of the row; that of the choice is replaced."""
    due: tuple[Outcome | Open | None, ...]
    """What each branch gives; None for one that is too narrow to stand on."""

    @property
    def choice(self) -> Choice:
        """The choice itself."""
        return self.visit.choice

    def at(self, coin: float) -> list[float]:
        """All coins of the row, with this one for the choice."""
        coins = list(self.coins)
        coins[self.choice.coin] = float(np.float32(min(max(coin, 0.0), LAST_COIN)))
        return coins

    def middle(self, branch: int) -> float:
        """Middle of the part where a branch is certain."""
        return 0.5 * sum(self.choice.span(branch))

    def boundaries(self) -> list[Boundary]:
        """Between neighbours among the branches that can be stood on."""
        standing = [branch for branch, due in enumerate(self.due) if due is not None]
        edges, slack = self.choice.edges, self.choice.slack
        return [
            Boundary(a, b, float(edges[a]), float(edges[b - 1]), float(max(slack[a:b]))) for a, b in pairwise(standing)
        ]


class Asker:
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


def coins_beside_steps(tree: Node, count: int, distance: float) -> list[list[float]]:
    """Coins [probes][count] on both sides of the steps of every choice that coins reach, ``distance`` away, relatively.

    Of a choice with many steps the first, the middle and the last; coins that do not matter are 1/2.
    """
    found = []
    for visit in visits(tree):
        if isinstance(visit, float):
            continue
        edges = visit.choice.edges
        for edge in sorted({float(edges[at]) for at in (0, len(edges) // 2, len(edges) - 1)}):
            for coin in (edge * (1.0 - distance), min(edge * (1.0 + distance), 0.5 * (1.0 + edge))):
                coins = [0.5] * count
                for place, value in (*visit.path, (visit.choice.coin, coin)):
                    coins[place] = float(np.float32(min(value, LAST_COIN)))
                found.append(coins)
    return found or [[0.5] * count]


def placed_trial(tree: Node, row: int, visit: Visit, count: int, call: Call, rng: np.random.Generator) -> Trial | None:
    """Coins for everything else, so that each branch of the choice gives an outcome of its own; None if not found."""
    choice, path = visit.choice, dict(visit.path)
    branches = range(len(choice.edges) + 1)
    middles = {branch: 0.5 * sum(span) for branch in branches if (span := choice.span(branch))[1] - span[0] > NARROWEST}
    free = [coin for coin in range(count) if coin not in path and coin != choice.coin]
    for _ in range(TRIES):
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
                return Trial(row, visit, tuple(coins), tuple(due))
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


def fits(due: Outcome | Open | None, got: Outcome | None, vocab_size: int) -> bool:
    """Whether an outcome is what is due on a branch."""
    if isinstance(due, Open):
        return got is not None and due.admits(got, vocab_size)
    return due == got


def bracket(
    ask: Asker, trees: Sequence[Node], trials: Sequence[Trial], vocab_size: int, rng: np.random.Generator
) -> tuple[dict[int, tuple[list[float], Outcome | None]], list[float]]:
    """Levels and tight brackets first, then the wide brackets where a tight one failed.

    Gives, by trial that failed, coins of its row that show it and what they gave; and of each trial the sum of the
    widths of its brackets.
    """
    shown: dict[int, tuple[list[float], Outcome | None]] = {}
    widths = [0.0] * len(trials)
    probes: list[tuple[int, list[float]]] = []
    meant: list[tuple[int, Outcome | Open | None, Boundary | None]] = []
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
    loose: dict[tuple[int, Boundary], None] = {}
    for (at, due, beside), (_, coins), got in zip(meant, probes, ask(probes), strict=True):
        if fits(due, got, vocab_size):
            continue
        if beside is None:
            shown.setdefault(at, (coins, got))
        else:
            loose[at, beside] = None
    probes = []
    again = []
    for at, step in loose:
        for coins, due in _sides(trials[at], step, _wide(step)):
            probes.append((trials[at].row, coins))
            again.append((at, due))
    for (at, due), (_, coins), got in zip(again, probes, ask(probes), strict=True):
        if not fits(due, got, vocab_size):
            shown.setdefault(at, (coins, got))
    for at, trial in enumerate(trials):
        for step in trial.boundaries():
            held = _wide(step) if (at, step) in loose else min(TIGHT * step.high, step.slack)
            widths[at] += step.high - step.low + held
    return shown, widths


def _wide(step: Boundary) -> float:
    """Distance of the second bracket: all that float32 may move a step, and one coin more to stand clear of it."""
    return step.slack + COIN_STEP


def _sides(trial: Trial, boundary: Boundary, width: float) -> list[tuple[list[float], Outcome | Open | None]]:
    """Coins just below and just above a step, never beyond the middle of the level, with what is due there."""
    below = max(boundary.low - width, trial.middle(boundary.left))
    above = min(boundary.high + width, trial.middle(boundary.right))
    return [(trial.at(below), trial.due[boundary.left]), (trial.at(above), trial.due[boundary.right])]
