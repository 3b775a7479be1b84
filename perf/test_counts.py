"""Counts that need no hardware: exact, so any change is real. Results are held to float64 before they count."""

from __future__ import annotations

import pytest

from waveproof.perf.counted_cases import CASES
from waveproof.perf.counted_session import ARCHES, COMPILED, found, session
from waveproof.perf.counts import CountCase
from waveproof.perf.night import Night

pytestmark = [pytest.mark.rocm, pytest.mark.perf]


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_work_is_as_signed(case: CountCase, arch: str, night: Night) -> None:
    """Wave instructions, matrix instructions, bytes and LDS traffic of each launch."""
    counted = found(session(arch).executed, session(arch), "emulate", case.name)
    night.hold_all(counted.measurements())


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("case", COMPILED, ids=lambda case: case.name)
def test_resources_are_as_signed(case: CountCase, arch: str, night: Night) -> None:
    """Registers, spills, scratch and LDS of each launch, compiled ahead of time."""
    counted = found(session(arch).compiled, session(arch), "compile", case.name)
    night.hold_all(counted.measurements())
