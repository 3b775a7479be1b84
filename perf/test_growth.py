"""Linear must stay linear: counts of 12 heads over context and batch, in assembly on padded heads and in Triton."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from waveproof.perf.counted_session import ARCHES, found, session
from waveproof.perf.counts import EXECUTED
from waveproof.perf.growth import Ladder, power
from waveproof.perf.growth_ladders import LADDERS, added, judge_ladder
from waveproof.perf.night import Night
from waveproof.perf.records import Outcome, Ruling
from waveproof.reports.counts_tables import section

pytestmark = [pytest.mark.rocm, pytest.mark.perf]


@pytest.fixture(scope="module")
def counted_arches(night: Night) -> Iterator[set[str]]:
    """Architectures that tests looked at; what was counted there goes to the page of the run."""
    arches: set[str] = set()
    yield arches
    for arch in sorted(arches):
        all_of_it = session(arch)
        night.add_section(
            section(arch, all_of_it.executed, tuple(all_of_it.guarded.values()), tuple(all_of_it.missing.values()),
                    shown=False)
        )  # fmt: skip


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("ladder", LADDERS, ids=lambda ladder: f"{ladder.name}/{ladder.axis}")
def test_linear_stays_linear(ladder: Ladder, arch: str, night: Night, counted_arches: set[str]) -> None:
    """No increment is larger than in proportion to an earlier one; sizes are whole tiles, so nothing is let pass."""
    counted_arches.add(arch)
    assert power(ladder.sizes).tells_n_log_n
    counted = {case.name: found(session(arch).executed, session(arch), "emulate", case.name) for case in ladder.cases}
    for quantity, one in zip(EXECUTED, judge_ladder(ladder, counted), strict=True):
        sizes = f"{ladder.axis} {', '.join(f'{size:,}' for size in ladder.sizes)}"
        reason = one.message or f"no increment over {sizes} is more than in proportion to another"
        outcome: Outcome = "pass" if one.holds else "regress"
        night.rule(
            Ruling(
                f"growth/{ladder.name}/{ladder.axis}", quantity, outcome, one.figure, one.figure, one.figure, 1.0, 0.0,
                reason,
            )
        )  # fmt: skip


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("ladder", LADDERS, ids=lambda ladder: f"{ladder.name}/{ladder.axis}")
def test_growth_is_as_signed(ladder: Ladder, arch: str, night: Night) -> None:
    """What large sizes add, exactly: a steeper line is one too, and so is one that skips pages."""
    counted = {case.name: found(session(arch).executed, session(arch), "emulate", case.name) for case in ladder.cases}
    night.hold_all(added(ladder, counted))
