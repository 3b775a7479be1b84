"""``waveproof serve-check`` against vLLM's own server on the CPU: mended, with a planted fault, and as shipped.

Run in an environment of its own: ``tox run -e e2e-vllm``. What is mended: ``fixtures/engines/vllm_patches.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("openai", reason="openai is not installed; serve-check asks through it")

from waveproof.fixtures.bench import UNAVAILABLE
from waveproof.fixtures.engines.table import EngineTable
from waveproof.fixtures.engines.vllm_cpu import is_faulty, why_not_installed
from waveproof.fixtures.engines.vllm_patches import MENDED
from waveproof.fixtures.models.tiny_llama import tiny_llama, with_noise
from waveproof.fixtures.models.word_tokenizer import word_tokenizer
from waveproof.fixtures.servers.check import ServerRun, check_server
from waveproof.fixtures.servers.client import Endpoint, Limits
from waveproof.fixtures.servers.plan import Plan
from waveproof.fixtures.servers.vllm_server import MODEL, VllmServer, start_vllm_server
from waveproof.golden.judges.served import Verdict
from waveproof.reports.serve_report import overall

pytestmark = [pytest.mark.rocm, pytest.mark.slow, pytest.mark.nightly]

VOCAB_SIZE = 32
KIND = "probabilistic draft"
PLAN = Plan(tokens=7000, prompts=((4, 7, 5, 0, 3), (1, 2, 3)), limits=Limits(requests_per_second=1000.0))
# So that a fault that ends the engine is come to where another one is found before.
THOROUGH = Plan(tokens=7000, prompts=PLAN.prompts, limits=PLAN.limits, keep_going=True)


@pytest.fixture(autouse=True)
def _needed(engine_table: EngineTable) -> None:
    engine_table.engine = "vLLM"
    if reason := why_not_installed():
        pytest.skip(UNAVAILABLE + reason)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a target and a draft, which is the target with noise on its weights, and a tokenizer in both."""
    written = tmp_path_factory.mktemp("models")
    target = tiny_llama(VOCAB_SIZE, seed=5, hidden=64)
    for name, model in (("target", target), ("draft", with_noise(target, share=0.25, seed=12))):
        model.save_pretrained(written / name)
        word_tokenizer(VOCAB_SIZE).save_pretrained(written / name)
    return written


Check = Callable[[VllmServer, Plan], tuple[Verdict, ServerRun]]


@pytest.fixture
def check(engine_table: EngineTable) -> Check:
    """Checks a server and counts the requests."""

    def check(server: VllmServer, plan: Plan) -> tuple[Verdict, ServerRun]:
        outcome = asyncio.run(check_server(Endpoint(server.base_url, MODEL), None, plan, lambda phase, tokens: None))
        engine_table.requests += outcome.requests
        return overall(outcome.findings, outcome.decisive), outcome

    return check


def test_the_mended_server_is_faithful(folder: Path, check: Check) -> None:
    with start_vllm_server(folder / "target", folder / "draft", KIND, MENDED) as server:
        verdict, outcome = check(server, PLAN)
    assert verdict is Verdict.FAITHFUL, outcome.findings
    assert outcome.failed == 0
    assert "acceptance by position" in {finding.check for finding in outcome.findings}


def test_a_verifier_at_temperature_one_is_found(folder: Path, check: Check) -> None:
    with start_vllm_server(folder / "target", folder / "draft", KIND, (*MENDED, "temperature 1")) as server:
        verdict, outcome = check(server, PLAN)
    assert verdict is Verdict.UNFAITHFUL, outcome.findings


def test_as_shipped(folder: Path, check: Check) -> None:
    """A release that is known to be faulty is caught, and its engine does not outlive a request with top-k."""
    with start_vllm_server(folder / "target", folder / "draft", KIND, ("poison",)) as server:
        verdict, outcome = check(server, THOROUGH)
        # A healthy one is not waited for in vain.
        ended = server.ends_within(60.0 if is_faulty() else 0.0)
    if is_faulty():
        assert verdict in (Verdict.UNFAITHFUL, Verdict.SERVER_FAULT), outcome.findings
        assert Verdict.SERVER_FAULT in {finding.verdict for finding in outcome.findings}
        assert ended
    else:
        assert verdict is Verdict.FAITHFUL, outcome.findings
