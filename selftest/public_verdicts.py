"""What rules in public use say of one planted fault."""

from __future__ import annotations

from dataclasses import dataclass

from waveproof.selftest.mutants.mutant import Mutant


@dataclass(frozen=True)
class PublicVerdicts:
    """Which of the public rules reject a planted fault."""

    mutant: Mutant
    rejects: dict[str, bool | None]
    """By name of the rule; None where it is not in use for the operator."""
    shows: bool | None = None
    """Whether its result differs at all from that of a right implementation in the rules' set-up; None if not asked."""
