"""AITER's MLA dispatcher: which kernel it chooses or with which words it refuses, against what was reviewed.

The dispatcher is asked itself (``fixtures/dispatch/oracle.py``); a deployment's ruling has sglang's own code in front
of it (``fixtures/dispatch/rulings.py``).
"""

from __future__ import annotations

import pytest

from waveproof.fixtures.dispatch.confirm import confirm, counted, judge_agreement, sample
from waveproof.fixtures.dispatch.known_faults import known_fault
from waveproof.fixtures.dispatch.oracle import Answer, Question, ask, every_question
from waveproof.fixtures.dispatch.rulings import pairing
from waveproof.fixtures.dispatch.snapshot import compare, judge_objects, load, take
from waveproof.fixtures.inspection import Inspection, unavailable
from waveproof.fixtures.sglang_head_rule import SglangRuleNotFound
from waveproof.golden.judges.judgement import Judgement
from waveproof.kernels.runtimes.catalogue import ARCHES
from waveproof.kernels.runtimes.emulate.host_build import HostBuildUnavailable, aiter_installation

pytestmark = pytest.mark.rocm

SLOW = pytest.mark.slow
QUICK_ARCHES = [pytest.param(arch, marks=SLOW if arch == "gfx942" else ()) for arch in ARCHES]
"""A process for an architecture takes two seconds: the quick profile has one."""


def answers(inspection: Inspection, arch: str, questions: list[Question]) -> dict[Question, Answer]:
    """The installed dispatcher's answers; the test ends as unavailable without one."""
    inspection.provider, inspection.arch = "aiter", arch
    try:
        inspection.versions = {"amd-aiter": aiter_installation().version}
        found = ask(questions)
    except HostBuildUnavailable as error:
        unavailable(str(error))
    inspection.looked_at += len(found)
    inspection.kernels += [answer.kernel for answer in found.values() if answer.accepted]
    return found


def judge_words(answer: Answer, heads: int) -> Judgement:
    """A call of so many heads is refused, in words that upstream chose."""
    refused = not answer.accepted and bool(answer.refusal)
    message = "" if refused else f"{answer.question} is taken: {answer.code_object}, which has no {heads} heads"
    return Judgement("unsupported heads are refused", refused, float(not refused), 0.0, message=message)


@pytest.mark.parametrize("arch", QUICK_ARCHES)
def test_twelve_heads(inspection: Inspection, arch: str) -> None:
    """Kimi K3 under TP8: no entry point takes 12 heads, and each says so."""
    calls = [
        Question(arch, q, kv, 12, persistent=persistent, prefill=prefill)
        for q, kv in (("bf16", "bf16"), ("fp8", "fp8"), ("bf16", "fp8"))
        for persistent, prefill in ((False, False), (True, False), (False, True))
    ]
    found = answers(inspection, arch, calls)
    inspection.hold_all(judge_words(answer, 12) for answer in found.values())
    for words in dict.fromkeys(f"12 heads, {one.refused_by}: {one.refusal}" for one in found.values()):
        inspection.note(words)


@SLOW
@pytest.mark.parametrize("arch", ARCHES)
def test_reviewed_answers(inspection: Inspection, arch: str) -> None:
    """All head counts, query lengths and dtypes, and the rulings on deployments: none comes out otherwise."""
    found = answers(inspection, arch, list(every_question([arch])))
    inspection.hold(judge_objects(found.values()))
    for fault in dict.fromkeys(filter(None, map(known_fault, found.values()))):
        inspection.note(f"taken and known to be wrong: {fault}")
    try:
        now = take([arch])
        for note in pairing():
            inspection.note(note)
    except SglangRuleNotFound as error:
        unavailable(str(error))
    inspection.versions = {"amd-aiter": now.aiter, "sglang": now.sglang}
    inspection.looked_at += sum(map(len, now.rulings.values()))
    inspection.hold_all(compare(load(), now))


@SLOW
@pytest.mark.emulate
@pytest.mark.parametrize("arch", ARCHES)
def test_answers_are_what_happens(inspection: Inspection, arch: str) -> None:
    """A sample is run: what is accepted is right or known to be wrong, what is refused is refused alike."""
    found = sample(answers(inspection, arch, list(every_question([arch]))))
    confirmed = confirm(found)
    inspection.looked_at = len(confirmed)
    inspection.note(f"{len(confirmed)} calls run: {counted(confirmed)}")
    inspection.hold(judge_agreement(confirmed))
