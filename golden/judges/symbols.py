"""What is known of a stream before its next token, by symbol: what bettors see.

The **symbols** of a step are columns: :data:`IMPOSSIBLE` (all tokens that the report gives probability zero),
:data:`REST` (all tokens that it does not name), then the named ones by falling probability. What lies outside the
returned top-K is one symbol: a top-K that is renormalised is another law than the sampled one.

Arrays hold independent streams in rows, so that many simulated ones cost little more than one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

IMPOSSIBLE, REST, FIRST = 0, 1, 2
"""Columns: reported as impossible, not named, and the most probable named token."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """What is known of each stream [R] before its next token, by symbol [R, m]."""

    bound: Floats
    """Reported probabilities, each with the allowance for rounding; positive, sums are at least 1."""
    fresh: NDArray[np.bool_]
    """[R]: whether the stream begins a request, so that nothing came before."""
    recency: Ints
    """2 the token before this one, 1 one of the window before, 0 another."""
    prefix: Ints
    """[R]: number of the repeated context, 0 for none."""
    draft: Floats | None = None
    """The draft's law, where it is known."""
    order: Ints | None = None
    """Columns in the order in which the sampler adds them up; None for that of the columns."""
    logs: Floats = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "logs", np.log(self.bound))
