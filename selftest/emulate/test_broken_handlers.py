"""The instruction tests on trial: every planted fault must be caught, and nothing may be left planted."""

from __future__ import annotations

from collections import Counter

import pytest

from waveproof.kernels.runtimes.emulate import modifiers, operands, registry
from waveproof.selftest.emulate.broken_handlers import BROKEN_HANDLERS, BrokenHandler
from waveproof.selftest.emulate.instruction_suite import check


@pytest.mark.parametrize("broken", BROKEN_HANDLERS, ids=[f"{b.mnemonic}: {b.name}" for b in BROKEN_HANDLERS])
def test_planted_fault_is_caught(broken: BrokenHandler) -> None:
    before = (registry.operations(), vars(modifiers).copy(), vars(operands).copy())
    with broken.planted():
        faults = check(broken.mnemonic, first_only=True)
    assert (registry.operations(), vars(modifiers), vars(operands)) == before, "left planted"
    assert faults, f"{broken.mnemonic} with {broken.name} ({broken.fault_class}) passes its tests"
    print(f"{broken.fault_class:20} {broken.mnemonic:26} {broken.name:34} {faults[0]}")


def test_there_are_enough_of_them() -> None:
    classes = Counter(broken.fault_class for broken in BROKEN_HANDLERS)
    assert len(BROKEN_HANDLERS) >= 40
    assert len(classes) >= 12, classes
