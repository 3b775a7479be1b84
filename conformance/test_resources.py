"""What upstream Triton kernels take from the device as their own host code launches them, against reviewed budgets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from waveproof.fixtures.inspection import Inspection, unavailable
from waveproof.fixtures.resources.budgets import Budget, differences, load_baseline, nearest, without_launcher
from waveproof.fixtures.resources.cases import LaunchCase, chosen
from waveproof.fixtures.resources.judging import described, judge
from waveproof.fixtures.resources.process import Compiler, CompilerUnavailable

pytestmark = [pytest.mark.rocm, pytest.mark.compile, pytest.mark.slow]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each launch case and architecture; none where other runtimes or a user's kernels are asked for.

    The id has the form that keeps the cases of a package and an architecture in one process under pytest-xdist.
    """
    option = metafunc.config.option
    asked = not option.provider and "compile" in (option.runtime or "compile").split(",")
    pairs = [pair for arch in (option.arch or "").split(",") for pair in chosen(arch=arch.strip())] if asked else []
    pairs.sort(key=lambda pair: (pair[0].package, pair[1]))
    ids = [f"{case.name}-{case.provider}-compile-{arch}" for case, arch in pairs]
    metafunc.parametrize("launch_case, gfx", pairs, ids=ids)


@pytest.fixture(scope="module")
def compilers() -> Iterator[dict[tuple[str, str], Compiler]]:
    """One process for a package and an architecture, the one in use."""
    found: dict[tuple[str, str], Compiler] = {}
    yield found
    for compiler in found.values():
        compiler.close()


@pytest.fixture(scope="module")
def budgets() -> tuple[Budget, ...]:
    return load_baseline()


def test_budget(
    inspection: Inspection,
    launch_case: LaunchCase,
    gfx: str,
    compilers: dict[tuple[str, str], Compiler],
    budgets: tuple[Budget, ...],
) -> None:
    """It compiles, fits the device, spills nothing, uses the matrix units for attention and takes what it is granted.

    Exceptions stand in golden/baselines/resources.json with their reason; ``waveproof resources`` prints the table.
    """
    inspection.provider, inspection.arch = launch_case.provider, gfx
    place = (launch_case.package, gfx)
    for other in [key for key in compilers if key != place]:
        compilers.pop(other).close()
    try:
        if place not in compilers:
            compilers[place] = Compiler(*place)
        compiled = compilers[place].compile(launch_case)
    except CompilerUnavailable as error:
        unavailable(str(error))
    inspection.versions = {"triton": compiled.triton, launch_case.package: compiled.version}
    rows, against = nearest(compiled, budgets)
    if without_launcher(compiled, budgets):
        unavailable(f"{launch_case.package} {compiled.version} has no such launcher: {compiled.absent}")
    inspection.looked_at += len(compiled.kernels) + bool(compiled.fault)
    inspection.kernels += [kernel.name for kernel in compiled.kernels]
    if against:
        inspection.note(against)
    for row in rows:
        if row.known:
            inspection.note(f"{row.case} on {gfx} is known to break: {', '.join(row.known)}")
    for difference in differences(compiled, budgets):
        inspection.note(described(difference))
    inspection.hold_all(judge(compiled, budgets))
