"""What a whole run of tests may spend on false alarms, and who spends it (see :mod:`.evidence`)."""

from __future__ import annotations

from dataclasses import dataclass


class BudgetExceeded(ValueError):
    """More false alarms were asked for than the run may have, or one name was asked for twice with other numbers."""


@dataclass(frozen=True)
class Share:
    """A part of a budget of false alarms."""

    name: str
    tests: int
    part: float
    """Of the whole budget."""
    alpha: float
    """Of each test."""

    @property
    def total(self) -> float:
        """Probability of a false alarm in any of them, at most."""
        return self.tests * self.alpha


class Budget:
    """The probability that a whole run of right implementations shows a false alarm, and who may spend it.

    Shares are parts of the total that their users state, so that no test's alpha depends on which others run.
    """

    def __init__(self, total: float) -> None:
        self.total = total
        self._shares: dict[str, Share] = {}

    def share(self, name: str, tests: int, part: float = 0.1) -> float:
        """Alpha of each of so many tests of a name, which have a part of the budget together (Bonferroni).

        Raises:
            BudgetExceeded: the parts of all names exceed 1, or the name has a share with other numbers.
        """
        asked = Share(name, tests, part, self.total * part / tests)
        known = self._shares.get(name)
        if known is not None and known != asked:
            raise BudgetExceeded(f"{name} has {known.part:.3g} of the budget for {known.tests} tests already")
        spent = sum(one.part for one in self.spent if one.name != name)
        if spent + part > 1.0 + 1e-9:
            raise BudgetExceeded(f"{name} asks for {part:.3g} of the budget where {1.0 - spent:.3g} is left")
        self._shares[name] = asked
        return asked.alpha

    @property
    def spent(self) -> tuple[Share, ...]:
        """The shares, in the order in which they were asked for."""
        return tuple(self._shares.values())

    @property
    def left(self) -> float:
        """Probability that nobody has asked for."""
        return self.total - sum(one.total for one in self.spent)
