"""The audit against CPython: drawn packages are audited, then run under every combination of what no audit can know.

What the audit tells has to be so. A finding that is ``reachable`` raises there for some data under every configuration;
whatever raises because of the platform is found; nothing is found on a line that the platform never lets run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from waveproof.fixtures.audit.audit import audit
from waveproof.fixtures.audit.findings import Finding
from waveproof.selftest.audit_executions import InstrumentFault, executions
from waveproof.selftest.audit_packages import PACKAGE, DrawnPackage, package_of
from waveproof.selftest.audit_watch import Execution, Missing, NotJudged

KINDS = {"NameError": "unbound", "UnboundLocalError": "unbound"}
"""Which of the two a name of the scope around raises has changed with CPython's versions."""


def as_missing(finding: Finding) -> Missing:
    """What a finding says will be noted in a run."""
    return Missing(finding.file, finding.function, finding.name, KINDS.get(finding.kind, finding.kind), finding.line)


# The law --------------------------------------------------------------------------------------------------------------


def breaches(findings: Sequence[Finding], runs: Sequence[Execution], unsettled: Collection[str] = ()) -> Iterator[str]:
    """Everything in which findings for ``hip`` and runs do not agree.

    Args:
        findings: of the audit.
        runs: on ROCm and on CUDA.
        unsettled: names that functions set for the module; no audit follows in which order they are called.
    """
    here = [one for one in runs if one.setting.platform == "hip"]
    there = {one.given: one for one in runs if one.setting.platform == "cuda"}
    for finding in findings:
        if finding.certainty == "reachable":
            yield from not_certain(finding, here)
        elif not finding.why:
            yield f"{finding.where}: {finding.name} is {finding.certainty}, and it is not said why"
        if is_dead(finding, here, there):
            yield f"{finding.where}: {finding.name} is {finding.certainty} on a line that never runs on hip"
    found = {as_missing(one)[:4] for one in findings}
    for one in caused_by_platform(here, there):
        if one[:4] not in found and one.name.rpartition(".")[2] not in unsettled:
            yield f"{one.file}:{one.line}: {one.name} ({one.kind}, in {one.function or 'the module'}) is not found"


def not_certain(finding: Finding, runs: Sequence[Execution]) -> Iterator[str]:
    """A configuration in which a ``reachable`` finding raises for no data.

    Where an import has failed before, or a branch was taken by what stands for something missing, there is no telling
    what lies behind: the first is found, and mended first.
    """
    place = (finding.file, finding.line, finding.function, finding.name)
    for configuration in sorted({one.setting.configuration for one in runs}):
        concerned = [one for one in runs if one.setting.configuration == configuration]
        if not any(_is_hidden(run) or _misses(run, place) for run in concerned):
            told = "variable={}, installed={}".format(*configuration)
            yield f"{finding.where}: {finding.name} ({finding.kind}) is reachable, and raises for no data with {told}"


def _misses(run: Execution, place: tuple[str, int, str, str]) -> bool:
    """Whether a name is missing there: unbound, or None, or now this and now that."""
    return any((one.file, one.line, one.function, one.name) == place for one in run.missing)


def _is_hidden(run: Execution) -> bool:
    return run.cut or run.broken_off or run.stub_decided


def is_dead(finding: Finding, here: Sequence[Execution], there: Mapping[Any, Execution]) -> bool:
    """Whether a line runs on CUDA and, the scope being entered alike, never on ROCm."""
    line, scope = (finding.file, finding.line), (finding.file, finding.function)
    if any(line in one.lines for one in here):
        return False
    alike = (one for one in here if scope in one.functions and not one.cut and not one.stub_decided)
    return any(line in there[one.given].lines for one in alike if one.given in there)


def caused_by_platform(here: Sequence[Execution], there: Mapping[Any, Execution]) -> Iterator[Missing]:
    """What is missing on ROCm and not on CUDA, all else being the same.

    Of one name the first use counts, the others are mended with it. Once a branch was taken by what stands for
    something missing, there is no telling what would have been.
    """
    for run in here:
        other = there.get(run.given)
        if other is None or run.stub_decided or other.stub_decided:
            continue
        also = {one[:3] for one in other.missing}
        seen: set[str] = set()
        for one in run.missing:
            name = one.name.rpartition(".")[2]
            if name not in seen and one[:3] not in also and _is_due(one, run, other, here):
                yield one
            seen.add(name)


def _is_due(one: Missing, run: Execution, other: Execution, here: Sequence[Execution]) -> bool:
    """Whether the platform decides, not data: it is there on CUDA, or never here on a line that CUDA does not run."""
    place = (one.file, one.line, one.name, one.kind)
    if any(each.stub_decided or place in each.there for each in here if each.setting == run.setting):
        return False
    if place in other.there:
        return True
    never = not any(each.stub_decided or place in each.there for each in here)
    return never and not other.cut and not one.kind.startswith("None")


# Drawn packages -------------------------------------------------------------------------------------------------------


def hold(package: DrawnPackage, folder: Path) -> Counter[str]:
    """Hold the law on a package, and count on what.

    Raises:
        NotJudged: the package does not come to an end.
    """
    runs = executions(package)
    findings = audit(str(package.write(folder)), "hip", processes=1).findings
    unsettled = {name for text in package.files.values() for name in re.findall(r"global (\w+)", text)}
    broken = list(dict.fromkeys(breaches(findings, runs, unsettled)))
    assert not broken, "\n".join([*broken, "", str(package)])
    here = [one for one in runs if one.setting.platform == "hip"]
    there = {one.given: one for one in runs if one.setting.platform == "cuda"}
    raised = {one for run in here for one in run.missing}
    counted = Counter({"packages": 1, "caused by the platform": len(set(caused_by_platform(here, there)))})
    for finding in findings:
        counted[finding.certainty] += 1
        counted[f"{finding.certainty}, raised"] += as_missing(finding) in raised
    return counted


def test_findings_are_what_raises(tmp_path: Path) -> None:
    counted: Counter[str] = Counter()
    for seed in range(300):
        with suppress(NotJudged):
            counted += hold(package_of(seed), tmp_path)
    assert counted["packages"] > 250, counted
    assert counted["reachable"] > 100, counted
    assert counted["guarded, raised"] > counted["guarded"] / 2, counted
    assert counted["caused by the platform"] > 20, counted


OPEN = {
    2606: "what is None in a module is not found",
    2938: "what is unbound in a lambda is not found",
    2977: "certain, and raises for no data under one configuration",
    3476: "told on a line that never runs on hip",
    3556: "certain, and raises for no data without the variable",
}
"""Seeds of packages on which the law is known not to hold, and how: faults of the audit that nobody has mended.

They are what was counted, no bound that was set before: 5 of the 1872 packages judged from seed 2000 on, about 3 in
1000, 2 of them by a false ``reachable``. Below 2000 every breach was mended, so the rate from 2000 on is the one to
expect of other seeds. Drawn by Hypothesis, which prefers small and repeated parts, packages break the law in ways that
none of these seeds does: `if variable: gamma = None` in one module, `gamma = ops.gamma` and a call of it in another is
told ``reachable``, though without the variable there is no `ops.gamma`.
"""


@pytest.mark.slow
def test_findings_are_what_raises_in_thousands_of_packages_but_for_those_known(tmp_path: Path) -> None:
    counted: Counter[str] = Counter()
    broken: dict[int, str] = {}
    for seed in range(4000):
        try:
            counted += hold(package_of(seed), tmp_path)
        except NotJudged:
            continue
        except InstrumentFault:
            raise
        except AssertionError as error:
            broken[seed] = str(error)
    assert counted["packages"] > 3500, counted
    assert not broken.keys() - OPEN.keys(), "\n\n".join(broken[seed] for seed in broken.keys() - OPEN.keys())
    assert broken.keys() == OPEN.keys(), f"mended, strike them out: {sorted(OPEN.keys() - broken.keys())}"


# Whether the law can be broken ----------------------------------------------------------------------------------------

FLAGS = """\
import os
import torch
def is_cuda():
    return torch.version.cuda is not None
_is_cuda = is_cuda()
variable = os.environ.get("DRAWN_VARIABLE") == "1"
"""

OPS = """\
from .platform_flags import _is_cuda as its, variable
if its:
    def alpha(data):
        return data
if variable:
    beta = None
else:
    def beta(data):
        return data
"""

USER = """\
from . import ops
def run(data):
    if data.tall:
        ops.alpha(data)
    if ops.its:
        ops.gamma(data)
    if ops.variable:
        ops.alpha.__name__
    ops.beta(data)
"""


@pytest.fixture
def example(tmp_path: Path) -> tuple[tuple[Finding, ...], list[Execution]]:
    files = {"": "", ".platform_flags": FLAGS, ".ops": OPS, ".user": USER}
    package = DrawnPackage({f"{PACKAGE}{name}": text for name, text in files.items()})
    return audit(str(package.write(tmp_path)), "hip", processes=1).findings, executions(package)


def test_law_holds_on_an_example(example: tuple[tuple[Finding, ...], list[Execution]]) -> None:
    findings, runs = example
    assert [(one.line, one.certainty) for one in findings if one.name == "ops.alpha"] == [(4, "reachable")]
    assert not list(breaches(findings, runs))


def test_what_is_not_found_is_a_breach(example: tuple[tuple[Finding, ...], list[Execution]]) -> None:
    _, runs = example
    assert next(one.partition(" (")[0] for one in breaches((), runs)) == "drawn/user.py:4: ops.alpha"


def test_certainty_that_depends_is_a_breach(example: tuple[tuple[Finding, ...], list[Execution]]) -> None:
    findings, runs = example
    elsewhere = [replace(one, line=8) for one in findings if one.name == "ops.alpha"]
    told = list(not_certain(elsewhere[0], [one for one in runs if one.setting.platform == "hip"]))
    assert told == [
        "drawn/user.py:8: ops.alpha (AttributeError) is reachable, and raises for no data with "
        "variable=False, installed=False"
    ]


def test_finding_on_a_dead_line_is_a_breach(example: tuple[tuple[Finding, ...], list[Execution]]) -> None:
    findings, runs = example
    dead = replace(findings[0], line=6, certainty="unknown", why="for no reason")
    assert any("never runs on hip" in one for one in breaches((*findings, dead), runs))


def test_uncertainty_without_a_reason_is_a_breach(example: tuple[tuple[Finding, ...], list[Execution]]) -> None:
    findings, runs = example
    silent = replace(findings[0], certainty="unknown", why="")
    assert any("it is not said why" in one for one in breaches((silent,), runs))
