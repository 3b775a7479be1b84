"""What comparison rules in public use say of the same planted faults, each rule in the set-up that it is used in.

The rules and their set-ups: ``public_rules_renorm.py``, ``public_rules_mla.py``.

Fresh memory is poisoned here as in the suite, which helps the rules: in their own surroundings it mostly holds zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from waveproof.selftest import public_rules_mla, public_rules_renorm
from waveproof.selftest.kill_matrix import Trial
from waveproof.selftest.mutants.mla import DECODE
from waveproof.selftest.mutants.mutant import Mutant
from waveproof.selftest.mutants.renorm import TOP_K, TOP_P
from waveproof.selftest.mutants.tables import PLANTED
from waveproof.selftest.public_verdicts import PublicVerdicts

_FAMILIES: dict[str, ModuleType] = {
    TOP_K: public_rules_renorm,
    TOP_P: public_rules_renorm,
    DECODE: public_rules_mla,
}
"""The rules for each operator that has public tests."""


def public_verdicts(mutant: Mutant) -> PublicVerdicts:
    """What each rule for its operator says of a planted fault in plain torch."""
    verdicts: PublicVerdicts = _FAMILIES[mutant.operator].verdicts_on(mutant)
    return verdicts


def in_plain_torch() -> tuple[Mutant, ...]:
    """The planted faults that the rules can be applied to: plain torch, an operator that has public tests."""
    planted = [mutant for table in PLANTED.values() for mutant in table]
    return tuple(mutant for mutant in planted if mutant.operator in _FAMILIES and mutant.runtimes == ("cpu",))


def public_rules(trials: Sequence[Trial], console: Console) -> None:
    """Apply the rules to all planted faults that they can be applied to, or to those on trial, and print the tables."""
    ours = {trial.mutant for trial in trials}
    chosen = [mutant for mutant in in_plain_torch() if mutant in ours or not ours]
    for rules in (public_rules_renorm, public_rules_mla):
        verdicts = [public_verdicts(mutant) for mutant in chosen if _FAMILIES[mutant.operator] is rules]
        if verdicts:
            render(verdicts, trials, console)


def render(verdicts: Sequence[PublicVerdicts], trials: Sequence[Trial], console: Console) -> None:
    """Print which rule rejects what, and the totals; our own verdicts beside them where ``trials`` has them."""
    ours = {(trial.mutant.operator, trial.mutant.name): trial.killed for trial in trials}
    rules = list(verdicts[0].rejects)
    columns = [Column(name, justify="center") for name in rules]
    table = Table(Column("planted fault", no_wrap=True), *columns, *(["waveproof"] if ours else []), box=None)
    operator = ""
    for verdict in verdicts:
        if verdict.mutant.operator != operator:
            operator = verdict.mutant.operator
            table.add_row(Text(operator, "bold"))
        cells = [_cell(verdict.rejects[name], verdict.shows is not False) for name in rules]
        own = [_cell(ours.get((operator, verdict.mutant.name)))] if ours else []
        table.add_row(Text(f"  {verdict.mutant.name}"), *cells, *own)
    totals = []
    for name in rules:
        said = [verdict.rejects[name] for verdict in verdicts if verdict.rejects[name] is not None]
        totals.append(f"{sum(map(bool, said))} of {len(said)}")
    if ours:
        said = [ours.get((verdict.mutant.operator, verdict.mutant.name)) for verdict in verdicts]
        totals.append(f"{sum(map(bool, said))} of {len(said)}")
    table.add_row(Text("rejected", "bold"), *(Text(total, "bold") for total in totals))
    console.print(table)
    anyone = sum(any(verdict.rejects.values()) for verdict in verdicts)
    console.print(f"{anyone} of {len(verdicts)} planted faults are rejected by at least one of the public rules")
    showing = sum(verdict.shows is True for verdict in verdicts)
    if any(verdict.shows is not None for verdict in verdicts):
        console.print(f"{showing} of them change the compared output in these set-ups; the others need another input")


def _cell(rejects: bool | None, shows: bool = True) -> Text:
    if rejects is None or not (shows or rejects):
        return Text("-" if rejects is None else "does not show", "dim")
    return Text("rejected") if rejects else Text("passes", "red")
