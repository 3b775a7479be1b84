"""Runs a drawn package under every combination of platform, configuration and data, and notes what is missing.

Each package is executed twice by CPython itself. *Plainly*, as it stands, up to its first error. *Resumed*, with every
use of a name wrapped so that one that is missing is noted and replaced by a :class:`Stub`, after which the run goes on:
an error hides what lies behind it, and the audit tells of both. The plain run vouches for the resumed one: their first
errors have to be the same.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import itertools
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from inspect import CO_VARARGS
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from waveproof.selftest.audit_packages import (
    ENVIRONMENT,
    NEVER_THERE,
    PACKAGE,
    REQUESTS,
    UNDECIDED_PACKAGE,
    DrawnPackage,
)

_MOST_STATEMENTS = 3000
"""Of one run; a package that goes on for longer calls itself."""


class Missing(NamedTuple):
    """A use of a name that was unbound or None."""

    file: str
    function: str
    """Qualified as the audit does, empty for a module."""
    name: str
    kind: str
    """``unbound``, ``ImportError``, ``AttributeError``, ``None called``, ``None attribute``, ``None subscripted``."""
    line: int


class NotJudged(BaseException):
    """A run that does not end, or ends with an error that is none of something missing."""


class InstrumentFault(AssertionError):
    """The resumed run does not begin like the plain one."""


@dataclass(frozen=True)
class Setting:
    """What is so in one run."""

    platform: str
    variable: bool
    """Whether the environment variable is set."""
    installed: bool
    """Whether the undecided package is there."""

    @property
    def configuration(self) -> tuple[bool, bool]:
        """All of it that is undecided on a platform."""
        return self.variable, self.installed


@dataclass(frozen=True)
class Data:
    """Argument of the entry."""

    tall: bool
    wide: bool
    rows: tuple[Any, ...]


@dataclass
class Execution:
    """What happened in one run."""

    setting: Setting
    data: Data
    missing: list[Missing] = field(default_factory=list)
    lines: set[tuple[str, int]] = field(default_factory=set)
    functions: set[tuple[str, str]] = field(default_factory=set)
    """Those entered, by file and qualified name."""
    stub_decided: bool = False
    """Whether a branch was taken by the truth of a stub: there is no telling what would have been."""
    of_entry: int = 0
    """How many of ``missing`` were met on the way from the entry; the rest in functions that were named only."""
    there: set[tuple[str, int, str, str]] = field(default_factory=set)
    """What was not missing: file, line, name and the kind that it would have been."""
    cut: bool = False
    """Whether the import of the package failed."""
    broken_off: bool = False
    """Whether a call ended with an import that failed, or with what a callee raised; there is no telling what lies
    behind."""

    @property
    def given(self) -> tuple[bool, bool, Data]:
        """All but the platform."""
        return (*self.setting.configuration, self.data)


def executions(package: DrawnPackage, platforms: Sequence[str] = ("hip", "cuda")) -> list[Execution]:
    """Every combination, each in modules of its own.

    Raises:
        InstrumentFault: a resumed run does not begin like the plain one.
        NotJudged: the package calls itself for ever, or does with data what they do not bear.
    """
    text = "\n".join(package.files.values())
    plain = _codes(package, resumed=False)
    resumed = _codes(package, resumed=True)
    either = (False, True)
    rows = ((), (_callable, _callable)) if ".rows" in text else ((),)
    datas = [Data(*one) for one in itertools.product(either, either, rows)]
    made = []
    for platform, variable, installed in itertools.product(
        platforms, either if ENVIRONMENT in text else (False,), either if UNDECIDED_PACKAGE in text else (False,)
    ):
        for data in datas:
            setting = Setting(platform, variable, installed)
            one = _resumed(resumed, setting, data, datas)
            _vouch(_plain(plain, setting, data), one)
            made.append(one)
    return made


# Running --------------------------------------------------------------------------------------------------------------


class _Modules(MetaPathFinder, Loader):
    """Imports the drawn modules from memory."""

    def __init__(self, codes: dict[str, CodeType], bound: dict[str, Any]) -> None:
        self.codes, self.bound = codes, bound

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname not in self.codes:
            return None
        return spec_from_loader(fullname, self, is_package=fullname == PACKAGE)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(self.bound)
        exec(self.codes[module.__name__], module.__dict__)


def _callable(*given: object) -> object:
    return given


def _codes(package: DrawnPackage, resumed: bool) -> dict[str, CodeType]:
    codes = {}
    for module, text in package.files.items():
        tree = ast.parse(text)
        file = package.file(module)
        if resumed:
            tree = ast.fix_missing_locations(_Resuming(file).visit(tree))
        codes[module] = compile(tree, file, "exec")
    return codes


@contextmanager
def _as(setting: Setting, data: Data, modules: _Modules) -> Iterator[None]:
    """The machine of a setting: its torch, its packages, its environment."""
    torch = ModuleType("torch")
    torch.version = ModuleType("torch.version")  # type: ignore[attr-defined]
    torch.version.hip = "6.4" if setting.platform == "hip" else None
    torch.version.cuda = "12.8" if setting.platform == "cuda" else None
    undecided = ModuleType(UNDECIDED_PACKAGE) if setting.installed else None
    if undecided is not None:
        undecided.kernel = _callable  # type: ignore[attr-defined]
    requests = ModuleType(REQUESTS)
    requests.request = data  # type: ignore[attr-defined]
    replaced = {
        REQUESTS: requests,
        "torch": torch,
        "torch.version": torch.version,
        UNDECIDED_PACKAGE: undecided,
        NEVER_THERE: None,
    }
    before = {name: sys.modules[name] for name in replaced if name in sys.modules}
    sys.modules.update(replaced)
    os.environ[ENVIRONMENT] = "1" if setting.variable else "0"
    sys.meta_path.insert(0, modules)
    try:
        yield
    finally:
        sys.meta_path.remove(modules)
        del os.environ[ENVIRONMENT]
        for name in (*replaced, *modules.codes):
            sys.modules.pop(name, None)
        sys.modules.update(before)


def _enter(data: Data) -> None:
    importlib.import_module(f"{PACKAGE}.user").run(data)


def _plain(codes: dict[str, CodeType], setting: Setting, data: Data) -> Missing | None:
    """The error that a run ends with, if it is one of something missing; only its place and kind are told."""
    with _as(setting, data, _Modules(codes, {})):
        try:
            _enter(data)
        except (NameError, ImportError, TypeError, AttributeError) as error:
            kind = _kind(error)
            places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
            file, line = [one for one in places if one[0].startswith(PACKAGE)][-1]
            quoted = re.search(r"'(\w+)'", str(error))
            name = quoted[1] if quoted and kind == "unbound" else str(error)
            return Missing(file, "", name, kind, line)
        except RecursionError:
            raise NotJudged from None
        except (AssertionError, ValueError):
            pass
    return None


def _kind(error: Exception) -> str:
    text = str(error)
    if isinstance(error, NameError):
        return "unbound"
    if isinstance(error, ImportError):
        return "ImportError"
    if "'NoneType' object is not callable" in text:
        return "None called"
    if "'NoneType' object is not subscriptable" in text:
        return "None subscripted"
    if "'NoneType' object has no attribute" in text:
        return "None attribute"
    return "AttributeError" if isinstance(error, AttributeError) and "module '" in text else ""


def _resumed(codes: dict[str, CodeType], setting: Setting, data: Data, datas: Sequence[Data]) -> Execution:
    made = Execution(setting, data)
    watch = _Watch(made)
    with _as(setting, data, _Modules(codes, watch.bound())):
        try:
            run = importlib.import_module(f"{PACKAGE}.user").run
        except (ImportError, AssertionError, ValueError):
            run, made.cut = None, True
        except (AttributeError, TypeError, RecursionError) as error:
            raise NotJudged from error
        if run is not None:
            made.broken_off |= not _call(run, data)
        made.of_entry = len(made.missing)
        while watch.named and not made.cut:
            function = watch.named.pop()
            for one in datas:
                made.broken_off |= not _call(function, one)
    return made


def _call(function: FunctionType, data: Data) -> bool:
    """Call a function of the package; whether it went its own way to the end: no import failed, no callee raised."""
    takes_data = function.__code__.co_argcount or function.__code__.co_flags & CO_VARARGS
    try:
        function(*(data,) if takes_data else ())
    except ImportError:
        return False
    except (AssertionError, ValueError) as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        return frame.f_code is function.__code__
    except (AttributeError, TypeError, RecursionError) as error:
        raise NotJudged from error
    return True


def _vouch(plain: Missing | None, resumed: Execution) -> None:
    first = resumed.missing[0] if resumed.of_entry else None
    if plain is not None and not plain.kind:
        return  # something else went wrong, which the audit does not tell of
    if plain is not None and plain.kind == "ImportError" and "cannot import name" not in plain.name:
        return  # a package outside is not there
    # Of an unbound local CPython 3.11 may tell the line before: it loads and stores in one instruction.
    if (plain and _place(plain)) != (first and _place(first)):
        raise InstrumentFault(f"plainly {plain}, resumed {first}, {resumed.setting}, {resumed.data}")


def _place(one: Missing) -> tuple[str, str, str | int]:
    return one.file, one.kind, one.name if one.kind == "unbound" else one.line


class Stub:
    """Stands for something missing, and bears whatever is done with it."""

    __name__ = "stub"

    def __init__(self, execution: Execution) -> None:
        self._execution = execution

    def __call__(self, *given: object, **named: object) -> Stub:
        return self

    def __getitem__(self, index: object) -> Stub:
        return self

    def __iter__(self) -> Iterator[Stub]:
        return iter((self,))

    def __enter__(self) -> Stub:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __bool__(self) -> bool:
        self._execution.stub_decided = True
        return False


class _Watch:
    """What the wrapped program calls."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.statements = 0
        self.named: list[FunctionType] = []
        """Functions that are named and not called: the audit's graph is by name, whoever gets them may call them."""
        self.known: set[CodeType] = set()

    def bound(self) -> dict[str, Any]:
        return {
            f"__{name}__": getattr(self, name)
            for name in ("at", "load", "met", "asked", "called", "attribute", "item", "imported")
        }

    def note(self, name: str, kind: str, file: str, function: str, line: int) -> Stub:
        self.execution.missing.append(Missing(file, function, name, kind, line))
        return Stub(self.execution)

    def at(self, file: str, function: str, line: int) -> None:
        self.statements += 1
        if self.statements > _MOST_STATEMENTS:
            raise NotJudged
        self.execution.lines.add((file, line))
        self.execution.functions.add((file, function))

    def load(self, file: str, function: str, line: int, name: str, value: Any, inside: dict[str, Any]) -> Any:
        try:
            found = inside[name] if name in inside else value()
        except NameError:
            return self.note(name, "unbound", file, function, line)
        self.execution.there.add((file, line, name, "unbound"))
        return self.met(found)

    def met(self, value: Any) -> Any:
        """Something is named or made; a function of the package is called in the end."""
        if isinstance(value, FunctionType) and value.__code__ not in self.known:
            self.known.add(value.__code__)
            if value.__module__.startswith(PACKAGE) and not value.__name__.startswith(("base", "is_")):
                self.named.append(value)
        return value

    def called(self, file: str, function: str, line: int, name: str, value: Any) -> Any:
        if value is None:
            return self.note(name, "None called", file, function, line) if name else Stub(self.execution)
        self.execution.there.add((file, line, name, "None called"))
        return value if callable(value) else Stub(self.execution)

    def attribute(self, file: str, function: str, line: int, name: str, value: Any, attribute: str) -> Any:
        if value is None:
            return self.note(name, "None attribute", file, function, line) if name else Stub(self.execution)
        if isinstance(value, ModuleType) and not hasattr(value, attribute):
            return self.note(f"{name}.{attribute}", "AttributeError", file, function, line)
        self.execution.there.add((file, line, name, "None attribute"))
        self.execution.there.add((file, line, f"{name}.{attribute}", "AttributeError"))
        return self.met(getattr(value, attribute, Stub(self.execution)))

    def asked(self, value: Any) -> Any:
        """Something is asked what it is."""
        self.execution.stub_decided |= isinstance(value, Stub)
        return value

    def item(self, file: str, function: str, line: int, name: str, value: Any) -> Any:
        if value is None:
            return self.note(name, "None subscripted", file, function, line) if name else Stub(self.execution)
        self.execution.there.add((file, line, name, "None subscripted"))
        return value if hasattr(value, "__getitem__") and not isinstance(value, type) else Stub(self.execution)

    def imported(self, file: str, function: str, line: int, error: ImportError) -> None:
        found = re.match(r"cannot import name '(\w+)' from (?:partially initialized module )?'([\w.]+)'", str(error))
        if found and not getattr(error, "is_noted", False):
            error.is_noted = True  # type: ignore[attr-defined]
            self.note(f"{found[2]}.{found[1]}", "ImportError", file, function, line)


# Wrapping -------------------------------------------------------------------------------------------------------------

_LEFT_ALONE = frozenset({"data", "torch", "os", "nullcontext", "request", "ImportError", "ValueError", *dir(builtins)})


class _Resuming(ast.NodeTransformer):
    """Wraps every use of a name, call, attribute, subscript and import, and marks every statement."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.function = ""
        self.scope = ""
        """Qualified name of the class or function around."""
        self.in_class = False
        self.prepared = False
        """Whether an ``except ImportError`` of this scope is around."""
        self.local: tuple[str, ...] = ()
        self.bound_by_class: frozenset[str] = frozenset()

    def _watched(self, what: str, line: int, *given: ast.expr) -> ast.Call:
        place: list[ast.expr] = [ast.Constant(one) for one in (self.file, self.function, line)]
        return ast.Call(ast.Name(f"__{what}__", ast.Load()), [*place, *given], [])

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not isinstance(node.ctx, ast.Load) or node.id in _LEFT_ALONE or node.id in self.local:
            return node
        inside: ast.expr = ast.Dict([], [])
        value: ast.expr = node
        if self.in_class:
            inside = ast.Call(ast.Name("locals", ast.Load()), [], [])
            if node.id in self.bound_by_class:  # looked for in the class, then in the module: never in between
                value = ast.parse(f"eval({node.id!r}, globals())", mode="eval").body
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        return self._watched("load", node.lineno, ast.Constant(node.id), ast.Lambda(nothing, value), inside)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = ast.Constant(_told(node.func))
        known = isinstance(node.func, ast.Name) and node.func.id in _LEFT_ALONE
        known = known or ast.unparse(node.func).startswith("os.")
        line = node.lineno
        asks = isinstance(node.func, ast.Name) and node.func.id in ("callable", "hasattr")
        self.generic_visit(node)
        if asks:
            node.args[0] = ast.Call(ast.Name("__asked__", ast.Load()), [node.args[0]], [])
        if not known:
            node.func = self._watched("called", line, name, node.func)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        node.left = ast.Call(ast.Name("__asked__", ast.Load()), [self.visit(node.left)], [])
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if not isinstance(node.ctx, ast.Load) or ast.unparse(node).startswith(("os.", "torch.", "data.")):
            return node
        name = ast.Constant(_told(node.value))
        value = self.visit(node.value)
        return self._watched("attribute", node.lineno, name, value, ast.Constant(node.attr))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        name = ast.Constant(_told(node.value))
        node.value = self._watched("item", node.lineno, name, self.visit(node.value))
        return node

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        """Its first iterable is evaluated outside."""
        node.generators[0].iter = self.visit(node.generators[0].iter)
        before, self.in_class = (self.local, self.in_class), False
        self.local = (
            *self.local,
            *(one.id for one in ast.walk(node.generators[0].target) if isinstance(one, ast.Name)),
        )
        node.generators[0].ifs = [self.visit(one) for one in node.generators[0].ifs]
        node.elt = self.visit(node.elt)
        self.local, self.in_class = before
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        node.args.defaults = [self.visit(one) for one in node.args.defaults]
        before = self.function, self.scope, self.in_class, self.prepared, self.local
        self.function = self.scope = self._inside("<lambda>")
        self.in_class, self.prepared = False, False
        self.local = (*self.local, *(one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)))
        node.body = self.visit(node.body)
        self.function, self.scope, self.in_class, self.prepared, self.local = before
        return ast.Call(ast.Name("__met__", ast.Load()), [node], [])

    def _inside(self, name: str) -> str:
        return f"{self.scope}.{name}" if self.scope else name

    def visit_FunctionDef(self, node: ast.FunctionDef) -> list[ast.stmt]:
        node.decorator_list = [
            self._watched("called", one.lineno, ast.Constant(_told(one)), self.visit(one))
            for one in node.decorator_list
        ]
        node.args.defaults = [self.visit(one) for one in node.args.defaults]
        before = self.function, self.scope, self.in_class, self.prepared, self.local
        self.function = self.scope = self._inside(node.name)
        self.in_class, self.prepared, self.local = False, False, ()
        node.body = self._body(node.body)
        self.function, self.scope, self.in_class, self.prepared, self.local = before
        made = ast.Call(ast.Name("__met__", ast.Load()), [ast.Name(node.name, ast.Load())], [])
        return [node, ast.Expr(made)] if self.function else [node]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        before = self.scope, self.in_class, self.bound_by_class
        self.scope, self.in_class, self.bound_by_class = self._inside(node.name), True, frozenset(_bound(node.body))
        node.body = self._body(node.body)
        self.scope, self.in_class, self.bound_by_class = before
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        if self.prepared:
            return node
        noted = ast.Expr(self._watched("imported", node.lineno, ast.Name("__error__", ast.Load())))
        handler = ast.ExceptHandler(ast.Name("ImportError", ast.Load()), "__error__", [noted, ast.Raise()])
        return ast.Try([node], [handler], [], [])

    def visit_Try(self, node: ast.Try) -> ast.Try:
        before = self.prepared
        caught = {
            one.id for handler in node.handlers for one in ast.walk(handler.type or node) if isinstance(one, ast.Name)
        }
        self.prepared = before or "ImportError" in caught
        node.body = self._body(node.body)
        self.prepared = before
        for handler in node.handlers:
            handler.body = self._body(handler.body)
        node.orelse, node.finalbody = self._body(node.orelse), self._body(node.finalbody)
        return node

    def visit_Delete(self, node: ast.Delete) -> list[ast.stmt]:
        target = node.targets[0]
        assert isinstance(target, ast.Name)
        looked = ast.copy_location(ast.Name(target.id, ast.Load()), target)
        handler = ast.ExceptHandler(ast.Name("NameError", ast.Load()), None, [ast.Pass()])
        return [ast.Expr(self.visit(looked)), ast.Try([node], [handler], [], [])]

    def visit_Module(self, node: ast.Module) -> ast.Module:
        node.body = self._body(node.body)
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(node, name, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                setattr(node, name, self._body(inner))
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and not (value and isinstance(value[0], ast.stmt)):
                setattr(node, name, [self.visit(one) if isinstance(one, ast.AST) else one for one in value])
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node

    def _body(self, body: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for one in body:
            if not isinstance(one, ast.Global):
                made.append(ast.Expr(self._watched("at", one.lineno)))
            visited = self.visit(one)
            made += visited if isinstance(visited, list) else [visited]
        return made


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    """Names that statements bind in their own scope."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        one = waiting.pop()
        if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load):
            yield one.id
        if isinstance(one, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler)) and one.name:
            yield one.name
        elif isinstance(one, ast.alias):
            yield one.asname or one.name
        if not isinstance(one, (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp)):
            waiting += ast.iter_child_nodes(one)


def _told(node: ast.expr) -> str:
    """Name of what may be None; empty for an expression, of which the audit does not tell."""
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
