"""Platform symbol audit: no name that is missing on ROCm is used there, but for what somebody has looked at.

The installed packages are read, not imported, and held against ``golden/baselines/symbols.toml``; ``waveproof audit``
prints the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from waveproof.fixtures.audit.audit import audit
from waveproof.fixtures.audit.reviewed import FILE, Reviewed, compared, judgements, load
from waveproof.fixtures.inspection import Inspection, unavailable
from waveproof.kernels.runtimes.catalogue import DISTRIBUTIONS, package_folder

pytestmark = pytest.mark.rocm


@pytest.fixture(scope="module")
def reviewed() -> Mapping[tuple[str, str], Reviewed]:
    return load(FILE)


def folder_of(package: str) -> Path:
    """Where a package is installed; it is unavailable where it is not."""
    found = package_folder(package)
    if found is None:
        unavailable(f"{package} is not installed")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("package", ["sglang", "aiter"])
def test_no_symbol_is_missing(
    package: str, reviewed: Mapping[tuple[str, str], Reviewed], inspection: Inspection
) -> None:
    inspection.provider = package
    folder_of(package)
    made = audit(package, "hip")
    inspection.versions = {DISTRIBUTIONS.get(package, package): made.version}
    inspection.looked_at = made.files
    for stale in compared(made, reviewed).stale:
        inspection.note(f"{FILE.name}: not found any more: {': '.join(stale.fingerprint)}")
    inspection.hold_all(judgements(made, reviewed))


def test_no_symbol_is_missing_in_a_part(reviewed: Mapping[tuple[str, str], Reviewed], inspection: Inspection) -> None:
    """Of AITER what opens a process group: small, and so in the quick profile."""
    inspection.provider = "aiter"
    made = audit(str(folder_of("aiter") / "dist"), "hip", processes=1)
    inspection.looked_at = made.files
    inspection.hold_all(judgements(made, reviewed))
