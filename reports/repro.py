"""Minimal repros: a failed rule as one script that shows the fault on a machine that has only the upstream package.

The script prints the rule, the first bad index, what is expected and what came, and exits 1 while the fault is there,
0 when it is gone and 2 when it cannot run. It is called a repro only after it has exited 1 in a process of its own.

It is first written in its plainest form. Where that form does not show the fault, inputs are laid between margins and
fresh memory is poisoned, as in the suite itself; the interpreter is mended last. ``compile`` judges figures of the
compiler and ``emulate`` needs a device of the suite: neither can stand alone, so for them there is no script, and the
reader is given the pytest command (:func:`command`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
import torch
from safetensors.torch import save_file

from waveproof.golden.judges.judgement import Demonstration, Judgement
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.providers.registry import Subject
from waveproof.reports.adapter import adapter_source
from waveproof.reports.environment import scrub
from waveproof.reports.literals import INLINE_NUMBERS, layout_literal, tensor_literal

FAULT, GONE, CANNOT_RUN = 1, 0, 2
"""Exit statuses of a script."""

CHILD_SECONDS = 60.0
"""How long a call may take in a script for a crash or a hang, where the judgement names no time limit."""

_NARROW = frozenset({"bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"})
"""What Triton 3.9's interpreter computes wrongly (see ``kernels.runtimes.interpreter_mend``)."""

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,
)


@dataclass(frozen=True)
class Repro:
    """A minimal repro."""

    path: Path | None
    """The script, None where the fault cannot be shown by one; ``output`` then says why."""
    data: Path | None
    """Tensors that were too large to be written into the script."""
    confirmed: bool | None
    """Whether it showed the fault in a clean process; None where it could not run."""
    output: str
    """What it printed there."""


@dataclass(frozen=True)
class _Form:
    """How much of the suite's own surroundings a script rebuilds."""

    guarded: bool = False
    mended: bool = False


def repro_id(subject: Subject, rule: str) -> str:
    """Eight hexadecimal digits that stand for operator, provider, runtime and rule, the same in every run."""
    implementation = subject.implementation
    words = (implementation.operator, implementation.provider, subject.runtime, rule)
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]


def command(subject: Subject, record_id: str) -> str:
    """The command that repeats a case within the suite, for faults that no script can show."""
    where, _, function = subject.implementation.load.rpartition(":")
    option = ""
    if where.endswith(".py"):
        value = f"{subject.implementation.operator}={Path(where).name}:{function},runtime={subject.runtime}"
        option = f" --provider {shlex.quote(value)}"
    return f"python -m pytest {shlex.quote(record_id)}{option}"


def write_repro(
    subject: Subject, judgement: Judgement, directory: Path, record_id: str, timeout: float = 180.0
) -> Repro:
    """Write ``repro_<id>.py`` and try it in a clean process.

    Beside it lie ``repro_<id>.txt``, what it printed there, and ``repro_<id>.safetensors`` where tensors are large.

    Args:
        subject: what failed, and where.
        judgement: a rule that does not hold, with its demonstration.
        directory: made if it is not there; an older script of the same id is replaced.
        record_id: the pytest node id, shown in the script.
        timeout: seconds that the script may take.

    """
    shown = judgement.demonstration
    if shown is None:
        return Repro(None, None, None, "the rule names no call that would show it")
    if shown.kind == "compile" or subject.runtime in ("compile", "emulate"):
        reason = f"runtime {subject.runtime} cannot be left out of the picture; repeat with: "
        return Repro(None, None, None, reason + command(subject, record_id))
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"repro_{repro_id(subject, judgement.rule)}"
    path, data = directory / f"{stem}.py", directory / f"{stem}.safetensors"
    tried: list[tuple[str, bool | None, str]] = []
    for form in _forms(subject, shown):
        text, stored, arguments = script(
            subject, judgement, directory, record_id, stem, guarded=form.guarded, mended=form.mended
        )
        path.write_text(text, encoding="utf-8")
        data.unlink(missing_ok=True)
        if stored:
            save_file(stored, data)
        tried.append((text, *confirm(path, timeout, arguments)))
        if tried[-1][1]:
            break
    else:
        path.write_text(tried[0][0], encoding="utf-8")  # none shows it: leave the plainest
    _, confirmed, output = tried[-1] if tried[-1][1] else tried[0]
    path.with_suffix(".txt").write_text(output + "\n", encoding="utf-8")
    return Repro(path, data if data.exists() else None, confirmed, output)


def confirm(path: Path, timeout: float, arguments: Sequence[str] = ()) -> tuple[bool | None, str]:
    """Run a script in a clean process: its own folder, no ``PYTHON*`` variables, its own process group.

    Returns:
        True where it exits 1, False where it exits 0, None where it exits otherwise or takes longer than ``timeout``
        seconds; and what it printed, scrubbed.

    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYTEST")) and name not in ("TRITON_INTERPRET", "COVERAGE_PROCESS_START")
    }
    environment |= {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [sys.executable, path.name, *arguments],
        cwd=path.parent,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        return None, f"{_tidy(printed, path)}\nended after {timeout:g} s".strip()
    text = _tidy(printed, path)
    if process.returncode not in (FAULT, GONE, CANNOT_RUN):
        text = f"{text}\nended with status {process.returncode}".strip()
    return {FAULT: True, GONE: False}.get(process.returncode), text


def _tidy(printed: bytes, path: Path, most: int = 8000) -> str:
    text = printed.decode(errors="replace").replace(f"{path.parent.resolve()}{os.sep}", "")
    return scrub(text[-most:]).strip()


def _forms(subject: Subject, shown: Demonstration) -> list[_Form]:
    interpret = subject.runtime == "interpret"
    # The interpreter walks a whole grid, of which an embedded row is one of very many programs.
    mended = interpret and any(call.embedding is not None or _is_narrow(call) for call in shown.calls)
    guarded = shown.kind == "incident"
    forms = [_Form(guarded, mended), _Form(True, mended)]
    if interpret:
        forms.append(_Form(True, True))
    return list(dict.fromkeys(forms))


def _is_narrow(call: Call) -> bool:
    tensors = [value for value in call.arguments.values() if isinstance(value, torch.Tensor)]
    return any(str(tensor.dtype).removeprefix("torch.") in _NARROW for tensor in tensors)


def script(
    subject: Subject,
    judgement: Judgement,
    directory: Path,
    record_id: str,
    stem: str,
    guarded: bool = False,
    mended: bool = False,
) -> tuple[str, dict[str, torch.Tensor], list[str]]:
    """The text of a script, the tensors to be stored beside it, and the arguments that it needs on this machine.

    ``guarded``: inputs lie between margins and fresh memory is poisoned. ``mended``: Triton's interpreter is mended by
    this suite, which must then be installed. The other arguments are :func:`write_repro`'s, ``stem`` the file's name.
    """
    shown = judgement.demonstration
    assert shown is not None
    implementation = subject.implementation
    stored: dict[str, torch.Tensor] = {}
    budget = _Budget(stored)
    interpret = subject.runtime == "interpret"
    calls = [_arguments(call, number, budget, subject, guarded) for number, call in enumerate(shown.calls[:2])]
    low = high = ""
    if shown.kind in ("values", "head-norm", "head-scale"):
        if shown.low is None or shown.high is None:
            raise ValueError(f"{judgement.rule}: a demonstration by values needs low and high")
        low = budget.expression("low", shown.low.to(torch.float64))
        same = torch.equal(shown.low, shown.high)
        high = "low" if same else budget.expression("high", shown.high.to(torch.float64))
    where, _, function = implementation.load.rpartition(":")
    file, arguments = _relative(Path(where), directory) if where.endswith(".py") else ("", [])
    adapted = where.startswith("waveproof.kernels.providers.")
    source = adapter_source(implementation.load) if adapted else ""
    packages = ["torch", *(["triton"] if interpret else []), *implementation.packages]
    packages += ["safetensors"] if stored else []
    embedding = shown.calls[0].embedding
    poisons = [hex((0xFF, 0xA7)[turn % 2]) for turn in range(1, max(shown.calls[0].repeats, 2))]
    contexts = ["FreshMemory(poison)"] if guarded else []
    if embedding is not None and mended:
        contexts.append(f"interpret.only_programs(lambda x, y, z: x == {embedding.row})")
    expressions = " ".join([low, high, *(item["expression"] for call in calls for item in call["inputs"])])
    context: dict[str, Any] = {
        "docstring": _docstring(subject, judgement, record_id, stem),
        "runtime": subject.runtime,
        "device": "cuda" if subject.runtime in ("hip", "cuda") else "cpu",
        "kind": shown.kind,
        "incident": shown.incident,
        "results": len(implementation.contract.returns) - len(implementation.omits),
        "output": shown.output,
        "output_name": implementation.contract.returns[shown.output].name if shown.output else "first output",
        "axis": shown.axis,
        "isolated": shown.kind in ("crash", "timeout"),
        "seconds": judgement.bound if judgement.unit == "s" and judgement.bound > 0 else CHILD_SECONDS,
        "packages": _tuple([f'"{name}"' for name in dict.fromkeys(packages)]),
        "mended": mended,
        "mended_why": _why_mended(shown),
        "guarded": guarded,
        "data": f"{stem}.safetensors" if stored else "",
        "file": f'"{file}"' if file else "",
        "file_name": Path(where).name,
        "module": where,
        "function": function,
        "source": source,
        "embedding": embedding,
        "contexts": ", ".join(contexts),
        "constants": ", ".join(name for name in ("inf", "nan") if re.search(rf"\b{name}\b", expressions)),
        "spread": "spread(" in expressions,
        "lay_out": "lay_out(" in expressions,
        "calls": calls,
        "low": low,
        "high": high,
        "dtypes": ", ".join(f"torch.{name}" for name in implementation.contract.returns[shown.output].dtypes),
        "rows": shown.rows,
        "rule": _string(rule_text(judgement, derived=False)),
        "poisons": _tuple(poisons),
    }
    text = _TEMPLATES.get_template("repro.py.j2").render(context)
    return re.sub(r"\n{4,}", "\n\n\n", text), stored, arguments


class _Budget:
    """Hands out literals until a script is long enough, then stores tensors."""

    def __init__(self, stored: dict[str, torch.Tensor]) -> None:
        self.left = INLINE_NUMBERS
        self.stored = stored

    def expression(self, name: str, tensor: torch.Tensor) -> str:
        text = tensor_literal(tensor, self.left)
        if text is None:
            # Contiguous: strides are laid out again by the script, and safetensors stores no shared memory.
            self.stored[name] = tensor.detach().cpu().contiguous().clone()
            return f'STORED["{name}"]'
        self.left -= text.count(",") + 1
        return text


def _arguments(call: Call, number: int, budget: _Budget, subject: Subject, guarded: bool) -> dict[str, Any]:
    inputs = []
    for name, value in call.arguments.items():
        if not isinstance(value, torch.Tensor):
            inputs.append({"name": name, "expression": repr(value)})
            continue
        text = budget.expression(f"{('first', 'second')[number]}.{name}", value)
        layout = layout_literal(value)
        if call.embedding is not None and call.embedding.argument == name:
            text = f"embed({text}, {call.embedding.rows}, {call.embedding.row})"
        elif guarded:
            text = f'watch("{name}", lay_out({text}, {layout or f"{tuple(value.stride())}, 0"}, MARGIN))'
        elif layout:
            text = f"lay_out({text}, {layout})"
        elif subject.runtime in ("hip", "cuda"):
            text += ".to(DEVICE)"
        inputs.append(
            {"name": name, "expression": text + (".as_subclass(OnDevice)" * (subject.runtime == "interpret"))}
        )
    return {"inputs": inputs, "described": _safe(call.describe())}


def _relative(file: Path, directory: Path) -> tuple[str, list[str]]:
    """How a script finds the file, and what it must be told where the text would name a home or the whole machine."""
    file, directory = file.resolve(), directory.resolve()
    relative = os.path.relpath(file, directory).replace(os.sep, "/")
    shared = os.path.commonpath([file, directory])
    if len(Path(shared).parts) < 3 or scrub(relative) != relative or '"' in relative or "\\" in relative:
        return file.name, [str(file)]
    return relative, []


def rule_text(judgement: Judgement, derived: bool = True) -> str:
    """The rule with what was measured, what is allowed and, if ``derived``, where that comes from, in one line."""
    text = judgement.rule
    if judgement.bound or judgement.figure not in (0.0, 1.0):
        text += f": {judgement.figure:.3g} {judgement.unit}".rstrip() + f", at most {judgement.bound:.3g} is right"
    return text + (f" ({judgement.derivation})" if judgement.derivation and derived else "")


def versions_text(subject: Subject) -> str:
    """Versions of what takes part, as installed here."""
    names = ["torch", *(["triton"] if subject.implementation.launches else []), subject.implementation.distribution]
    found = []
    for name in dict.fromkeys(filter(None, names)):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


def _docstring(subject: Subject, judgement: Judgement, record_id: str, stem: str) -> str:
    implementation = subject.implementation
    fields = (
        ("Contract", implementation.contract.summary),
        ("Rule", rule_text(judgement)),
        ("Found in", implementation.origin or implementation.provider),
        ("Found by", record_id),
        ("Versions", versions_text(subject)),
        ("Run", f"python {stem}.py"),
        ("Exits", f"{FAULT} while the fault is there, {GONE} when it is gone, {CANNOT_RUN} when it cannot run here"),
    )
    title = textwrap.fill(f"{implementation.operator} of {implementation.provider}: {_safe(judgement.message)}", 116)
    lines = [
        textwrap.fill(
            f"{label:<10}{_safe(text)}", 116, subsequent_indent=" " * 10, break_long_words=False, break_on_hyphens=False
        )
        for label, text in fields
    ]
    return '"""' + title + "\n\n" + "\n".join(lines) + '\n"""'


def _safe(text: str) -> str:
    """One line that can stand within a docstring and names neither the machine nor its user."""
    return " ".join(scrub(text).split()).replace("\\", "/").replace('"', "'")


def _string(text: str) -> str:
    """A Python string literal, broken over lines where it is long."""
    pieces = textwrap.wrap(_safe(text), 100, drop_whitespace=False, break_on_hyphens=False)
    if len(pieces) == 1:
        return f'"{pieces[0]}"'
    return "(\n" + "\n".join(f'    "{piece}"' for piece in pieces) + "\n)"


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _why_mended(shown: Demonstration) -> list[str]:
    if any(call.embedding is not None for call in shown.calls):
        return ["Only the program of one row is run, by waveproof: all programs of this grid would take days."]
    if any(_is_narrow(call) for call in shown.calls):
        return [
            "Triton's interpreter multiplies the bit patterns of bfloat16 and 8-bit floats and truncates where it must",
            "round (measured on 3.9.0). waveproof mends that from outside; without it every kernel would look wrong.",
        ]
    return ["waveproof watches the interpreter's memory accesses: one outside the launch's tensors raises."]
