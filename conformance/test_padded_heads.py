"""12 attention heads zero-padded to 16: are the real heads what they should be? Asked of AITER's shipped machine code.

Kernels and host code are the installed wheel's, the device is emulated. Also: ``waveproof emulate case-study``.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tinygrad", reason="tinygrad decodes the machine code; it is not installed")
pytest.importorskip("aiter_meta", reason="amd-aiter is not installed")

from waveproof.fixtures.bench import UNAVAILABLE
from waveproof.fixtures.padded_heads import BATCHES, PADDED, REAL, Batch, Finding, HostAnswer, host_answers
from waveproof.fixtures.padded_heads_process import findings_of
from waveproof.golden.judges.judgement import explain
from waveproof.kernels.runtimes.emulate.host_build import HostBuildUnavailable

pytestmark = [pytest.mark.rocm, pytest.mark.emulate]

SECONDS = {"quick": 300.0, "default": 600.0, "nightly": 3600.0}
ALL_ARCHES = ("gfx942", "gfx950")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    option = metafunc.config.option
    arches = (
        tuple(option.arch.split(",")) if option.arch else ALL_ARCHES if option.profile == "nightly" else ("gfx950",)
    )
    if "arch" in metafunc.fixturenames:
        metafunc.parametrize("arch", [arch for arch in arches if arch in ALL_ARCHES], scope="module")
    if "batch" in metafunc.fixturenames:
        batches = BATCHES[option.profile]
        metafunc.parametrize("batch", batches, ids=[batch.label for batch in batches])


@functools.cache
def _findings(arch: str, profile: str) -> dict[str, Any]:
    return findings_of(arch, profile, SECONDS[profile])


@pytest.fixture
def answers(arch: str, pytestconfig: pytest.Config) -> tuple[HostAnswer, ...]:
    """What AITER's host code says; where it cannot be built the test is unavailable, or red if that was required."""
    try:
        return tuple(host_answers(arch))
    except HostBuildUnavailable as error:
        if {"emulate", "aiter"} & set(pytestconfig.option.require.split(",")):
            pytest.fail(f"is required and unavailable: {error}")
        pytest.skip(UNAVAILABLE + str(error))


@pytest.fixture
def finding(arch: str, batch: Batch, answers: tuple[HostAnswer, ...], pytestconfig: pytest.Config) -> Finding:
    return _findings(arch, pytestconfig.option.profile)[batch.label]


def test_the_host_refuses_12_heads_and_takes_16(answers: tuple[HostAnswer, ...]) -> None:
    """Why there is anything to pad."""
    assert {(answer.heads, answer.refused) for answer in answers} == {(REAL, True), (PADDED, False)}
    assert all("support" in answer.answer for answer in answers if answer.refused), answers


def test_real_heads_do_not_depend_on_the_pads(finding: Finding) -> None:
    """The same bits, output and LSE, whether the pads hold zeros, ones, 3e38, inf, NaN, noise or copies of heads."""
    assert finding.different == ()


def test_real_heads_match_float64(finding: Finding) -> None:
    """Each element is within a bound derived for it, see golden/judges/mla.py."""
    assert finding.output.holds, explain(finding.output)


def test_lse_matches_float64(finding: Finding) -> None:
    """The natural logarithm, where the kernel writes one."""
    if finding.lse is None:
        assert finding.batch.entry == "prefill" or finding.batch.requests[0][0] > 1
    else:
        assert finding.lse.holds, explain(finding.lse)


def test_twelve_heads_unpadded_give_the_same_bits(finding: Finding) -> None:
    """The decode kernel itself is able to take 12 heads: only the host is in the way."""
    one_token = finding.batch.entry == "decode" and finding.batch.requests[0][0] == 1
    assert finding.unpadded == (True if one_token else None)
