"""Small packages with platform branches, drawn: what the audit reads and what :mod:`.audit_executions` runs.

A package is ``platform_flags`` (questions about the platform and flags made of them), ``extra`` (a sibling to import
from), ``ops`` (binds names under branches) and ``user`` (imports and uses them), with the console script ``user:run``.
Branches go by the platform, by an environment variable, by a package that may be there or not, and by attributes of
``data``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

PACKAGE = "drawn"

ENVIRONMENT = "DRAWN_VARIABLE"
"""What the configuration is asked for."""

UNDECIDED_PACKAGE = "flashinfer"
"""There or not on ROCm, as far as the audit knows."""

NEVER_THERE = "torch_npu"
"""Neither on ROCm nor on CUDA."""

REQUESTS = "drawn_requests"
"""A package outside that offers ``request``, data to call a function with while a module is imported."""


@dataclass(frozen=True)
class DrawnPackage:
    """Sources by dotted module name."""

    files: dict[str, str]

    def file(self, module: str) -> str:
        """Path as the audit shows it."""
        return f"{PACKAGE}/__init__.py" if module == PACKAGE else f"{module.replace('.', '/')}.py"

    def write(self, folder: Path) -> Path:
        """Write the package and its console script below a folder, and give that folder."""
        for module, text in self.files.items():
            path = folder / self.file(module)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        info = folder / f"{PACKAGE}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "entry_points.txt").write_text(f"[console_scripts]\n{PACKAGE} = {PACKAGE}.user:run\n", encoding="utf-8")
        return folder

    def __str__(self) -> str:
        return "\n".join(f"# --- {self.file(module)}\n{text}" for module, text in self.files.items() if text)


_QUESTIONS = f"""\
import os

import torch


def is_hip():
    return torch.version.hip is not None


def is_cuda():
    return torch.version.cuda is not None


def is_npu():
    return hasattr(torch, "npu")


_is_hip = is_hip()
_is_cuda = is_cuda()
variable = os.environ.get("{ENVIRONMENT}") == "1"
"""

_BASE = f"""\
from contextlib import nullcontext

from {REQUESTS} import request


def base(*given):
    return given


""".split("\n")

_BOUND = ("alpha", "beta", "gamma")
"""Names that ``ops`` binds, or not."""

Choose = Callable[[Sequence[Any]], Any]
"""Takes one of several."""


@dataclass
class _Scope:
    """What may be named where a statement is drawn."""

    module: str
    flags: list[str]
    """Expressions of known or configured truth."""
    names: list[str]
    """Names that branches bind; each may be missing."""
    in_function: bool = False
    in_class: bool = False
    modules: list[str] = field(default_factory=list)
    """Expressions like ``ops.alpha``."""
    depth: int = 0

    def inside(self, **changed: Any) -> _Scope:
        """A scope in this one."""
        return _Scope(**{**self.__dict__, "depth": self.depth + 1, **changed})


@dataclass
class _Author:
    """Writes statements; numbers keep names of definitions apart."""

    take: Choose
    count: int = 0

    def choose(self, *among: Any) -> Any:
        return self.take(among)

    def number(self, least: int, most: int) -> int:
        return int(self.take(range(least, most + 1)))

    def new(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    # Expressions ------------------------------------------------------------------------------------------------------

    def condition(self, scope: _Scope, deep: int = 2) -> str:
        forms = ["flag", "flag", "flag", "not", "and", "or", "name"] if deep else ["flag"]
        forms += ["data", "data"] if scope.in_function else []
        form = self.choose(*forms)
        if form == "flag":
            return str(self.choose(*scope.flags))
        if form == "data":
            return str(self.choose("data.tall", "data.wide"))
        if form == "not":
            return f"not ({self.condition(scope, deep - 1)})"
        if form in ("and", "or"):
            return f"({self.condition(scope, deep - 1)} {form} {self.condition(scope, deep - 1)})"
        name = self.choose(*scope.names)
        return str(self.choose(f"{name} is None", f"{name} is not None", f"callable({name})", name, f"not {name}"))

    def use(self, scope: _Scope) -> str:
        name = self.choose(*scope.names, *scope.modules)
        given = "data" if scope.in_function else "request"
        forms = [f"{name}({given})"] * 3 + [f"{name}.__name__", f"{name} and {name}({given})", f"({name},)"]
        forms += [f"{name}({given}) if {{}} else None", f"[{name}({given}) for one in (1, 2)]", f"{name}[0]"]
        forms += [f"(lambda: {name}({given}))()", f"base({name})", f"hasattr({name}, '__name__') and {name}({given})"]
        forms += [f"({{}}) and {name}({given})", f"({{}}) or {name}({given})"]
        if scope.in_class:  # a comprehension does not see what the class binds: not followed by the audit
            forms = [one for one in forms if not one.startswith("[")]
        form = str(self.choose(*forms))
        return form.format(self.condition(scope, 1)) if "{}" in form else form

    # Statements: lists of lines ---------------------------------------------------------------------------------------

    def block(self, scope: _Scope, most: int = 2) -> list[str]:
        return [line for _ in range(self.number(1, most)) for line in self.statement(scope)]

    def statement(self, scope: _Scope) -> list[str]:
        forms: list[Callable[[_Scope], list[str]]] = [self._bind, self._bind, lambda inner: [self.use(inner)]]
        forms += [] if scope.depth > 2 else [self._branch, self._branch, self._attempt, self._loop]
        forms += [self._way_out, self._way_out] if scope.in_function and not scope.in_class else []
        forms += [self.definition, self._class] if scope.depth < 2 else []
        return list(self.choose(*forms)(scope))

    def _bind(self, scope: _Scope) -> list[str]:
        name, other = self.choose(*scope.names), self.choose(*scope.names)
        source = self.choose("base", "sibling", "thing")
        forms: list[list[str]] = [
            [f"{name} = lambda *given: given"], [f"{name} = None"], [f"{name} = base"], [f"{name} = {other}"],
            [f"def {name}(*given):", "    return given"], [f"class {name}:", "    def __init__(self, *given): pass"],
            [f"for {name} in (base, base): pass"], [f"with nullcontext(base) as {name}: pass"],
            [f"{name} = base if {self.condition(scope, 1)} else {self.choose('None', other)}"],
            ["try:", "    raise ValueError", f"except ValueError as {name}:", "    pass"],
            [f"{name}, {other} = base, None"],
        ]  # fmt: skip
        if not (scope.in_function or scope.in_class):  # the audit knows functions by name: one of each in a module
            forms = [one for one in forms if not one[0].startswith("def")]
        if not scope.in_class:
            forms += [[f"base({name} := base)"], [f"del {name}"]]
        if scope.in_function:
            forms.append([f"for {name} in data.rows: pass"])
        if scope.module != "extra":
            forms += [[f"from .extra import {source} as {name}"], [f"from {PACKAGE}.extra import {source} as {name}"]]
        return list(self.choose(*forms))

    def _branch(self, scope: _Scope) -> list[str]:
        inner = scope.inside()
        lines = [f"if {self.condition(scope)}:", *_indented(self.block(inner))]
        if self.number(0, 3) == 3:
            lines += [f"elif {self.condition(scope)}:", *_indented(self.block(inner))]
        if self.number(0, 1):
            lines += ["else:", *_indented(self.block(inner))]
        return lines

    def _attempt(self, scope: _Scope) -> list[str]:
        name = self.choose(*scope.names)
        tried = [f"from {self.choose(UNDECIDED_PACKAGE, NEVER_THERE)} import kernel as {name}"]
        if scope.module == "user" and self.number(0, 2) == 2:
            tried = [f"from .ops import {self.choose(*_BOUND)} as {name}"]
        body = self.choose(["pass"], [f"{name} = None"], None) or self.block(scope.inside())
        return ["try:", *_indented(tried), "except ImportError:", *_indented(body)]

    def _loop(self, scope: _Scope) -> list[str]:
        over = self.choose("(1, 2)", *(["data.rows"] if scope.in_function else []))
        body = self.block(scope.inside())
        if self.number(0, 2) == 2:
            body += [f"if {self.condition(scope, 1)}:", f"    {self.choose('break', 'continue')}"]
        return [f"for one in {over}:", *_indented(body)]

    def _way_out(self, scope: _Scope) -> list[str]:
        """Before something missing is used."""
        name = self.choose(*scope.names)
        test = self.choose(f"{name} is None", f"not {name}", f"not callable({name})", self.condition(scope))
        form = self.choose("return data", "return data", "raise ValueError", "assert")
        return [f"assert not ({test})"] if form == "assert" else [f"if {test}:", f"    {form}"]

    def definition(self, scope: _Scope) -> list[str]:
        """A function, called at once or only defined."""
        name, lines = self.new("made"), []
        if self.number(0, 4) == 4:  # of a body that does nothing: what a decorator makes of a function is not followed
            lines += [f"@{self.choose(*scope.names)}", f"def {self.new('taken')}(data):", "    return data"]
        default = f", given={self.choose(*scope.names)}" if self.number(0, 3) == 3 else ""
        lines += [f"def {name}(data{default}):", *_indented(self.function_body(scope))]
        return [*lines, f"{name}(data)"] if scope.in_function and self.number(0, 2) else lines

    def function_body(self, scope: _Scope) -> list[str]:
        inner, lines = scope.inside(in_function=True, in_class=False), []
        if self.number(0, 4) == 4:
            lines.append(f"global {self.choose(*_BOUND)}")
        elif self.number(0, 1):
            inner.names = [*inner.names, "local", "local"]
        return lines + self.block(inner, 4)

    def _class(self, scope: _Scope) -> list[str]:
        return [f"class {self.new('Made')}:", *_indented(self.block(scope.inside(in_class=True)))]

    def offered(self, name: str, scope: _Scope) -> list[str]:
        """The usual way of a package with kernels: a name that is bound according to the platform, or not."""
        one = self._binding_of(name, scope)
        if not self.number(0, 2):
            return one
        lines = [f"if {self.condition(scope, 1)}:", *_indented(one)]
        return [*lines, "else:", *_indented(self._binding_of(name, scope))] if self.number(0, 1) else lines

    def _binding_of(self, name: str, scope: _Scope) -> list[str]:
        form = self.choose("def", "def", "none", "import", "base", "absent")
        if form == "def":
            body = self.block(scope.inside(in_function=True), 1)
            return [f"def {name}(data):", *_indented(body), "    return data"]
        if form == "absent":
            tried = [f"    from {UNDECIDED_PACKAGE} import kernel as {name}"]
            return ["try:", *tried, "except ImportError:", f"    {name} = None"]
        return [
            {"none": f"{name} = None", "import": f"from .extra import thing as {name}", "base": f"{name} = base"}[form]
        ]

    # Modules ----------------------------------------------------------------------------------------------------------

    def platform_flags(self) -> tuple[list[str], list[str]]:
        """Lines of that module, and names of its flags."""
        names, lines = ["_is_hip", "_is_cuda", "variable"], [_QUESTIONS]
        for number in range(self.number(0, 3)):
            flag, known = f"flag_{number}", [*names, "is_hip()", "is_cuda()", "is_npu()"]
            one, two = self.choose(*known), self.choose(*known)
            if self.number(0, 2) == 2:
                lines += [f"if {one}:", f"    {flag} = {self.choose('True', 'False', *names)}"]
                lines += ["else:", f"    {flag} = {self.choose('True', 'False', *names)}"]
            else:
                made = self.choose(f"not {one}", f"{one} and {two}", f"{one} or not {two}", f"bool({one})", one)
                lines.append(f"{flag} = {made}")
            names.append(flag)
        return lines, names

    def imported_flags(self, names: list[str]) -> tuple[list[str], list[str]]:
        """Import statements, and what the flags are called behind them."""
        lines, flags = [], []
        for name in names:
            style = self.choose("plain", "alias", "attribute", "absolute")
            if style == "attribute":
                lines.append("from . import platform_flags")
            else:
                package = f"{PACKAGE}." if style == "absolute" else "."
                called = f" as its_{name}" if style == "alias" else ""
                lines.append(f"from {package}platform_flags import {name}{called}")
            flags.append({"alias": f"its_{name}", "attribute": f"platform_flags.{name}"}.get(style, name))
        lines.append("from .platform_flags import is_hip, is_cuda")
        return list(dict.fromkeys(lines)), [*flags, "is_hip()", "is_cuda()"]

    def extra(self, names: list[str]) -> list[str]:
        lines, flags = self.imported_flags(names)
        scope = _Scope("extra", flags, ["sibling", "thing"])
        lines += [*_BASE, "sibling = thing = base"]
        if self.number(0, 1):
            lines += [f"if {self.condition(scope, 1)}:", f"    {self.choose('del thing', 'thing = None')}"]
        return lines + (self.block(scope, 1) if self.number(0, 1) else [])

    def ops(self, names: list[str]) -> list[str]:
        lines, flags = self.imported_flags(names)
        scope = _Scope("ops", flags, list(_BOUND))
        lines += [*_BASE, *(line for name in _BOUND for line in self.offered(name, scope))]
        return [*lines, *(self.block(scope) if self.number(0, 1) else []), *self.definition(scope)]

    def user(self, names: list[str], functions: list[str]) -> list[str]:
        lines, flags = self.imported_flags(names)
        scope = _Scope("user", flags, list(_BOUND), modules=[f"ops.{one}" for one in _BOUND])
        lines.append("from . import ops")
        for name in _BOUND:
            form = self.choose("import", "import", "none", "attribute", "guarded")
            if form in ("import", "guarded"):
                lines += [f"if {self.condition(scope, 1)}:"] if form == "guarded" else []
                lines.append(f"{'    ' if form == 'guarded' else ''}from .ops import {name}")
            elif form == "attribute":
                lines.append(f"{name} = ops.{name}")
        lines += [*_BASE, *(self.block(scope) if self.number(0, 1) else [])]
        lines += ["def run(data):", *_indented(self.function_body(scope))]
        return lines + [f"    ops.{name}(data)" for name in functions if self.number(0, 3)]

    def package(self) -> DrawnPackage:
        platform_flags, names = self.platform_flags()
        ops = self.ops(names)
        functions = [line[4 : line.index("(")] for line in ops if line.startswith("def made")]
        texts = {
            "": [],
            ".platform_flags": platform_flags,
            ".extra": self.extra(names),
            ".ops": ops,
            ".user": self.user(names, functions),
        }
        return DrawnPackage({f"{PACKAGE}{name}": "\n".join([*text, ""]) for name, text in texts.items()})


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def package_of(seed: int) -> DrawnPackage:
    """The same package wherever it is drawn."""
    return _Author(Random(seed).choice).package()
