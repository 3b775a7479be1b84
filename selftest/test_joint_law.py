"""The exact law of what an engine generates: filters against a second method, order, ties, and the whole tree."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch

from waveproof.fixtures.models.trigram import trigram
from waveproof.golden.references.joint_law import (
    TEMPERATURE_FIRST,
    TEMPERATURE_LAST,
    Filter,
    UndecidedFilter,
    joint_law,
    next_law,
)

LOGITS = torch.tensor([2.0, 0.5, 1.0, -1.0, 0.0, 1.5], dtype=torch.float64)


def by_hand(logits: list[float], filter: Filter) -> list[float]:
    """The same filters with Python's lists and fractions of the weights: one token at a time, none sorted by torch."""
    weights = {
        token: Fraction(math.exp(value / (filter.temperature if filter.order[0] == "temperature" else 1.0)))
        for token, value in enumerate(logits)
        if token not in filter.banned
    }
    if filter.top_k:
        best = sorted(weights, key=lambda token: -weights[token])[: filter.top_k]
        weights = {token: weights[token] for token in best}
    total, kept, before = sum(weights.values()), {}, Fraction(0)
    for token in sorted(weights, key=lambda token: -weights[token]):
        if before < Fraction(filter.top_p) * total or filter.top_p >= 1:
            kept[token] = weights[token]
        before += weights[token]
    if filter.order[-1] == "temperature":
        kept = {token: Fraction(float(weight) ** (1 / filter.temperature)) for token, weight in kept.items()}
    total = sum(kept.values())
    return [float(kept.get(token, Fraction(0)) / total) for token in range(len(logits))]


@pytest.mark.parametrize("order", [TEMPERATURE_FIRST, TEMPERATURE_LAST])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 0.05])
@pytest.mark.parametrize("top_k", [0, 1, 3, 6, 50])
@pytest.mark.parametrize("banned", [(), (0,), (1, 3)])
def test_next_law_is_that_of_a_second_method(
    order: tuple[str, ...], top_p: float, top_k: int, banned: tuple[int, ...]
) -> None:
    filter = Filter(0.6, top_k, top_p, order, banned)
    law = next_law(LOGITS, filter)
    assert law.dtype == torch.float64
    assert law.tolist() == pytest.approx(by_hand(LOGITS.tolist(), filter), abs=1e-14)


def test_filters_do_not_commute() -> None:
    first, last = (Filter(3.0, 0, 0.7, order) for order in (TEMPERATURE_FIRST, TEMPERATURE_LAST))
    assert int((next_law(LOGITS, first) > 0).sum()) > int((next_law(LOGITS, last) > 0).sum())


@pytest.mark.parametrize(
    ("logits", "filter"),
    [
        ([0.0, 1.0, 1.0, 2.0], Filter(top_k=2)),
        ([0.0, 1.0, 1.0 + 1e-7, 2.0], Filter(top_k=2)),
        ([math.log(0.5), math.log(0.25), math.log(0.25)], Filter(top_p=0.5)),
        ([math.log(0.4), math.log(0.3), math.log(0.3)], Filter(top_p=0.7 + 1e-7)),
    ],
)
def test_no_law_where_engines_may_differ(logits: list[float], filter: Filter) -> None:
    scores = torch.tensor(logits, dtype=torch.float64)
    with pytest.raises(UndecidedFilter, match="within 1e-05"):
        next_law(scores, filter)
    assert float(next_law(scores, filter, margin=0.0).sum()) == pytest.approx(1.0)


def test_ties_that_a_filter_does_not_part_are_decided() -> None:
    assert next_law(torch.tensor([1.0, 1.0, 0.0]), Filter(top_k=2)).tolist() == [0.5, 0.5, 0.0]


def test_joint_law_is_the_product_of_its_conditionals() -> None:
    model, prompt, filter = trigram(5, seed=3), (1, 4), Filter(0.7, 3, 0.9, banned=(2,))
    law = joint_law(model.after, prompt, 3, filter)
    assert math.fsum(law.values()) == pytest.approx(1.0, abs=1e-12)
    laws = {pair: by_hand(model.after(pair).tolist(), filter) for pair in itertools.product(range(5), repeat=2)}
    for tokens in itertools.product(range(5), repeat=3):
        path = (*prompt, *tokens)
        due = math.prod(laws[path[at], path[at + 1]][path[at + 2]] for at in range(3))
        assert law.get(tokens, 0.0) == pytest.approx(due, abs=1e-12)
        assert (tokens in law) == (due > 0)


def test_undecided_context_is_named() -> None:
    model = trigram(4, seed=0)
    model.table[1, 2] = 0.0
    with pytest.raises(UndecidedFilter, match=r"after \(0, 1, 2\)"):
        joint_law(model.after, (0, 1), 2, Filter(top_k=3))


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}, {"order": ("top_k", "top_p")}],
)
def test_impossible_filter_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must (be|hold)"):
        Filter(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("filter", "words"),
    [
        (Filter(), "T=1"),
        (Filter(0.8, 5, 0.9), "T=0.8 k=5 p=0.9"),
        (Filter(0.8, 5, 0.9, TEMPERATURE_LAST), "k=5 p=0.9 T=0.8"),
        (Filter(0.8, top_p=0.9, order=TEMPERATURE_LAST, banned=(1,)), "p=0.9 T=0.8"),
    ],
)
def test_filter_is_told_in_its_order(filter: Filter, words: str) -> None:
    assert str(filter) == words
