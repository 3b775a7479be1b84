"""Resource budgets: which row is compared with, what counts as worse, what an acceptance writes, what the command says.

What is compiled is planted in ``selftest/mutants/resources.py``; ``selftest/test_planted.py`` runs it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from waveproof.fixtures.baselines import BadBaseline
from waveproof.fixtures.resources.budgets import (
    BASELINE,
    Budget,
    Change,
    Compilation,
    Figures,
    Kernel,
    accepted,
    budget_rows,
    differences,
    load_baseline,
    nearest,
    save_baseline,
)
from waveproof.fixtures.resources.cases import CASES, chosen
from waveproof.fixtures.resources.judging import broken_rules, budget_judgements, judge
from waveproof.golden.judges.machine_code import LDS_BYTES
from waveproof.kernels.runtimes.amdgcn_resources import LOCAL_MEMORY, code_bytes, waves_per_cu
from waveproof.kernels.runtimes.catalogue import installed, why_unavailable
from waveproof.reports import cli_resources
from waveproof.reports.cli import app

GOOD = Figures(84, 0, 60, 0, 0, 0, 8192, 10, 5, 20, 4, 1, 3420)


def compilation(figures: Figures = GOOD, **changes: object) -> Compilation:
    kernel = Kernel("stage", figures, {"BLOCK_N": 32}, "sglang/kernels/decode.py:529")
    one = Compilation("decode", "gfx950", "sglang", "0.5.23", "3.9.0", (kernel,), attention=True)
    return replace(one, **changes)  # type: ignore[arg-type]


def row(triton: str = "3.9.0", version: str = "0.5.23", figures: Figures = GOOD, **changes: object) -> Budget:
    one = Budget("decode", "stage", "gfx950", "sglang", version, triton, figures, {"BLOCK_N": 32}, "first")
    return replace(one, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "against"),
    [
        ([("3.9.0", "0.5.23"), ("3.8.0", "0.5.23")], ""),
        ([("3.8.0", "0.5.23"), ("3.10.0", "0.5.23")], "triton 3.8.0"),
        ([("3.10.0", "0.5.23")], "triton 3.10.0"),
        ([("3.9.0", "0.5.9"), ("3.9.0", "0.5.20"), ("3.9.0", "0.6.0")], "sglang 0.5.20"),
        ([("3.8.0", "0.5.23"), ("3.9.0", "0.5.22")], "sglang 0.5.22"),
        ([("3.8.0", "0.5.22")], "triton 3.8.0 and sglang 0.5.22"),
    ],
)
def test_nearest_versions(known: list[tuple[str, str]], against: str) -> None:
    """Those of Triton first; the older of two neighbours; and versions are no strings."""
    rows = [row(*versions) for versions in known]
    chosen_rows, told = nearest(compilation(), rows)
    assert told.rpartition("; against ")[2] == against
    assert len(chosen_rows) == 1
    assert told.startswith("no baseline for triton 3.9.0") is (chosen_rows[0].triton != "3.9.0")


def test_nothing_to_compare_with() -> None:
    others = (row(case="another"), row(arch="gfx942"), row(package="amd-aiter"))
    assert nearest(compilation(), others) == ((), "")
    assert [one.kind for one in differences(compilation(), others)] == ["new"]


@pytest.mark.parametrize(
    ("name", "new", "worse"),
    [
        ("vgpr", 90, False),
        ("sgpr", 106, False),
        ("code_bytes", 9000, False),
        ("num_warps", 8, False),
        ("num_stages", 3, False),
        ("mfma", 4, False),
        ("mfma", 0, True),
        ("vgpr_spill", 1, True),
        ("sgpr_spill", 1, True),
        ("scratch_bytes", 4, True),
        ("lds_bytes", 8193, True),
        ("lds_bytes", 4096, False),
        ("waves_per_simd", 4, True),
        ("waves_per_simd", 6, False),
        ("waves_per_cu", 16, True),
    ],
)
def test_worse(name: str, new: int, worse: bool) -> None:
    """Either way it is a difference: what is not worse still makes the baseline stale."""
    (found,) = differences(compilation(replace(GOOD, **{name: new})), [row()])
    assert [change.name for change in found.changes] == [name]
    assert found.worse is worse
    assert found.stale is not worse
    within, current = budget_judgements(compilation(replace(GOOD, **{name: new})), [row()])
    assert (within.holds, current.holds) == (not worse, worse)
    assert ("waveproof resources --kernel decode --arch gfx950 --accept" in within.message) is worse
    assert current.message.startswith("" if worse else "baseline is stale: ")


def test_another_version_that_only_changed() -> None:
    """Nobody could have accepted it: only what is worse counts."""
    newer = compilation(replace(GOOD, vgpr=70), version="0.5.24")
    assert all(judgement.holds for judgement in judge(newer, [row()]))
    worse = [one for one in judge(compilation(replace(GOOD, scratch_bytes=8), version="0.5.24"), [row()])]
    assert [one.rule for one in worse if not one.holds] == ["no scratch", "within its budget"]
    (broken,) = [one for one in worse if one.rule == "within its budget"]
    assert "no baseline for sglang 0.5.24; against sglang 0.5.23" in broken.message
    assert "sglang/kernels/decode.py:529" in broken.message
    assert "scratch_bytes 0 -> 8 (+8)" in broken.message


def test_configuration_is_compared() -> None:
    (kernel,) = compilation().kernels
    (found,) = differences(compilation(kernels=(replace(kernel, config={"BLOCK_N": 64}),)), [row()])
    assert [str(change) for change in found.changes] == ["BLOCK_N 32 -> 64 (+32)"]
    assert str(Change("BLOCK_N", None, 64)) == "BLOCK_N None -> 64"


def test_exception_is_for_one_rule() -> None:
    spills = replace(GOOD, vgpr_spill=11, scratch_bytes=48)
    known = row(figures=spills, known=("no spills",), because="as reviewed")
    broken = [one for one in judge(compilation(spills), [known]) if not one.holds]
    assert [one.rule for one in broken] == ["no scratch"]
    (tolerated,) = [one for one in judge(compilation(spills), [known]) if one.rule == "no spills"]
    assert tolerated.derivation == "known: as reviewed"


def test_failure_to_compile_shows_the_message() -> None:
    fault = "CompileFailed: stage does not compile for gfx950: at 3:4:\nThe source\nNo such thing"
    failed = compilation(kernels=(), fault=fault, origin="sglang/kernels/decode.py:launch")
    (broken,) = [one for one in judge(failed, ()) if not one.holds]
    assert broken.rule == "compiles"
    assert broken.message == f"decode (sglang/kernels/decode.py:launch) on gfx950: {fault}"
    granted = accepted([failed], (), "not ours to mend", "selftest", broken_rules(failed))
    assert [one.fault for one in granted] == ["No such thing"]
    assert all(one.holds for one in judge(failed, granted))
    other = replace(failed, fault="CompileFailed: something else")
    assert [one.rule for one in judge(other, granted) if not one.holds] == ["compiles", "baseline is current"]


def test_acceptance(tmp_path: Path) -> None:
    """It replaces rows of its case, architecture and versions, keeps all others, and reasons where nothing changed."""
    path = tmp_path / "resources.json"
    rows = (row(), row(triton="3.8.0"), row(kernel="gone"), row(case="another"), row(arch="gfx942"))
    spills = replace(GOOD, vgpr_spill=11)
    once = accepted([compilation(spills)], rows, "the tile grew", "selftest", broken_rules(compilation(spills)))
    save_baseline(once, path)
    again = load_baseline(path)
    assert sorted(again, key=repr) == sorted(once, key=repr)
    assert all(one.holds for one in judge(compilation(spills), again))
    mine = [one for one in again if (one.case, one.arch, one.triton) == ("decode", "gfx950", "3.9.0")]
    assert [(one.kernel, one.reason, one.known, one.because) for one in mine] == [
        ("stage", "the tile grew", ("no spills",), "the tile grew")
    ]
    assert len(again) == len(rows) - 1
    unchanged = accepted([compilation(spills)], again, "because", "selftest", broken_rules(compilation(spills)))
    assert sorted(unchanged, key=repr) == sorted(again, key=repr)
    save_baseline(again, path)
    assert all(len(line) < 1500 for line in path.read_text().splitlines())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", r"resources\.json: .*line 1 column 2"),
        ("[]", "no object with a schema"),
        ('{"schema": 2, "rows": []}', "schema 2, this version reads 1"),
        ('{"schema": 1, "rows": [{"case": "decode"}]}', "TypeError"),
        ('{"schema": 1}', "KeyError"),
    ],
)
def test_bad_baseline(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "resources.json"
    path.write_text(text)
    with pytest.raises(BadBaseline, match=told):
        load_baseline(path)


def test_one_row_a_key(tmp_path: Path) -> None:
    save_baseline([row(), row()], tmp_path / "resources.json")
    with pytest.raises(BadBaseline, match=r"two rows for decode stage gfx950 sglang 3\.9\.0 0\.5\.23"):
        load_baseline(tmp_path / "resources.json")


@pytest.mark.parametrize(
    ("vgpr", "lds_bytes", "waves", "arch", "held"),
    [
        (84, 0, 4, "gfx942", 20),
        (84, 8192, 4, "gfx942", 20),
        (84, 16384, 4, "gfx942", 16),  # four workgroups share 64 KiB
        (84, 16385, 4, "gfx942", 12),  # one byte more takes another granule
        (84, 16384, 4, "gfx950", 20),
        (446, 143520, 4, "gfx950", 4),
        (512, 65536, 4, "gfx942", 4),
        (512, 65537, 4, "gfx942", 0),
        (16, 163840, 16, "gfx950", 16),
        (128, 0, 16, "gfx950", 16),
        (129, 0, 16, "gfx950", 0),  # 3 waves a SIMD, and the workgroup needs 4
        (8, 0, 1, "gfx950", 32),
    ],
)
def test_waves_of_a_compute_unit(vgpr: int, lds_bytes: int, waves: int, arch: str, held: int) -> None:
    assert waves_per_cu(vgpr, lds_bytes, waves, arch) == held


def test_judge_and_runtimes_know_one_size_of_lds() -> None:
    """A judge imports no runtime, so the size stands in both."""
    assert {arch: memory.size for arch, memory in LOCAL_MEMORY.items()} == LDS_BYTES


def test_code_size() -> None:
    assert code_bytes("; codeLenInByte = 400\n s_endpgm\n; codeLenInByte = 72\n") == 472
    assert code_bytes("s_endpgm\n") == 0


def test_reviewed_baseline() -> None:
    """It has a row for what is launched, a cause for each exception, and the case study's fallback among them."""
    rows = load_baseline()
    names = {case.name for case in CASES}
    assert {one.case for one in rows} == names
    assert {one.arch for one in rows} == {"gfx942", "gfx950"}
    assert all(len(one.reason.split()) > 3 for one in rows)
    assert all(bool(one.known) == bool(one.because) for one in rows)
    upstream = {(one.case, one.kernel) for one in rows if one.kernel}
    assert len(upstream) >= 60
    fallback = budget_rows("gfx942", "mla_extend_h12/*")["mla_extend_h12/_fwd_kernel", "gfx942"]
    assert fallback.figures is not None
    assert fallback.figures.spills > 300
    assert set(fallback.known) == {"no spills", "no scratch"}
    assert not budget_rows(kernel="nothing*")


def test_case_names() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert not any("-" in case.name for case in CASES), "they are parts of test ids that are split at dashes"
    assert {case.package for case, _ in chosen("*/extend_attention.py:*")} == {"sglang", "amd-aiter"}
    assert {arch for _, arch in chosen("aiter_fp4_gemm")} == {"gfx950"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--arch", "gfx90a"], "--arch gfx90a: known are gfx942, gfx950"),
        (["--kernel", "nothing*"], "--kernel 'nothing*' fits no launch case"),
        (["--accept", "so"], "--accept 'so': a reason has a few words"),
        (["--baseline", "nowhere.json"], "--baseline nowhere.json: there is no such file"),
    ],
)
def test_bad_command_line(options: list[str], told: str) -> None:
    answer = CliRunner().invoke(app, ["resources", *options])
    assert answer.exit_code == 2
    assert told in answer.output


@pytest.mark.slow
@pytest.mark.skipif(bool(why_unavailable("compile")) or not installed("aiter"), reason="needs triton and amd-aiter")
def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As budgeted, worse, stale and accepted: words, exit status and file. It is compiled once."""
    found = cli_resources.compile_all(chosen("aiter_quantise_tokens", "gfx950"))
    monkeypatch.setattr(cli_resources, "compile_all", lambda pairs: found)
    baseline, output = tmp_path / "baseline.json", tmp_path / "figures.json"
    asked = ["resources", "--kernel", "aiter_quantise_tokens", "--arch", "gfx950", "--baseline", str(baseline)]

    def run(*more: str) -> tuple[int, str]:
        answer = CliRunner().invoke(app, [*asked, *more], env={"COLUMNS": "200"})
        return answer.exit_code, " ".join(answer.output.split())

    rows = [one for one in load_baseline(BASELINE) if one.case == "aiter_quantise_tokens"]
    save_baseline([], baseline)
    status, told = run()
    assert status == 1
    assert "baseline is stale: accept with: waveproof resources --accept REASON" in told
    assert run("--accept", "first measured here")[0] == 0
    (made,) = load_baseline(baseline)
    assert made.reason == "first measured here"
    assert made.figures is not None
    if (made.triton, made.version) == (rows[0].triton, rows[0].version):
        assert made.figures in [one.figures for one in rows]
    tight = replace(made.figures, lds_bytes=made.figures.lds_bytes - 8, vgpr=made.figures.vgpr + 8)
    save_baseline([replace(made, figures=tight)], baseline)
    status, told = run("--json", str(output))
    assert status == 1
    assert "Not as budgeted" in told
    assert "+8 │ WORSE" in told
    assert "-8 │ changed" in told
    assert "FAILS within its budget" in told
    (entry,) = json.loads(output.read_text())["cases"]
    assert [rule["rule"] for rule in entry["rules"] if not rule["holds"]] == ["within its budget"]
    save_baseline([replace(made, triton="3.8.0")], baseline)
    status, told = run()
    assert status == 0
    assert f"no baseline for triton {made.triton}; against triton 3.8.0" in told
    save_baseline([replace(made, triton="3.8.0", figures=tight)], baseline)
    status, told = run()
    assert status == 1
    assert "FAILS within its budget" in told
