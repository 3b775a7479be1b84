"""Small programs of branches, flags, imports and guards, made by hypothesis, and what they do when they are run.

The second method by which the symbol audit is tried: each program is run in another process, on a stand-in for torch
that says which platform it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, cast

from hypothesis import strategies as st

from waveproof.fixtures.audit.findings import Finding

PLATFORM = """
import torch
def is_hip():
    return torch.version.hip is not None
def is_cuda():
    return torch.cuda.is_available() and torch.version.cuda is not None
"""

FLAGS = """
import os
from pkg.plat import is_cuda, is_hip
A = is_hip()
B = is_cuda()
C = not A
D = os.environ.get("D") == "1"
"""
"""On HIP: A holds, B and C do not, D is a matter of the environment."""

IMPL = "def g(*given):\n    return 1\n"

RUNNER = """
import importlib.abc, importlib.util, json, os, sys, types

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    files = {}
    def find_spec(self, name, path=None, target=None):
        if name in self.files:
            return importlib.util.spec_from_loader(name, self, is_package=name == "pkg")
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(self.files[module.__name__], module.__name__, "exec"), module.__dict__)

torch = types.ModuleType("torch")
torch.version = types.SimpleNamespace(hip="7.0", cuda=None)
torch.cuda = types.SimpleNamespace(is_available=lambda: True)
sys.modules["torch"] = torch
sys.meta_path.insert(0, Finder())
for line in sys.stdin:
    Finder.files = json.loads(line)
    raised = []
    for d in ("", "1"):
        os.environ["D"] = d
        for x in (None, 0, 1):
            for name in [one for one in sys.modules if one.partition(".")[0] == "pkg"]:
                del sys.modules[name]
            where = "import"
            try:
                import pkg.use
                where = "run"
                pkg.use.run(x)
            except Exception as error:
                raised.append([d, x, where, type(error).__name__, str(error)])
    print(json.dumps(raised), flush=True)
"""

MISSING = ("NameError", "UnboundLocalError", "ImportError", "AttributeError", "TypeError")


@dataclass(frozen=True)
class Raised:
    """What a program has raised for one setting and one datum."""

    setting: str
    datum: int | None
    where: str
    """``import`` or ``run``."""
    error: str
    text: str


class Runner:
    """A process that runs programs, one after another."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, files: dict[str, str]) -> list[Raised]:
        """Import ``pkg.use`` and call its ``run``, for each setting and datum."""
        given, answers = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        given.write(json.dumps(files) + "\n")
        given.flush()
        return [Raised(*one) for one in json.loads(answers.readline())]

    def close(self) -> None:
        """End it."""
        cast(IO[str], self._process.stdin).close()
        self._process.wait(10)
        cast(IO[str], self._process.stdout).close()


def indented(lines: list[str]) -> list[str]:
    """A body, never empty."""
    return [f"    {line}" for line in lines or ["pass"]]


PLATFORM_TESTS = st.sampled_from(
    ["A", "B", "C", "not A", "not B", "A and B", "A or B", "is_hip()", "is_cuda()", "B or C", "not (A or D)", "B and D"]
)
"""Conditions that HIP decides."""

BINDINGS = st.sampled_from(
    ["def f(*given):\n    return 1", "from pkg.impl import g as f", "f = None", "f = g_of_impl", ""]
)


@st.composite
def bound_names(draw: st.DrawFn, name: str = "f") -> list[str]:
    """Lines that bind a name on some platforms, or none."""

    def one() -> list[str]:
        return (
            draw(BINDINGS)
            .replace("f(", f"{name}(")
            .replace("as f", f"as {name}")
            .replace("f =", f"{name} =")
            .splitlines()
        )

    shape = draw(st.integers(0, 5))
    test = draw(PLATFORM_TESTS)
    if shape == 0:
        return one()
    if shape == 1:
        return [f"if {test}:", *indented(one()), "else:", *indented(one())]
    if shape == 2:
        return [f"if {test}:", *indented(one())]
    if shape == 3:
        package = draw(st.sampled_from(["pkg.impl", "pkg.nowhere", "torch_npu"]))
        return ["try:", f"    from {package} import g as {name}", "except ImportError:", *indented(one())]
    if shape == 4:
        return [*one(), f"if {test}:", *indented([f"del {name}"] if draw(st.booleans()) else one())]
    return [
        f"if {test}:",
        *indented(one()),
        f"elif {draw(PLATFORM_TESTS)}:",
        *indented(one()),
        "else:",
        *indented(one()),
    ]


GUARDS = st.sampled_from(
    ["A", "B", "not A", "x", "not x", "D", "B or x", "A and x", "A and D", "f is not None", "f is None", "f", "not f",
     "callable(f)", "x is None", "D or f is not None", "B and f(x)", "f is not None and f(x)", "A or D", "x and B"]
)  # fmt: skip

USES = st.sampled_from(["f(x)", "y = f(x)", "f.__name__", "h(x)", "h(x)", "ops.h(x)", "y", "f(x) if A else None",
                        "[f(x) for _ in (1,)]", "f(x) if B else 0", "x or f(x)", "(lambda: f(x))()"])  # fmt: skip


@st.composite
def statements(draw: st.DrawFn, depth: int = 0) -> list[str]:
    """A body of statements that use ``f``, ``h``, ``ops.h`` and local names."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(st.integers(0, 12 if depth < 2 else 4))
        if shape <= 2:
            lines.append(draw(USES))
        elif shape == 3:
            lines.append(
                draw(st.sampled_from(["return 0", "raise RuntimeError", "y = 1", "assert x", "assert f is not None"]))
            )
        elif shape == 4:
            lines.append(
                draw(st.sampled_from(["from pkg.impl import g as y", "y = f", "y = None", "from pkg.impl import g"]))
            )
        elif shape <= 7:
            lines += [f"if {draw(GUARDS)}:", *indented(draw(statements(depth + 1)))]
            if draw(st.booleans()):
                lines += ["else:", *indented(draw(statements(depth + 1)))]
        elif shape == 8:
            caught = draw(st.sampled_from(["NameError", "TypeError", "ImportError", "(NameError, AttributeError)"]))
            lines += [
                "try:",
                *indented(draw(statements(depth + 1))),
                f"except {caught}:",
                *indented(draw(statements(depth + 1))),
            ]
        elif shape == 9:
            lines += [f"if {draw(PLATFORM_TESTS)}:", *indented(draw(bound_names("y")))]
        elif shape == 10:
            lines += ["for _ in (1, 2):", *indented(draw(statements(depth + 1)))]
        elif shape == 11:
            lines += ["while x:", *indented([*draw(statements(depth + 1)), "break"])]
        else:
            lines += ["with open('/dev/null') as handle:", *indented(draw(statements(depth + 1)))]
    return lines


@st.composite
def programs(draw: st.DrawFn) -> dict[str, str]:
    """A package whose ``pkg.use.run`` is to be called."""
    head = "from pkg.flags import A, B, C, D, is_cuda, is_hip\nfrom pkg.impl import g as g_of_impl\n"
    ops = [*draw(bound_names("h")), *draw(bound_names("h2"))]
    imports = draw(
        st.sampled_from(
            ["from pkg.ops import h", "from .ops import h", "from pkg.ops import *", "from pkg.ops import h2 as h",
             "import pkg.ops as ops\nh = getattr(ops, 'h', None)"]
        )
    )  # fmt: skip
    use = [*draw(bound_names("f")), *imports.splitlines(), "import pkg.ops as ops", "def run(x):",
           *indented(draw(statements()))]  # fmt: skip
    return {
        "pkg": "",
        "pkg.plat": PLATFORM,
        "pkg.flags": FLAGS,
        "pkg.impl": IMPL,
        "pkg.ops": head + "\n".join(ops) + "\n",
        "pkg.use": head + "\n".join(use) + "\n",
    }


def missing(error: Raised) -> bool:
    """Whether an error is what a missing name gives, not a fault of how the program uses a value that is there."""
    if error.error == "TypeError":
        return "NoneType" in error.text
    if error.error == "AttributeError":
        return "NoneType" in error.text or "module 'pkg" in error.text
    return error.error in MISSING


ERRORS = {"None called": "TypeError", "None attribute": "AttributeError", "None subscripted": "TypeError"}
"""What a finding of a kind raises, where the kind is not the error itself."""


def falsely_certain(findings: Sequence[Finding], raised: Sequence[Raised]) -> list[str]:
    """Reachable findings of which no datum and no setting shows anything."""
    return [
        f"{one.where}: {one.kind}: {one.name}"
        for one in findings
        if one.certainty == "reachable"
        and not any(
            missing(error) and error.where == ("run" if one.function.startswith("run") else "import")
            for error in raised
        )
    ]


def overlooked(findings: Sequence[Finding], raised: Sequence[Raised], program: dict[str, str]) -> list[Raised]:
    """Errors for want of a name, whatever the datum, of whose kind nothing was found.

    None on every platform is no fault that the audit looks for, nor is an assignment in a handler that is not entered.
    """
    found = {ERRORS.get(one.kind, one.kind) for one in findings}
    handled = "except" in program["pkg.use"]
    return [
        one
        for one in raised
        if missing(one)
        and "NoneType" not in one.text
        and not (handled and one.error == "UnboundLocalError")
        and len([other for other in raised if (other.error, other.setting) == (one.error, one.setting)]) == 3
        and one.error not in found
    ]
