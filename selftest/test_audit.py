"""The platform symbol audit on trial: what each construct of the language does, and programs that are also run."""

from __future__ import annotations

import ast
import json
import symtable
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from typer.testing import CliRunner

from waveproof.fixtures.audit import reviewed
from waveproof.fixtures.audit.audit import Audit, NoPlatform, audit
from waveproof.fixtures.audit.forms import Body, Function, children
from waveproof.fixtures.audit.lowering import lowered
from waveproof.fixtures.audit.tree import NoPackage, tree_of
from waveproof.fixtures.baselines import BadBaseline
from waveproof.reports.cli import app
from waveproof.selftest.audit_constructs import CONSTRUCTS
from waveproof.selftest.audit_programs import Runner, falsely_certain, overlooked, programs
from waveproof.selftest.mutants.symbols_sources import HEAD, ONLY_CUDA, UTILS, findings_of

FAULT = HEAD + ONLY_CUDA + "def sample(p):\n    return top_k_renorm_prob(p)\n"


def package(folder: Path, **files: str) -> Path:
    """A package ``engine``; a double underscore in a name goes down a folder."""
    root = folder / "engine"
    for name, text in {"init": "", "utils": UTILS, **files}.items():
        path = root / f"{'__init__' if name == 'init' else name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def audited(root: Path, platform: str = "hip") -> Audit:
    return audit(str(root), platform, processes=1)


def certainties(**files: str) -> set[tuple[str, str]]:
    return {(certainty, kind) for certainty, kind, _ in findings_of({"verify": "", **files})}


REACHED = {("reachable", "NameError")}


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_use_is_reached_in_one_form_of_a_construct_and_not_in_the_other(name: str) -> None:
    head = "import torch\nfrom contextlib import suppress\n" + HEAD + ONLY_CUDA
    reached, not_reached = (form.replace("USE", "top_k_renorm_prob(1)") for form in CONSTRUCTS[name])
    found = certainties(verify=head + reached)
    assert found == REACHED or (name == "a tensor on a HIP device" and found == {("guarded", "NameError")})
    assert certainties(verify=head + not_reached) == set()


def test_the_other_platforms() -> None:
    """What is missing on HIP is there on CUDA, and the other way round."""
    own = HEAD + "if _is_hip:\n    def renorm(p):\n        return p\ndef sample(p):\n    return renorm(p)\n"
    assert [found[0] for found in findings_of({"verify": FAULT}, "hip")] == ["reachable"]
    assert findings_of({"verify": FAULT}, "cuda") == []
    assert findings_of({"verify": own}, "hip") == []
    for platform in ("cuda", "cpu", "xpu", "npu", "musa"):
        assert [found[0] for found in findings_of({"verify": own}, platform)] == ["reachable"]


def test_imports_in_a_cycle_and_relative_to_a_package(tmp_path: Path) -> None:
    root = package(
        tmp_path,
        a="from .b import g\nfrom .utils import is_cuda\nif is_cuda():\n    def f(p):\n        return g(p)\n",
        b="from . import a\ndef g(p):\n    return a.f(p)\n",
        deep__init="",
        deep__c="from ..a import f\n",
    )
    (root / "deep" / "init.py").rename(root / "deep" / "__init__.py")
    found = {(one.file, one.kind, one.name) for one in audited(root).findings}
    assert found == {("engine/b.py", "AttributeError", "a.f"), ("engine/deep/c.py", "ImportError", "engine.a.f")}


def test_a_finding_tells_where_the_name_is_bound_how_it_is_reached_and_what_is_undecided(tmp_path: Path) -> None:
    verify = HEAD + ONLY_CUDA + (
        "class _Verifier:\n"
        "    def sample(self, probs, info):\n"
        "        if info.is_all_greedy:\n"
        "            return probs\n"
        "        return top_k_renorm_prob(probs)\n"
        "def serve(probs, info, backend):\n"
        "    if backend == 'fast':\n"
        "        return _Verifier().sample(probs, info)\n"
    )  # fmt: skip
    (one,) = audited(package(tmp_path, verify=verify)).findings
    assert one.where == "engine/verify.py:9"
    assert (one.function, one.name, one.kind) == ("_Verifier.sample", "top_k_renorm_prob", "NameError")
    assert one.bound == ("engine/verify.py:4, only if _is_cuda (engine/verify.py:3)",)
    assert one.path[-1] == "engine/verify.py:9: top_k_renorm_prob"
    assert "engine/verify.py:serve" in one.path
    assert "engine/verify.py:7: not (info.is_all_greedy) (data)" in one.conditions
    assert (one.certainty, one.why) == ("guarded", "backend == 'fast'")


def test_a_choice_that_is_open_on_the_platform_is_no_guard(tmp_path: Path) -> None:
    verify = HEAD + ONLY_CUDA + "def serve(p, server_args):\n    if {}:\n        return top_k_renorm_prob(p)\n"
    asked = {
        "server_args.speculative_algorithm": "reachable",
        "server_args.attention_backend": "guarded",
        "not server_args.enable_split": "reachable",  # nobody has to set anything
        "server_args.enable_split": "guarded",
    }
    options = "class ServerArgs:\n    enable_split: bool = False\n"
    for test, certainty in asked.items():
        found = audited(package(tmp_path, verify=verify.format(test), options=options)).findings
        assert [one.certainty for one in found] == [certainty], test


@pytest.mark.parametrize(
    ("body", "certainty"),
    [
        ("if backend == 'fast':\n            raise ValueError", "guarded"),
        ("if backend == 'fast':\n            return p", "guarded"),
        ("if backend == 'fast':\n            return p\n        if p:\n            continue\n        p = 1", "guarded"),
        ("if backend == 'fast':\n            return p\n        if p:\n            break", "guarded"),
        ("if backend == 'fast':\n            continue\n        p = 1", "reachable"),
        ("if backend == 'fast':\n            break", "reachable"),
        ("if p:\n            return p", "reachable"),
    ],
)
def test_what_leaves_a_loop_that_runs_is_a_condition_behind_it(tmp_path: Path, body: str, certainty: str) -> None:
    verify = HEAD + ONLY_CUDA + (
        f"def serve(p, backend):\n    for one in (1, 2):\n        {body}\n    return top_k_renorm_prob(p)\n"
    )  # fmt: skip
    assert [one.certainty for one in audited(package(tmp_path, verify=verify)).findings] == [certainty]
    none = verify.replace("(1, 2)", "p")  # which may be empty
    assert [one.certainty for one in audited(package(tmp_path, verify=none)).findings] == ["reachable"]


def test_an_assertion_that_an_optional_package_fails_is_a_condition(tmp_path: Path) -> None:
    optional = "try:\n    from flashinfer import renorm\nexcept ImportError:\n    renorm = None\n"
    asserted = "def serve(p):\n    assert callable(renorm)\n    return top_k_renorm_prob(p)\n"
    (one,) = audited(package(tmp_path, verify=HEAD + ONLY_CUDA + optional + asserted)).findings
    assert (one.certainty, one.why) == ("guarded", "flashinfer.renorm can be imported")


def test_a_package_with_scripts_is_entered_through_them(tmp_path: Path) -> None:
    """Not as a library, whose public functions are all entries."""
    package(tmp_path, verify=FAULT, cli="from .verify import sample\ndef main():\n    return sample(1)\n", idle=FAULT)
    info = tmp_path / "engine-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[console_scripts]\nengine = engine.cli:main\n", encoding="utf-8")
    found = {one.file: (one.certainty, one.why) for one in audited(tmp_path / "engine").findings}
    assert found["engine/verify.py"] == ("reachable", "")
    assert found["engine/idle.py"] == ("unknown", "nothing is seen to lead there")


def test_a_wheel_is_read_as_its_folder_is(tmp_path: Path) -> None:
    root = package(tmp_path, verify=FAULT)
    wheel = tmp_path / "engine-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for path in root.rglob("*.py"):
            file.write(path, path.relative_to(tmp_path).as_posix())
    from_wheel, from_folder = audited(wheel), audited(root)
    assert from_wheel.findings == from_folder.findings
    assert (from_wheel.package, from_wheel.version, from_wheel.files) == ("engine", "1.2.3", from_folder.files)


def test_a_part_of_a_package_is_audited_with_what_it_imports(tmp_path: Path) -> None:
    root = package(tmp_path, verify=FAULT, part__use="from ..verify import sample\nfrom ..utils import nothing\n")
    made = audited(root / "part")
    assert [(one.file, one.kind) for one in made.findings] == [("engine/part/use.py", "ImportError")]
    assert made.files == 1


def test_what_cannot_be_read_is_refused_or_told(tmp_path: Path) -> None:
    root = package(tmp_path, broken="def f(:\n", verify=FAULT)
    made = audited(root)
    assert [one.split(": ")[0] for one in made.unread] == ["engine/broken.py"]
    assert made.counts["reachable"] == 1
    with pytest.raises(NoPlatform, match="rocm"):
        audit(str(root), "rocm")
    with pytest.raises(NoPackage, match="no_such_package"):
        tree_of("no_such_package")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoPackage, match="empty"):
        tree_of(str(tmp_path / "empty"))


def test_baseline(tmp_path: Path) -> None:
    root, file = package(tmp_path, verify=FAULT), tmp_path / "symbols.toml"
    first = audited(root)
    assert reviewed.accept(first, file) == 1
    assert not reviewed.compared(first, reviewed.load(file)).new
    package(tmp_path, verify="\n\n" + FAULT)  # lines move
    assert not reviewed.compared(audited(root), reviewed.load(file)).new
    package(tmp_path, verify=FAULT + "def again(p):\n    return top_k_renorm_prob(p)\n")
    (new,) = reviewed.compared(audited(root), reviewed.load(file)).new
    assert new.function == "again"
    package(tmp_path, verify="")
    comparison = reviewed.compared(audited(root), reviewed.load(file))
    assert [one.fingerprint[1] for one in comparison.stale] == ["sample"]
    assert not comparison.new


def test_what_was_guarded_and_is_reachable_is_new(tmp_path: Path) -> None:
    guarded = FAULT.replace("    return", "    if p.backend:\n        return")
    file = tmp_path / "symbols.toml"
    reviewed.accept(audited(package(tmp_path, verify=guarded)), file)
    (new,) = reviewed.compared(audited(package(tmp_path, verify=FAULT)), reviewed.load(file)).new
    assert new.certainty == "reachable"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("[[tree", "symbols.toml"),
        ('[[tree]]\npackage = "a"\n', "without 'platform'"),
        ('[[tree]]\npackage = "a"\nplatform = "hip"\nversion = ""\nfindings = [["a"]]\n', "a finding is"),
        (
            '[[tree]]\npackage = "a"\nplatform = "hip"\nversion = ""\n'
            'findings = [["a", "f", "n", "NameError", "reachable", ""]]\n',
            "needs a note",
        ),
        (
            '[[tree]]\npackage = "a"\nplatform = "hip"\nversion = ""\n'
            'findings = [["a", "f", "n", "NameError", "sure", "x"]]\n',
            "'sure'",
        ),
    ],
)
def test_a_baseline_that_is_none_is_refused(tmp_path: Path, text: str, rule: str) -> None:
    file = tmp_path / "symbols.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadBaseline, match=rule):
        reviewed.load(file)


def test_command(tmp_path: Path) -> None:
    root = package(tmp_path, verify=FAULT)
    output, baseline = tmp_path / "audit.json", tmp_path / "symbols.toml"
    run = CliRunner()
    shown = run.invoke(app, ["audit", str(root), "--json", str(output)])
    assert shown.exit_code == 1
    assert "reachable: engine/verify.py:6: NameError: top_k_renorm_prob in sample" in shown.output
    assert json.loads(output.read_text())["counts"] == {"reachable": 1, "guarded": 0, "unknown": 0}
    assert run.invoke(app, ["audit", str(root), "--platform", "cuda"]).exit_code == 0
    assert run.invoke(app, ["audit", str(root), "--accept"]).exit_code == 2
    assert run.invoke(app, ["audit", str(root), "--baseline", str(baseline), "--accept"]).exit_code == 0
    assert run.invoke(app, ["audit", str(root), "--baseline", str(baseline)]).exit_code == 0
    package(tmp_path, verify=FAULT + "def again(p):\n    return top_k_renorm_prob(p)\n")
    again = run.invoke(app, ["audit", str(root), "--baseline", str(baseline)])
    assert again.exit_code == 1
    assert "in again" in again.output
    assert "in sample" not in again.output
    assert run.invoke(app, ["audit", "no_such_package"]).exit_code == 2


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = Runner()
    yield made
    made.close()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(program=programs())
def test_programs_do_what_the_audit_says(
    program: dict[str, str], runner: Runner, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A reachable finding is shown by some datum; a name that is missing whatever the datum has a finding."""
    root = tmp_path_factory.mktemp("program") / "pkg"
    root.mkdir()
    for name, text in program.items():
        (root / f"{name.partition('.')[2] or '__init__'}.py").write_text(text, encoding="utf-8")
    findings, raised = audited(root).findings, runner.run(program)
    assert falsely_certain(findings, raised) == []
    assert overlooked(findings, raised, program) == []


def test_the_comparison_with_running_programs_can_fail(runner: Runner, tmp_path: Path) -> None:
    program = {"pkg": "", "pkg.use": "def run(x):\n    return missing\n"}
    (one,) = audited(package(tmp_path, verify="def run(x):\n    return missing\n")).findings
    raised = runner.run(program)
    assert falsely_certain([one], raised) == []
    assert falsely_certain([one], []) == ["engine/verify.py:2: NameError: missing"]
    assert overlooked([one], raised, program) == []
    assert {error.error for error in overlooked([], raised, program)} == {"NameError"}


def test_local_names_are_those_of_the_compiler() -> None:
    """The second method: CPython's own symbol tables of some modules of its library."""
    compared = 0
    for module in (ast, json, symtable, zipfile):
        text = Path(str(module.__file__)).read_text(encoding="utf-8")
        ours = {(one.name, one.line): set(one.local) for one in _functions(lowered("m", "m.py", text).body)}
        for table in _tables(symtable.symtable(text, "m.py", "exec")):
            key = (table.get_name(), _line(text, table))
            if key in ours:
                compared += 1
                assert set(table.get_locals()) - {".0"} == ours[key], key
    assert compared > 300


def _functions(body: Body) -> Iterator[Function]:
    for statement in body:
        if statement[0] in ("def", "class"):
            if statement[0] == "def":
                yield statement[1]
            yield from _functions(statement[1].body)
        for inner, _, _ in children(statement):
            yield from _functions(inner)


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.Function]:
    for inner in table.get_children():
        if isinstance(inner, symtable.Function):
            yield inner
        yield from _tables(inner)


def _line(text: str, table: symtable.Function) -> int:
    """The line of ``def``: a table of a decorated function begins at its first decorator."""
    lines = text.splitlines()
    at = table.get_lineno()
    while at <= len(lines) and not lines[at - 1].lstrip().startswith(("def ", "async def ")):
        at += 1
    return at
