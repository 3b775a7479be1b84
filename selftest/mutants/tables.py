"""All tables of planted faults and right implementations, by family of operators."""

from __future__ import annotations

from waveproof.selftest.mutants import mla, renorm, verify
from waveproof.selftest.mutants.mutant import Mutant

PLANTED: dict[str, tuple[Mutant, ...]] = {"renorm": renorm.MUTANTS, "mla": mla.MUTANTS, "verify": verify.MUTANTS}
"""What must be rejected."""
RIGHT: dict[str, tuple[Mutant, ...]] = {"renorm": renorm.CORRECT, "mla": mla.CORRECT, "verify": verify.CORRECT}
"""What must pass."""


class UnknownFamily(LookupError):
    """No table goes by this name."""


def on_trial(family: str = "") -> tuple[Mutant, ...]:
    """The planted faults and then the right implementations of a family, or of all if no family is named.

    Raises:
        UnknownFamily: there is no such family.
    """
    if family and family not in PLANTED:
        raise UnknownFamily(f"unknown family {family!r}; there are: {', '.join(PLANTED)}")
    families = [family] if family else list(PLANTED)
    return tuple(mutant for table in (PLANTED, RIGHT) for name in families for mutant in table[name])
