"""Runs of the suite in a process of their own, for tests of what a whole run says."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from waveproof.reports.verdicts import Record, read_records

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Run:
    """How a run ended."""

    exit_status: int
    printed: str
    records: tuple[Record, ...]

    def of(self, provider: str) -> tuple[Record, ...]:
        """The records of one provider."""
        return tuple(record for record in self.records if record.provider == provider)


def run_suite(directory: Path, *arguments: str, module: bool = True) -> Run:
    """``python -m pytest conformance ARGUMENTS`` (or ``pytest ...``) with its records and repros in a directory."""
    results = directory / "results.jsonl"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    start = [sys.executable, "-m", "pytest"] if module else [str(Path(sys.executable).parent / "pytest")]
    options = [f"--results={results}", "--profile=quick", "-p", "no:cacheprovider", "--color=no"]
    if not any(argument.startswith("--repro-dir") for argument in arguments):
        options.append(f"--repro-dir={directory / 'repros'}")
    done = subprocess.run(
        [*start, "conformance", *options, *arguments],
        cwd=ROOT,
        env={**environment, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    records = tuple(read_records(results)) if results.exists() else ()
    return Run(done.returncode, done.stdout + done.stderr, records)
