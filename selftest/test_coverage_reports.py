"""What ``waveproof coverage`` prints, draws and writes. Upstream is the stand-in."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from waveproof.fixtures.deployment.attention import DECODE
from waveproof.fixtures.deployment.coverage import cover, sweep
from waveproof.fixtures.deployment.plan import Deployment
from waveproof.fixtures.deployment.verdicts import Row, Verdict
from waveproof.fixtures.shapes.served_model import built_in
from waveproof.perf.fallback_costs import Fallback, fallbacks, key
from waveproof.reports import coverage_tables
from waveproof.reports.cli import app
from waveproof.reports.coverage_summary import summary
from waveproof.selftest.mutants.coverage import scale_left_out
from waveproof.selftest.stand_in_upstream import MI355X, UPSTREAM, covered

COST = Fallback("decode", "sglang", "_fwd_kernel", 2.0, 1.5, 3.0, None, 512, 311, 812, 96, 12)


@pytest.mark.parametrize("width", [100, 180])
def test_the_table_fits(width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    found = covered()
    console.print(coverage_tables.table(found, [COST]))
    for line in coverage_tables.footer(found, (), [COST]):
        console.print(line, markup=False)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    for words in ("≈ padded", "1.33x", "generic Triton instead", "12 a rank", "not on the fast path"):
        assert words in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "12 heads a rank: AITER has no MLA kernel for 12; sglang adds heads of zeros up to 16 and runs the fast"),
        ({}, "Without --attention-backend aiter it silently runs all attention on generic Triton kernels"),
        ({}, "(instructions for each cached token: 3.0x in decode)"),
        ({"tp": 4}, "24 heads a rank: no fast MLA kernel; with --attention-backend aiter the server refuses to start"),
        ({"tp": 4}, "3.0x in decode; measured on 12 heads"),
        ({"dcp": 2}, "12 heads a rank, 24 with DCP 2: no fast MLA kernel"),
        ({"backend": "auto"}, "left alone, sglang silently runs all attention on generic Triton kernels"),
        ({"backend": "auto"}, "With --attention-backend aiter: padded to 16."),
        ({"model": "DeepSeek-V3"}, "16 heads a rank: AITER has a native MLA kernel for 16."),
        ({"model": "DeepSeek-V3.2"}, "16 heads a rank: an indexer chooses the keys"),
    ],
)
def test_the_summary(changes: dict[str, Any], words: str) -> None:
    found = covered(**changes)
    choice = UPSTREAM.default_backend(found.deployment.heads)[0]
    assert words in summary(found, choice, [COST])


def test_a_summary_of_what_is_wrong_or_does_not_fit() -> None:
    upstream = replace(UPSTREAM, rule=scale_left_out, pairing=lambda: ("it is called with x, which it lacks",))
    found = cover(Deployment(built_in("Kimi-K3"), 8, MI355X, "fp8"), upstream)
    told = summary(found, "triton", ())
    assert "answers WRONGLY: the output lacks kv_scale" in told or "refuses" in told
    assert "do not fit (see 'sglang on AITER')" in told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--picture", "k3.txt"], "its name ends in none of .png"),
        (["--json", "/nowhere/k3.json"], "there is no folder /nowhere"),
        (["--picture", "/nowhere/k3.png"], "there is no folder /nowhere"),
    ],
)
def test_files_that_cannot_be_written_are_refused_first(options: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["coverage", "--model", "Kimi-K3", *options], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert words in done.output


def test_the_document_is_complete() -> None:
    deployment = Deployment(built_in("Kimi-K3"), 8, MI355X, spec_tokens=3)
    cells = list(sweep(deployment, UPSTREAM, (1, 3)))
    whole = json.loads(coverage_tables.document(covered(), [COST], cells, {"sglang": "1"}))
    assert whole["deployment"]["heads_a_rank"] == 12
    assert len(whole["operators"]) == len(covered().rows)
    assert {cell["tp"] for cell in whole["sweep"]} == {1, 2, 4, 8, 16}
    assert {cell["verdict"] for cell in whole["sweep"]} <= {one.value for one in Verdict} | {"not split"}


def test_the_sweep_marks_ranks_that_do_not_split_the_heads() -> None:
    cells = list(sweep(Deployment(built_in("GLM-4.7-Flash"), 1, MI355X), UPSTREAM, (1,)))
    assert {cell.tp for cell in cells if cell.row is None} == {8, 16}
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(coverage_tables.sweep_table(Deployment(built_in("GLM-4.7-Flash"), 1, MI355X), cells))
    assert "heads not split evenly" in console.export_text()


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from waveproof.reports.coverage_picture import LETTERS, draw

    deployment = Deployment(built_in("Kimi-K3"), 1, MI355X)
    file = tmp_path / "sweep.svg"
    draw(deployment, list(sweep(deployment, UPSTREAM, (1,))), {"sglang": "1"}, file)
    assert file.stat().st_size > 10_000
    assert len(set(LETTERS.values())) == len(Verdict), "a letter stands for two verdicts"


def test_costs_are_kept_and_read(tmp_path: Path) -> None:
    (tmp_path / f"gfx950-{key()}.json").write_text(json.dumps([COST.__dict__]))
    assert fallbacks("gfx950", measure=False, folder=tmp_path) == (COST,)
    assert fallbacks("gfx942", measure=False, folder=tmp_path) == ()
    (tmp_path / f"gfx950-{key()}.json").write_text('[{"phase": ')
    assert fallbacks("gfx950", measure=False, folder=tmp_path) == ()
    assert "spills 311 VGPRs (812 B scratch)" in COST.sentence()


def test_the_row_of_a_lookup_has_its_costs() -> None:
    row: Row = covered().row(DECODE)
    assert [label for label, _ in coverage_tables.fallback_costs(row, [COST])] == ["generic Triton instead"]
    assert list(coverage_tables.fallback_costs(covered("DeepSeek-V3").row(DECODE), [COST])) == []
