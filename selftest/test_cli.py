"""The command line on trial: right answers, exit statuses, and one clear line for bad input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from waveproof.golden.capture import Answer, Source, capture, provenance_of
from waveproof.golden.manifest import MANIFEST
from waveproof.golden.renorm_cases import small_cases
from waveproof.golden.store import GoldenStore
from waveproof.kernels.operators.contract import Call
from waveproof.reports.cli import app
from waveproof.reports.verdicts import Record, write_records


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def assert_one_line(result: Result, *words: str) -> None:
    """Exit status 2 and a single line that says what is wrong."""
    assert result.exit_code == 2, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.output
    for word in words:
        assert word in lines[0]


def store_of(path: Path, scale: float) -> Path:
    """A store with one golden whose values are off by that factor."""
    from waveproof.golden.references.renorm import reference

    def answer(call: Call) -> Answer:
        provenance = provenance_of("made-up", "1", "cpu", "cpu", {"torch": torch.__version__})
        return Answer(((reference(call, "threshold").value * scale).float(),), provenance)

    source = Source("made-up", "top_k_renorm_prob", "threshold", "cpu", answer)
    cases = [case for case in small_cases() if case.name == "softmax-v129"]
    assert [attempt.result for attempt in capture([source], GoldenStore(path), cases)] == ["stored"]
    return path


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "results.jsonl"
    shared = {"operator": "top_k_renorm_prob", "family": "renorm", "provider": "torch", "variant": "threshold"}
    failure = {"rule": "kept values", "message": "3 of 50 kept values are off"}
    passed = {"id": "a", "test": "test_values", "verdict": "pass", "runtime": "cpu"}
    failed = {"id": "b", "test": "test_values", "verdict": "fail", "runtime": "hip", "failure": failure}
    write_records(path, [Record.model_validate(shared | case) for case in (passed, failed)])
    return path


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    code = "import sys; from waveproof.reports.cli import app; app(['--help'], standalone_mode=False); "
    code += "print([m for m in ('torch', 'triton', 'pydantic', 'jinja2', 'safetensors') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip().endswith("[]")
    for command in ("golden", "page", "matrix", "waivers"):
        assert command in shown


def test_capture_verify_list_and_diff_of_the_reference(tmp_path: Path) -> None:
    store = tmp_path / "store"
    captured = run("golden", "capture", "--runtime", "cpu", "--provider", "float64", "--out", store)
    assert captured.exit_code == 0, captured.output
    assert "float64 target_probs threshold:" in captured.output
    again = run("golden", "capture", "--runtime", "cpu", "--provider", "float64", "--out", store)
    assert again.exit_code == 0
    assert "present" in again.output
    assert "stored" not in again.output
    verified = run("golden", "verify", store)
    assert verified.exit_code == 0
    assert "all as the manifest says" in verified.output
    listed = run("golden", "list", store)
    assert listed.exit_code == 0
    assert "top_k_renorm_prob-threshold-k1-v129-float64" in listed.output
    compared = run("golden", "diff", store)
    assert compared.exit_code == 0, compared.output
    assert "disagreements" not in compared.output


def test_verify_says_what_is_wrong_and_exits_with_1(tmp_path: Path) -> None:
    store = store_of(tmp_path, 1.0)
    (path,) = store.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    (store / "stray").touch()
    result = run("golden", "verify", store)
    assert result.exit_code == 1
    assert f"{path.name}: sha256" in result.output
    assert "stray: not in the manifest" in result.output


def test_diff_shows_a_planted_difference_and_exits_with_1(tmp_path: Path) -> None:
    assert run("golden", "diff", store_of(tmp_path / "right", 1.0)).exit_code == 0
    result = run("golden", "diff", store_of(tmp_path / "wrong", 1.001))
    assert result.exit_code == 1
    for word in ("legal interval", "kept values", "row sums", "made-up"):
        assert word in result.output


def test_a_store_that_is_empty_is_not_said_to_be_right(tmp_path: Path) -> None:
    assert_one_line(run("golden", "verify", tmp_path), "holds no goldens")
    assert_one_line(run("golden", "diff", tmp_path), "holds no goldens")


def test_a_tampered_store_is_not_compared(tmp_path: Path) -> None:
    store = store_of(tmp_path, 1.0)
    (path,) = store.glob("*.safetensors")
    path.write_bytes(b"x")
    assert_one_line(run("golden", "diff", store), path.name, "1 bytes")
    (store / MANIFEST).write_text("{}")
    assert_one_line(run("golden", "list", store), "schema None")


def test_bad_names_are_refused_with_the_names_that_exist(tmp_path: Path) -> None:
    out = ("--out", tmp_path / "store")
    assert_one_line(run("golden", "capture", "--runtime", "cude", *out), "'cude'", "cuda")
    assert_one_line(run("golden", "capture", "--runtime", "compile", *out), "only compiles")
    assert_one_line(run("golden", "capture", "--runtime", "cpu", "--provider", "trch", *out), "'trch'", "torch")
    assert not (tmp_path / "store").exists()


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path, results: Path) -> None:
    for arguments in (
        ("verify", results),
        ("diff", tmp_path / "none"),
        ("capture", "--runtime", "cpu", "--out", results),
    ):
        result = run("golden", *arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.output


def test_a_capture_that_gets_nothing_exits_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "waveproof.kernels.providers.registry.why_unavailable", lambda runtime: "no NVIDIA GPU: planted"
    )
    result = run("golden", "capture", "--runtime", "cuda", "--small", "--out", tmp_path / "store")
    assert result.exit_code == 1
    assert "refused: no NVIDIA GPU: planted (1)" in result.output
    assert "nothing was captured" in result.output


def test_matrix_shows_the_run(results: Path) -> None:
    result = run("matrix", results)
    assert result.exit_code == 0, result.output
    assert "FAIL" in result.output
    assert "\x1b" not in result.output


def test_page_is_written(results: Path, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    result = run("page", results, "-o", output)
    assert result.exit_code == 0, result.output
    assert "top_k_renorm_prob" in output.read_text()


@pytest.mark.parametrize("command", ["page", "matrix"])
def test_records_that_cannot_be_read_are_refused(command: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"id": 1}\n')
    assert_one_line(run(command, path), "results.jsonl:1:")
    missing = run(command, tmp_path / "none.jsonl")
    assert missing.exit_code == 2
    assert "does not exist" in missing.output


def test_a_page_that_cannot_be_written_is_refused(results: Path, tmp_path: Path) -> None:
    assert_one_line(run("page", results, "-o", tmp_path / "none" / "page.html"), "page.html", "No such file")


def test_waivers_are_listed_and_bad_ones_refused(tmp_path: Path) -> None:
    path = tmp_path / "waivers.toml"
    path.write_text(
        '[[waiver]]\nid = "conformance/test_renorm.py::test_values[*]"\nexpires = 2020-01-31\n'
        'reason = "Planted here for the test of the list."\nlink = "sgl-project/sglang#1"\narch = "gfx942"\n'
    )
    result = run("waivers", path)
    assert result.exit_code == 0, result.output
    for word in ("test_values[*]", "gfx942", "2020-01-31 (expired)", "sgl-project/sglang#1"):
        assert word in result.output
    path.write_text('[[waiver]]\nid = "x"\n')
    result = run("waivers", path)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("waveproof.fixtures.tables.lint.installed", absent)
    assert_one_line(run("tables"), "needs the package torch")
