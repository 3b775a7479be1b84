"""The ledger of baselines, its keys, and how a test ends that holds figures against it. Faults: mutants/ledger.py."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from waveproof.fixtures.inspection import Inspection
from waveproof.golden.judges.judgement import Nonconformance
from waveproof.perf.conftest import _refuse
from waveproof.perf.history import History
from waveproof.perf.ledger import BadLedger, Ledger, NotAccepted, accept, verify
from waveproof.perf.night import Night
from waveproof.perf.records import EXIT_STATUS, Measurement, Ruling, from_json
from waveproof.perf.run_files import read_runs, results_text
from waveproof.perf.signers import BadSigner, load_private_key, load_signers, make_key, needs_password, public_line
from waveproof.reports.cli_perf_ledger import app, entries_section
from waveproof.reports.sections import Picture, Section, Table, section_fields, section_of
from waveproof.reports.verdicts import read_records
from waveproof.selftest.mutants.ledger import (
    ELSEWHERE,
    FIRST,
    Books,
    books,
    count,
    creeping,
    edit,
    key_of,
    last_line,
    times,
)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def made() -> Iterator[Books]:
    with books() as ledger:
        yield ledger


def test_an_entry_says_both_figures_who_and_why(made: Books) -> None:
    first, second, _ = Ledger.load(made.path, made.signers).entries
    assert (first.old, first.measurement.values) == (None, (8840.0,))
    assert (second.old, second.measurement.values) == ((8840.0,), (8776.0,))
    assert (second.signer, second.reason, second.line) == ("ann", "two barriers fewer, see the change", 3)


def test_what_stands_is_never_rewritten(made: Books) -> None:
    before = made.path.read_bytes()
    made.accept(count(8700.0), "one more barrier is gone")
    assert made.path.read_bytes().startswith(before)
    assert len(made.lines) == 5


def test_an_unchanged_figure_makes_no_entry(made: Books) -> None:
    assert made.accept(count(8776.0), "accepted once more by mistake") == ()
    (anchored,) = made.accept(count(8776.0), "drift is counted anew from here", anchor=True)
    assert anchored.anchor
    assert Ledger.load(made.path, made.signers).anchor(count(0.0)) == anchored


def test_a_baseline_is_of_the_same_versions_where_there_is_one(made: Books) -> None:
    made.accept(count(9000.0, place=ELSEWHERE), "Triton 3.10 unrolls once more")
    ledger = Ledger.load(made.path, made.signers)
    here, elsewhere = ledger.baseline(count(0.0)), ledger.baseline(count(0.0, place=ELSEWHERE))
    assert here is not None
    assert elsewhere is not None
    assert (here.measurement.values, elsewhere.measurement.values) == ((8776.0,), (9000.0,))
    assert here.changed_versions(ELSEWHERE) == ("triton 3.9.0 -> 3.10.0",)
    assert elsewhere.old == (8776.0,), "of the figure that it was held against"
    assert ledger.baseline(count(0.0, "unheard of")) is None


def test_every_problem_is_named_with_its_line(made: Books) -> None:
    edit(1, new=[1.0])(made)
    with pytest.raises(BadLedger) as raised:
        Ledger.load(made.path, made.signers)
    assert [(one.line, one.rule) for one in raised.value.problems] == [
        (2, "signature"), (3, "chain"), (3, "old figure")
    ]  # fmt: skip
    assert str(raised.value).startswith("ledger.jsonl:2: the signature is not one of ann under this line")


def test_nothing_is_appended_to_a_ledger_that_is_not_whole(made: Books) -> None:
    edit(1, new=[1.0])(made)
    before = made.path.read_bytes()
    with pytest.raises(BadLedger):
        made.accept(count(5.0), "a reason of several words")
    assert made.path.read_bytes() == before


def test_all_or_none(made: Books) -> None:
    before = made.path.read_bytes()
    twice = [count(1.0), count(2.0, "other"), count(3.0)]
    with pytest.raises(NotAccepted, match="given 2 times"):
        accept(twice, "a reason of several words", made.key, path=made.path, signers=made.signers)
    with pytest.raises(NotAccepted, match="at least 3 words"):
        made.accept(count(5.0), "because")
    with pytest.raises(NotAccepted, match="nothing"):
        accept([], "a reason of several words", made.key, path=made.path, signers=made.signers)
    with pytest.raises(BadSigner, match="not in signers"):
        accept([count(5.0)], "a reason of several words", made.stranger, path=made.path, signers=made.signers)
    assert made.path.read_bytes() == before


def test_writers_wait_for_each_other(made: Books) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: made.accept(count(n, f"case-{n}"), "one of several at once"), range(8)))
    assert made.problems() == ()
    assert len(made.lines) == 12


def test_a_ledger_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert Ledger.load(tmp_path / "none.jsonl", tmp_path / "none").entries == ()
    assert verify(tmp_path / "none.jsonl", tmp_path / "none") == ()


def test_the_suites_own_ledger_holds() -> None:
    assert verify() == ()
    assert Ledger.load().entries, "an empty one would hold too"


def test_a_key_is_its_owners_alone(tmp_path: Path) -> None:
    line = make_key("ann", tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert public_line(load_private_key(tmp_path / "key"), "ann") == line
    assert not needs_password(tmp_path / "key")
    with pytest.raises(FileExistsError):
        make_key("ann", tmp_path / "key")
    with pytest.raises(BadSigner, match="one word"):
        make_key("ann lee", tmp_path / "other")


def test_a_key_with_a_passphrase(tmp_path: Path) -> None:
    pytest.importorskip("bcrypt", reason="OpenSSH's encrypted keys need it")
    line = make_key("ann", tmp_path / "key", b"correct horse")
    assert needs_password(tmp_path / "key")
    assert public_line(load_private_key(tmp_path / "key", b"correct horse"), "ann") == line
    for wrong in (None, b"battery staple"):
        with pytest.raises(BadSigner, match="passphrase"):
            load_private_key(tmp_path / "key", wrong)


@pytest.mark.parametrize(
    ("text", "rule"),
    [("ann ssh-ed25519", "2: a line is NAME"), ("ann ssh-ed25519 AAAA", "2: a line is NAME"),
     ("bob " + key_of("ann")[1][4:], "2: bob has the key of ann")],
    ids=["no-key", "no-base64", "key-of-another"],  # keys are made anew in each process
)  # fmt: skip
def test_signers_that_cannot_be_read(tmp_path: Path, text: str, rule: str) -> None:
    (tmp_path / "signers").write_text(f"{key_of('ann')[1]} ann@example\n{text}\n")
    with pytest.raises(BadSigner, match=rule):
        load_signers(tmp_path / "signers")


@pytest.mark.parametrize(
    ("measured", "ends", "told"),
    [
        (count(8777.0), "fails", "regress: mla_decode/aiter/decode: worse"),
        (count(8775.0), "fails", "improve: .* ledger accept perf.json --case mla_decode/aiter/decode"),
        (count(1.0, "new"), "fails", "stale: .* no baseline of this case, .*: wave_instructions 1; .* accept"),
        (
            count(8776.0, place=ELSEWHERE),
            "inconclusive",
            r"baseline of other versions .* \(triton 3.9.0 -> 3.10.0\)$",
        ),
        (times(1e-3, ELSEWHERE), "inconclusive", "no baseline for emulate gfx950 with these versions$"),
        (count(8776.0), "passes", ""),
    ],
)
def test_how_a_test_ends(made: Books, measured: Measurement, ends: str, told: str) -> None:
    night = Night(made.path, made.signers, Path("perf.json"), inspection=Inspection())
    night.hold(measured)
    assert night.inspection is not None
    assert night.inspection.looked_at == 1
    if ends == "passes":
        night.settle()
    else:
        failure = Nonconformance if ends == "fails" else pytest.skip.Exception
        with pytest.raises(failure, match=told):
            night.settle()
    night.settle()  # the next test starts with nothing
    strict = Night(made.path, made.signers, strict=True)
    strict.hold(measured)
    if ends != "passes":
        with pytest.raises(Nonconformance):
            strict.settle()


def test_the_gravest_of_a_test_decides_and_all_is_on_record(made: Books) -> None:
    night = Night(made.path, made.signers)
    night.hold_all([count(8776.0), count(101.0, "other"), count(8000.0, place=ELSEWHERE), count(1.0, "new")])
    with pytest.raises(Nonconformance, match=r"regress: mla_decode/aiter/other.*\(and 1 more of this test\)"):
        night.settle()
    left = night.take()
    assert [one["ruling"]["against"] for one in left if "ruling" in one].count("anchor") == 2, (
        "where there is an older one"
    )
    assert [one.values for item in left if "measurement" in item for one in from_json(item["measurement"])] == [
        (8776.0,), (101.0,), (8000.0,), (1.0,)
    ]  # fmt: skip
    json.dumps(left, allow_nan=False)


def test_drift_adds_up_over_accepted_steps(made: Books) -> None:
    steps = creeping()
    for number, step in enumerate(steps):
        night = Night(made.path, made.signers)
        ruling = night.hold(step)
        assert ruling.outcome == "regress"
        made.accept(step, f"accepted step number {number + 1}")
    night = Night(made.path, made.signers)
    ruling = night.hold(steps[-1])
    assert (ruling.outcome, ruling.against) == ("regress", "anchor")
    assert "8840 -> wave_instructions 9883" in ruling.reason
    made.accept(steps[-1], "paid for by the new layout", anchor=True)
    assert Night(made.path, made.signers).hold(steps[-1]).outcome == "pass"


def test_rulings_of_pairs_count(made: Books) -> None:
    night = Night(made.path, made.signers)
    night.rule(Ruling("pair", "ratio", "inconclusive", 1.0, 0.9, 1.1, 0.999, 0.02, "too few pairs"))
    with pytest.raises(pytest.skip.Exception, match="too few pairs"):
        night.settle()
    assert EXIT_STATUS["inconclusive"] == 3


def test_a_section_comes_back_as_it_was() -> None:
    table = Table("t", ("a", "b"), (("1", "2"),), "note", (1,))
    section = Section("title", "lead", (table,), (Picture("p", b"\x89PNG", "caption"),), ("careful",))
    assert section_of(json.loads(json.dumps(section_fields(section)))) == section


def test_a_remembered_line_must_be_there(made: Books) -> None:
    remembered = last_line(made)
    made.accept(count(1.0, "new"), "a new case is counted")
    assert made.problems(remembered) == ()
    made.write(made.lines[:3])
    (problem,) = made.problems(remembered)
    assert (problem.rule, problem.line) == ("removed", 3)


@pytest.mark.parametrize("spoilt", ["ledger", "missing ledger", "signers", "history", "results"])
def test_a_session_refuses_first_what_it_could_not_end_with(made: Books, tmp_path: Path, spoilt: str) -> None:
    option = Namespace(
        perf_ledger=made.path, perf_results=tmp_path / "new" / "r.json", perf_history=None, collectonly=False
    )
    _refuse(option, Night(made.path, made.signers))
    if spoilt == "ledger":
        made.write(made.lines[:-1], "")
    elif spoilt == "missing ledger":
        option.perf_ledger = tmp_path / "typo.jsonl"
    elif spoilt == "signers":
        made.signers.write_bytes(b"\xff\xfe")
    elif spoilt == "history":
        option.perf_history = made.path
    else:
        option.perf_results = made.path / "r.json"
    with pytest.raises(pytest.UsageError):
        _refuse(option, Night(made.path, made.signers))


def accepted(made: Books, *options: str) -> Result:
    results = made.path.with_name("r.json")
    results.write_text(results_text((count(1.0, "new"), times(1e-3)), (), FIRST))
    files = [str(results), "--key", str(made.key), "--ledger", str(made.path), "--signers", str(made.signers)]
    command = ["accept", *files, "--reason", "a new case is counted", *options]
    return CliRunner().invoke(app, command, catch_exceptions=False)


def test_times_are_signed_where_they_are_asked_for(made: Books) -> None:
    told = accepted(made)
    assert "1 noisy figure left out" in told.output
    assert "entries added: 1, figures unchanged: 0" in told.output
    with pytest.raises(NotAccepted, match="reason"):
        accepted(made, "--reason", "two words")
    assert "entries added: 1, figures unchanged: 1" in accepted(made, "--timings").output
    assert "entries added: 0, figures unchanged: 1" in accepted(made, "--quantity", "time").output


def test_what_all_entries_share_is_said_once(made: Books) -> None:
    entries = Ledger.load(made.path, made.signers).entries
    section = entries_section(entries, "entries")
    assert "signer: ann" in section.lead.splitlines()
    assert section.tables[0].columns == ("line", "case", "quantity", "old", "new", "reason")
    (whole,) = entries_section(entries[:1], "one").tables
    assert "signer" in whole.columns


def test_an_empty_ledger_is_shown_in_a_sentence(made: Books) -> None:
    made.write(made.lines[:1])
    shown = CliRunner().invoke(app, ["show", "--ledger", str(made.path), "--signers", str(made.signers)])
    assert shown.output == "ledger.jsonl: the ledger is empty\n"


def test_a_key_that_is_there_stays(made: Books) -> None:
    before = made.key.read_bytes()
    with pytest.raises(BadSigner, match="never overwritten"):
        CliRunner().invoke(app, ["key", "ann", "--out", str(made.key)], catch_exceptions=False)
    assert made.key.read_bytes() == before


HELD = """
from waveproof.selftest.mutants.ledger import ELSEWHERE, count
import pytest

@pytest.fixture(scope="module")
def early(night):
    return night.hold(count(101.0, "other"))

def test_same(night): night.hold(count(8776.0))
def test_better(night): night.hold(count(8775.0))
def test_other_versions(night): night.hold(count(8776.0, place=ELSEWHERE))
def test_early(early): pass
def test_nothing_held(night): pass
def test_otherwise(night):
    night.hold(count(8775.0))
    assert not "what the test says itself"
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_session_writes_what_its_tests_held(made: Books, tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_held.py").write_text(HELD)
    command = [sys.executable, "-m", "pytest", str(tmp_path / "test_held.py"), "-q", "-n", processes]
    command += ["-c", str(ROOT / "pyproject.toml"), "-p", "waveproof.fixtures.plugin", "-p", "waveproof.perf.conftest"]
    command += [f"--perf-ledger={made.path}", f"--perf-results={tmp_path / 'r.json'}", "-p", "no:cacheprovider"]
    command += [f"--perf-history={tmp_path / 'h.db'}", f"--results={tmp_path / 'records.jsonl'}", f"--rootdir={ROOT}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    verdicts = {record.test: record.verdict.value for record in read_records(tmp_path / "records.jsonl")}
    assert verdicts == {
        "test_same": "pass", "test_better": "fail", "test_other_versions": "inconclusive", "test_early": "fail",
        "test_nothing_held": "inconclusive", "test_otherwise": "fail",
    }  # fmt: skip
    (run,) = read_runs(tmp_path / "r.json")
    assert len(run.measurements) == 5
    assert run.ledger_head == last_line(made)
    with History(tmp_path / "h.db") as history:
        assert history.runs() == (run,)
    document = json.loads((tmp_path / "r.json").read_text())
    assert [one.rpartition("::")[2] for one in document["broken"]] == ["test_otherwise"]
    assert "what the test says itself" in done.stdout, "the ruling does not hide another failure"
