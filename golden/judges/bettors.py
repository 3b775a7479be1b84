"""Those who bet against a server's reported laws: each sees one kind of fault, and says which.

A bettor turns what is known *before* a token is seen into stakes on the symbols that it may be
(:mod:`waveproof.golden.judges.symbols`). The stakes are divided by their sum, so they are a law b of the token, and the
bettor's wealth is multiplied by b(x) / p(x) at the token x that comes: by 1 on average, whatever b, if x follows p (see
:mod:`waveproof.golden.judges.martingale`). It grows where tokens follow something nearer to b.

No bettor may see the *sampled* draft token: it is coupled with the token that comes out, and a bet on it gains without
any fault. A draft's law, which is a function of the text so far, may be bet on.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from waveproof.golden.judges.partitions import DraftRatio, Level, Partition, Prefix, Rank, Repetition
from waveproof.golden.judges.symbols import IMPOSSIBLE, REST, Floats, Ints, Step


class Bettor(Protocol):
    """Stakes by what came before; several wagers, each by the name of its kind and of its variant."""

    wagers: tuple[tuple[str, str], ...]

    def stake(self, step: Step, out: Floats) -> None:
        """Fill out [R, wagers, m] with stakes, not negative and not all zero."""

    def learn(self, step: Step, symbols: Ints) -> None:
        """Take note of the columns [R] that came."""


class Tilt:
    """Bets on p^t: another temperature than the reported law has, up to greedy; exponents on both sides of 1.

    Sees: wrong temperature, greedy verification, draft tokens accepted for being probable. Does not see: faults that
    leave the trade between probable and improbable tokens alone, and any fault in what is not named beyond its sum.
    """

    exponents = (0.5, 0.75, 0.9, 0.95, 1.05, 1.1, 1.3, 1.7, 2.5, 8.0)

    def __init__(self) -> None:
        self.wagers = tuple(("tilt", f"p^{exponent:g}") for exponent in self.exponents)
        self._powers = np.array(self.exponents)[:, None] - 1.0

    def stake(self, step: Step, out: Floats) -> None:
        """p^t; tokens that are not named count as improbable as the last one named."""
        density = step.logs.copy()
        density[:, REST] = density[:, -1]
        np.multiply(density[:, None, :], self._powers, out=out)
        np.exp(out, out=out)
        out *= step.bound[:, None, :]
        out[:, :, IMPOSSIBLE] = 0.0

    def learn(self, step: Step, symbols: Ints) -> None:
        """Learns nothing: its exponents are fixed."""


class Leak:
    """Bets on tokens that the report does not name, or calls impossible.

    Sees: a filter (top-k, top-p, a grammar, banned tokens) that is reported but not applied, a fall-through to a fixed
    token; in a few tokens where the report is complete. Does not see: a leak below the rest that a top-K leaves open.
    """

    shares = (0.0005, 0.01, 0.2)

    def __init__(self) -> None:
        self.wagers = tuple(("leak", f"{share:g} outside") for share in self.shares)
        self._kept = 1.0 - np.array(self.shares)[:, None]

    def stake(self, step: Step, out: Floats) -> None:
        """p, less a share of it that goes to both columns of what is not named."""
        np.multiply(step.bound[:, None, :], self._kept, out=out)
        out[:, :, : REST + 1] += (1.0 - self._kept) / 2.0

    def learn(self, step: Step, symbols: Ints) -> None:
        """Learns nothing: its shares are fixed."""


class Calibration:
    """Bets, for each partition, that a class goes on to come more or less often than reported, as it did so far.

    Stakes p(x) (seen + c) / (expected + c), with the class's occurrences and their reported sum. A large caution c
    is slow and loses little where there is nothing to win. What it can see is what its partitions tell apart.
    """

    cautions = (4.0, 20.0, 100.0)

    def __init__(self, streams: int, partitions: tuple[Partition, ...]) -> None:
        self.partitions = partitions
        self.wagers = tuple((one.name, f"caution {caution:g}") for one in partitions for caution in self.cautions)
        self._caution = np.array(self.cautions)[:, None]
        # The last class is of those without an opinion: nothing is ever counted there, so that the stake is p.
        starts = np.cumsum([0, *(one.count for one in partitions)])
        classes = int(starts[-1]) + 1
        self._seen, self._expected = np.zeros((2, streams * classes))
        self._base = np.arange(streams)[:, None] * classes
        self._nobody = self._base + classes - 1
        self._origin = self._base + starts[:-1]
        self._rows = np.arange(streams)
        self._shape(streams, 0)

    def _shape(self, streams: int, columns: int) -> None:
        """Buffers that are used again in each step: allocation would cost more than arithmetic."""
        shape = streams, len(self.partitions), columns
        self._at = np.zeros(shape, np.int64)
        self._came, self._due = np.zeros((2, *shape))
        self._over = np.zeros((streams, len(self.partitions), len(self.cautions), columns))

    def stake(self, step: Step, out: Floats) -> None:
        """P, times how often the class came for each time that was expected."""
        rows, columns = step.bound.shape
        if self._at.shape[2] != columns:
            self._shape(rows, columns)
        for at, one in enumerate(self.partitions):
            classes = one.classes(step)
            self._at[:, at] = self._nobody if classes is None else classes + self._origin[:, at, None]
        # Indices are right by construction; the mode lets numpy write to the buffer itself.
        self._seen.take(self._at, out=self._came, mode="clip")
        self._expected.take(self._at, out=self._due, mode="clip")
        grid = out.reshape(rows, len(self.partitions), len(self.cautions), columns)
        np.add(self._came[:, :, None, :], self._caution, out=grid)
        np.add(self._due[:, :, None, :], self._caution, out=self._over)
        grid /= self._over
        grid *= step.bound[:, None, None, :]

    def learn(self, step: Step, symbols: Ints) -> None:
        """Count what came and what was expected, by class."""
        came = self._at[self._rows, :, symbols]
        self._seen[came] += 1.0
        np.add.at(self._expected, self._at, step.bound[:, None, :])
        self._seen[self._nobody], self._expected[self._nobody] = 0.0, 0.0
        came = np.where(came == self._nobody, -1, came - self._origin)
        for at, one in enumerate(self.partitions):
            one.learn(came[:, at])


class Draft:
    """Bets on laws between target and draft, and on those of known faults: needs the draft's law.

    Sees: fixed leanings to or away from the draft (lossy acceptance, synthetic lengths) and, by name, the target
    instead of the residual, the argmax of the residual, thresholds of p / q. Does not see: faults of another form.
    """

    leanings = (-0.5, -0.15, -0.05, 0.05, 0.15, 0.5, 0.9)
    threshold = 0.9

    def __init__(self) -> None:
        named = ("target for residual", "argmax of residual", "p/q >= 0.9 always accepted", "only p/q >= 0.9 accepted")
        self.wagers = tuple(("draft", name) for name in (*(f"p{lean:+g}(q - p)" for lean in self.leanings), *named))
        self._leanings = np.array(self.leanings)[:, None]

    def stake(self, step: Step, out: Floats) -> None:
        """The laws that the faults would have; p where the draft's law is not known."""
        p, q = step.bound, step.draft
        if q is None:
            out[:] = p[:, None, :]
            return
        mixed = len(self.leanings)
        np.multiply((q - p)[:, None, :], self._leanings, out=out[:, :mixed])
        out[:, :mixed] += p[:, None, :]
        np.maximum(out[:, :mixed], 0.0, out=out[:, :mixed])
        residual = np.maximum(p - q, 0.0)
        left = residual.sum(1, keepdims=True)
        both = p - residual
        out[:, mixed] = both + left * p
        out[:, mixed + 1] = both
        out[np.arange(len(p)), mixed + 1, residual.argmax(1)] += left[:, 0]
        sure = p >= self.threshold * q
        residual /= np.maximum(left, 1e-300)
        for wager, accepted in ((mixed + 2, np.where(sure, q, both)), (mixed + 3, q * sure)):
            out[:, wager] = accepted + np.maximum(1.0 - accepted.sum(1, keepdims=True), 0.0) * residual

    def learn(self, step: Step, symbols: Ints) -> None:
        """Learns nothing: its laws are fixed."""


class Serial:
    """Bets that where a token lies in its law depends on where the one before lay in its own.

    u is the randomised probability-integral transform: below the token's cumulative probability, above the one
    before it; uniform and independent if the report is true. Stakes by the transitions so far between eighths of u.
    The randomness serves only to remember: the stake on a token is the mean over its interval.

    Sees: coins that are used twice, low-discrepancy or short random sequences, under inverse-CDF sampling. Does not
    see: dependence across streams or over more than one token; where the top-K is short it sees only its order.
    """

    bins = 8
    cautions = (2.0, 10.0)

    def __init__(self, streams: int, seed: int) -> None:
        self.wagers = tuple(("serial", f"caution {caution:g}") for caution in self.cautions)
        self._caution = np.array(self.cautions)[:, None]
        self._seen = np.zeros((streams, self.bins + 1, self.bins))
        self._before = np.full(streams, self.bins)
        self._rows = np.arange(streams)
        self._random = np.random.default_rng(seed)
        self._ends = np.zeros((streams, 1))

    def stake(self, step: Step, out: Floats) -> None:
        """Mean over each symbol's interval of the density of u after the one before: transitions + caution."""
        rows = self._rows[:, None]
        self._before = np.where(step.fresh, self.bins, self._before)
        widths = step.bound if step.order is None else step.bound[rows, step.order]
        self._ends = widths.cumsum(1)
        scale = self.bins / self._ends[:, -1:]
        self._ends *= scale
        below = np.zeros((len(rows), self.bins + 2))
        below[:, 1:-1] = self._seen[self._rows, self._before].cumsum(1)
        below[:, -1] = below[:, -2]
        at = np.minimum(self._ends.astype(np.int64), self.bins)
        reached = below[rows, at]
        reached += (below[rows, at + 1] - reached) * (self._ends - at)
        # A rounding of the cumulative sums must not make a stake negative.
        reached[:, 1:] = np.maximum(reached[:, 1:] - reached[:, :-1], 0.0)
        if step.order is not None:
            ordered, reached = reached, np.empty_like(reached)
            reached[rows, step.order] = ordered
        np.multiply((step.bound * scale)[:, None, :], self._caution, out=out)
        out += reached[:, None, :]

    def learn(self, step: Step, symbols: Ints) -> None:
        """Draw u within the interval of what came, and count the transition."""
        place = symbols if step.order is None else (step.order == symbols[:, None]).argmax(1)
        high = self._ends[self._rows, place]
        low = np.where(place > 0, self._ends[self._rows, place - 1], 0.0)
        u = low + self._random.random(len(low)) * (high - low)
        now = np.minimum(u.astype(np.int64), self.bins - 1)
        self._seen[self._rows, self._before, now] += 1.0
        self._before = now


def everyone(streams: int, columns: int, prefixes: int, seed: int) -> tuple[Bettor, ...]:
    """All bettors, for so many streams of at most so many columns, and numbers of contexts below ``prefixes``."""
    partitions: tuple[Partition, ...] = (
        Rank(columns),
        Level(),
        Repetition(),
        Prefix(prefixes, columns),
        DraftRatio(streams, after_another=False),
        DraftRatio(streams, after_another=True),
    )
    return (Tilt(), Leak(), Calibration(streams, partitions), Draft(), Serial(streams, seed))
