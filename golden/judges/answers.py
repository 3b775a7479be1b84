"""What a server was heard to say: tokens, their logprobs, and what went wrong. Data only; golden/judges reads it.

A token's *symbol* is its id where the server tells it (``token_id:5``), else its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

ZERO_PROBABILITY = -1e3
"""Logprobs at or below stand for probability 0. vLLM writes -9999 and llama.cpp the lowest float32 for log 0, JSON
having no infinity; a probability of e^-1000 is below the smallest double."""


class FaultKind(str, Enum):
    """What a server did instead of answering."""

    UNREACHABLE = "unreachable"
    REFUSED = "refused the request"
    OVERLOADED = "overloaded"
    ERROR = "internal error"
    STALLED = "stalled"
    DIED = "died mid-stream"
    MALFORMED = "malformed answer"


@dataclass(frozen=True)
class Fault:
    """A request that failed. ``detail`` names neither the server's address nor the key."""

    kind: FaultKind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}" if self.detail else self.kind.value


@dataclass(frozen=True)
class ServedToken:
    """One token. ``logprob`` is None, and ``top`` empty, where the server reported none; NaN is kept as NaN."""

    symbol: str
    text: str
    logprob: float | None = None
    top: Mapping[str, float] = field(default_factory=dict)
    """Symbol -> natural-log probability, as reported."""
    listed: int = 0
    """Entries of ``top`` as they came, before entries of one symbol fell together."""


@dataclass(frozen=True)
class Completion:
    """One row of an answer, whole or as far as it came."""

    text: str
    steps: tuple[ServedToken, ...]
    finish: str
    """``length``, ``stop``, or empty where the stream broke off."""
    fault: Fault | None = None
    usage: int | None = None
    """Completion tokens by the server's own count; None where it gave none for this row alone."""
    drafted: int | None = None
    """Draft tokens that were tried and accepted, where the answer tells (llama.cpp's ``timings``)."""
    accepted: int | None = None
    silent: bool = False
    """Whether some of the text came without logprobs."""

    @property
    def tokens_spent(self) -> int:
        """Tokens to charge to a budget; at least one for an answer that was not refused."""
        least = 0 if self.fault is not None and not self.text else 1
        return max(self.usage or 0, len(self.steps), least)

    @property
    def hides_end(self) -> bool:
        """Whether a token that the server counted is in none of the steps: the end of sequence, left out."""
        counted = self.usage is not None and self.usage == len(self.steps) + 1
        return self.finish == "stop" and counted and not self.silent and bool(self.steps)
