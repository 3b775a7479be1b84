"""Many runs with other seeds: how often does the suite reject what is right?

Every check compares with a derived bound and no check draws random numbers to decide, so the rate that is claimed is 0;
a soak of n runs without a rejection bounds it from above by 1 - 0.05 ** (1 / n) at 95 % confidence (1.5 % at n = 200).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from waveproof.reports.verdicts import Verdict
from waveproof.selftest.suite_runs import run_suite


@dataclass(frozen=True)
class SoakRun:
    """One run of a soak."""

    seed: int
    exit_status: int
    cases: int
    rejected: tuple[str, ...]
    """Ids of cases whose verdict is not a pass."""
    calls: int
    """Calls of the implementation."""


def soak(providers: Sequence[str], runs: int, first_seed: int = 1, processes: int = 2) -> Iterator[SoakRun]:
    """Run the quick profile on ``--provider`` values once for each seed.

    Args:
        providers: values of ``--provider``.
        runs: how many seeds.
        first_seed: the seeds are this one and those that follow.
        processes: runs at a time.
    """

    def one(seed: int) -> SoakRun:
        with tempfile.TemporaryDirectory() as directory:
            options = [f"--provider={provider}" for provider in providers]
            run = run_suite(Path(directory), "-q", f"--vary-seed={seed}", *options)
        rejected = tuple(record.id for record in run.records if record.verdict is not Verdict.PASS)
        calls = sum(record.calls for record in run.records)
        return SoakRun(seed, run.exit_status, len(run.records), rejected, calls)

    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(one, range(first_seed, first_seed + runs))
