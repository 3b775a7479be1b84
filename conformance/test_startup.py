"""What upstream logs when it falls back is what the rules of ``waveproof startup`` look for, and no more than that.

A rule whose text upstream has reworded finds nothing any more, and silence reads like health. So each text is looked
for in the installed package's own logging calls; and each call with the words of a fallback, on the paths that choose
and run kernels, has a rule or has been read.
"""

from __future__ import annotations

import pytest

from waveproof.fixtures.hip_branches import Sources
from waveproof.fixtures.inspection import Inspection, unavailable
from waveproof.fixtures.servers.startup_rules import PACKAGES, load_rules
from waveproof.fixtures.servers.startup_sources import (
    AUDITED,
    anchors,
    audit,
    installed,
    installed_version,
    judge_anchor,
    judge_audit,
    load_reviewed,
)
from waveproof.kernels.runtimes.catalogue import DISTRIBUTIONS

pytestmark = pytest.mark.rocm


def _sources(package: str, inspection: Inspection) -> Sources:
    """The installed package, or the test is unavailable."""
    inspection.provider = package
    found = installed(package)
    if found is None:
        unavailable(f"{package} is not installed: its logging calls cannot be read")
    inspection.versions = {DISTRIBUTIONS.get(package, package): installed_version(package)}
    return found


@pytest.mark.parametrize(
    "package", [pytest.param(name, marks=[] if name == "aiter" else pytest.mark.slow) for name in PACKAGES]
)
def test_each_rule_is_what_upstream_logs(package: str, inspection: Inspection) -> None:
    sources = _sources(package, inspection)
    judgements = [judge_anchor(sources, rule, logged) for rule, logged in anchors(package, load_rules().rules)]
    inspection.looked_at = len(judgements)
    inspection.hold_all(judgements)


@pytest.mark.slow
@pytest.mark.parametrize("package", AUDITED)
def test_each_fallback_that_upstream_logs_has_a_rule_or_was_read(package: str, inspection: Inspection) -> None:
    found = audit(_sources(package, inspection), load_rules().rules, load_reviewed())
    inspection.looked_at = found.calls
    inspection.note(f"{found.calls} calls speak of a fallback: {found.ruled} have a rule, {found.reviewed} were read")
    for file, fingerprint in found.gone:
        inspection.note(f"startup_reviewed.toml: {fingerprint} of {file} is no longer there")
    inspection.hold(judge_audit(package, found))
