"""How often the sampling judges cry wolf, and how many tokens a fault costs them: measured on simulated decoders.

Every right sampler here is a simulated decoder that verifies a draft as it should, or draws from a known law. Every
faulty one has one fault (:mod:`waveproof.selftest.faulty_decoders`). Seeds are fixed, so the figures come again.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from waveproof.golden.judges.bettors import everyone
from waveproof.golden.judges.evidence import (
    Evidence,
    dkw_test,
    g_test,
    most_false_alarms,
    two_sample_dkw,
    two_sample_g,
)
from waveproof.golden.judges.martingale import ROUNDING, WINDOW, Wealth, bounds
from waveproof.golden.judges.symbols import FIRST, IMPOSSIBLE, REST, Step
from waveproof.selftest.faulty_decoders import Decoder, World, faulty, filtered, honest, make_world, plain, stream

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SEED = 20260
VOCAB_SIZE = 32
SMALL_VOCAB_SIZE = 8
JUDGE_ALPHA = 0.01
STREAM_ALPHA = 1e-3
LOOSE_ALPHA = 0.05
"""Wealth of its inverse is reached often enough by right streams to be counted."""
CONFIDENCE = 0.999
"""That a count of alarms among right runs, or of finds among wrong ones, stays within what is allowed."""


@dataclass(frozen=True)
class JudgeRuns:
    """A sampling judge on right samplers, and on the least favourable law at its detectable deviation."""

    judge: str
    sample: str
    n: int
    runs: int
    alpha: float
    alarms: int
    allowed: int
    """Most alarms that alpha explains."""
    detectable: float
    """Median over the runs."""
    power: float
    found: int
    due: int
    """Fewest finds that the power explains."""


@dataclass(frozen=True)
class View:
    """What the tester of a server sees."""

    name: str
    contexts: int
    top: int | None
    """Tokens that are named, None for all."""
    draft_known: bool


@dataclass(frozen=True)
class StreamRuns:
    """The anytime-valid test on right decoders."""

    configuration: str
    streams: int
    tokens: int
    """Of each stream; wealth was looked at after every one."""
    alpha: float
    alarms: int
    allowed: int
    loose_alarms: int
    """Had alpha been :data:`LOOSE_ALPHA`."""
    loose_allowed: int
    highest: float
    """Decimal logarithm of the highest wealth that any of them ever had."""


@dataclass(frozen=True)
class Detection:
    """The anytime-valid test on a faulty decoder."""

    fault: str
    view: str
    streams: int
    horizon: int
    found: int
    """Streams that were rejected within the horizon."""
    median: float | None
    """Tokens until rejection; None where fewer than half were rejected."""
    bettor: str
    """The richest wager at rejection, most often; empty where none was."""


@dataclass(frozen=True)
class Figures:
    """All of it."""

    judges: tuple[JudgeRuns, ...]
    rights: tuple[StreamRuns, ...]
    detections: tuple[Detection, ...]
    accepted: float
    """Share of draft tokens that a right verifier accepts in these worlds."""
    seconds: float


VIEWS = (
    View("64 contexts, top 16", 64, 16, False),
    View("64 contexts, q known", 64, None, True),
    View("one context, top 16", 1, 16, False),
)
RIGHT = {
    "no draft, 64 contexts, top 16": (VIEWS[0], plain),
    "draft of 4, 64 contexts, q known": (VIEWS[1], honest),
    "draft of 4, one context, top 16": (VIEWS[2], honest),
    "draft of 4 under top-k 10, 64 contexts, q known": (VIEWS[1], lambda world: honest(_under_top_k(world))),
}
"""Right decoders by configuration, each with what the tester sees."""


def measure(runs: int = 1000, streams: int = 2000, tokens: int = 500, repeats: int = 9, horizon: int = 8000) -> Figures:
    """Measure all figures.

    Args:
        runs: of each sampling judge, right and wrong.
        streams: right ones of the anytime-valid test, over all configurations.
        tokens: of each of those.
        repeats: streams of each faulty decoder in each view.
        horizon: tokens after which an undetected fault is given up.
    """
    begun = time.perf_counter()
    judges = tuple(judge_runs(runs))
    rights = tuple(right_runs(streams // len(RIGHT), tokens))
    detections = tuple(one for view in VIEWS for one in detections_in(view, repeats, horizon))
    accepted = _world(VIEWS[0]).accepted
    return Figures(judges, rights, detections, accepted, time.perf_counter() - begun)


def judge_runs(runs: int) -> Iterator[JudgeRuns]:
    """Each sampling judge on so many right and so many wrong samples."""
    world = make_world(SMALL_VOCAB_SIZE, SMALL_VOCAB_SIZE, SEED)
    joint = (world.target[0][:, None] * world.target[world.after[0]]).ravel()
    powers = np.power(0.8, np.arange(64.0))
    tail = np.asarray(powers / powers.sum(), np.float64)
    random = np.random.default_rng(SEED + 1)
    n, few = 4000, 1000
    speculative = _samples(world, honest(world), n, SEED + 2)
    alone = _samples(world, plain(world), n, SEED + 3)

    def counted(law: Floats) -> Floats:
        return random.multinomial(n, law).astype(np.float64)

    def bent(law: Floats) -> Callable[[float], Floats]:
        return lambda bias: counted(least_favourable(law, bias))

    def coins(bias: float = 0.0) -> Floats:
        """With sup-distance bias from uniform ones."""
        u = random.random(few)
        low = random.random(few) < 0.5 + bias
        return np.where(low, u / 2.0, 0.5 + u / 2.0)

    law_of_joint, law_of_tail = bent(joint), bent(tail)
    yield _runs(
        "two tokens of a speculative decoder, V = 8",
        runs,
        lambda: g_test(next(speculative)[0], joint, JUDGE_ALPHA),
        lambda bias: g_test(law_of_joint(bias), joint, JUDGE_ALPHA),
    )
    yield _runs(
        "geometric law, 64 outcomes",
        runs,
        lambda: g_test(counted(tail), tail, JUDGE_ALPHA),
        lambda bias: g_test(law_of_tail(bias), tail, JUDGE_ALPHA),
    )
    yield _runs(
        "two tokens, speculative and not, V = 8",
        runs,
        lambda: two_sample_g(next(speculative)[0], next(alone)[0], JUDGE_ALPHA),
        lambda bias: two_sample_g(law_of_joint(bias), counted(joint), JUDGE_ALPHA),
    )
    yield _runs(
        "PIT of a speculative decoder's tokens",
        runs,
        lambda: dkw_test(next(speculative)[1][:few], JUDGE_ALPHA),
        lambda bias: dkw_test(coins(bias), JUDGE_ALPHA),
    )
    yield _runs(
        "PIT of its tokens and coins",
        runs,
        lambda: two_sample_dkw(next(speculative)[1][:few], coins(), JUDGE_ALPHA),
        lambda bias: two_sample_dkw(coins(bias), coins(), JUDGE_ALPHA),
    )


def least_favourable(law: Floats, bias: float) -> Floats:
    """The law at a total variation that a G-test finds hardest: about half of the mass is raised by one factor."""
    half = np.zeros(len(law), np.bool_)
    order = np.argsort(-law)
    for outcome in order:
        half[outcome] = law[half].sum() + law[outcome] <= 0.5 + 1e-12
    mass = law[half].sum()
    return np.asarray(law * np.where(half, 1.0 + bias / mass, 1.0 - bias / (1.0 - mass)))


def right_runs(streams: int, tokens: int) -> Iterator[StreamRuns]:
    """The anytime-valid test on right decoders, by configuration."""
    for at, (name, (view, decoder)) in enumerate(RIGHT.items()):
        world = _world(view)
        watched = watch(world, [decoder(world)], view, streams, tokens, STREAM_ALPHA, SEED + 10 + at)
        peaks = watched.peaks / math.log(10.0)
        yield StreamRuns(
            name,
            streams,
            tokens,
            STREAM_ALPHA,
            int(np.isfinite(watched.rejected_at).sum()),
            most_false_alarms(streams, STREAM_ALPHA, CONFIDENCE),
            int((peaks >= -math.log10(LOOSE_ALPHA)).sum()),
            most_false_alarms(streams, LOOSE_ALPHA, CONFIDENCE),
            float(peaks.max()),
        )


def detections_in(view: View, repeats: int, horizon: int) -> Iterator[Detection]:
    """Every faulty decoder as seen in a view."""
    world = _world(view)
    decoders = faulty(world)
    watched = watch(world, list(decoders.values()), view, repeats, horizon, STREAM_ALPHA, SEED + 20, until_half=True)
    for name, at, richest in zip(decoders, watched.rejected_at, watched.richest, strict=True):
        found = int(np.isfinite(at).sum())
        median = float(np.median(at))
        bettor, _ = Counter(one for one in richest if one).most_common(1)[0] if found else ("", 0)
        yield Detection(name, view.name, repeats, horizon, found, median if math.isfinite(median) else None, bettor)


@dataclass(frozen=True)
class Watched:
    """Streams [decoders, streams] that the test watched."""

    rejected_at: Floats
    """Tokens that had come; infinite where it was not."""
    peaks: Floats
    """Highest natural logarithm of wealth."""
    richest: list[list[str]]
    """The wager that had most at rejection; empty where there was none."""


def watch(
    world: World,
    decoders: Sequence[Decoder],
    view: View,
    streams: int,
    horizon: int,
    alpha: float,
    seed: int,
    until_half: bool = False,
) -> Watched:
    """Run the anytime-valid test on so many streams of each decoder, all in step.

    Args:
        world: that all decode.
        decoders: whose streams are watched.
        view: what the test is told.
        streams: of each decoder.
        horizon: tokens of each stream.
        alpha: at which a stream is rejected.
        seed: of the streams and the bettors.
        until_half: stop once more than half of each decoder's streams were rejected.
    """
    tables = [_Table.of(world, decoder, view) for decoder in decoders]
    contexts = len(world.target)
    told = _Table(*(np.concatenate([getattr(one, name) for one in tables]) for name in _Table.__dataclass_fields__))
    sources = [stream(world, decoder, streams, seed + at) for at, decoder in enumerate(decoders)]
    rows = np.arange(len(decoders) * streams)
    of_decoder = np.repeat(np.arange(len(decoders)) * contexts, streams)
    columns = told.bound.shape[1]
    wealth = Wealth(len(rows), everyone(len(rows), columns, contexts + 1, seed))
    last = np.full((len(rows), world.target.shape[1]), -WINDOW - 1)
    at, peaks = np.full(len(rows), math.inf), np.zeros(len(rows))
    richest = [""] * len(rows)
    for now in range(1, horizon + 1):
        came = [next(source) for source in sources]
        context = np.concatenate([one for one, _ in came])
        token = np.concatenate([one for _, one in came])
        place = of_decoder + context
        since = now - last[rows[:, None], told.tokens[place]]
        recency = np.zeros((len(rows), columns), np.int64)
        recency[:, FIRST:] = np.where(since == 1, 2, since <= WINDOW)
        step = Step(
            told.bound[place],
            np.full(len(rows), now == 1),
            recency,
            context + 1,
            told.draft[place] if view.draft_known else None,
            told.order[place] if view.top is None else None,
        )
        logs = wealth.advance(step, told.column[place, token])
        last[rows, token] = now
        peaks = np.maximum(peaks, logs)
        for row in np.nonzero((logs >= -math.log(alpha)) & np.isinf(at))[0]:
            at[row], richest[row] = now, wealth.names[int(wealth.logs[row].argmax())]
        if until_half and (np.isfinite(at).reshape(-1, streams).mean(1) > 0.5).all():
            break
    names = [richest[start : start + streams] for start in range(0, len(rows), streams)]
    return Watched(at.reshape(-1, streams), peaks.reshape(-1, streams), names)


@dataclass(frozen=True)
class _Table:
    """What the test is told in each context [C], as :class:`waveproof.golden.judges.symbols.Step` wants it."""

    bound: Floats
    column: Ints
    """[C, V] of each token."""
    tokens: Ints
    """[C, named] by column."""
    draft: Floats
    order: Ints

    @classmethod
    def of(cls, world: World, decoder: Decoder, view: View) -> _Table:
        """What a decoder reports, rounded as float32 log-probabilities are."""
        with np.errstate(divide="ignore"):
            logs = np.log(decoder.reported).astype(np.float32).astype(np.float64)
        contexts, vocab_size = logs.shape
        named = np.argsort(-logs, 1, kind="stable")[:, : view.top or vocab_size]
        probs = np.take_along_axis(np.exp(logs), named, 1)
        bound = np.stack([bounds(row, view.top is None, ROUNDING) for row in probs])
        column = np.full((contexts, vocab_size), IMPOSSIBLE if view.top is None else REST)
        place = np.broadcast_to(np.arange(named.shape[1]) + FIRST, named.shape)
        np.put_along_axis(column, named, np.where(probs > 0.0, place, IMPOSSIBLE), 1)
        # Draft tokens of reported probability zero are among the named here: they come in no column of theirs.
        head = np.take_along_axis(world.draft, named, 1) * (probs > 0.0)
        outside = np.maximum(1.0 - head.sum(1, keepdims=True), 0.0)
        nothing = np.zeros_like(outside)
        draft = np.concatenate((outside, nothing, head) if view.top is None else (nothing, outside, head), 1)
        order = np.concatenate((np.tile([IMPOSSIBLE, REST], (contexts, 1)), FIRST + np.argsort(named, 1)), 1)
        return cls(bound, column, named, draft, order)


def by_fault(detections: Sequence[Detection]) -> Mapping[str, tuple[Detection, ...]]:
    """Detections of each fault, in the order of the views."""
    faults = dict.fromkeys(one.fault for one in detections)
    return {fault: tuple(one for one in detections if one.fault == fault) for fault in faults}


def _runs(sample: str, runs: int, right: Callable[[], Evidence], wrong: Callable[[float], Evidence]) -> JudgeRuns:
    rights = [right() for _ in range(runs)]
    first = rights[0]
    detectable = float(np.median([one.detectable for one in rights]))
    wrongs = [wrong(detectable) for _ in range(runs)]
    return JudgeRuns(
        first.method,
        sample,
        first.n,
        runs,
        first.alpha,
        sum(one.rejects for one in rights),
        most_false_alarms(runs, first.alpha, CONFIDENCE),
        detectable,
        first.power,
        sum(one.rejects for one in wrongs),
        int(stats.binom.ppf(1.0 - CONFIDENCE, runs, first.power)),
    )


def _samples(world: World, decoder: Decoder, n: int, seed: int) -> Iterator[tuple[Floats, Floats]]:
    """Again and again: counts of the first two tokens [V^2] of n requests, and randomised PITs of the first."""
    random = np.random.default_rng(seed)
    vocab_size = world.target.shape[1]
    ends = np.concatenate(([0.0], np.cumsum(world.target[0])))
    while True:
        requests = stream(world, decoder, n, int(random.integers(2**62)), start=0)
        (_, first), (_, second) = next(requests), next(requests)
        counts = np.bincount(first * vocab_size + second, minlength=vocab_size**2).astype(np.float64)
        yield counts, np.minimum(ends[first] + random.random(n) * world.target[0][first], 1.0)


def _world(view: View) -> World:
    return make_world(view.contexts, VOCAB_SIZE, SEED)


def _under_top_k(world: World) -> World:
    """The target filtered, the draft not."""
    return replace(world, target=filtered(world.target, 10))
