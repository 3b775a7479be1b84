"""Decision trees: an outcome as a step function of coins, with how far float32 may move each step.

A verifier of speculative decoding consults one coin after the other. Each :class:`Choice` says where on its coin the
outcome changes, in float64, and what follows in between; so the legal outcomes of given coins, and the whole law of the
outcome, can be read off without sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

COIN_GRID = 2048
"""Coins that are multiples of 1 / 2048 make no rounding with weights that are small multiples of a power of two."""

NARROWEST = 2.0**-22
"""Branches narrower than this, four float32 coins near 1, are not stood on."""


@dataclass(frozen=True)
class Outcome:
    """What one row gives."""

    accepted: int
    """Draft tokens that stand."""
    tokens: tuple[int, ...]
    """They, and the token after them: accepted + 1 in number."""


@dataclass(frozen=True)
class Open:
    """Nothing is promised but a token of the vocabulary, or of these: a degenerate row, an empty residual."""

    why: str
    accepted: tuple[int, ...] | None = None
    """The tokens that stand, where that much is promised."""
    last: tuple[int, ...] = ()
    """What the last token may be; empty for any token."""

    def admits(self, outcome: Outcome, vocab_size: int) -> bool:
        """Whether an outcome is among those that are left open."""
        if any(not 0 <= token < vocab_size for token in outcome.tokens):
            return False
        if self.accepted is not None and outcome.tokens[:-1] != self.accepted:
            return False
        return not self.last or outcome.tokens[-1] in self.last


@dataclass(frozen=True)
class Choice:
    """One coin is consulted."""

    coin: int
    """Which one of the row; the final coin is the last."""
    edges: Floats
    """Ascending, in (0, 1]: branch i is taken for edges[i - 1] <= coin < edges[i]."""
    slack: Floats
    """How far float32 may move each edge."""
    exact: bool
    """Whether float32 makes no rounding at all at coins of :data:`COIN_GRID`."""
    follow: Callable[[int], Node]
    """What comes after branch i, 0 to len(edges)."""
    name: str = ""
    """What is decided, for a failure message."""

    def branches(self, coin: float) -> list[int]:
        """The branches that a right float32 implementation may take."""
        edges = self.edges
        if self.exact and (coin * COIN_GRID).is_integer():
            return [int(np.searchsorted(edges, coin, side="right"))]
        first = int(np.count_nonzero(edges + self.slack < coin))
        last = int(np.count_nonzero(edges - self.slack <= coin))
        return list(range(min(first, last), max(first, last) + 1))

    def span(self, branch: int) -> tuple[float, float]:
        """The part of the coin's range on which the branch is certain; empty where its ends are the wrong way round."""
        low = 0.0 if branch == 0 else float(self.edges[branch - 1] + self.slack[branch - 1])
        high = 1.0 if branch == len(self.edges) else float(self.edges[branch] - self.slack[branch])
        return max(low, 0.0), min(high, 1.0)

    def width(self, branch: int) -> float:
        """Probability of the branch."""
        low = 0.0 if branch == 0 else float(self.edges[branch - 1])
        high = 1.0 if branch == len(self.edges) else float(self.edges[branch])
        return max(min(high, 1.0) - low, 0.0)


Node: TypeAlias = "Choice | Outcome | Open"


def legal(node: Node, coins: Sequence[float]) -> list[Outcome | Open]:
    """Everything that a right float32 implementation may give for these coins."""
    found: list[Outcome | Open] = []
    waiting = [node]
    while waiting:
        at = waiting.pop()
        if isinstance(at, Choice):
            waiting += [at.follow(branch) for branch in at.branches(coins[at.coin])]
        elif at not in found:
            found.append(at)
    return found


def law(node: Node) -> dict[Outcome | Open, float]:
    """Probability of each outcome; small trees only, since every branch is visited."""
    total: dict[Outcome | Open, float] = {}
    waiting = [(node, 1.0)]
    while waiting:
        at, mass = waiting.pop()
        if isinstance(at, Choice):
            waiting += [
                (at.follow(branch), mass * at.width(branch))
                for branch in range(len(at.edges) + 1)
                if at.width(branch) > 0.0
            ]
        else:
            total[at] = total.get(at, 0.0) + mass
    return total


def explain(node: Node, coins: Sequence[float]) -> str:
    """The decisions that lead to an outcome, one after the other, for a reader."""
    steps = []
    while isinstance(node, Choice):
        coin = coins[node.coin]
        branch = int(np.searchsorted(node.edges, coin, side="right"))
        low = 0.0 if branch == 0 else node.edges[branch - 1]
        high = 1.0 if branch == len(node.edges) else node.edges[branch]
        steps.append(f"{node.name}: coin {node.coin} = {coin:.9g} lies in [{low:.9g}, {high:.9g})")
        node = node.follow(branch)
    return "; ".join(steps) or "no coin decides"


@dataclass(frozen=True)
class Visit:
    """A choice, and coins that lead to it."""

    choice: Choice
    path: tuple[tuple[int, float], ...]
    """Coins that were consulted before it, each inside the branch that leads here."""
    reach: float
    """Probability of getting there."""


def visits(node: Node) -> Iterator[Visit | float]:
    """Every choice that coins reach with certainty; a number is the probability of a branch too narrow to enter."""
    waiting: list[tuple[Node, tuple[tuple[int, float], ...], float]] = [(node, (), 1.0)]
    while waiting:
        at, path, reach = waiting.pop()
        if not isinstance(at, Choice):
            continue
        yield Visit(at, path, reach)
        for branch in range(len(at.edges) + 1):
            following = at.follow(branch)
            if not isinstance(following, Choice):
                continue
            low, high = at.span(branch)
            if high - low < NARROWEST:
                yield reach * at.width(branch)
            else:
                waiting.append((following, (*path, (at.coin, 0.5 * (low + high))), reach * at.width(branch)))
