"""Do a server's tokens follow the laws that it reports? A test that may be watched, and stopped at any time.

A server that streams each token with the log-probabilities of its most probable alternatives says which law the token
was drawn from. Bettors (:mod:`waveproof.golden.judges.bettors`) stake their wealth on the next token, before it is
seen, and are paid at the reported odds. If the report is true, each one's wealth is a nonnegative martingale (or less)
that starts at 1, and so is the mean over all of them. By Ville's inequality (Etude critique de la notion de collectif,
1939) it ever reaches 1 / alpha with a probability of at most alpha: to look after every token, and to stop when it
looks bad, costs nothing. Wealth below that is no proof of faithfulness. What a fault costs in tokens is measured, for
many faults, by ``waveproof figures evidence``.

**Rounding.** Reports are rounded, and a sampler draws with rounded probabilities. A relative misreport r, if taken at
face value, would let the logarithm of wealth drift by up to r a token (1e-6 over a million tokens: one unit, wealth
2.7), and a tail token that is drawn with 6e-8 where 1e-9 was reported would pay 60-fold. So odds are paid against an
upper bound of each probability: p (1 + :data:`ROUNDING`) + :data:`RESOLUTION`, for what is not named 1 minus the lower
bounds. Then wealth is a supermartingale for *every* law within the allowance. A misreport beyond it, by a factor of
1 + r, inflates the logarithm of wealth by at most r - 1e-5 a token: seen, as it should be. A report that no law within
the allowance explains (mass above 1, a complete law below 1, NaN) is refused as :class:`UnusableReport`.

**What must not depend on the token.** Which tokens a report names: many servers append the sampled token to its
top-K. That would make it certain that the token is named; take the K most probable alone (:meth:`Reported.top`).

**Inconclusive.** Steps without log-probabilities, laws that leave nothing to chance, too few tokens, nothing accepted
or nothing rejected where a draft was at work: such a stream cannot pass for evidence; ``inconclusive`` says why.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from waveproof.golden.judges.bettors import Bettor, everyone
from waveproof.golden.judges.symbols import FIRST, IMPOSSIBLE, REST, Floats, Ints, Step

ROUNDING = 1e-5
"""Relative error of a reported probability: log-probabilities of float32 above -16, and a softmax in float32."""
RESOLUTION = 2.0**-24
"""Absolute error of a probability: coins of 24 bits."""
RANKS = 64
"""Most probable tokens that have a symbol of their own; further named ones are pooled with those not named."""
WINDOW = 16
"""Tokens back that count as repetition."""
MOST_CONTEXTS = 1024
"""Contexts that are told apart; further ones count as unlabelled."""
FEWEST = 1000
"""Tokens below which nothing is concluded from wealth that did not grow."""
FLOOR = 1e-3
"""Of a stake, kept back in proportion to the odds. No token then takes more than ln 1000 = 6.9 nats of a bettor's
wealth, as much as an alpha of 1e-3 asks to be won; and as ln((1 - F) b + F) >= (1 - F) ln b for a payment b, it costs
a bettor at most a thousandth of its growth."""
_MOST_POINTS = 64
"""Of a trajectory. Beyond it every other one goes, so that 32 to 64 are left: a line in a figure, however long the
stream."""

Token = int | str
Named = Mapping[Any, float]
"""By :data:`Token`; mappings are invariant in their keys, so that one of ints alone would be another type."""


class UnusableReport(ValueError):
    """A report that cannot be the law of a token, or a token that is missing: the server's fault, by itself."""


@dataclass(frozen=True)
class Reported:
    """What a server says of the law that one token was drawn from."""

    logprobs: Named
    """Natural logarithms, of the most probable tokens, after every filter that was applied; empty where none came."""
    complete: bool
    """Whether a token that is not named has probability zero."""

    @classmethod
    def top(cls, logprobs: Named, k: int) -> Reported:
        """The k most probable of what was returned, whatever else was sent along because it was drawn.

        Where more were returned than k, those that tie with the last are left out with what lies behind them: which of
        them were named may depend on which was drawn.
        """
        if len(logprobs) <= k:
            return cls(dict(logprobs), False)
        least = sorted(logprobs.values(), reverse=True)[k]
        return cls({token: value for token, value in logprobs.items() if value > least}, False)


@dataclass(frozen=True)
class StreamEvidence:
    """What a stream showed; plain numbers and names, to be written to a file."""

    alpha: float
    tokens: int
    """That were bet on."""
    rejected: bool
    rejected_at: int | None
    """Tokens that had come when wealth first reached 1 / alpha."""
    log10_wealth: float
    log10_peak: float
    best_bettor: str
    by_bettor: dict[str, float]
    """Decimal logarithm of the wealth of each, were it alone."""
    trajectory: tuple[tuple[int, float], ...]
    """Tokens, and the decimal logarithm of wealth after them."""
    inconclusive: str


class Wealth:
    """Wealth of every wager on independent streams [R], and of their mean: each kind has the same share at first."""

    def __init__(self, streams: int, bettors: tuple[Bettor, ...]) -> None:
        self.bettors = bettors
        counts = [len(bettor.wagers) for bettor in bettors]
        self._slices = [slice(end - count, end) for end, count in zip(np.cumsum(counts), counts, strict=True)]
        wagers = [wager for bettor in bettors for wager in bettor.wagers]
        self.names = tuple(f"{kind}: {variant}" for kind, variant in wagers)
        kinds = Counter(kind for kind, _ in wagers)
        self._shares = np.array([1.0 / (len(kinds) * kinds[kind]) for kind, _ in wagers])
        self.logs = np.zeros((streams, len(self.names)))
        self._rows = np.arange(streams)
        self._stakes = np.zeros((streams, len(self.names), 0))

    def advance(self, step: Step, symbols: Ints) -> Floats:
        """Bet, then see the columns [R] that came, and learn; returns the logarithm of the mean wealth [R]."""
        if self._stakes.shape[2] != step.bound.shape[1]:
            self._stakes = np.zeros((*self.logs.shape, step.bound.shape[1]))
        for bettor, part in zip(self.bettors, self._slices, strict=True):
            bettor.stake(step, self._stakes[:, part])
        odds = step.bound[self._rows, symbols]
        paid = self._stakes[self._rows, :, symbols] / (self._stakes.sum(2) * odds[:, None])
        self.logs += np.log((1.0 - FLOOR) * paid + FLOOR / step.bound.sum(1, keepdims=True))
        for bettor in self.bettors:
            bettor.learn(step, symbols)
        return self.log_mean()

    def log_mean(self) -> Floats:
        """Logarithm of the mean wealth [R]."""
        top = self.logs.max(1, keepdims=True)
        return np.log(np.exp(self.logs - top) @ self._shares) + top[:, 0]


class FaithfulnessTest:
    """The test of one stream of tokens.

    Args:
        alpha: false-alarm rate of this stream; where several configurations are tested, divide it among them.
        seed: of the bettors' own randomness; another one for each configuration.
        rounding: relative error of the reported probabilities, more than :data:`ROUNDING` where few digits come.
        fewest: tokens below which the test is inconclusive.
    """

    def __init__(self, alpha: float, seed: int, rounding: float = ROUNDING, fewest: int = FEWEST) -> None:
        self.alpha, self.rounding, self.fewest = alpha, rounding, fewest
        self.tokens = 0
        self.missing = 0
        self.rejected_at: int | None = None
        self._wealth = Wealth(1, everyone(1, RANKS + FIRST, MOST_CONTEXTS, seed))
        self._log_wealth = self._peak = 0.0
        self._chance = 0.0
        self._prefixes: dict[Hashable, int] = {None: 0}
        self._window: deque[Token] = deque(maxlen=WINDOW)
        self._speculation: tuple[int, int] | None = None
        self._trajectory: list[tuple[int, float]] = []
        self._stride = 1

    def restart(self) -> None:
        """A new request begins: nothing comes before its first token."""
        self._window.clear()

    def speculated(self, accepted: int, rejected: int) -> None:
        """Note draft tokens that were accepted and rejected meanwhile, where the server says so."""
        before = self._speculation or (0, 0)
        self._speculation = before[0] + accepted, before[1] + rejected

    def observe(
        self,
        token: Token,
        reported: Reported,
        prefix: Hashable = None,
        draft: Named | None = None,
    ) -> float:
        """Bet on a token with what is known before it, then see it; returns the wealth.

        Args:
            token: that came, named as in the report.
            reported: the law that it is said to be drawn from; which tokens it names must not depend on ``token``.
            prefix: names the text so far where it is repeated often, so that faults show that cancel over contexts.
            draft: the law (not the sample) of the draft at this place: probabilities, where they are known.

        Raises:
            UnusableReport: with the value and the rule. The test goes on from before.
        """
        if token is None:
            raise UnusableReport(f"no token came after {self.tokens} tokens: each report needs the token drawn from it")
        if not reported.logprobs:
            self.missing += 1
            self._window.append(token)
            return self.wealth
        names, step = self._step(reported, prefix, draft)
        if token in names:
            rank = names.index(token)
            column = FIRST + rank if rank < RANKS else REST
        else:
            column = IMPOSSIBLE if reported.complete or token in reported.logprobs else REST
        self._log_wealth = float(self._wealth.advance(step, np.array([column]))[0])
        self._window.append(token)
        self._note(1.0 - min(1.0, float(step.bound[0].max())))
        return self.wealth

    @property
    def wealth(self) -> float:
        """Mean wealth now; infinite where it exceeds a float."""
        return math.exp(self._log_wealth) if self._log_wealth < 709.0 else math.inf

    @property
    def rejected(self) -> bool:
        """Whether wealth has ever reached 1 / alpha."""
        return self.rejected_at is not None

    def by_bettor(self) -> dict[str, float]:
        """Natural logarithm of the wealth of each wager, were it alone."""
        return dict(zip(self._wealth.names, self._wealth.logs[0].tolist(), strict=True))

    @property
    def inconclusive(self) -> str:
        """Why a stream that was not rejected is no evidence of faithfulness; empty where it is some, or rejected."""
        if self.rejected:
            return ""
        if self.missing:
            return f"{self.missing} of {self.missing + self.tokens} tokens came without log-probabilities"
        if self.tokens and self._chance < 1.0:
            return f"the reported laws leave nothing to chance: {self._chance:.3g} unlikely tokens were to be expected"
        if self._speculation is not None and 0 in self._speculation:
            return "of the draft tokens {} were accepted and {} rejected: both are needed".format(*self._speculation)
        if self.tokens < self.fewest:
            return f"{self.tokens} tokens came, at least {self.fewest} are needed"
        return ""

    def evidence(self) -> StreamEvidence:
        """All of it, to keep."""
        alone = {name: log / math.log(10.0) for name, log in self.by_bettor().items()}
        now = self.tokens, self._log_wealth / math.log(10.0)
        return StreamEvidence(
            alpha=self.alpha,
            tokens=self.tokens,
            rejected=self.rejected,
            rejected_at=self.rejected_at,
            log10_wealth=self._log_wealth / math.log(10.0),
            log10_peak=self._peak / math.log(10.0),
            best_bettor=max(alone, key=lambda name: alone[name]) if self.tokens else "",
            by_bettor=alone,
            trajectory=tuple(self._trajectory) if now in self._trajectory else (*self._trajectory, now),
            inconclusive=self.inconclusive,
        )

    def _note(self, chance: float) -> None:
        self.tokens += 1
        self._chance += chance
        self._peak = max(self._peak, self._log_wealth)
        if self.rejected_at is None and self._log_wealth >= -math.log(self.alpha):
            self.rejected_at = self.tokens
        if self.tokens % self._stride == 0:
            self._trajectory.append((self.tokens, self._log_wealth / math.log(10.0)))
            if len(self._trajectory) > _MOST_POINTS:
                self._trajectory = self._trajectory[1::2]
                self._stride *= 2

    def _step(self, reported: Reported, prefix: Hashable, draft: Named | None) -> tuple[list[Token], Step]:
        """Tokens that are reported as possible, by falling probability, and what is known before one comes."""
        names, probs = ranked(reported.logprobs, self.rounding)
        bound = bounds(probs, reported.complete, self.rounding)
        columns = len(bound)
        order: Ints | None = None
        if reported.complete and all(isinstance(name, int) for name in names):
            # A sampler adds up in the order of token ids.
            ids = np.array(names[:RANKS], dtype=np.int64)
            order = np.concatenate(([IMPOSSIBLE, REST], FIRST + np.argsort(ids)))[None]
        recency = np.zeros(columns, np.int64)
        if self._window:
            for name in self._window:
                if name in reported.logprobs and name in names[:RANKS]:
                    recency[FIRST + names.index(name)] = 1
            if self._window[-1] in names[:RANKS]:
                recency[FIRST + names.index(self._window[-1])] = 2
        if prefix not in self._prefixes and len(self._prefixes) < MOST_CONTEXTS:
            self._prefixes[prefix] = len(self._prefixes)
        return names, Step(
            bound=bound[None],
            fresh=np.array([not self._window]),
            recency=recency[None],
            prefix=np.array([self._prefixes.get(prefix, 0)]),
            draft=None if draft is None else draft_law(draft, names, reported)[None],
            order=order,
        )


def ranked(logprobs: Named, rounding: float) -> tuple[list[Token], Floats]:
    """Possible tokens by falling probability, and their probabilities; ties by name, since reports may list by chance.

    Raises:
        UnusableReport: a log-probability is NaN, or positive beyond rounding.
    """
    names = list(logprobs)
    logs = np.fromiter(logprobs.values(), np.float64, len(names))
    wrong = ~(logs <= rounding)
    if wrong.any():
        at = int(wrong.argmax())
        raise UnusableReport(f"log-probability {logs[at]} of token {names[at]!r}: a number of at most 0 is due")
    order = np.argsort(-logs, kind="stable")
    fallen = logs[order]
    if (fallen[1:] == fallen[:-1]).any():
        order = np.array(sorted(range(len(names)), key=lambda at: (-logs[at], str(names[at]))))
    probs = np.exp(logs[order])
    possible = int(np.count_nonzero(probs))
    return [names[at] for at in order[:possible]], probs[:possible]


def bounds(probs: Floats, complete: bool, rounding: float) -> Floats:
    """Upper bounds of the symbols' probabilities [m], from those of the named tokens by falling probability.

    Raises:
        UnusableReport: no law within the allowance has them.
    """
    total = float(probs.sum())
    allowance = rounding * total + RESOLUTION * (len(probs) + 2)
    if total - allowance > 1.0 or (complete and total + allowance < 1.0):
        rule = "a complete law sums to 1" if complete else "named tokens have a mass of at most 1"
        raise UnusableReport(f"reported probabilities sum to {total:.9g}: {rule}, within {allowance:.2g}")
    head = probs[:RANKS]
    tail = float(probs[RANKS:].sum()) * (1.0 + rounding) + RESOLUTION
    if not complete:
        tail = max(0.0, 1.0 - float(head.sum())) + allowance
    return np.concatenate(([RESOLUTION, tail], head * (1.0 + rounding) + RESOLUTION))


def draft_law(draft: Named, names: list[Token], reported: Reported) -> Floats:
    """The draft's law by symbol [m].

    Raises:
        UnusableReport: a probability is NaN or negative, or they sum to more than 1.
    """
    total = 0.0
    for token, prob in draft.items():
        if not prob >= 0.0:
            raise UnusableReport(f"draft probability {prob} of token {token!r}: a number of at least 0 is due")
        total += prob
    if not total <= 1.0 + 1e-3:
        raise UnusableReport(f"draft probabilities sum to {total:.9g}: at most 1 is due")
    head = np.array([draft.get(name, 0.0) for name in names[:RANKS]])
    outside = max(0.0, 1.0 - float(head.sum()))
    impossible = 0.0
    if reported.complete:
        tail = sum(draft.get(name, 0.0) for name in names[RANKS:])
        impossible, outside = max(0.0, outside - tail), tail
    return np.concatenate(([impossible, outside], head))
