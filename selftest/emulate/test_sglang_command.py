"""``waveproof emulate sglang``: the table, what it says of an error beyond its bound, and where nothing can run."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("tinygrad")

from waveproof.reports.cli_emulate import Upstream, app
from waveproof.selftest.emulate import sglang_cases

needs_sglang = pytest.mark.skipif(find_spec("sglang") is None, reason="sglang is not installed")


def test_every_case_can_be_chosen() -> None:
    assert [one.value for one in Upstream] == list(sglang_cases.CASES)


@needs_sglang
def test_a_kernel_from_launch_to_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    done = CliRunner().invoke(app, ["sglang", "--arch", "gfx950", "--kernel", "merge"])
    assert done.exit_code == 0, done.output
    (row,) = [line for line in done.output.splitlines() if "merge_state_kernel" in line]
    cells = [cell.strip() for cell in row.strip("│ ").split("│")]
    # 15 programs read two outputs and write one with its LSE. LSEs are read by scalar loads; each element of an output
    # by two lanes, since the padded head has 128 elements and the program 256 lanes.
    assert cells[:4] == ["merge", "merge_state_kernel", "gfx950", "5x3x1"]
    assert cells[5:8] == ["0", f"{15 * 2 * 2 * 96 * 4:,}", f"{15 * (96 * 4 + 4):,}"]
    assert float(cells[8]) <= float(cells[9])


def _answer(of_bound: float) -> dict[str, Any]:
    launch = {
        "kernel": "some_kernel", "grid": [2, 3, 4], "wave_instructions": 12_345, "mfma": 7, "bytes_read": 64,
        "bytes_written": 32,
    }  # fmt: skip
    return {
        "error": of_bound * 0.5, "bound": 0.5, "of_bound": of_bound, "findings": ["a finding"],
        "launches": [launch, {**launch, "kernel": "last_kernel"}],
    }  # fmt: skip


@needs_sglang
@pytest.mark.parametrize(("of_bound", "status"), [(0.5, 0), (1.0, 0), (1.5, 1), (float("inf"), 1)])
def test_an_error_beyond_its_bound(of_bound: float, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(arch: str, cases: list[str]) -> dict[str, Any]:
        asked.append((arch, cases))
        return {"renorm": _answer(of_bound)}

    monkeypatch.setattr(sglang_cases, "run", run)
    done = CliRunner().invoke(app, ["sglang", "--kernel", "renorm"])
    assert asked == [("gfx942", ["renorm"]), ("gfx950", ["renorm"])]
    assert done.exit_code == status
    assert done.output.count("EXCEEDED") == 2 * status, "once a case and architecture, beside its last launch"
    assert all("last_kernel" in line for line in done.output.splitlines() if "EXCEEDED" in line)
    assert "2x3x4" in done.output
    assert "12,345" in done.output
    assert "finding: renorm: a finding (gfx942, gfx950)" in done.output


def test_where_nothing_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_cases, "run", lambda arch, cases: {"unavailable": "tinygrad is missing"})
    done = CliRunner().invoke(app, ["sglang"])
    assert done.exit_code == 2
    assert "cannot run on gfx942: tinygrad is missing" in done.output
