"""Static coverage of code objects, and the command that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from waveproof.kernels.runtimes.emulate.coverage import Examiner, examine
from waveproof.kernels.runtimes.emulate.survey import NoCodeObjects, by_family, locate, survey
from waveproof.reports.cli_emulate import app
from waveproof.selftest.emulate.tiny_code_object import code_object, code_object_bytes

# v_mov_b32 v1, 0; s_rfe_b64; v_add_u32 v0, literal (which looks like s_rfe_b64); s_rfe_b64; s_endpgm
MISSING = [0x7E020280, 0xBE801F00, 0x680000FF, 0xBE801F00, 0xBE801F00, 0xBF810000]
COVERED = [0x7E020280, 0x680000FF, 0xBE801F00, 0xBF810000]


def test_what_is_missing_is_counted_and_the_first_is_named() -> None:
    found = examine(code_object(MISSING))
    assert (found.instructions, found.undecoded, found.handled) == (5, 0, 3)
    assert found.unhandled == {"S_RFE_B64": 2}
    assert found.reasons == {"S_RFE_B64": "S_RFE_B64 is not implemented for gfx950"}
    assert found.first is not None
    assert (found.first.address, found.first_missing) == (4, 4)
    assert found.first.text.startswith("s_rfe_b64")
    assert not found.complete
    assert found.share == pytest.approx(3 / 5)


def test_full_coverage() -> None:
    found = examine(code_object(COVERED))
    assert found.complete
    assert (found.instructions, found.share, found.first_missing) == (3, 1.0, None)


def test_words_that_do_not_decode() -> None:
    found = examine(code_object([0x7E020280, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xBF810000]))
    assert (found.instructions, found.undecoded, found.handled) == (2, 3, 2)
    assert found.first is not None
    assert (found.first.address, found.first.text) == (4, "word ffffffff")


def test_an_instruction_of_the_other_architecture_is_missing() -> None:
    # v_bitop3_b32 v0, v1, v2, v3 bitop3:0x2: gfx950 only
    words = [0xD2340000, 0x440E0501, 0xBF810000]
    assert examine(code_object(words, "gfx950")).complete
    assert examine(code_object(words, "gfx942")).unhandled == {"V_BITOP3_B32": 1}


def test_what_was_met_before_is_judged_alike() -> None:
    examiner = Examiner("gfx950")
    for words in (MISSING, COVERED, MISSING, [0x680000FF, 0x7E020280, *MISSING]):
        assert examiner.examine(code_object(words)) == examine(code_object(words))


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """Two families of two architectures, and a file that is no code object."""
    for name, words, arch in (
        ("gfx950/first/a.co", COVERED, "gfx950"),
        ("gfx950/first/deeper/b.hsaco", MISSING, "gfx950"),
        ("gfx942/first/c.co", COVERED, "gfx942"),
        ("gfx942/second/d.co", COVERED, "gfx942"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(code_object_bytes(words, arch))
    (tmp_path / "gfx942/second/broken.co").write_bytes(b"no code object")
    return tmp_path


def test_families(shipped: Path) -> None:
    source = locate(str(shipped))
    examined = list(survey(source.files))
    rows = [(f.name, f.arch, f.objects, f.complete, f.instructions) for f in by_family(examined, source.root)]
    assert rows == [
        ("first", "gfx942", 1, 1, 3),
        ("first", "gfx950", 2, 1, 8),
        ("second", "gfx942", 1, 1, 3),
    ]
    assert [one.path.name for one in examined if one.coverage is None] == ["broken.co"]


def test_processes_change_nothing(shipped: Path) -> None:
    files = locate(str(shipped)).files * 2
    assert list(survey(files, 2)) == list(survey(files, 1))


def test_nothing_to_examine(tmp_path: Path) -> None:
    with pytest.raises(NoCodeObjects, match="holds no"):
        locate(str(tmp_path))
    with pytest.raises(NoCodeObjects, match="no file, folder, installed distribution or package"):
        locate("no-such-distribution")


def test_the_command(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    table = CliRunner().invoke(app, ["coverage", str(shipped), "--objects", "--processes", "1"])
    assert table.exit_code == 0, table.output
    row = next(line for line in table.output.splitlines() if "first" in line and "gfx950" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        "first", "gfx950", "2", "1", "8", "100", "75.00"
    ]  # fmt: skip
    assert "missing in first (gfx950): S_RFE_B64 2" in table.output
    assert "3 of 4 code objects are covered completely" in table.output
    assert "not loaded: gfx942/second/broken.co: broken.co: no 64-bit ELF file" in table.output
    assert "gfx950/first/deeper/b.hsaco: .text+0x4: s_rfe_b64" in table.output
    single = CliRunner().invoke(app, ["coverage", str(shipped / "gfx950/first/deeper/b.hsaco")])
    assert "b.hsaco: gfx950, 1 kernels, 5 instructions" in single.output
    assert "decoded 100, handled 60.00" in single.output
    assert "2 S_RFE_B64: S_RFE_B64 is not implemented for gfx950" in single.output
    assert "=> 0x0004: s_rfe_b64" in single.output
