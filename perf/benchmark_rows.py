"""Pairs in pytest-benchmark: its loop takes the samples, and its table and JSON show each side as a row of its own.

One fixture makes one row, and a row of both sides' samples would be the statistics of neither. So blocks of samples run
on copies of the fixture that leave no row, and at the end two rows get what each side took: the baseline's on a copy,
the candidate's on the fixture itself, under the test's own name, so that ``--benchmark-compare`` finds it again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from waveproof.perf.device_timing import Run

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture


@dataclass
class BenchmarkRows:
    """Takes samples through a test's ``benchmark`` fixture and fills its rows."""

    benchmark: BenchmarkFixture
    timer: str = ""
    """Name of the timer that ``--benchmark-timer`` or the marker chose, known after the first block."""

    def block(self, start: Callable[[], Run], finish: Callable[[float], None], rounds: int) -> None:
        """So many rounds of ``benchmark.pedantic``: ``start`` gives the run, ``finish`` gets its host seconds.

        Raises:
            FixtureAlreadyUsed: the test has used its fixture.
            Exception: what ``start``, the run or ``finish`` raise; then nothing of the test is in table or JSON.
        """
        block: Any = copy.copy(self.benchmark)
        block.cprofile = False  # a profiled run more would be a turn that nobody took

        def finish_round(_: Run) -> None:
            finish(block.stats.stats.data[-1])

        try:
            block.pedantic(lambda run: run(), setup=lambda: ((start(),), {}), teardown=finish_round, rounds=rounds)
            timer = block.stats.options["timer"]
            self.timer = f"{timer.__module__}.{timer.__qualname__}"
        except Exception:
            self.benchmark.skipped = True  # no warning that it was not used
            raise
        finally:
            if block.stats is not None:
                _empty(block)

    def show(
        self,
        candidate: Sequence[float],
        baseline: Sequence[float],
        calls: tuple[int, int],
        clock: str,
        told: dict[str, Any],
    ) -> None:
        """Fill both rows: seconds per call of each side, and what the JSON is told of the pair."""
        name, fullname = self.benchmark.name, self.benchmark.fullname
        row: Any
        other = copy.copy(self.benchmark)
        other.name, other.fullname, other.extra_info = f"{name}, baseline", f"{fullname}, baseline", {"pair": told}
        self.benchmark.extra_info["pair"] = told
        for row, samples, number in ((other, baseline, calls[1]), (self.benchmark, candidate, calls[0])):
            row.group = row.group or name
            row.cprofile = False
            row.pedantic(lambda: None)  # registers the row; its one sample of nothing gives way to what was taken
            row.stats.stats = _statistics(samples)
            row.stats.iterations = number
            row.stats.options["timer"] = clock


def _statistics(samples: Sequence[float]) -> Any:
    from pytest_benchmark.stats import Stats

    stats = Stats()
    for sample in samples:
        stats.update(sample)
    return stats


def _empty(block: Any) -> None:
    """Rows without samples are left out of the table, those with an error out of the JSON."""
    block.stats.stats = _statistics(())
    block.has_error = True


def not_timed(benchmark: BenchmarkFixture, candidate: Callable[[], object], baseline: Callable[[], object]) -> NoReturn:
    """With ``--benchmark-disable``, or beside other workers of pytest-xdist: call both sides once, and skip.

    A skip is recorded as the verdict ``inconclusive``.

    Raises:
        Skipped: pytest's, always, unless a side raises.
    """
    import pytest

    benchmark.pedantic(candidate)
    baseline()
    pytest.skip("not timed: pytest-benchmark is disabled, by --benchmark-disable or by pytest-xdist; both sides ran")
