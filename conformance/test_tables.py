"""AITER's tuned tables, its lists of code objects and sglang's copies: no finding that nobody has looked at.

A rule a test, on the installed packages, against ``golden/baselines/tables.toml``; ``waveproof tables`` prints the
same.
"""

from __future__ import annotations

import pytest

from waveproof.fixtures.inspection import Inspection, unavailable
from waveproof.fixtures.tables.baseline import Baseline, compare, judge_rule, read_baseline, shipped_baseline
from waveproof.fixtures.tables.finding import Rule
from waveproof.fixtures.tables.lint import RULES, lint
from waveproof.fixtures.tables.sglang_tables import installed_sglang
from waveproof.fixtures.tables.tree import TablesMissing, Tree, installed

pytestmark = pytest.mark.rocm

_SGLANG = ("heads", "triton", "intree")
"""Rules that are about sglang's tables."""

_OBJECTS = ("listed object", "named object", "orphan")
"""Rules that open 2,500 files."""


@pytest.fixture
def aiter(inspection: Inspection) -> Tree:
    """The installed AITER."""
    inspection.provider = "aiter"
    try:
        found = installed()
    except TablesMissing as error:
        unavailable(str(error))
    inspection.versions = {"amd-aiter": found.version}
    return found


@pytest.fixture(scope="module")
def reviewed() -> Baseline:
    return read_baseline(shipped_baseline())


_CASES = [
    pytest.param(rule, id=rule.name.replace(" ", "_"), marks=[pytest.mark.slow] if rule.name in _OBJECTS else [])
    for rule in RULES
]


@pytest.mark.parametrize("rule", _CASES)
def test_tables_hold(rule: Rule, aiter: Tree, reviewed: Baseline, inspection: Inspection) -> None:
    sglang = installed_sglang()
    if rule.name in _SGLANG:
        inspection.provider = "sglang"
        if sglang is None:
            unavailable("sglang is not installed")
    (result,) = lint(aiter, sglang, [rule])
    if not result.looked_at and rule.optional:
        unavailable(f"these versions have nothing that the rule {rule.name!r} is about")
    inspection.looked_at += max(result.looked_at, len(result.findings))
    compared = compare(result.findings, reviewed, [rule.name])
    errors = [one for _, found in compared.known for one in found if one.severity == "error"]
    if errors:
        inspection.note(f"{rule.name}: {len(errors)} errors that were reviewed, the first at {errors[0].place}")
    for gone in compared.gone:
        inspection.note(f"{rule.name}: no longer found: {gone.count} x {gone.file}: {gone.reason}")
    inspection.hold_all(judge_rule(rule, compared, reviewed))
