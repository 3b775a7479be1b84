"""``waveproof serve-check`` against a real server: llama.cpp plain, with speculation, and with its lossy control.

llama.cpp returns logprobs of the first token only when it speculates, so that there faithfulness stays inconclusive,
with the reason, and the comparison with its plain mode and acceptance by position are what can be had.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")

from waveproof.fixtures.engines.llama_cpp import LlamaServer, Settings, start_llama_server
from waveproof.fixtures.engines.table import EngineTable, needs
from waveproof.fixtures.models.gguf_file import write_gguf
from waveproof.fixtures.models.tiny_llama import tiny_llama, with_noise
from waveproof.fixtures.servers.check import ServerRun, check_server
from waveproof.fixtures.servers.client import Endpoint, Limits
from waveproof.fixtures.servers.plan import Plan
from waveproof.golden.judges.served import Finding, Verdict
from waveproof.reports.serve_report import overall

pytestmark = [pytest.mark.rocm, pytest.mark.slow]

VOCAB_SIZE = 32
PLAN = Plan(
    temperatures=(0.7, 1.3),
    tokens=7000,
    # Texts hold characters that a vocabulary this small lacks.
    prompts=((3, 4, 5), (7, 8), (20, 21, 9, 9), (30,)),
    limits=Limits(requests_per_second=1000.0),
)
TWO = replace(PLAN, temperatures=(1.0,))


@pytest.fixture(scope="module")
def start_plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], LlamaServer]]:
    """Starts llama.cpp without speculation when the first test asks for it, and ends it behind the last."""
    with ExitStack() as stack:

        @cache
        def start() -> LlamaServer:
            folder = tmp_path_factory.mktemp("models")
            target = tiny_llama(VOCAB_SIZE, seed=1)
            write_gguf(target, folder / "target.gguf")
            write_gguf(with_noise(target, share=0.25, seed=2), folder / "draft.gguf")
            return stack.enter_context(start_llama_server(Settings(model=folder / "target.gguf")))

        yield start


@pytest.fixture
def plain(engine_table: EngineTable, start_plain: Callable[[], LlamaServer]) -> LlamaServer:
    """The server; where llama.cpp is absent the test's record says so."""
    engine_table.engine = "llama.cpp"
    needs("transformers", "gguf", "xllamacpp", "openai", "prometheus_client")
    return start_plain()


def _draft(plain: LlamaServer) -> Path:
    return plain.settings.model.with_name("draft.gguf")


Check = Callable[..., tuple[Verdict, ServerRun]]
"""Of a server and a plan, and of a second server where there is one."""


@pytest.fixture
def check(engine_table: EngineTable) -> Check:
    """Checks a server and counts the requests."""

    def check(server: LlamaServer, plan: Plan, against: LlamaServer | None = None) -> tuple[Verdict, ServerRun]:
        other = Endpoint(against.base_url, against.settings.alias) if against else None
        endpoint = Endpoint(server.base_url, server.settings.alias)
        outcome = asyncio.run(check_server(endpoint, other, plan, lambda phase, tokens: None))
        engine_table.requests += outcome.requests
        return overall(outcome.findings, outcome.decisive), outcome

    return check


def _finding(outcome: ServerRun, check: str) -> Finding:
    (found,) = [one for one in outcome.findings if one.check == check]
    return found


def test_plain_decoding_is_faithful(plain: LlamaServer, check: Check) -> None:
    verdict, outcome = check(plain, PLAN)
    assert verdict is Verdict.FAITHFUL, outcome.findings
    assert outcome.manner is not None
    assert outcome.manner.engine == "llamacpp"
    # Its logprobs are those before temperature, so that at 0.7 the comparison is within the returned table.
    assert outcome.manner.slope == pytest.approx(1.0, abs=1e-3)
    assert _finding(outcome, "faithful at temperature 1.3").n >= 1000
    assert _finding(outcome, "one seed twice").evidence.startswith("8 of 8")


def test_speculation_is_inconclusive_by_itself_and_of_one_law_with_plain(plain: LlamaServer, check: Check) -> None:
    settings = replace(plain.settings, draft=_draft(plain), draft_kind="draft-probabilistic")
    with start_llama_server(settings) as server:
        verdict, outcome = check(server, TWO, plain)
    assert verdict is Verdict.INCONCLUSIVE, outcome.findings
    assert "text without logprobs" in _finding(outcome, "faithful at temperature 1").evidence
    compared = _finding(outcome, "both servers, one law")
    assert compared.verdict is Verdict.FAITHFUL
    assert compared.evidence.startswith("one law up to a total variation of 0.")
    accepted = _finding(outcome, "acceptance by position")
    assert accepted.verdict is Verdict.FAITHFUL
    assert re.match(r"accepted by position \d+, \d+ of \d+ drafts", accepted.evidence)
    assert outcome.decisive["acceptance by position"]


def test_lossy_control_is_unfaithful(plain: LlamaServer, check: Check) -> None:
    settings = replace(plain.settings, draft=_draft(plain), draft_kind="draft", synth_len=3.0)
    with start_llama_server(settings) as server:
        verdict, outcome = check(server, TWO, plain)
    assert verdict is Verdict.UNFAITHFUL, outcome.findings
    assert _finding(outcome, "both servers, one law").verdict is Verdict.UNFAITHFUL


def test_server_that_was_killed_is_at_fault(plain: LlamaServer, check: Check) -> None:
    with start_llama_server(plain.settings) as server:
        server.kill()
        verdict, outcome = check(server, replace(PLAN, limits=Limits(retries=0)))
    assert verdict is Verdict.SERVER_FAULT
    assert "unreachable" in outcome.findings[0].evidence
