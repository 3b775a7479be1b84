"""Every instruction of the registry, in many forms, against references that its author did not write."""

from __future__ import annotations

from pathlib import Path

import pytest

from waveproof.kernels.runtimes.emulate import registry
from waveproof.selftest.emulate.instruction_suite import COVERED_ELSEWHERE, check, covering_file, is_checked

REGISTERED = sorted(registry.operations())
CHECKED = [mnemonic for mnemonic in REGISTERED if is_checked(mnemonic)]


@pytest.mark.parametrize("mnemonic", CHECKED)
def test_instruction_does_what_its_reference_says(mnemonic: str) -> None:
    faults = check(mnemonic)
    assert not faults, "\n".join(map(str, faults[:8])) + f"\n{len(faults)} differences"


def test_every_registered_mnemonic_is_covered() -> None:
    uncovered = [m for m in REGISTERED if m not in CHECKED and covering_file(m) is None]
    assert not uncovered, f"{len(uncovered)} registered without a case: {' '.join(uncovered)}"


@pytest.mark.parametrize("file", sorted({file for _, file in COVERED_ELSEWHERE}))
def test_files_said_to_cover_others_are_there(file: str) -> None:
    assert (Path(__file__).parent / file).is_file()


def test_no_exception_hides_a_case() -> None:
    """An exception for a mnemonic that has trials here would never be noticed."""
    both = [m for m in CHECKED if covering_file(m) is not None]
    assert not both
