"""Pairs through pytest-benchmark, in runs of their own: what its table and JSON show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from waveproof.perf.measure import PairedSamples

SUITE = """
import sys, time
sys.modules["triton"] = None  # takes a second to import, and nothing of it runs here
from functools import partial
from waveproof.perf.measure import PairPlan, measure_pair
from waveproof.selftest.pretended_events import PretendedGPU, instruments

PLAN = PairPlan(pairs=10, looks=(4,), warmup=1)
calls = iter(range(1000))

def test_pair(benchmark):
    samples = measure_pair(partial(time.sleep, 4.8e-3), partial(time.sleep, 4e-3), PLAN, benchmark=benchmark)
    assert samples.clock == "time.perf_counter" and len(samples) == 10
    assert benchmark.stats["rounds"] == 10

def test_device(benchmark):
    gpu = PretendedGPU()
    sides = gpu.kernel("a", 4e-4), gpu.kernel("b", 1e-3)
    measure_pair(*sides, PairPlan(pairs=10, clock="device"), benchmark=benchmark, instruments=instruments(gpu))

def test_refused(benchmark):
    def compiles():
        time.sleep(1e-3)
        if next(calls) == 6:
            sys.audit("subprocess.Popen", "hipcc", ["hipcc", "-c"], None, None)
    measure_pair(compiles, partial(time.sleep, 1e-3), PLAN, benchmark=benchmark)
"""


CONFTEST = """
def pytest_benchmark_generate_machine_info():
    return {}  # asking the CPU takes a second
"""


def run_suite(folder: Path, *options: str, **environment: str) -> str:
    (folder / "test_it.py").write_text(SUITE)
    (folder / "conftest.py").write_text(CONFTEST)
    plugins = ("-p", "pytest_benchmark.plugin", "-p", "no:cacheprovider")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-W", "ignore", *plugins, *options, "test_it.py"],
        cwd=folder, env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200", **environment},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.stdout


class TestPytestBenchmark:
    def test_each_side_is_a_row(self, tmp_path: Path) -> None:
        """And a test that was refused has none, though its first samples were taken."""
        printed = run_suite(tmp_path, "--benchmark-json=saved.json")
        assert "1 failed, 2 passed" in printed
        assert "Compiled: candidate, pair" in printed
        saved = json.loads((tmp_path / "saved.json").read_text())["benchmarks"]
        rows = {one["name"]: one for one in saved}
        assert set(rows) == {"test_pair", "test_pair, baseline", "test_device", "test_device, baseline"}
        pair = PairedSamples.read(rows["test_pair"]["extra_info"]["pair"])
        assert pair == PairedSamples.read(rows["test_pair, baseline"]["extra_info"]["pair"])
        for row, side in (("test_pair", pair.candidate), ("test_pair, baseline", pair.baseline)):
            assert rows[row]["stats"]["data"] == list(side)
            assert rows[row]["stats"]["median"] == pytest.approx(median(side))
            assert rows[row]["options"]["timer"] == "time.perf_counter"
            assert (rows[row]["group"], rows[row]["stats"]["iterations"]) == ("test_pair", 1)
        device = rows["test_device"]
        assert device["stats"]["data"] == pytest.approx([4e-4] * 10)
        assert device["stats"]["iterations"] == 2
        assert device["options"]["timer"] == "device events"
        assert min(pair.candidate) > 4.7e-3
        assert min(pair.baseline) > 3.9e-3
        lines = [line.split("  ")[0] for line in printed.splitlines() if line.startswith(("test_pair", "test_refused"))]
        assert lines == ["test_pair, baseline", "test_pair"], "the quicker first"

    def test_where_it_is_disabled_nothing_is_timed(self, tmp_path: Path) -> None:
        """As beside other workers of pytest-xdist, whose variable it heeds; the skip is the verdict inconclusive."""
        printed = run_suite(tmp_path, PYTEST_XDIST_WORKER="gw0")
        assert "3 skipped" in printed
        assert "not timed: pytest-benchmark is disabled" in printed
