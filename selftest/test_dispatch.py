"""The dispatch oracle on trial: its cache, its reading of sources, and its comparison.

Faults planted in dispatchers: ``selftest/mutants/dispatch.py``, run by ``test_planted.py``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from waveproof.fixtures.baselines import BadBaseline
from waveproof.fixtures.dispatch import confirm as confirmation
from waveproof.fixtures.dispatch import oracle
from waveproof.fixtures.dispatch.host_view import host_view
from waveproof.fixtures.dispatch.oracle import Answer, DispatchUnanswered, Question, ask, cache_key
from waveproof.fixtures.dispatch.rulings import FAST, Use, rule
from waveproof.fixtures.dispatch.sglang_backend import sglang_backend
from waveproof.fixtures.dispatch.sglang_choices import default_backend
from waveproof.fixtures.dispatch.sglang_imports import has_module, lacking
from waveproof.fixtures.dispatch.sglang_mla import take
from waveproof.fixtures.dispatch.snapshot import (
    Snapshot,
    changed_files,
    changes,
    compare,
    dumped,
    load,
    outcome,
)
from waveproof.fixtures.sglang_head_rule import SglangRuleNotFound, sglang_heads
from waveproof.kernels.runtimes.catalogue import installed as is_installed
from waveproof.kernels.runtimes.emulate.host_build import HostBuildFailed, HostBuildUnavailable, aiter_installation
from waveproof.reports.cli import app
from waveproof.selftest.mutants.dispatch import MLA, OBJECTS, REBUILT, AnchorGone, Edit, overlay


def has_aiter() -> bool:
    try:
        aiter_installation()
    except HostBuildUnavailable:
        return False
    return True


needs_both = pytest.mark.skipif(not (has_aiter() and is_installed("sglang")), reason="amd-aiter and sglang")


@needs_both
@pytest.mark.slow
def test_planted_in_host_code() -> None:
    assert REBUILT.due in REBUILT.broken()


@needs_both
def test_another_source_of_the_same_version_has_another_key(tmp_path: Path) -> None:
    names = [MLA, f"{OBJECTS}/mla_pfl_bf16_a16w16_causal_subQ16_mqa16.co"]
    keys = {cache_key("gfx950")}
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        folder.mkdir()
        site = overlay({name: None if name.endswith(".co") else Edit("user interface", "interface")}, folder)
        keys.add(cache_key("gfx950", site))
    (tmp_path / "same").mkdir()
    keys.add(cache_key("gfx950", overlay({}, tmp_path / "same")))
    assert len(keys) == 1 + len(names)


@needs_both
def test_a_fault_that_cannot_be_planted_is_none(tmp_path: Path) -> None:
    with pytest.raises(AnchorGone, match="0 times"):
        overlay({MLA: Edit("a line that no release has", "")}, tmp_path)


@needs_both
def test_twelve_heads_in_the_shipped_words() -> None:
    question = Question("gfx950", "bf16", "bf16", 12)
    answer = ask([question])[question]
    assert (answer.accepted, answer.refusal, answer.refused_by) == (False, "nhead=12 not supported", "aiter/mla.py")
    line = int(answer.at.partition(":")[2])
    source = (aiter_installation().package / "mla.py").read_text().splitlines()[line - 1]
    assert "not supported" in source


@needs_both
def test_what_is_kept_and_cannot_be_read_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAVEPROOF_CACHE", str(tmp_path))
    kept = tmp_path / "dispatch" / f"gfx950-{cache_key('gfx950')}.json"
    kept.parent.mkdir()
    question = Question("gfx950", "bf16", "bf16", 12)
    right = Answer(question, False, refusal="nhead=12 not supported", refused_by="aiter/mla.py")
    monkeypatch.setattr(oracle, "_asked", lambda arch, questions, site: {one: right for one in questions})
    for text in (
        '{"answers": [{"accep',
        "[]",
        '{"answers": [], "questions": [["bf16", "bf16", 12, 1, false, 1, false, 3]]}',
    ):
        kept.write_text(text)
        assert ask([question]) == {question: right}
        assert len(json.loads(kept.read_text())["questions"]) == 1


@needs_both
@pytest.mark.slow
def test_a_dispatcher_that_does_not_load_is_told_in_a_line(tmp_path: Path) -> None:
    site = overlay({MLA: Edit("def mla_decode_fwd(", "def mla_decode_forward(")}, tmp_path)
    with pytest.raises(DispatchUnanswered, match="no attribute 'mla_decode_fwd'") as refused:
        ask([Question("gfx950", "bf16", "bf16", 12)], site)
    assert "\n" not in str(refused.value)


@needs_both
def test_a_process_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAVEPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr(oracle, "ANSWERED_WITHIN", 0.01)
    monkeypatch.setattr(confirmation, "ANSWERED_WITHIN", 0.01)
    question = Question("gfx950", "bf16", "bf16", 12)
    with pytest.raises(DispatchUnanswered, match=r"did not answer 1 questions within 0\.01 s"):
        ask([question])
    with pytest.raises(DispatchUnanswered, match=r"no answer after 0\.01 s"):
        confirmation.confirm([Answer(question, False)])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--queries", "0"], "--queries '0': is no list of numbers or ranges within 1-8"),
        (["--queries", "9"], "--queries '9'"),
        (["--check", "--accept"], "give one of them"),
        (["--json", "/nowhere/x.json"], "there is no folder /nowhere"),
    ],
)
def test_a_command_that_is_given_wrongly(options: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["dispatch", "--heads", "12", *options], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert words in done.output


@needs_both
def test_a_ruling_and_its_remedies() -> None:
    padded = rule(Use("gfx950", 12, "bf16", "decode", 1))
    assert (padded.state, padded.remedies) == ("padded", ())
    assert padded.question is not None
    assert padded.question.heads == 16
    unpadded = rule(Use("gfx950", 8, "bf16", "prefill", 5))
    assert unpadded.state == "error"
    assert unpadded.remedies
    for text in unpadded.remedies:
        if text.startswith("TP / 2"):
            assert rule(Use("gfx950", 16, "bf16", "prefill", 5)).state in FAST
    assert any(text.startswith("pad to 16") for text in unpadded.remedies)


@needs_both
def test_what_sglang_chooses_by_itself() -> None:
    assert [default_backend(heads)[0] for heads in (12, 16, 128)] == ["triton", "aiter", "aiter"]


@pytest.mark.skipif(not is_installed("sglang"), reason="sglang")
@pytest.mark.parametrize(
    ("kv_dtype", "phase"),
    [
        ("fp8", "decode"),
        ("bf16", "prefill"),
        pytest.param("bf16", "decode", marks=pytest.mark.slow),
        pytest.param("fp8", "prefill", marks=pytest.mark.slow),
    ],
)
def test_two_readings_of_the_head_rule_agree(kv_dtype: str, phase: str) -> None:
    """A few statements of the constructor, and the whole backend run to its call: the same heads, mode and refusal.

    They mean the same without DCP, at pages of a token, where AITER has no Gluon kernel. With it sglang prefers that
    for 12 heads and an fp8 cache, which the statements alone do not say.
    """
    rule_of_heads = sglang_heads()
    backend = replace(sglang_backend(), gluon=False)
    targets = set()
    for heads in range(1, 129):
        action = rule_of_heads.action(heads, kv_dtype == "fp8", phase == "prefill")
        taken = take(backend, "gfx950", heads, kv_dtype, phase, 1 if phase == "decode" else 4)
        assert taken.refusal == action.refusal, heads
        if taken.reached is None:
            assert action.target == 0, heads
        else:
            assert (taken.reached.heads, taken.reached.persistent) == (action.target, action.persistent), heads
            assert (taken.reached.padding == "none") == action.text.startswith("as it is"), heads
        targets.add(action.target)
    assert len(targets) > 2, "refused, as it is, padded: not all are met"


def test_what_aiter_lacks_of_what_is_imported(tmp_path: Path) -> None:
    backend = tmp_path / "aiter_backend.py"
    backend.write_text(
        "try:\n"
        "    from aiter import (\n        starred,\n        _private,\n        inner,\n        mla,\n    )\n"
        "    from aiter.mla import decode, prefill as p, conditional\n"
        "    from aiter.ops.gone import kernel\n"
        "    from elsewhere import anything\n"
        "except ImportError:\n    pass\n"
    )
    aiter = tmp_path / "aiter"
    (aiter / "ops").mkdir(parents=True)
    for name, text in {
        "__init__.py": "from .ops.deep import *\n",
        "ops/deep.py": "from ..other import *\n_private = 1\ndef outer():\n    def inner(): ...\n",
        "other.py": "from .ops.deep import *\nstarred = 1\n",
        "mla.py": "def decode(): ...\nif flag:\n    from x import y as conditional\n",
    }.items():
        (aiter / name).write_text(text)
    missing = [(one.name, one.module, one.at) for one in lacking(backend, aiter)]
    assert missing == [
        ("_private", "aiter", "aiter_backend.py:4"),
        ("inner", "aiter", "aiter_backend.py:5"),
        ("prefill", "aiter.mla", "aiter_backend.py:8"),
        ("kernel", "aiter.ops.gone", "aiter_backend.py:9"),
    ]
    assert has_module(aiter, "aiter.mla")
    assert not has_module(aiter, "aiter.ops.gone")


@needs_both
def test_a_backend_of_another_form(tmp_path: Path) -> None:
    file = tmp_path / "aiter_backend.py"
    file.write_text("class AiterAttnBackend:\n    def __init__(self, runner):\n        runner.nothing.of * 'this'\n")
    with pytest.raises(SglangRuleNotFound, match="does not run here"):
        take(sglang_backend(file), "gfx950", 12, "bf16", "decode", 1)
    file.write_text("class Other: pass\n")
    with pytest.raises(SglangRuleNotFound, match="has no class"):
        sglang_backend(file)


def test_device_code_is_cut_out() -> None:
    text = """
    CK_TILE_HOST_DEVICE int cost(int a) { return a; }
    struct S {
      CK_TILE_DEVICE explicit S(int a) : a_(a) { use("}"); /* } */ }
      CK_TILE_DEVICE int at() const { return __builtin_amdgcn(a_); }
    };
    template <typename T> __launch_bounds__(64, 1) __global__
        void kernel(int params) { if (params) { shared(); } }
    void host(int n) { kernel<T><<<dim3(n), 64, 0, stream>>>(params); }
    """
    seen = host_view(text)
    assert "return a;" in seen
    assert "explicit S(int a) ;" in seen
    assert "int at() const ;" in seen
    assert "__builtin_amdgcn" not in seen
    assert "shared()" not in seen
    assert 'waveproof::launch("kernel", dim3(n), 64, 0, stream, params);' in seen


def test_device_code_without_an_end() -> None:
    with pytest.raises(HostBuildFailed, match="closes"):
        host_view("CK_TILE_DEVICE int at() { if (x) {")


def snapshot(outcomes: dict[tuple[int, int], str], inputs: dict[str, str] | None = None) -> Snapshot:
    return Snapshot("1", "2", inputs or {}, {"gfx950 decode": outcomes}, {})


CELLS = {(length, heads): "taken" if heads == 16 else "refused" for length in (1, 2) for heads in range(12, 20)}


def test_a_baseline_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "dispatch.json"
    file.write_text(dumped(snapshot(CELLS, {"a.cu": "0"})))
    assert load(file) == snapshot(CELLS, {"a.cu": "0"})


def test_changes_are_told_by_range() -> None:
    now = CELLS | {(length, heads): "taken" for length in (1, 2) for heads in (12, 13)}
    (change,) = changes({"gfx950 decode": CELLS}, {"gfx950 decode": now})
    assert str(change) == "gfx950 decode, 12-13 heads, 1-2 queries: was refused, is taken"
    judgement = compare(snapshot(CELLS, {"a.cu": "0", "b.cu": "0"}), snapshot(now, {"a.cu": "1", "b.cu": "0"}))[0]
    assert not judgement.holds
    assert judgement.figure == 4
    assert "a.cu" in judgement.message
    assert "b.cu" not in judgement.message


def test_a_changed_source_alone_is_no_change() -> None:
    before, now = snapshot(CELLS, {"a.cu": "0"}), snapshot(CELLS, {"a.cu": "1", "new.co": "2"})
    assert changed_files(before, now) == ["a.cu", "new.co (new)"]
    assert all(judgement.holds for judgement in compare(before, now))


def test_baselines_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(BadBaseline, match="--accept"):
        load(tmp_path / "dispatch.json")
    (tmp_path / "dispatch.json").write_text('{"schema": 7}')
    with pytest.raises(BadBaseline, match="schema 7"):
        load(tmp_path / "dispatch.json")


def test_outcomes_have_no_head_count() -> None:
    said = [
        outcome(Answer(Question("gfx950", "bf16", "bf16", heads), False, refusal=f"nhead={heads} no", refused_by="x"))
        for heads in (12, 20)
    ]
    assert said[0] == said[1] == "refused by x: nhead=H no"
