"""The kill matrix: every planted fault through the whole suite, and which of its rules rejected it.

One pytest process takes all of them as ``--provider``, so each goes through what a user's implementation goes through:
its own guarded process, the judges, the verdict, the repro.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from waveproof.fixtures.conclusion import EXECUTED
from waveproof.fixtures.recording import LOADS
from waveproof.kernels.operators.registry import operator_named
from waveproof.reports.verdicts import Record, read_records
from waveproof.selftest.mutants.mutant import Mutant
from waveproof.selftest.mutants.tables import on_trial

ROOT = Path(__file__).resolve().parents[1]
"""The folder that is mapped to the namespace ``waveproof``."""

_SHORT = {
    "kept set": "kept",
    "kept values": "values",
    "row sums": "sums",
    "attention output": "output",
    "head norm": "norm",
    "head scale": "scale",
    "natural LSE": "lse",
    "merged output": "merged",
    "merged LSE": "m.lse",
    "padded heads": "padded",
    "outcome": "outcome",
    "law": "law",
    "sampled law": "sampled",
    "really samples": "samples",
    "joint law": "joint",
    "form": "form",
    "legal input accepted": "accept",
    "illegal input refused": "refuse",
    "input unchanged": "input",
    "memory outside buffers unchanged": "bounds",
    "repeat calls equal": "repeat",
    "earlier results unchanged": "results",
    "same bits": "bits",
    "same law": "relation",
    "kernel launched": "launch",
    "survives": "crash",
    "returns in time": "hang",
    "offsets fit their type": "offsets",
    "no spills": "spills",
    "no scratch": "scratch",
}


class TrialFailed(RuntimeError):
    """The suite did not come to an end on the planted faults; the message is the end of what it printed."""


@dataclass(frozen=True)
class Trial:
    """What the suite said of one implementation on one runtime."""

    mutant: Mutant
    runtime: str
    cases: int
    """Cases in which it was called."""
    kills: dict[str, int]
    """Rejecting cases, by the rule that was broken."""
    tests: tuple[str, ...]
    """Test functions that rejected it."""
    repro: bool | None
    """Whether a repro failed in a clean process; None where what it breaks cannot be shown by a script."""
    accidents: tuple[str, ...] = ()
    """Cases that could not be judged: it did not load, or the runtime is absent."""

    @property
    def killed(self) -> bool:
        """Whether a rule rejected it."""
        return bool(self.kills)

    @property
    def as_due(self) -> bool:
        """Whether it came out as it must: right ones pass, the others break the rule that is there for them."""
        if self.accidents or not self.cases:
            return False
        return self.mutant.seen_by in self.kills if self.mutant.seen_by else not self.killed

    @property
    def shown(self) -> bool:
        """Whether there is a confirmed repro wherever one can be had."""
        return not self.killed or self.repro is not False


def of_profile(mutants: Iterable[Mutant], profile: str) -> tuple[Mutant, ...]:
    """Those whose fault shows at the profile's sizes."""
    return tuple(mutant for mutant in mutants if mutant.profile == "quick" or profile != "quick")


def run_trials(
    mutants: Sequence[Mutant], profile: str = "quick", runtimes: Sequence[str] = (), processes: int = 2
) -> tuple[Trial, ...]:
    """Put implementations through the suite, in the order given, once for each of their runtimes.

    Args:
        mutants: planted faults and right implementations.
        profile: the suite's ``--profile``.
        runtimes: only these; all that a mutant is for if empty.
        processes: how many test processes share the work.

    Raises:
        TrialFailed: pytest ended otherwise than with verdicts.
    """
    with tempfile.TemporaryDirectory(prefix="waveproof-trial-") as folder:
        results = Path(folder) / "results.jsonl"
        command = [sys.executable, "-m", "pytest", "conformance", "-m", "rocm", "-q", "--tb=no", "-n", str(processes)]
        command += ["-p", "waveproof.selftest.trial", "-p", "no:cacheprovider"]
        command += ["--profile", profile, "--results", str(results), "--repro-dir", str(Path(folder) / "repros")]
        command += ["--runtime", ",".join(runtimes)] if runtimes else []
        for mutant in mutants:
            command += ["--provider", mutant.option(ROOT)]
        # One thread a process: the test processes and their workers share the cores already.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        for name in [name for name in environment if name.startswith("PYTEST_")]:
            del environment[name]
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if run.returncode not in (0, 1) or not results.exists():
            raise TrialFailed(f"pytest ended with {run.returncode}: {(run.stdout + run.stderr)[-3000:]}")
        records = list(read_records(results))
    return tuple(
        verdict_on(mutant, runtime, records)
        for mutant in mutants
        for runtime in mutant.runtimes
        if not runtimes or runtime in runtimes
    )


def verdict_on(mutant: Mutant, runtime: str, records: Iterable[Record]) -> Trial:
    """What a run's records say of one implementation on one runtime."""
    own = [
        record
        for record in records
        if (record.operator, record.provider, record.runtime) == (mutant.operator, mutant.name, runtime)
    ]
    broken = [record for record in own if record.verdict.red and record.failure is not None]
    loads = [record for record in broken if record.failure is not None and record.failure.rule == LOADS]
    kills = [record for record in broken if record not in loads]
    failures = [record.failure for record in kills if record.failure is not None]
    accidents = [record for record in own if record in loads or record.verdict not in EXECUTED]
    # A repro is a script; what a compiler made of a kernel, and that no kernel ran, is no script's to show.
    shown = {failure.repro_confirmed for failure in failures if failure.repro}
    return Trial(
        mutant,
        runtime,
        sum(1 for record in own if record.calls and record.verdict in EXECUTED),
        dict(Counter(failure.rule for failure in failures)),
        tuple(sorted({record.test for record in kills})),
        True in shown if shown else None,
        tuple(f"{record.id}: {record.reason or (record.failure and record.failure.message)}" for record in accidents),
    )


def render(trials: Sequence[Trial], seconds: float, console: Console) -> None:
    """Print a matrix for each family: implementations by rules, with numbers of rejecting cases; survivors in red."""
    planted = [trial for trial in trials if trial.mutant.seen_by]
    right = [trial for trial in trials if not trial.mutant.seen_by]
    families: dict[str, list[Trial]] = {}
    for trial in planted:
        families.setdefault(operator_named(trial.mutant.operator).family, []).append(trial)
    for one in families.values():
        console.print(_matrix(one))
    for trial in planted:
        if not trial.killed:
            console.print(
                f"SURVIVED: {trial.mutant.operator} {trial.mutant.name}: {trial.mutant.fault}", style="bold red"
            )
        elif not trial.as_due:
            due = trial.mutant.seen_by
            console.print(f"NOT AS DUE: {trial.mutant.name} never broke the rule {due!r}", style="bold red")
    for trial in right:
        style = "" if trial.as_due else "bold red"
        word = "passes" if not trial.killed else f"REJECTED by {', '.join(trial.tests)}"
        console.print(f"right: {trial.mutant.name} ({trial.runtime}) {word}, {trial.cases} cases", style=style)
    for trial in trials:
        for accident in trial.accidents[:2]:
            console.print(f"NOT JUDGED: {accident}", style="bold red")
    killed = sum(trial.killed for trial in planted)
    passed = sum(trial.as_due for trial in right)
    shown = sum(bool(trial.repro) for trial in planted)
    cases = sum(trial.cases for trial in trials)
    without = sum(trial.killed and trial.repro is None for trial in planted)
    console.print(
        f"{killed} of {len(planted)} planted faults rejected, {passed} of {len(right)} right implementations passed; "
        f"{shown} faults have a repro that fails in a clean process, {without} are of a kind that no script can show "
        f"(the compiler's figures, a kernel that did not run); {cases} cases in {seconds:.0f} s"
    )


def _matrix(planted: Sequence[Trial]) -> Table:
    rules = list(dict.fromkeys(rule for trial in planted for rule in trial.kills))
    rules.sort(key=lambda rule: list(_SHORT).index(rule) if rule in _SHORT else len(_SHORT))
    numbers = [Column(_SHORT.get(rule, rule), justify="right", no_wrap=True) for rule in rules]
    table = Table(
        Column("planted fault", no_wrap=True),
        Column("runtime", no_wrap=True),
        *numbers,
        "tests",
        Column("repro", no_wrap=True),
        box=None,
        pad_edge=False,
    )
    operator = ""
    for trial in planted:
        if trial.mutant.operator != operator:
            operator = trial.mutant.operator
            table.add_row(Text(operator, "bold"))
        counts = [Text(str(trial.kills.get(rule, "·")), "" if rule in trial.kills else "dim") for rule in rules]
        name = Text(f"  {trial.mutant.name}", "" if trial.as_due else "bold red")
        table.add_row(name, trial.runtime, *counts, str(len(trial.tests)), _repro(trial))
    return table


def _repro(trial: Trial) -> Text:
    if trial.repro is None:
        return Text("no script" if trial.killed else "", "dim")
    return Text("confirmed") if trial.repro else Text("NOT CONFIRMED" if trial.killed else "", "bold red")


def kill_matrix(
    profile: str, runtimes: Sequence[str], operator: str, console: Console, family: str = ""
) -> tuple[Trial, ...]:
    """Run and print it for one operator, one family or, where neither is named, all; see :func:`well` for the verdict.

    Raises:
        UnknownFamily: there is no such family.
    """
    named = [mutant for mutant in on_trial(family) if operator in ("", mutant.operator)]
    fitting = [mutant for mutant in named if not runtimes or set(mutant.runtimes) & set(runtimes)]
    chosen = of_profile(fitting, profile)
    started = time.monotonic()
    trials = run_trials(chosen, profile, runtimes)
    render(trials, time.monotonic() - started, console)
    if len(fitting) > len(chosen):
        console.print(f"{len(fitting) - len(chosen)} further planted faults: --profile default")
    return trials


def well(trials: Sequence[Trial]) -> bool:
    """Whether all planted faults are rejected as due, shown by a repro where they can be, and all right ones pass."""
    return bool(trials) and all(trial.as_due and trial.shown for trial in trials)
