"""A bug report merges one cause, shows what a maintainer needs first, and says nothing of ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from waveproof.reports.issue import fence, prose, report_id, write_reports
from waveproof.reports.verdicts import Failure, Record

TEST = "conformance/test_renorm.py::test_kept_values"

SCRIPT = '''"""top_k_renorm_prob of sglang: kept values are 1 % too large

Found by  conformance/test_renorm.py::test_kept_values[top_k_renorm_prob-sglang-hip]
"""
for package in ("torch", "sglang"):
    pass


def first_input():
    """probs=float32[1, 3], top_k=2"""
    probs = torch.tensor([[0.1, 0.2, 0.7]], dtype=torch.float32).to(DEVICE)
    top_k = 2
    return [probs, top_k]


print("``` is a fence")
'''


def record(runtime: str = "hip", arch: str = "gfx942", verdict: str = "fail", **changes: object) -> Record:
    failure = Failure(
        rule="kept values",
        message="kept values are 1 % too large",
        figure=0.01,
        bound=7.7e-7,
        unit="relative",
        derivation="gamma_13 of float32 (Higham 2002, section 3.1)",
        index=(0, 1),
        expected="0.2222222",
        got="0.2244444",
        call="top_k_renorm_prob(probs=float32[1, 3], top_k=2)",
    )
    fields = {
        "id": f"{TEST}[top_k_renorm_prob-sglang-{runtime}]",
        "test": "test_kept_values",
        "verdict": verdict,
        "operator": "top_k_renorm_prob",
        "provider": "sglang",
        "variant": "threshold",
        "runtime": runtime,
        "arch": arch,
        "origin": "sglang/kernels/ops/sampling/renorm_triton.py:top_k_renorm_probs_triton",
        "shapes": ("[1, 3]",),
        "dtypes": ("float32",),
        "versions": {"torch": "2.9.0+rocm7.0", "sglang": "0.5.23", "rocm": "7.0.2"},
        "failure": failure if verdict in ("fail", "crash", "timeout") else None,
    }
    return Record.model_validate({**fields, **changes})


def with_failure(original: Record, **changes: object) -> Record:
    assert original.failure is not None
    return original.model_copy(update={"failure": original.failure.model_copy(update=changes)})


def one(directory: Path, failures: list[Record], others: list[Record] | None = None) -> str:
    (path,) = write_reports(failures, [*failures, *(others or [])], directory)
    return path.read_text()


def test_one_cause_is_one_report(tmp_path: Path) -> None:
    failures = [
        record(),
        record("interpret", ""),
        record(provider="aiter"),
        with_failure(record(), rule="sum of a row"),
        record(arch="gfx950"),
    ]
    paths = write_reports(failures, failures, tmp_path)
    assert [path.name for path in paths] == [
        f"report_{report_id(('top_k_renorm_prob', provider, rule))}.md"
        for provider, rule in (("sglang", "kept values"), ("aiter", "kept values"), ("sglang", "sum of a row"))
    ]


def test_who_shows_it_and_who_does_not(tmp_path: Path) -> None:
    text = one(
        tmp_path,
        [record(), record("interpret", "")],
        [record(arch="gfx950", verdict="pass"), record("cuda", "", "pass", test="another_test")],
    )
    assert "| AMD GPU, gfx942 | `kept_values` | `[1, 3]` | `float32` | **wrong**, `0.01 relative` |" in text
    assert (
        "| Triton interpreter (`TRITON_INTERPRET=1`) on a CPU | `kept_values` | `[1, 3]` | `float32` | **wrong**"
        in text
    )
    assert "| AMD GPU, gfx950 | `kept_values` | `[1, 3]` | `float32` | right |" in text
    assert "NVIDIA GPU" not in text


def test_title_says_what_is_wrong_and_where(tmp_path: Path) -> None:
    first = "# top_k_renorm_prob (sglang): kept values are 1 % too large"
    assert one(tmp_path, [record()]).splitlines()[0] == f"{first} on gfx942"
    assert one(tmp_path, [record(), record(arch="gfx950")]).splitlines()[0] == first
    crash = with_failure(
        record(verdict="crash"), message="its process ended with signal SIGABRT; it printed: " + "x " * 400
    )
    text = one(tmp_path, [crash])
    assert text.splitlines()[0] == "# top_k_renorm_prob (sglang): its process ended with signal SIGABRT on gfx942"
    assert "**crashes**" in text
    assert len(text) < 3000


def test_figures_bound_and_its_source_are_there(tmp_path: Path) -> None:
    text = one(tmp_path, [record()])
    for line in (
        "| first wrong element | `[0, 1]` |",
        "| expected | `0.2222222` |",
        "| got | `0.2244444` |",
        "| measured | `0.01 relative`, at most `7.7e-07 relative` is right |",
        "Where the bound comes from: gamma_13 of float32 (Higham 2002, section 3.1).",
        "| torch | 2.9.0+rocm7.0 |",
        "| ROCm | 7.0.2 |",
    ):
        assert line in text


def test_rule_without_a_measure_shows_none(tmp_path: Path) -> None:
    text = one(tmp_path, [with_failure(record(), figure=1.0, bound=0.0, unit="")])
    assert "measured" not in text
    assert "| **wrong** |" in text


def test_confirmed_script_is_shown_with_its_input_and_output(tmp_path: Path) -> None:
    (tmp_path / "repro_x.py").write_text(SCRIPT)
    (tmp_path / "repro_x.txt").write_text("got       0.2244444\n")
    larger = with_failure(record("interpret", ""), call="top_k_renorm_prob(probs=float32[1, 1])", figure=0.5)
    text = one(tmp_path, [larger, with_failure(record(), repro="repro_x.py", repro_confirmed=True)])
    assert "This script shows it in a fresh process:" in text
    assert "It needs `torch`, `sglang`, and exits 1 while the fault is there, 0 when it is gone." in text
    assert "```python\nprobs = torch.tensor([[0.1, 0.2, 0.7]], dtype=torch.float32)\ntop_k = 2\n" in text
    assert "got       0.2244444" in text
    assert f"````python\n{SCRIPT}````" in text, "whole, blank lines too, in a fence longer than its own"
    assert "`0.01 relative`, at most" in text, "figures are those of the case that the script shows"


def test_script_that_was_not_confirmed_is_not_called_proof(tmp_path: Path) -> None:
    (tmp_path / "repro_x.py").write_text(SCRIPT)
    assert "did **not** show it" in one(tmp_path, [with_failure(record(), repro="repro_x.py", repro_confirmed=False)])
    assert "could not be run" in one(tmp_path, [with_failure(record(), repro="repro_x.py", repro_confirmed=None)])


def test_long_script_is_folded_and_one_too_long_is_attached(tmp_path: Path) -> None:
    (tmp_path / "repro_x.py").write_text(SCRIPT + "x = 1\n" * 100)
    shown = with_failure(record(), repro="repro_x.py", repro_confirmed=True)
    assert "<details>\n<summary>repro_x.py</summary>" in one(tmp_path, [shown])
    (tmp_path / "repro_x.py").write_text(SCRIPT + "x = 1\n" * 20_000)
    text = one(tmp_path, [shown])
    assert len(text) < 65_536
    assert "(too long for this page: attached)" in text


def test_compiled_code_is_shown_by_its_figures_and_the_command(tmp_path: Path) -> None:
    compiled = record("compile", "gfx950", resources=({"kernel": "extend", "vgpr_spills": 311, "scratch_bytes": 812},))
    text = one(tmp_path, [compiled])
    assert "| kernel | vgpr_spills | scratch_bytes |\n|---|---|---|\n| `extend` | `311` | `812` |" in text
    assert "python -m pytest 'conformance/test_renorm.py::test_kept_values[top_k_renorm_prob-sglang-compile]'" in text


def test_report_uses_nobody_elses_words(tmp_path: Path) -> None:
    (tmp_path / "repro_x.py").write_text(SCRIPT)
    text = one(tmp_path, [with_failure(record(), repro="repro_x.py", repro_confirmed=True)])
    assert not re.search(r"\b(judge|judgement|subject|mutant|verdict|provider|oracle|waiver)\b", text, re.IGNORECASE)


def test_report_is_the_same_each_time(tmp_path: Path) -> None:
    assert one(tmp_path / "a", [record()]) == one(tmp_path / "b", [record()])
    assert report_id(("top_k_renorm_prob", "sglang", "kept values")) == "7ccae329"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("@triton.jit fails", "&#64;triton.jit fails"),
        ("</details><b>", "&lt;/details>&lt;b>"),
        ("a|b\nc", "a&#124;b c"),
        ("`x` *y* #12", "'x' \\*y\\* &#35;12"),
        ("sgl-project/sglang#27618", "sgl-project/sglang#27618"),
    ],
)
def test_text_from_outside_is_no_markup(text: str, shown: str) -> None:
    assert prose(text) == shown


def test_fence_is_longer_than_any_within() -> None:
    assert fence("a ```` b", "text") == "`````text\na ```` b\n`````"
