"""Commands that put the suite itself on trial."""

from __future__ import annotations

from typing import Annotated

import typer


def soak(
    provider: Annotated[list[str], typer.Option(help="As pytest's --provider; may be repeated.")],
    runs: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 200,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 1,
    processes: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 2,
) -> None:
    """Run the quick profile with other seeds each time; exits with 1 if anything is rejected.

    Point it at a correct implementation: what it rejects is then a false alarm.
    """
    from rich.console import Console

    from waveproof.selftest.soak import soak as run_soak

    console = Console()
    green = cases = calls = 0
    for done, run in enumerate(run_soak(provider, runs, first_seed, processes), 1):
        green += run.exit_status == 0 and not run.rejected
        cases, calls = cases + run.cases, calls + run.calls
        for case in run.rejected:
            console.print(f"seed {run.seed}: rejected {case}", markup=False)
        if run.exit_status and not run.rejected:
            console.print(f"seed {run.seed}: exit status {run.exit_status} without a rejected case")
        if done % 20 == 0 or done == runs:
            console.print(f"{done:4} of {runs} runs: {green} green, {cases} cases, {calls} calls", highlight=False)
    upper = 1.0 - 0.05 ** (1.0 / runs)
    if green == runs:
        console.print(f"no false alarm; rate of runs with one below {upper:.2%} at 95 % confidence", highlight=False)
        return
    raise typer.Exit(1)
