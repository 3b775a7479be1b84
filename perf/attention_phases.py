"""Calls of latent attention as serving engines make them, and who takes each: what their costs are compared on."""

from __future__ import annotations

from dataclasses import dataclass

from waveproof.fixtures.strategies.mla import AttentionCase
from waveproof.kernels.operators.mla import DEEPSEEK
from waveproof.kernels.providers.registry import Implementation, Subject, builtin_implementations

NATIVE, PADDED = "aiter", "waveproof"
"""Providers of AITER's assembly: as it is, and on zero-padded heads."""
_DTYPES = "bfloat16/bfloat16"


@dataclass(frozen=True)
class Candidate:
    """An implementation that may take a phase."""

    operator: str
    provider: str
    page_size: int = 1


@dataclass(frozen=True)
class Phase:
    """One request of a serving engine, in the forms in which implementations take it."""

    name: str
    queries: int
    """Its last tokens, which attend."""
    candidates: tuple[Candidate, ...]
    long: tuple[int, int]
    """Keys between which the cost of a further key is taken: where all splits have work, in whole tiles."""

    def case(self, candidate: Candidate, heads: int, keys: int) -> AttentionCase:
        """The same queries on the same number of keys; mla_extend has its own tokens beside the cache."""
        cached = keys - self.queries if candidate.operator == "mla_extend" else keys
        return AttentionCase(heads, ((self.queries, cached),), page_size=candidate.page_size)

    def needed(self, heads: int, keys: int) -> int:
        """Multiply-adds of the definition: each query with the keys that it sees, scores and values."""
        seen = self.queries * keys - self.queries * (self.queries - 1) // 2
        return heads * seen * (DEEPSEEK.latent + DEEPSEEK.kv_lora_rank)


def _candidates(operator: str, *generic: Candidate) -> tuple[Candidate, ...]:
    return Candidate(operator, PADDED), Candidate(operator, NATIVE), *generic


_DECODE, _PREFILL, _EXTEND = "mla_decode", "mla_prefill_absorbed", "mla_extend"
_SPARSE = "aiter_sparse"
"""Works in tiles of a page: of one token they are too small for matrix instructions, of 32 they are not."""
PHASES = (
    Phase(
        "decode",
        1,
        _candidates(
            _DECODE,
            Candidate(_DECODE, "sglang"),
            Candidate(_DECODE, "aiter_triton"),
            Candidate(_DECODE, _SPARSE),
            Candidate(_DECODE, _SPARSE, 32),
        ),
        (1024, 2048),
    ),
    Phase(
        "verify",
        4,
        _candidates(
            _DECODE,
            Candidate(_DECODE, "sglang_verify"),
            Candidate(_DECODE, "sglang_verify_shared"),
            Candidate(_EXTEND, "aiter_triton"),
            Candidate(_DECODE, _SPARSE, 32),
        ),
        (1024, 2048),
    ),
    Phase(
        "prefill",
        32,
        _candidates(
            _PREFILL,
            Candidate(_EXTEND, "sglang"),
            Candidate(_EXTEND, "aiter_triton"),
            Candidate(_PREFILL, _SPARSE, 32),
        ),
        (512, 1024),
    ),
)


def takers(phase: Phase, heads: int, runtime: str, arch: str) -> tuple[tuple[Candidate, Subject], ...]:
    """Who takes the phase with that many heads on that runtime; padding only where the assembly does not take them."""
    known = {(one.operator, one.provider): one for one in builtin_implementations()}
    found = [(one, known[one.operator, one.provider]) for one in phase.candidates]
    found = [(one, implementation) for one, implementation in found if _takes(implementation, heads, phase.queries)]
    native = any(one.provider == NATIVE for one, _ in found)
    return tuple(
        (one, Subject(implementation, runtime, arch))
        for one, implementation in found
        if runtime in implementation.runtimes and not (native and one.provider == PADDED)
    )


def _takes(implementation: Implementation, heads: int, queries: int) -> bool:
    longest = implementation.longest_query or queries
    return heads in (implementation.heads or (heads,)) and queries <= longest and _DTYPES in implementation.dtypes
