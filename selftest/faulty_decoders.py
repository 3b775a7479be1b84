"""Simulated speculative decoders, right and faulty, many streams at a time.

A decoder here is a verifier's tables over contexts [C, V]: with which probability each draft token is accepted, from
what is drawn after a rejection and after a block that was accepted whole, and what is reported as the law of a token.
Tokens come one at a time from a position within a block, which is what a verifier of chains amounts to: drafts behind a
rejected one are thrown away, so that nobody need draw them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class World:
    """A target and its draft over contexts C and tokens V."""

    target: Floats
    """[C, V], rows sum to 1."""
    draft: Floats
    after: Ints
    """[C, V]: context that a token leads to."""

    @property
    def accepted(self) -> float:
        """Share of draft tokens that a right verifier accepts, over contexts that are equally frequent."""
        return float(np.minimum(self.target, self.draft).sum(1).mean())


@dataclass(frozen=True)
class Decoder:
    """A verifier, right or wrong, by its tables [C, V]."""

    accept: Floats
    """Probability that a draft token is accepted."""
    residual: Floats
    """Law after a rejection."""
    bonus: Floats
    """Law after a block that was accepted whole."""
    reported: Floats
    """Law that the server states for each of its tokens."""
    proposal: Floats | None = None
    """Law that draft tokens are really drawn from; None for the draft's."""
    one_coin: bool = False
    """Whether one coin judges all tokens of a block."""
    coin_again: bool = False
    """Whether the coin that rejected a token draws from the residual too."""
    drawn_twice: bool = False
    """Whether the coin that draws a token is used for the next drawn one too."""
    repeats: float = 0.0
    """Probability that the token before is sent instead."""


def make_world(contexts: int, vocab_size: int, seed: int, spread: float = 1.5, noise: float = 0.8) -> World:
    """Laws of normal logits; the draft's are the target's with noise."""
    random = np.random.default_rng(seed)
    logits = spread * random.normal(size=(contexts, vocab_size))
    return World(
        _softmax(logits),
        _softmax(logits + noise * random.normal(size=logits.shape)),
        random.integers(contexts, size=logits.shape),
    )


def honest(world: World) -> Decoder:
    """Rejection sampling as it should be (arXiv 2211.17192, Algorithm 1)."""
    p, q = world.target, world.draft
    return Decoder(np.minimum(1.0, p / q), _normalised(np.maximum(p - q, 0.0)), p, p)


def plain(world: World) -> Decoder:
    """Sampling without a draft."""
    return Decoder(np.zeros_like(world.target), world.target, world.target, world.target)


def filtered(law: Floats, top_k: int) -> Floats:
    """The k most probable tokens of each row, renormalised."""
    least = np.sort(law, 1)[:, -top_k, None]
    return _normalised(np.where(law >= least, law, 0.0))


def faulty(world: World) -> dict[str, Decoder]:
    """Decoders with one fault each, by name."""
    right, p, q = honest(world), world.target, world.draft
    ratio = p / q
    left = np.maximum(p - q, 0.0)
    short = left.copy()
    short[:, -1] += 1.0 - left.sum(1)
    best, best_left = _one_hot(p), _one_hot(left)
    sharper = replace(world, target=_normalised(p ** (1.0 / 0.9)))
    entropy = -(p * np.log(p)).sum(1, keepdims=True)
    top = filtered(p, max(2, p.shape[1] // 3))
    ones = np.ones_like(p)
    return {
        "residual not renormalised": replace(right, residual=short),
        "top-k reported, not applied": replace(right, reported=top),
        "argmax of the residual": replace(right, residual=best_left),
        # Medusa's rule (arXiv 2401.10774, section 2.3.1).
        "typical acceptance": replace(
            right, accept=(p > np.minimum(0.09, 0.3 * np.exp(-entropy))).astype(float), residual=p
        ),
        "target instead of residual": replace(right, residual=p),
        "one coin a block": replace(right, one_coin=True),
        "residual with the coin that rejected": replace(right, coin_again=True),
        "accepted only where p/q >= 0.9": replace(right, accept=(ratio >= 0.9).astype(float)),
        "always accepted where p/q >= 0.9": replace(right, accept=np.where(ratio >= 0.9, 1.0, ratio)),
        "q taken for 1": replace(right, accept=p),
        "q filtered, verified unfiltered": replace(right, proposal=filtered(q, max(2, q.shape[1] // 3))),
        "greedy impostor": replace(right, accept=best, residual=best, bonus=best),
        "temperature 0.9 for 1.0": replace(honest(sharper), reported=p),
        "the token before in 1 of 20": replace(right, repeats=0.05),
        "lossy: 3 of 4 drafts accepted, unseen": replace(right, accept=0.75 * ones, residual=p),
        "drawing coins used twice, no draft": replace(plain(world), drawn_twice=True),
    }


def stream(
    world: World, decoder: Decoder, streams: int, seed: int, block: int = 4, start: int | None = None
) -> Iterator[tuple[Ints, Ints]]:
    """Contexts [R] and the tokens [R] that came in them, without end.

    Args:
        world: what is decoded.
        decoder: how it is verified.
        streams: R.
        seed: of the coins.
        block: draft tokens that are verified together.
        start: first context; None for any.
    """
    random = np.random.default_rng(seed)
    contexts = random.integers(len(world.target), size=streams) if start is None else np.full(streams, start)
    proposal = world.draft if decoder.proposal is None else decoder.proposal
    tables = [_cumulative(law) for law in (proposal, decoder.residual, decoder.bonus)]
    position, before = np.zeros(streams, np.int64), np.full(streams, -1)
    coin, drawn = random.random((2, streams))
    reused = np.zeros(streams, bool)
    while True:
        fresh, draft_coin, final_coin, repeat_coin = random.random((4, streams))
        coin = np.where(position == 0, fresh, coin) if decoder.one_coin else fresh
        proposed = _draw(tables[0][contexts], draft_coin)
        whole = position == block
        accepted = ~whole & (coin < decoder.accept[contexts, proposed])
        if decoder.coin_again:
            final_coin = np.where(whole, final_coin, coin)
        if decoder.drawn_twice:
            drawn, reused = np.where(reused, drawn, final_coin), ~reused
            final_coin = drawn
        final = np.where(whole, _draw(tables[2][contexts], final_coin), _draw(tables[1][contexts], final_coin))
        tokens = np.where(accepted, proposed, final)
        if decoder.repeats:
            tokens = np.where((repeat_coin < decoder.repeats) & (before >= 0), before, tokens)
        yield contexts, tokens
        position = np.where(accepted, position + 1, 0)
        contexts, before = world.after[contexts, tokens], tokens


def _draw(cumulative: Floats, coins: Floats) -> Ints:
    return np.minimum((cumulative <= coins[:, None]).sum(1), cumulative.shape[1] - 1)


def _cumulative(law: Floats) -> Floats:
    sums = np.cumsum(law, 1)
    return sums / sums[:, -1:]


def _normalised(weights: Floats) -> Floats:
    return np.asarray(weights / weights.sum(1, keepdims=True))


def _one_hot(weights: Floats) -> Floats:
    return np.eye(weights.shape[1])[weights.argmax(1)]


def _softmax(logits: Floats) -> Floats:
    return _normalised(np.exp(logits - logits.max(1, keepdims=True)))
