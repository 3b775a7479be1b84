"""Deployments of the case study and its neighbours: what they run on, asked of the installed sglang and AITER.

Also: ``waveproof coverage``. The expectations are those of the case study; the rules hold whatever upstream answers.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from importlib import metadata

import pytest

pytest.importorskip("torch")

from waveproof.fixtures.deployment import rules
from waveproof.fixtures.deployment.attention import DECODE, PREFILL, VERIFY, prepare
from waveproof.fixtures.deployment.coverage import BACKEND, cover
from waveproof.fixtures.deployment.engine import EngineMissing
from waveproof.fixtures.deployment.plan import KV_DTYPES, Deployment, product_for
from waveproof.fixtures.deployment.rules import judge_verdict, unless_wrong
from waveproof.fixtures.deployment.upstream import Upstream, installed_upstream
from waveproof.fixtures.deployment.verdicts import Coverage, Verdict
from waveproof.fixtures.dispatch.oracle import DispatchUnanswered
from waveproof.fixtures.inspection import Inspection, unavailable
from waveproof.fixtures.shapes.latent_attention import MODELS, ranks
from waveproof.fixtures.shapes.served_model import built_in, of_shapes
from waveproof.kernels.runtimes.emulate.host_build import HostBuildUnavailable

pytestmark = pytest.mark.rocm

ARCHES = ("gfx942", "gfx950")
K3, DEEPSEEK, K2 = "Kimi-K3", "DeepSeek-V3", "Kimi-K2"
SIZES = {"gfx942": (8,), "gfx950": (4, 8, 16)}
"""Ranks of a sweep."""


@pytest.fixture
def upstream(inspection: Inspection) -> Upstream:
    """The installed sglang and AITER."""
    inspection.provider = "aiter"
    inspection.arch = "gfx950"
    try:
        found = _installed()
    except EngineMissing as error:
        unavailable(str(error))
    inspection.versions = {name: metadata.version(name) for name in ("sglang", "amd-aiter", "torch")}
    return found


@functools.cache
def _covered(deployment: Deployment) -> Coverage:
    return cover(deployment, _installed())


@functools.cache
def _installed() -> Upstream:
    """Without what AITER would take besides: that is found by asking a hundred head counts for each row."""
    return replace(installed_upstream(), advise=lambda use: ())


def deployed(
    model: str, tp: int, kv_dtype: str = "bf16", dcp: int = 1, arch: str = "gfx950", backend: str = "aiter"
) -> Deployment:
    """A built-in model with three drafted tokens."""
    return Deployment(built_in(model), tp, product_for(arch), kv_dtype, 3, dcp, backend)


def covered(inspection: Inspection, deployment: Deployment) -> Coverage:
    """The coverage of a deployment; unavailable where the dispatcher cannot be asked here."""
    try:
        found = _covered(deployment)
    except (HostBuildUnavailable, DispatchUnanswered) as error:
        unavailable(str(error))
    inspection.looked_at += len(found.rows)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("operator", [PREFILL, DECODE, VERIFY])
def test_twelve_heads_are_refused_and_padded(
    operator: str, kv_dtype: str, upstream: Upstream, inspection: Inspection
) -> None:
    """Kimi K3 on 8 GPUs: AITER has no kernel for 12 heads, in its own words, and 16/12 of the work is done."""
    found = covered(inspection, deployed(K3, 8, kv_dtype))
    row = found.row(operator)
    inspection.hold(judge_verdict(found, row, unless_wrong(row, Verdict.PADDED), "AITER on 12 heads: "))
    assert row.attention is not None
    assert (row.attention.heads, row.attention.kernel_heads, found.deployment.heads) == (12, 16, 12)
    assert row.cost == "16/12 = 1.33x the multiply-adds"
    inspection.kernels.append(row.kernel)


@pytest.mark.slow
def test_padding_agrees_with_what_was_emulated(upstream: Upstream, inspection: Inspection) -> None:
    """What is called padded here is what ``test_padded_heads`` runs: 12 refused, 16 taken, by the same dispatcher."""
    from waveproof.fixtures.padded_heads import PADDED, REAL, host_answers

    found = covered(inspection, deployed(K3, 8))
    answers = {(one.entry, one.heads): one for one in host_answers("gfx950")}
    assert {heads for _, heads in answers} == {REAL, PADDED}
    entry = next(entry for entry, heads in answers if "prefill" in entry)
    row = found.row(PREFILL)
    assert answers[entry, REAL].refused
    assert not answers[entry, PADDED].refused
    assert row.kernel == answers[entry, PADDED].answer, "padded prefill launches another code object"


@pytest.mark.slow
def test_left_alone_sglang_falls_back(upstream: Upstream, inspection: Inspection) -> None:
    """Without --attention-backend the whole attention of 12 heads is generic Triton; asking for aiter mends it."""
    found = covered(inspection, deployed(K3, 8, backend="auto"))
    choice, at = upstream.default_backend(12)
    if choice == "aiter":
        inspection.note(f"this sglang chooses aiter for 12 heads ({at})")
        inspection.hold(judge_verdict(found, found.row(BACKEND), (Verdict.FAST,)))
        return
    for operator in (BACKEND, PREFILL, DECODE, VERIFY):
        row = found.row(operator)
        inspection.hold(judge_verdict(found, row, (Verdict.FALLBACK,), "left alone, sglang chooses triton"))
        assert any("--attention-backend aiter" in remedy.text for remedy in row.remedies), row
    assert found.stopped_by()
    inspection.note(f"sglang chooses {choice} for 12 heads ({at})")


@pytest.mark.slow
def test_twenty_four_heads_are_refused_in_words(upstream: Upstream, inspection: Inspection) -> None:
    """Kimi K3 on 4 GPUs: neither native nor padded; and the remedies have been asked."""
    found = covered(inspection, deployed(K3, 4))
    for operator in (DECODE, VERIFY):
        row = found.row(operator)
        inspection.hold(judge_verdict(found, row, (Verdict.REFUSED, Verdict.ERROR), "24"))
        assert any(remedy.use is not None for remedy in row.remedies), row


@pytest.mark.slow
def test_more_gpus_repeat_heads(upstream: Upstream, inspection: Inspection) -> None:
    """6 heads a rank on 16 GPUs, and Kimi K2's 8 on 8, are brought up to 16 for decoding."""
    for model, tp, heads in ((K3, 16, 6), (K2, 8, 8)):
        found = covered(inspection, deployed(model, tp))
        row = found.row(DECODE)
        inspection.hold(judge_verdict(found, row, unless_wrong(row, Verdict.PADDED)))
        assert row.attention is not None
        assert (row.attention.heads, row.attention.kernel_heads) == (heads, 16)


@pytest.mark.slow
def test_deepseek_on_eight_is_native(upstream: Upstream, inspection: Inspection) -> None:
    """16 heads a rank, with both caches: the shape that the kernels were made for."""
    for kv_dtype in KV_DTYPES:
        found = covered(inspection, deployed(DEEPSEEK, 8, kv_dtype))
        for operator in (DECODE, VERIFY):
            row = found.row(operator)
            inspection.hold(judge_verdict(found, row, unless_wrong(row, Verdict.FAST)))
            if row.verdict is Verdict.WRONG:
                inspection.note(f"{operator}, {kv_dtype}: {row.why}")


@pytest.mark.slow
@pytest.mark.parametrize("dcp", [2, 8])
def test_context_parallelism_gathers_heads(dcp: int, upstream: Upstream, inspection: Inspection) -> None:
    """DCP 2 and 8 of Kimi K3 on 8 GPUs: 24 and 96 heads in decoding, 12 in prefill, which alone is padded."""
    found = covered(inspection, deployed(K3, 8, "fp8", dcp))
    row, prefill = found.row(DECODE), found.row(PREFILL)
    assert row.attention is not None
    assert prefill.attention is not None
    assert (row.attention.heads, prefill.attention.heads) == (12 * dcp, 12)
    assert row.attention.kernel_heads in (0, *range(12 * dcp, 129)), "a kernel for fewer heads than are gathered"
    inspection.hold(judge_verdict(found, prefill, unless_wrong(prefill, Verdict.PADDED)))
    inspection.note(f"DCP {dcp}: {row.verdict.value}: {row.why}")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHES)
def test_rules_hold_over_a_sweep(arch: str, upstream: Upstream, inspection: Inspection) -> None:
    """Three models over TP, cache dtype, DCP and the backend: each rule on each row."""
    inspection.arch = arch
    asked = [
        deployed(model, tp, kv_dtype, dcp, arch, backend)
        for model in (K3, DEEPSEEK, K2)
        for tp in SIZES[arch]
        for kv_dtype in KV_DTYPES
        for dcp, backend in ((1, "aiter"), (2, "aiter"), (1, "auto"))
        if dcp == 1 or (model == K3 and tp == 8)
    ]
    try:
        prepare(asked, upstream)
    except (HostBuildUnavailable, DispatchUnanswered) as error:
        unavailable(str(error))
    inspection.hold_all(rules.judge([covered(inspection, one) for one in asked], upstream))


@pytest.mark.slow
def test_every_served_model_has_a_verdict(upstream: Upstream, inspection: Inspection) -> None:
    """On 8 GPUs, or as many as split the heads: attention is asked about or said to be of another kind; rules hold."""
    coverages = []
    for model in MODELS:
        tp = max(tp for tp in ranks(model) if tp <= 8)
        coverages.append(covered(inspection, Deployment(of_shapes(model), tp, product_for("gfx950"), "bf16", 1)))
    inspection.hold_all(rules.judge(coverages, upstream))
    silent = [f"{one.deployment.model.name}: {row.operator}" for one in coverages for row in one.rows if not row.why]
    assert not silent, f"no reason is given: {silent[:3]}"
