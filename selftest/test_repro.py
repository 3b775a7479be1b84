"""Minimal repros are tried on implementations with one planted fault each: fault shown, fault gone, cannot run."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from waveproof.golden.judges.judgement import Demonstration, Judgement
from waveproof.kernels.operators.contract import Call, Embedding
from waveproof.kernels.providers.registry import Implementation, Subject
from waveproof.reports import repro
from waveproof.reports.repro import Repro, confirm, repro_id, write_repro

RECORD_ID = "conformance/test_renorm.py::test_kept_values[top_k_renorm_prob-mine-cpu]"

RIGHT = """
def right(probs, top_k):
    import torch
    if probs.dim() != 2:
        raise ValueError("probs must have two dimensions")
    values, places = probs.topk(int(top_k), dim=-1)
    return torch.zeros_like(probs).scatter_(-1, places, values / values.sum(-1, keepdim=True))
"""

PROBS = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]])
CALL = Call("top_k_renorm_prob", {"probs": PROBS, "top_k": 2})


def _right(call: Call) -> torch.Tensor:
    scope: dict[str, object] = {}
    exec(RIGHT, scope)
    return scope["right"](*call.arguments.values()).double()  # type: ignore[operator]


def values(call: Call = CALL) -> Demonstration:
    exact = _right(call)
    return Demonstration("values", (call,), exact * (1 - 1e-5), exact * (1 + 1e-5))


@dataclass(frozen=True)
class Fault:
    """A body that spoils ``right``'s result, how it is demonstrated, and what the script must say."""

    body: str
    demonstration: Demonstration
    says: str
    unit: str = ""
    bound: float = 0.0


FAULTS = {
    "values": Fault("return 1.01 * right(probs, top_k)", values(), r"first bad \[0, 1\]; 4 of 6 values are bad"),
    # Only where fresh memory is poisoned does the unwritten row show.
    "values, unwritten": Fault(
        "import torch; out = torch.empty_like(probs); out[0] = right(probs, top_k)[0]; "
        "out[1] = right(probs, top_k)[1] if out[1, 0] == out[1, 0] else out[1]; return out",
        values(),
        r"first bad \[1, 0\]",
    ),
    "same-rows": Fault(
        "out = right(probs, top_k); return out * (1 + 1e-6 * len(out))",
        Demonstration("same-rows", (CALL, CALL.with_arguments(probs=PROBS[1:])), rows=((1,), (0,))),
        "row 0 of the second call has the bits of row 1 of the first",
    ),
    "raised": Fault(
        "return undefined_name(probs)", Demonstration("raised", (CALL,)), "NameError: name 'undefined_name'"
    ),
    "accepted": Fault(
        "return probs",
        Demonstration("accepted", (CALL.with_arguments(probs=PROBS[0]),)),
        r"got       a result, float32\[3\]",
    ),
    "input-changed": Fault(
        "probs[1, 2] = 0.125; return right(probs, top_k)",
        Demonstration("incident", (CALL,), incident="input-changed"),
        "probs: 1 bytes changed, the first at byte 22 of 24",
    ),
    "out-of-bounds": Fault(
        "import torch; out = torch.empty_like(probs); out.copy_(right(probs, top_k)); "
        "out.as_strided((1,), (1,), out.storage_offset() + 6).fill_(0); return out",
        Demonstration("incident", (CALL,), incident="out-of-bounds"),
        r"allocation \d+ \[2, 3\]: 4 bytes changed, the first at byte 24 of 24",
    ),
    "unrepeatable": Fault(
        "import torch; out = torch.empty_like(probs); out[0] = right(probs, top_k)[0]; return out",
        Demonstration("incident", (CALL,), incident="unrepeatable"),
        "first bad output 0, flat index 3",
    ),
    "crash": Fault("import os; os.abort()", Demonstration("crash", (CALL,)), "ended with signal SIGABRT"),
    "timeout": Fault(
        "import time; time.sleep(100)", Demonstration("timeout", (CALL,)), "no answer within 4 s", unit="s", bound=4.0
    ),
}


def external(path: Path) -> Implementation:
    return Implementation(
        "mine", "top_k_renorm_prob", "threshold", ("cpu",), f"{path}:mine", origin=f"{path.name}:mine"
    )


def judgement(fault: Fault, rule: str = "a rule") -> Judgement:
    message = "what comes out is wrong"
    return Judgement(
        rule,
        False,
        9.0,
        fault.bound or 1e-5,
        fault.unit or "relative",
        "a source",
        message,
        None,
        "",
        "",
        fault.demonstration,
    )


@dataclass(frozen=True)
class Tried:
    repro: Repro
    text: str
    mended: tuple[bool | None, str]


def run_here(path: Path, *arguments: str) -> tuple[bool | None, str]:
    """As ``confirm``, in this process, which has paid for importing torch."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [str(path), *arguments])
        patch.setattr(sys, "path", list(sys.path))
        # A file that is mended within the second and keeps its size would be taken for its old bytecode.
        patch.setattr(sys, "dont_write_bytecode", True)
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(path), run_name="__main__")
    assert isinstance(end.value.code, int)
    return {repro.FAULT: True, repro.GONE: False}.get(end.value.code), printed.getvalue()


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tried]:
    """Each fault's script, run in a clean process, then against the mended file in the same place."""

    def write(name: str) -> tuple[Path, Repro]:
        directory = tmp_path_factory.mktemp("fault")
        path = directory / "implementation.py"
        path.write_text(RIGHT + f"def mine(probs, top_k):\n    {FAULTS[name].body}\n")
        return path, write_repro(Subject(external(path), "cpu"), judgement(FAULTS[name]), directory / "out", RECORD_ID)

    with ThreadPoolExecutor(2) as pool:
        written = dict(zip(FAULTS, pool.map(write, FAULTS), strict=True))
    results = {}
    for name, (path, shown) in written.items():
        assert shown.path is not None
        path.write_text(RIGHT + "mine = right\n")
        isolated = FAULTS[name].demonstration.kind in ("crash", "timeout")
        mended = confirm(shown.path, 60.0) if isolated else run_here(shown.path)
        results[name] = Tried(shown, shown.path.read_text(), mended)
    return results


@pytest.mark.parametrize("name", FAULTS)
def test_wrong_implementation_exits_1_and_says_why(name: str, tried: dict[str, Tried]) -> None:
    shown = tried[name].repro
    assert shown.confirmed is True, shown.output
    assert re.search(FAULTS[name].says, shown.output), shown.output


@pytest.mark.parametrize("name", FAULTS)
def test_mended_implementation_exits_0(name: str, tried: dict[str, Tried]) -> None:
    confirmed, output = tried[name].mended
    assert confirmed is False, output


@pytest.mark.parametrize("name", FAULTS)
def test_script_names_no_machine_and_no_user(name: str, tried: dict[str, Tried], tmp_path: Path) -> None:
    text = tried[name].text + tried[name].repro.output
    assert str(tmp_path.parent) not in text
    assert not re.search(r"(?<![\w.<])/(?:home|root|tmp|usr|work|opt)\b", text), text


def write_only(
    fault: Fault, tmp_path: Path, body: str = "", guarded: bool = False, **changes: object
) -> tuple[Path, dict[str, torch.Tensor]]:
    """A script on disk that has not been run."""
    path = tmp_path / "implementation.py"
    path.write_text(RIGHT + f"def mine(probs, top_k):\n    {body or fault.body}\n")
    subject = Subject(replace(external(path), **changes), "cpu")  # type: ignore[arg-type]
    text, stored, _ = repro.script(subject, judgement(fault), tmp_path, RECORD_ID, "repro_x", guarded)
    if stored:
        save_file(stored, tmp_path / "repro_x.safetensors")
    (tmp_path / "repro_x.py").write_text(text)
    return tmp_path / "repro_x.py", stored


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return right(probs, top_k) + float('nan')", "got       nan"),
        ("return right(probs, top_k).double()", r"got       float64\[2, 3\]"),
        ("return right(probs, top_k)[:1]", r"got       float32\[1, 3\]"),
    ],
)
def test_nan_dtype_and_shape_are_never_within_bounds(body: str, says: str, tmp_path: Path) -> None:
    path, _ = write_only(FAULTS["values"], tmp_path, body)
    confirmed, output = run_here(path)
    assert confirmed is True
    assert re.search(says, output), output


def test_another_exception_is_not_this_fault(tmp_path: Path) -> None:
    path, _ = write_only(FAULTS["values"], tmp_path, "raise RuntimeError('out of memory')")
    confirmed, output = run_here(path)
    assert confirmed is None
    assert "the call raises, so what it computes cannot be seen" in output


def test_a_wrong_exception_is_no_refusal(tmp_path: Path) -> None:
    path, _ = write_only(FAULTS["accepted"], tmp_path, "raise KeyError('three')")
    assert run_here(path)[0] is True


def test_large_tensors_lie_beside_the_script(tmp_path: Path) -> None:
    call = Call("top_k_renorm_prob", {"probs": torch.rand(2, 1500, generator=torch.manual_seed(0)), "top_k": 1500})
    fault = replace(FAULTS["values"], demonstration=values(call))
    path, stored = write_only(fault, tmp_path)
    assert set(stored) == {"first.probs", "low", "high"}
    assert len(path.read_text()) < 6000
    confirmed, output = run_here(path)
    assert confirmed is True
    assert "of 3000 values are bad" in output
    assert run_here(write_only(fault, tmp_path, "return right(probs, top_k)")[0])[0] is False


def test_missing_package_exits_2_and_is_named(tmp_path: Path) -> None:
    path, _ = write_only(FAULTS["values"], tmp_path, packages=("no_such_package",))
    assert confirm(path, 60.0) == (None, "cannot run: package no_such_package is not installed")


def test_package_missing_within_the_call_exits_2(tmp_path: Path) -> None:
    path, _ = write_only(FAULTS["raised"], tmp_path, "import no_such_package")
    confirmed, output = run_here(path)
    assert confirmed is None
    assert "cannot run: package no_such_package is not installed" in output


def test_file_that_moved_can_be_named(tmp_path: Path) -> None:
    path, _ = write_only(FAULTS["values"], tmp_path)
    moved = (tmp_path / "implementation.py").rename(tmp_path / "moved.py")
    assert run_here(path)[0] is None
    assert run_here(path, str(moved))[0] is True


def test_path_that_leads_over_a_home_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "margarethe")
    home = tmp_path / "margarethe"
    (tmp_path / "out").mkdir()
    home.mkdir()
    (home / "kernel.py").write_text("mine = None")
    subject = Subject(external(home / "kernel.py"), "cpu")
    text, _, arguments = repro.script(subject, judgement(FAULTS["values"]), tmp_path / "out", RECORD_ID, "repro_x")
    assert "margarethe" not in text
    assert arguments == [str((home / "kernel.py").resolve())]


def test_compile_gets_the_command_instead_of_a_script(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    fault = Fault("", Demonstration("compile", (CALL,)), "")
    shown = write_repro(Subject(external(path), "compile", "gfx950"), judgement(fault), tmp_path / "out", RECORD_ID)
    assert shown.path is None
    assert shown.confirmed is None
    assert "python -m pytest 'conformance/test_renorm.py::test_kept_values[top_k_renorm_prob-mine-cpu]'" in shown.output
    assert "--provider top_k_renorm_prob=kernel.py:mine,runtime=compile" in shown.output


def test_unconfirmed_script_is_the_plainest_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "implementation.py"
    path.write_text(RIGHT + "mine = right\n")
    monkeypatch.setattr(repro, "confirm", lambda path, *_: run_here(path))
    shown = write_repro(Subject(external(path), "cpu"), judgement(FAULTS["values"]), tmp_path / "out", RECORD_ID)
    assert shown.path is not None
    assert shown.confirmed is False
    assert "FreshMemory" not in shown.path.read_text()


def test_ids_are_stable_and_tell_causes_apart() -> None:
    subject = Subject(external(Path("a.py")), "cpu")
    assert repro_id(subject, "kept values") == "c6ffb211"
    others = {repro_id(subject, "sum"), repro_id(replace(subject, runtime="interpret"), "kept values")}
    assert len({"c6ffb211", *others}) == 3


KERNEL = """
import torch, triton, triton.language as tl

@triton.jit
def scale(x, out, n, factor, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)

def mine(probs, top_k):
    if not probs.is_cuda:
        raise ValueError("needs a GPU tensor")
    out = torch.empty_like(probs, dtype=torch.float32)
    scale[(1,)](probs, out, probs.numel(), FACTOR, BLOCK=16)
    return out
"""


def test_triton_kernel_runs_in_the_interpreter_with_triton_alone(tmp_path: Path) -> None:
    path = tmp_path / "implementation.py"
    path.write_text(KERNEL.replace("FACTOR", "0.25"))
    fault = Fault("", Demonstration("values", (CALL,), PROBS.double() / 2, PROBS.double() / 2), "")
    shown = write_repro(Subject(external(path), "interpret"), judgement(fault), tmp_path, RECORD_ID)
    assert shown.path is not None
    assert shown.confirmed is True, shown.output
    assert "waveproof" not in shown.path.read_text()


def test_bfloat16_in_the_interpreter_is_mended(tmp_path: Path) -> None:
    """The right kernel exits 0; the interpreter as it is computes garbage from bfloat16 products."""
    path = tmp_path / "implementation.py"
    path.write_text(KERNEL.replace("FACTOR", "0.5"))
    probs = PROBS.to(torch.bfloat16)
    call = CALL.with_arguments(probs=probs)
    fault = Fault("", Demonstration("values", (call,), probs.double() / 2, probs.double() / 2), "")
    subject = Subject(external(path), "interpret")
    (form,) = {form for form in repro._forms(subject, fault.demonstration) if not form.guarded}
    text, _, _ = repro.script(subject, judgement(fault), tmp_path, RECORD_ID, "repro_x", mended=form.mended)
    (tmp_path / "repro_x.py").write_text(text)
    confirmed, output = confirm(tmp_path / "repro_x.py", 60.0)
    assert confirmed is False, output


def test_strided_input_reaches_the_implementation(tmp_path: Path) -> None:
    probs = torch.stack([PROBS, PROBS + 1], dim=2).reshape(2, 6)[:, 1::2]
    call = Call("top_k_renorm_prob", {"probs": probs, "top_k": 3})
    fault = Fault("", Demonstration("raised", (call,)), "")
    body = "assert (probs.stride(), probs.storage_offset(), probs[1, 2].item()) != ((6, 2), 1, 1.25)"
    for guarded in (False, True):
        path, _ = write_only(fault, tmp_path, body.replace("1, 1.25", f"{1 + 1024 * guarded}, 1.25"), guarded)
        confirmed, output = run_here(path)
        assert confirmed is True, output


def test_embedded_row_is_the_only_one_written(tmp_path: Path) -> None:
    call = Call("top_k_renorm_prob", {"probs": PROBS[:1], "top_k": 2}, embedding=Embedding("probs", 1 << 20, 77))
    exact = _right(call.with_arguments(probs=PROBS[:1]))
    fault = Fault("", Demonstration("values", (call,), exact * (1 - 1e-5), exact * (1 + 1e-5)), "")
    body = "import torch; out = torch.empty_like(probs); out[77] = FACTOR * right(probs[77:78], top_k)[0]; return out"
    assert run_here(write_only(fault, tmp_path, body.replace("FACTOR", "2"))[0])[0] is True
    assert run_here(write_only(fault, tmp_path, body.replace("FACTOR", "1"))[0])[0] is False
