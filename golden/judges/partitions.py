"""Classes of symbols that a fault may favour or starve, by what is known before the token.

:class:`waveproof.golden.judges.bettors.Calibration` counts how often each class came and how often it should have, and
bets that this goes on. Each class here says which faults its classes tell apart, and which they do not.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from waveproof.golden.judges.symbols import Ints, Step


class Partition(Protocol):
    """Sorts symbols into classes that may come more or less often than reported."""

    name: str
    count: int
    """Of its classes."""

    def classes(self, step: Step) -> Ints | None:
        """Class of each symbol, [R, m] or [1, m], by what came before; None for no opinion on this step."""

    def learn(self, classes: Ints) -> None:
        """Take note of the class [R] of what came; -1 where it had no opinion."""


class Rank:
    """Classes are columns: the most probable token comes too often, the third too seldom.

    Sees: greedy or argmax residuals, filters, most coarse faults, without a guess of their form. Does not see: what
    moves mass among tokens of one rank, so faults that depend on a draft whose ranks vary with the text.
    """

    name = "rank"

    def __init__(self, columns: int) -> None:
        self.count = columns

    def classes(self, step: Step) -> Ints:
        """The column."""
        return np.arange(step.bound.shape[1])[None, :]

    def learn(self, classes: Ints) -> None:
        """Remembers nothing."""


class Level:
    """Classes are sizes of the reported probability: tokens of e^-1 to e^-2 come too often, those of e^-5 never.

    Sees: thresholds on p (typical acceptance, min-p that is not reported), temperature. Does not see: faults that
    treat tokens of one probability alike on average.
    """

    name = "level"
    count = 16

    def classes(self, step: Step) -> Ints:
        """Whole units of -ln p, up to 15."""
        return np.minimum(np.maximum(-step.logs, 0.0), self.count - 1.0).astype(np.int64)

    def learn(self, classes: Ints) -> None:
        """Remembers nothing."""


class Repetition:
    """Classes are the token before, those of the window before, and others.

    Sees: a stale token that is sent again, a penalty that is applied but not reported (or the reverse), a random
    number used twice where a token's noise decides (Gumbel). Does not see: repeats that the reported law explains.
    """

    name = "repetition"
    count = 3

    def classes(self, step: Step) -> Ints:
        """The recency."""
        return step.recency

    def learn(self, classes: Ints) -> None:
        """Remembers nothing."""


class Prefix:
    """Classes are the columns of each repeated context by itself: what came after this very text so far.

    Sees, in the end, any fault in the law of a token after a context that is repeated often: those that cancel in the
    mean over contexts are seen by no other bettor without the draft's law. Does not see: contexts that do not come
    again, dependence between tokens.
    """

    name = "prefix"

    def __init__(self, prefixes: int, columns: int) -> None:
        self.count = prefixes * columns
        self._columns = columns

    def classes(self, step: Step) -> Ints:
        """Context and column."""
        return step.prefix[:, None] * self._columns + np.arange(step.bound.shape[1])

    def learn(self, classes: Ints) -> None:
        """Remembers nothing."""


class DraftRatio:
    """Classes are how much the draft wants a token, q / p, alone or with that of the token before: needs q.

    Sees: every rule of acceptance that is a function of p and q; after another, an acceptance coin that serves several
    tokens (the next token follows the draft more after one that was accepted against the odds). Does not see: faults
    of the residual that move mass among tokens of one q / p.
    """

    edges = np.log([0.1, 0.5, 0.8, 0.95, 1.1, 1.5, 2.0, 4.0])

    def __init__(self, streams: int, after_another: bool) -> None:
        self._bins = len(self.edges) + 1
        self._after_another = after_another
        self._before = np.full(streams, self._bins)
        self.name = "draft ratio after another" if after_another else "draft ratio"
        self.count = self._bins * (self._bins + 1 if after_another else 1)

    def classes(self, step: Step) -> Ints | None:
        """Bin of q / p, and of the one before where that is wanted."""
        if step.draft is None:
            return None
        with np.errstate(divide="ignore"):
            bins = np.searchsorted(self.edges, np.log(step.draft) - step.logs)
        if not self._after_another:
            return bins
        before = np.where(step.fresh, self._bins, self._before)
        return before[:, None] * self._bins + bins

    def learn(self, classes: Ints) -> None:
        """Remembers the bin of what came."""
        self._before = np.where(classes < 0, self._bins, classes % self._bins)
