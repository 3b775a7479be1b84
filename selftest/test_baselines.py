"""Baselines: what cannot be used is refused with the file and the place in it; what tables hold against theirs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from waveproof.fixtures.baselines import FOLDER, BadBaseline, read_json, read_toml
from waveproof.fixtures.tables.baseline import Baseline, compare, entry, judge_rule, read_baseline, shipped_baseline
from waveproof.fixtures.tables.finding import Finding
from waveproof.fixtures.tables.lint import RULES, rule_named
from waveproof.kernels.runtimes.catalogue import version_of

BROKEN_TOML = '[versions]\nsglang = "0.5.23"\n[[known]\n'


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.toml", BROKEN_TOML.encode(), r"a\.toml: .*line 3"),
        ("a.toml", b'x = "\xe4"\n', r"a\.toml: .*UTF-8 \(at line 1\)"),
        ("a.json", b'{"schema": 1,\n"rows": [}', r"a\.json: .*line 2 column 10"),
        ("a.json", b'{"schema": 1,\n\n"rows": "\xff"}', r"a\.json: .*UTF-8 \(at line 3\)"),
        ("a.json", b"[]", r"a\.json: no object with a schema"),
        ("a.json", b'{"rows": []}', r"a\.json: no object with a schema"),
        ("a.json", b'{"schema": "1"}', r"a\.json: schema '1', this version reads 1"),
        ("a.json", None, r"a\.json: No such file"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, name: str, content: bytes | None, told: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadBaseline, match=told):
        read_toml(path) if path.suffix == ".toml" else read_json(path, 1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BROKEN_TOML, "line 3"),
        ("known = [1]", "mapping"),
        ('[[known]]\nrule = "values"', "missing 4 required"),
        ('[[known]]\nrule = "r"\nfile = "f"\nreason = "w"\ncount = "1"\ndigest = "d"', "entry 1: count is '1'"),
    ],
)
def test_tables_refuse_what_is_no_entry(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "tables.toml"
    path.write_text(text)
    with pytest.raises(BadBaseline, match=rf"^tables\.toml: .*{re.escape(told)}"):
        read_baseline(path)


def test_shipped_baselines_can_be_read() -> None:
    files = sorted(FOLDER.iterdir())
    assert len(files) > 2
    for path in files:
        assert read_toml(path) if path.suffix == ".toml" else read_json(path, 1)


def test_baseline_knows_by_content_and_not_by_line() -> None:
    one = Finding("values", "a.csv", 3, "time is not positive", "M=16", "us 0")
    moved = Finding("values", "a.csv", 9, "time is not positive", "M=16", "us 0")
    other = Finding("values", "a.csv", 3, "time is not positive", "M=32", "us 0")
    key = ("values", "a.csv", "time is not positive")
    reviewed = Baseline({key: entry(key, [one], "looked at")}, {})
    assert not compare([moved], reviewed, ["values"]).new
    assert compare([other], reviewed, ["values"]).new
    assert compare([one, other], reviewed, ["values"]).new
    assert compare([one], Baseline({key: entry(key, [one])}, {}), ["values"]).new, "an entry without a note"
    assert [known.reason for known in compare([], reviewed, ["values"]).gone] == ["time is not positive"]
    assert not compare([], reviewed, ["merge"]).gone
    here = replace(reviewed, versions={"pytest": version_of("pytest")})
    for found, known, told in (
        ([one], here, ""),
        ([other], here, "1 x time is not positive, first at a.csv:3: M=32"),
        ([], here, "1 x time is not positive in a.csv: reviewed in these versions and not found any more"),
        ([], replace(here, versions={"pytest": "0"}), ""),
    ):
        (judgement,) = judge_rule(rule_named("values"), compare(found, known, ["values"]), known)
        assert (judgement.holds, judgement.message[: len(told)]) == (not told, told)


def test_shipped_baseline_is_reviewed() -> None:
    entries = read_baseline(shipped_baseline()).entries.values()
    assert entries
    assert all(one.note and one.count > 0 for one in entries)
    assert {one.rule for one in entries} <= {one.name for one in RULES}
