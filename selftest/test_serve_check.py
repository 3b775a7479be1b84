"""``waveproof serve-check`` on trial: every misbehaving server gets the verdict that it deserves, right ones pass."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from waveproof.fixtures.servers.check import ServerRun, check_server
from waveproof.fixtures.servers.client import Client, Endpoint, Limits, MissingKey, Sampling
from waveproof.fixtures.servers.plan import Plan
from waveproof.golden.judges.answers import FaultKind
from waveproof.golden.judges.served import Finding, Verdict
from waveproof.reports.cli_serve import serve_check
from waveproof.reports.serve_report import ServeReport, model_name, overall
from waveproof.selftest.servers.misbehaving import Behaviour, FakeServer, serve
from waveproof.selftest.servers.tiny_law import TEXTS, TinyLaw, draw, probabilities, verified

FAST = Limits(requests_per_second=5000.0, retries=1, stall=0.4)
SMALL = Plan(temperatures=(0.7, 1.0), tokens=1900, fewest=150, limits=FAST)

FAITHFUL, UNFAITHFUL = Verdict.FAITHFUL, Verdict.UNFAITHFUL
INCONCLUSIVE, SERVER_FAULT = Verdict.INCONCLUSIVE, Verdict.SERVER_FAULT


def run(server: FakeServer, plan: Plan = SMALL, against: FakeServer | None = None) -> ServerRun:
    with serve(server) as url:
        if against is None:
            return asyncio.run(check_server(Endpoint(url, "tiny"), None, plan, lambda phase, tokens: None))
        with serve(against) as other:
            ends = Endpoint(url, "tiny"), Endpoint(other, "tiny")
            return asyncio.run(check_server(*ends, plan, lambda phase, tokens: None))


def verdict(outcome: ServerRun) -> Verdict:
    return overall(outcome.findings, outcome.decisive)


def finding(outcome: ServerRun, check: str) -> Finding:
    (found,) = [one for one in outcome.findings if one.check == check]
    return found


DESERVED = [
    (Behaviour.DIES, SERVER_FAULT, "server", "died mid-stream"),
    (Behaviour.STALLS, SERVER_FAULT, "server", "no chunk for 0.4 s"),
    (Behaviour.TRUNCATED_JSON, SERVER_FAULT, "server", "malformed answer: JSONDecodeError"),
    (Behaviour.NOT_A_COMPLETION, SERVER_FAULT, "server", "text is int"),
    (Behaviour.BUSY, SERVER_FAULT, "server", "overloaded: HTTP 429: busy"),
    (Behaviour.ERRORS, SERVER_FAULT, "server", "internal error: HTTP 500: scheduler hit an exception"),
    (Behaviour.NAN_LOGPROBS, SERVER_FAULT, "logprobs", "NaN"),
    (Behaviour.MASS_ABOVE_ONE, SERVER_FAULT, "logprobs", r"sum to 1\.2"),
    (Behaviour.NO_LOGPROBS, INCONCLUSIVE, "faithful at temperature 1", "returns no logprobs"),
    (Behaviour.FIRST_LOGPROBS_ONLY, INCONCLUSIVE, "faithful at temperature 1", "text without logprobs"),
    (Behaviour.EMPTY_TEXT, INCONCLUSIVE, "server", "answers to all 4 prompts are empty"),
    (Behaviour.HIDDEN_END, INCONCLUSIVE, "faithful at temperature 1", "left out of the logprobs"),
    (Behaviour.GREEDY, UNFAITHFUL, "rows of one request", "8 of 8 pairs"),
    (Behaviour.SHARED_NOISE, UNFAITHFUL, "rows of one request", "8 of 8 pairs"),
    (Behaviour.BATCH_MATES, UNFAITHFUL, "greedy beside others", "part at token"),
    (Behaviour.TOP_K_IGNORED, UNFAITHFUL, "faithful at temperature 0.7, top_k 8", "leak"),
    (Behaviour.RISING_ACCEPTANCE, UNFAITHFUL, "acceptance by position", "exceeds the position before"),
    (Behaviour.ACCEPTS_ALL, UNFAITHFUL, "greedy repeats", "not the most probable token"),
]


@pytest.mark.parametrize(("behaviour", "deserved", "check", "words"), DESERVED, ids=[case[0].name for case in DESERVED])
def test_misbehaviour_gets_its_verdict(behaviour: Behaviour, deserved: Verdict, check: str, words: str) -> None:
    outcome = run(FakeServer(behaviour), replace(SMALL, tokens=900 if deserved is INCONCLUSIVE else SMALL.tokens))
    found = finding(outcome, check)
    assert found.verdict is deserved
    assert re.search(words, found.evidence)
    assert verdict(outcome) is deserved
    others = {one.verdict for one in outcome.findings if one is not found} - {INCONCLUSIVE}
    assert others <= {FAITHFUL, Verdict.NOTE, deserved}


@pytest.mark.parametrize("raw", [False, True])
def test_wrong_temperature_is_rejected_and_stops_the_run(raw: bool) -> None:
    plan = Plan(temperatures=(0.7, 1.0), tokens=20_000, limits=FAST)
    outcome = run(FakeServer(Behaviour.WRONG_TEMPERATURE, raw=raw), plan)
    assert verdict(outcome) is UNFAITHFUL
    worst = next(one for one in outcome.findings if one.verdict is UNFAITHFUL)
    assert worst.check.startswith("faithful at temperature")
    assert "tilt" in worst.evidence
    assert outcome.tokens < 6000


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_acceptance_is_judged_by_position_under_the_names_of_either_engine(engine: str) -> None:
    plan = replace(SMALL, tokens=900, keep_going=True)
    right = run(FakeServer(Behaviour.SPECULATIVE, engine=engine), plan)
    assert finding(right, "acceptance by position").verdict is FAITHFUL
    assert right.decisive["acceptance by position"]
    rising = finding(run(FakeServer(Behaviour.RISING_ACCEPTANCE, engine=engine), plan), "acceptance by position")
    assert rising.verdict is UNFAITHFUL


def test_target_in_place_of_the_residual_is_rejected() -> None:
    outcome = run(FakeServer(Behaviour.TARGET_FOR_RESIDUAL), Plan(temperatures=(0.7,), tokens=20_000, limits=FAST))
    assert verdict(outcome) is UNFAITHFUL
    assert outcome.tokens < 8000


def test_two_servers_tell_a_wrong_speculation_without_logprobs() -> None:
    plan = Plan(temperatures=(0.7,), tokens=4000, top_logprobs=0, limits=FAST)
    outcome = run(FakeServer(Behaviour.ACCEPTS_ALL), plan, FakeServer())
    assert finding(outcome, "both servers, one law").verdict is UNFAITHFUL
    assert verdict(outcome) is UNFAITHFUL


def test_two_right_servers_without_logprobs_stay_inconclusive_but_of_one_law() -> None:
    plan = Plan(temperatures=(0.7,), tokens=2800, top_logprobs=0, limits=FAST)
    outcome = run(FakeServer(Behaviour.SPECULATIVE), plan, FakeServer())
    compared = finding(outcome, "both servers, one law")
    assert compared.verdict is FAITHFUL
    assert compared.evidence.startswith(f"one law up to a total variation of {compared.figures['detectable']:.2g} (")
    assert finding(outcome, "greedy, both servers").verdict is FAITHFUL
    assert verdict(outcome) is INCONCLUSIVE
    strict = run(FakeServer(Behaviour.SPECULATIVE), replace(plan, least_bias=0.05), FakeServer())
    assert finding(strict, "both servers, one law").verdict is INCONCLUSIVE
    assert "0.05 is wanted" in finding(strict, "both servers, one law").evidence


RIGHT = [
    FakeServer(raw=True, objects=True),
    FakeServer(Behaviour.SPECULATIVE, engine="vllm", seed=1),
    FakeServer(Behaviour.BUSY_AT_TIMES, raw=True),
]


@pytest.mark.parametrize("server", RIGHT, ids=lambda server: server.behaviour.name)
def test_right_server_is_faithful(server: FakeServer) -> None:
    outcome = run(server)
    assert verdict(outcome) is FAITHFUL, outcome.findings
    assert outcome.manner is not None
    assert outcome.manner.described is not None
    assert outcome.manner.described.value == ("raw" if server.raw else "processed")
    assert {one.verdict for one in outcome.findings} <= {FAITHFUL, Verdict.NOTE, INCONCLUSIVE}


def test_seeds_that_are_ignored_are_noted_and_rejected_where_they_are_promised() -> None:
    plan = Plan(temperatures=(1.0,), tokens=900, fewest=100, limits=FAST)
    noted = finding(run(FakeServer(Behaviour.SEEDS_IGNORED), plan), "one seed twice")
    assert noted.verdict is Verdict.NOTE
    assert "0 of 8" in noted.evidence
    promised = Plan(tokens=900, seeds_must_repeat=True, limits=FAST)
    assert finding(run(FakeServer(Behaviour.SEEDS_IGNORED), promised), "one seed twice").verdict is UNFAITHFUL
    assert finding(run(FakeServer(), promised), "one seed twice").verdict is FAITHFUL


def test_one_noise_for_every_seed_is_rejected_though_rows_are_not_asked_for() -> None:
    outcome = run(FakeServer(Behaviour.SEED_IS_ALL), Plan(tokens=900, keep_going=True, limits=FAST))
    assert finding(outcome, "different seeds").verdict is UNFAITHFUL


def test_batch_mates_change_the_law_of_short_texts() -> None:
    outcome = run(FakeServer(Behaviour.BATCH_MATES), Plan(tokens=1500, top_logprobs=0, prompts=("one",), limits=FAST))
    assert finding(outcome, "batch-mates").verdict is UNFAITHFUL


def test_too_small_a_budget_is_inconclusive() -> None:
    outcome = run(FakeServer(), Plan(temperatures=(1.0,), tokens=900, limits=FAST))
    assert verdict(outcome) is INCONCLUSIVE
    assert "at least 1000 are needed" in finding(outcome, "faithful at temperature 1").evidence


def test_server_that_is_not_there_is_unreachable() -> None:
    with serve(FakeServer()) as url:
        pass
    outcome = asyncio.run(check_server(Endpoint(url, "tiny"), None, SMALL, lambda phase, tokens: None))
    assert verdict(outcome) is SERVER_FAULT
    assert "unreachable" in outcome.findings[0].evidence


def test_client_paces_requests() -> None:
    async def two(url: str) -> None:
        async with Client(Endpoint(url, "tiny"), Limits(requests_per_second=4.0)) as client:
            await asyncio.gather(*(client.complete("a", Sampling(max_tokens=1)) for _ in range(2)))

    with serve(FakeServer()) as url:
        begun = time.monotonic()
        asyncio.run(two(url))
    assert time.monotonic() - begun >= 0.25


def test_client_keeps_what_came_before_a_fault_and_names_no_server() -> None:
    async def one(url: str) -> None:
        async with Client(Endpoint(url, "tiny"), FAST) as client:
            (answer,) = await client.complete("a", Sampling(max_tokens=9, logprobs=3))
            assert answer.fault is not None
            assert answer.fault.kind is FaultKind.DIED
            assert len(answer.steps) == 3
            assert "127.0.0.1" not in str(answer.fault)

    with serve(FakeServer(Behaviour.DIES)) as url:
        asyncio.run(one(url))


def test_missing_key_is_told_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(MissingKey, match="NO_SUCH_KEY is not set"):
        Client(Endpoint("http://127.0.0.1:1", "tiny", "NO_SUCH_KEY"))


def _command(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(serve_check)
    result = CliRunner().invoke(app, [*arguments, "--rate", "5000"], env={"KEY_OF_SERVER": "s3cret", "COLUMNS": "160"})
    return result.exit_code, result.output


def test_command_writes_json_without_host_or_key_and_exits_by_verdict(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    with serve(FakeServer(Behaviour.GREEDY, key="s3cret")) as url:
        code, shown = _command(
            "--base-url", url, "--model", "/models/tiny", "--api-key-env", "KEY_OF_SERVER", "--json", str(out)
        )  # fmt: skip
        refused, why = _command("--base-url", url, "--model", "tiny", "--json", str(tmp_path / "refused.json"))
    assert code == 1
    assert "unfaithful" in shown
    report = ServeReport.model_validate_json(out.read_text())
    assert report.verdict is UNFAITHFUL
    assert report.model == "tiny"
    assert report.schema_version == 1
    host = url.partition("://")[2].partition("/")[0]
    for text in (shown, out.read_text(), why, (tmp_path / "refused.json").read_text()):
        assert "s3cret" not in text
        assert host not in text
    assert refused == 4
    assert "HTTP 401" in why


def test_command_exits_3_where_nothing_is_known() -> None:
    with serve(FakeServer(Behaviour.EMPTY_TEXT)) as url:
        code, shown = _command("--base-url", url, "--model", "tiny")
    assert code == 3
    assert "inconclusive" in shown


def test_command_refuses_bad_token_ids() -> None:
    code, shown = _command("--base-url", "http://127.0.0.1:1", "--model", "tiny", "--prompt-ids", "3,x")
    assert code == 2
    assert "no list of token ids" in re.sub(r"\s+", " ", re.sub("[│╭╰─╮╯]", "", shown))


def test_json_keeps_what_is_not_finite() -> None:
    finding_ = Finding("a", UNFAITHFUL, "b", alpha=1e-3, p_value=0.0, n=1, figures={"log10_wealth": math.inf})
    from waveproof.reports.serve_report import CheckResult

    text = CheckResult.of(finding_).model_dump_json()
    assert CheckResult.model_validate_json(text).figures["log10_wealth"] == math.inf
    assert json.loads(text)["verdict"] == "unfaithful"


def test_model_name_loses_the_folders_of_a_path() -> None:
    assert model_name("/home/someone/models/tiny") == "tiny"
    assert model_name("organisation/tiny") == "organisation/tiny"


def test_verdict_needs_every_decisive_check() -> None:
    good, bad = Finding("a", FAITHFUL, ""), Finding("b", INCONCLUSIVE, "")
    assert overall([good], {"a": True}) is FAITHFUL
    assert overall([good, bad], {"a": True}) is FAITHFUL
    assert overall([good, bad], {"a": True, "b": True}) is INCONCLUSIVE
    assert overall([good], {"a": True, "b": True}) is INCONCLUSIVE
    assert overall([], {}) is INCONCLUSIVE
    assert overall([good, Finding("c", SERVER_FAULT, "")], {"a": True}) is SERVER_FAULT


def test_tiny_server_speculates_by_the_target_law() -> None:
    """The fake server's own verifier, exactly: sum over drafts and coins on a grid against the target."""
    law = TinyLaw(3)
    target, draft = probabilities(law.logits(5), 0.7, 0), law.draft(5)
    accept = np.minimum(target, draft).sum()
    rest = np.maximum(target - draft, 0.0)
    assert np.allclose(np.minimum(target, draft) + (1.0 - accept) * rest / rest.sum(), target, atol=1e-12)
    noise = np.random.default_rng(0)
    counts = np.zeros(len(TEXTS))
    for _ in range(20_000):
        proposed = draw(draft, noise.random())
        coins = iter(noise.random(2).tolist())
        counts[verified([target, target], [draft], [proposed], coins)[0]] += 1
    # Total variation of n draws over V outcomes is at most sqrt(V / n) / 2 on average; 3 times that is never seen.
    assert 0.5 * np.abs(counts / counts.sum() - target).sum() < 1.5 * math.sqrt(len(TEXTS) / 20_000)
