from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waveproof.reports.verdicts import Failure, Record, Verdict
from waveproof.reports.waivers import BadWaiver, Waiver, expired, load_waivers, stale, waive, waiver_for
from waveproof.selftest.example_records import FILE, VERSIONS, failing, passing

TODAY = date(2026, 10, 1)
LATER = date(2027, 6, 30)
REASON = "Upstream reads k <= 0 as k = 1."
CASE = f"{FILE}::test_top_k_edges[top_k_renorm_prob-sglang-interpret-k=-1]"


def waiver(pattern: str = CASE, **changes: Any) -> Waiver:
    return Waiver(**{"id": pattern, "reason": REASON, "expires": LATER, **changes})


def sglang(identity: str = CASE, **changes: Any) -> Record:
    return failing(**{"id": identity, "provider": "sglang", "runtime": "interpret", **changes})


def write(folder: Path, text: str) -> Path:
    path = folder / "waivers.toml"
    path.write_text(text, encoding="utf-8")
    return path


# The file


def test_a_full_entry_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"""
        [[waiver]]
        id = "{CASE}"
        reason = "{REASON}"
        link = "sgl-project/sglang#12345"
        expires = 2027-06-30
        arch = "gfx942"
        versions = {{ sglang = "<=0.5.23" }}
        """,
    )
    expected = waiver(link="sgl-project/sglang#12345", arch="gfx942", versions={"sglang": "<=0.5.23"})
    assert load_waivers(path) == (expected,)
    assert expected.why == f"{REASON} (sgl-project/sglang#12345)"


def test_no_file_is_no_waiver(tmp_path: Path) -> None:
    assert load_waivers(tmp_path / "waivers.toml") == ()


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "waivers.toml"
    path.write_bytes(b"\xef\xbb\xbf# nothing is waived\n")
    assert load_waivers(path) == ()


def test_every_error_of_a_file_is_reported_with_its_place(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"""owner = "me"
[[waiver]]
id = "{CASE}"
reason = "{REASON}"
expires = 2027-06-30

[[waiver]]
id = "*"
reason = "flaky"

# a comment
[[waiver]]
id = "{FILE}::test_x"
reason = "{REASON}"
expires = "2027-06-30"
until = 2027-06-30
""",
    )
    with pytest.raises(BadWaiver) as caught:
        load_waivers(path)
    assert {(problem.where, problem.key) for problem in caught.value.problems} == {
        ("waivers.toml", "owner"),
        ("waivers.toml:7, waiver 2", "id"),
        ("waivers.toml:7, waiver 2", "reason"),
        ("waivers.toml:7, waiver 2", "expires"),
        ("waivers.toml:12, waiver 3", "expires"),
        ("waivers.toml:12, waiver 3", "until"),
    }
    assert len(str(caught.value).splitlines()) == 6


def test_places_do_not_lie_where_text_looks_like_an_entry(tmp_path: Path) -> None:
    reason = f'"""\n{REASON}\n[[waiver]]\n"""'
    path = write(tmp_path, f'[[waiver]]\nid = "*"\nreason = {reason}\nexpires = 2027-06-30\n')
    with pytest.raises(BadWaiver, match=r"^waivers\.toml, waiver 1: id"):
        load_waivers(path)


def test_one_case_cannot_be_waived_twice_in_the_same_words(tmp_path: Path) -> None:
    entry = f'[[waiver]]\nid = "{CASE}"\nreason = "{REASON}"\nexpires = 2027-06-30\n'
    with pytest.raises(BadWaiver, match=r"waivers\.toml:5, waiver 2: .* twice, first at waivers\.toml:1, waiver 1"):
        load_waivers(write(tmp_path, entry * 2))


@pytest.mark.parametrize("text", ["[waiver]\nid = 'x'\n", "waiver = [1]\n", "[[waiver]\n", "a = \n"])
def test_what_is_not_a_list_of_entries_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadWaiver, match=r"waivers\.toml"):
        load_waivers(write(tmp_path, text))


# The entry


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("id", ""),
        ("id", "*"),
        ("id", "conformance/*"),
        ("id", f"{FILE}::*"),
        ("id", f"{FILE}::*[*]"),
        ("id", 3),
        ("reason", ""),
        ("reason", "flaky"),
        ("reason", "a b c d e"),
        ("reason", "incomprehensibilities"),
        ("link", "http://example.org/1"),
        ("link", "https://"),
        ("link", "https://[example"),
        ("link", "https://example.org/a b"),
        ("link", "javascript:alert(1)"),
        ("link", "sglang#12"),
        ("link", "sgl-project/sglang#"),
        ("arch", "MI300X"),
        ("arch", "gfx9*"),
        ("expires", "2027-06-30"),
        ("expires", None),
        ("versions", "sglang<=0.5.23"),
        ("versions", {"sglang": "0.5.23"}),
        ("versions", {"sglang": ""}),
        ("versions", {"sglang": 1}),
    ],
)
def test_a_bad_entry_is_refused_with_value_and_rule(key: str, value: object) -> None:
    entry: dict[str, Any] = {"id": CASE, "reason": REASON, "expires": LATER, key: value}
    with pytest.raises(BadWaiver) as caught:
        Waiver(**entry)
    (problem,) = caught.value.problems
    assert problem.key.partition(".")[0] == key
    assert repr(problem.value) in str(caught.value)
    assert problem.rule in str(caught.value)


def test_a_time_is_no_date() -> None:
    with pytest.raises(BadWaiver, match="without quotes or time"):
        waiver(expires=datetime(2027, 6, 30))


@pytest.mark.parametrize("link", ["https://github.com/a/b/issues/1", "ROCm/aiter#1", ""])
def test_good_links_are_accepted(link: str) -> None:
    assert waiver(link=link).link == link


# The pattern


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        (CASE, True),
        (f"{FILE}::test_top_k_edges[*-k=-1]", True),
        (f"{FILE}::test_top_k_*[top_k_renorm_prob-sglang-*]", True),
        ("*[top_k_renorm_prob-sglang-*]", True),
        (CASE.replace("k=-1]", "k=?1]"), False),  # fnmatch: any character
        (CASE.replace("k=-1]", "k=[-]1]"), False),  # fnmatch: a class
        (CASE.replace(".py", "-py"), False),  # a regular expression: any character
        (CASE.upper(), False),
        (CASE[1:], False),
        (CASE[:-1], False),
        (CASE + " ", False),
    ],
)
def test_only_the_star_is_special(pattern: str, matches: bool) -> None:
    assert waiver(pattern).covers(CASE, "", {}) is matches


def test_many_stars_stay_fast() -> None:
    assert not waiver("*[" + "*a" * 12 + "**" * 30 + "]").covers("[" + "a" * 3000, "", {})


@given(st.text(alphabet="ab[]?*!-.\\^$(){}|+\n", max_size=12), st.text(alphabet="ab[]?*!-.\\^$(){}|+\n", max_size=12))
def test_a_pattern_without_stars_matches_itself_alone(pattern: str, other: str) -> None:
    pattern = "::x" + pattern.replace("*", "")
    assert waiver(pattern).covers(pattern, "", {})
    assert waiver(pattern).covers("::x" + other, "", {}) is (pattern == "::x" + other)


@given(st.lists(st.text(alphabet="ab[]?-", max_size=4), min_size=2, max_size=5), st.text(alphabet="ab[]?-", max_size=6))
def test_a_star_matches_any_run(parts: list[str], run: str) -> None:
    assert waiver("::x" + "*".join(parts)).covers("::x" + run.join(parts), "", {})


# Where it applies


@pytest.mark.parametrize(
    ("arch", "applies"), [("gfx942", True), ("gfx942:sramecc+:xnack-", True), ("gfx950", False), ("", False)]
)
def test_a_waiver_of_an_arch_holds_only_there(arch: str, applies: bool) -> None:
    assert waiver(arch="gfx942").covers(CASE, arch, {}) is applies
    assert waiver().covers(CASE, arch, {})


@pytest.mark.parametrize(
    ("specifier", "installed", "applies"),
    [
        ("<=0.5.23", "0.5.23", True),
        ("<=0.5.23", "0.5.24", False),
        ("<0.1.8", "0.1.7.post2.dev18", True),
        ("<=2.13.0", "2.13.0+cpu", True),
        (">=1,<2", "not a version", False),
        (">=0", "", False),
    ],
)
def test_a_waiver_holds_only_for_its_versions(specifier: str, installed: str, applies: bool) -> None:
    assert waiver(versions={"amd-aiter": specifier}).applies_to({"Amd_Aiter": installed}) is applies


def test_a_package_that_is_not_there_satisfies_no_specifier() -> None:
    assert not waiver(versions={"sglang": ">=0"}).applies_to({})


def test_two_waivers_of_one_case_are_an_error_that_names_both() -> None:
    both = [waiver(), waiver("*[top_k_renorm_prob-sglang-*]")]
    with pytest.raises(BadWaiver) as caught:
        waiver_for(both, CASE, "", {}, TODAY)
    assert all(repr(entry.id) in str(caught.value) for entry in both)


def test_waivers_that_do_not_apply_here_do_not_collide() -> None:
    valid = waiver()
    others = [waiver("*[top_k_*]", arch="gfx942"), waiver("*[top_k_*]", versions={"sglang": "<0.5"})]
    past = waiver("*[top_k_*]", expires=date(2026, 9, 30))
    assert waiver_for([*others, past, valid], CASE, "", VERSIONS, TODAY) is valid
    assert waiver_for([*others, past], CASE, "", VERSIONS, TODAY) is None


def test_a_waiver_is_valid_through_its_last_day() -> None:
    last = waiver(expires=TODAY)
    assert waiver_for([last], CASE, "", {}, TODAY) is last
    assert expired([last], TODAY) == ()
    assert expired([last], date(2026, 10, 2)) == (last,)


# What it does to a record


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.CRASH, Verdict.TIMEOUT])
def test_red_becomes_waived_and_keeps_its_failure(verdict: Verdict) -> None:
    red = sglang(verdict=verdict)
    waived = waive(red, [waiver(link="ROCm/aiter#1")], TODAY)
    assert (waived.verdict, waived.waiver, waived.reason) == (Verdict.WAIVED, CASE, f"{REASON} (ROCm/aiter#1)")
    assert waived.failure == red.failure


def test_a_waived_pass_is_red() -> None:
    record = waive(passing(CASE), [waiver()], TODAY)
    assert record.verdict is Verdict.FAIL
    assert isinstance(record.failure, Failure)
    assert CASE in record.failure.message


@pytest.mark.parametrize("verdict", [Verdict.UNAVAILABLE, Verdict.INCONCLUSIVE])
def test_what_was_not_judged_stays(verdict: Verdict) -> None:
    record = passing(CASE, verdict=verdict, reason="no AMD GPU")
    assert waive(record, [waiver()], TODAY) == record


def test_a_red_record_without_a_waiver_stays() -> None:
    record = sglang()
    assert waive(record, [waiver(CASE.replace("k=-1", "k=0"))], TODAY) == record


# Staleness

NEIGHBOUR = CASE.replace("k=-1", "k=3")


def judged_stale(entry: Waiver, *records: Record, deselected: tuple[str, ...] = ()) -> bool:
    return stale([entry], records, TODAY, {record.id for record in records}, deselected) == (entry,)


def test_stale_when_its_subject_ran_and_nothing_matched() -> None:
    assert judged_stale(waiver(), sglang(NEIGHBOUR))


def test_not_stale_when_it_matched() -> None:
    assert not judged_stale(waiver(), sglang(NEIGHBOUR), sglang())


@pytest.mark.parametrize(
    "pattern",
    [
        f"{FILE}::test_renamed[top_k_renorm_prob-sglang-interpret]",
        f"{FILE}::test_top_k_edges[top_k_renorm_prob-sglang-interpret-k=-2]",
        "*[top_k_renorm_prob-sglang-*-k=-2]",
        "*::test_renamed[top_k_renorm_prob-*]",
        "conformance/*[*-sglang-interpret-k=-2]",
    ],
)
def test_stale_whatever_part_of_the_case_is_gone(pattern: str) -> None:
    assert judged_stale(waiver(pattern), sglang(NEIGHBOUR))


@pytest.mark.parametrize(
    "pattern",
    [
        CASE.replace("sglang", "aiter"),
        CASE.replace("interpret", "compile-gfx942"),
        CASE.replace("interpret", "interpreter"),
        CASE.replace("top_k_renorm_prob", "target_probs"),
        CASE.replace("test_renorm.py", "test_symbols.py"),
        "*[target_probs-*-k=-2]",
        f"{FILE}::test_top_k_edges[top_k_renorm_prob-torch-*]",
        f"{FILE}::test_target_*",
    ],
)
def test_not_judged_when_other_subjects_ran(pattern: str) -> None:
    assert not judged_stale(waiver(pattern), sglang(NEIGHBOUR))


def test_not_judged_when_its_cases_were_left_out() -> None:
    assert not judged_stale(waiver(), sglang(NEIGHBOUR), deselected=(CASE,))


def test_not_judged_when_its_subject_was_unavailable() -> None:
    assert not judged_stale(waiver(), sglang(NEIGHBOUR, verdict=Verdict.UNAVAILABLE, reason="none", failure=None))


def test_not_judged_when_single_cases_were_asked_for() -> None:
    assert stale([waiver()], [sglang(NEIGHBOUR)], TODAY, executed=()) == ()


@pytest.mark.parametrize(
    ("conditions", "judged"),
    [
        ({"arch": "gfx942"}, True),
        ({"arch": "gfx950"}, False),
        ({"versions": {"sglang": "==0.5.23"}}, True),
        ({"versions": {"sglang": ">0.5.23"}}, False),
    ],
)
def test_judged_only_on_its_arch_and_versions(conditions: dict[str, Any], judged: bool) -> None:
    subject = "top_k_renorm_prob-sglang-compile-gfx942"
    ran = sglang(f"{FILE}::test_compiles[{subject}-rows=4]", runtime="compile", arch="gfx942")
    assert judged_stale(waiver(f"{FILE}::test_compiles[{subject}-rows=5]", **conditions), ran) is judged


def test_a_gpu_tells_its_arch_in_the_record_but_not_in_the_id() -> None:
    ran = sglang(NEIGHBOUR.replace("interpret", "hip"), runtime="hip", arch="gfx942:sramecc+:xnack-")
    assert judged_stale(waiver(CASE.replace("interpret", "hip"), arch="gfx942"), ran)


def test_cases_without_a_subject_are_judged_by_their_file() -> None:
    plain = {"operator": "", "provider": "", "runtime": "", "failure": None, "verdict": Verdict.PASS}
    bare = sglang("conformance/test_symbols.py::test_imports", **plain)
    symbol = sglang("conformance/test_symbols.py::test_bound[top_k_renorm_prob]", **plain)
    assert judged_stale(waiver("conformance/test_symbols.py::test_gone"), bare)
    assert judged_stale(waiver("conformance/test_symbols.py::test_bound[gone]"), symbol)
    assert not judged_stale(waiver("conformance/test_dispatch.py::test_gone"), bare, symbol)


def test_an_expired_waiver_is_expired_not_stale() -> None:
    past = waiver(expires=date(2026, 9, 30))
    assert not judged_stale(past, sglang(NEIGHBOUR))
    assert expired([past, waiver()], TODAY) == (past,)
