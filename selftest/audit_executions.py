"""Runs a drawn package under every combination of platform, configuration and data, and notes what is missing.

Each package is executed twice by CPython itself. *Plainly*, as it stands, up to its first error. *Resumed*, with every
use of a name wrapped so that one that is missing is noted and replaced by a :class:`.audit_watch.Stub`, after which the
run goes on: an error hides what lies behind it, and the audit tells of both. The plain run vouches for the resumed one:
their first errors have to be the same.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from inspect import CO_VARARGS
from types import CodeType, FunctionType, ModuleType
from typing import Any

from waveproof.selftest.audit_packages import (
    ENVIRONMENT,
    NEVER_THERE,
    PACKAGE,
    REQUESTS,
    UNDECIDED_PACKAGE,
    DrawnPackage,
)
from waveproof.selftest.audit_watch import Data, Execution, Missing, NotJudged, Setting, Watch
from waveproof.selftest.audit_wrapping import Resuming


class InstrumentFault(AssertionError):
    """The resumed run does not begin like the plain one."""


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


def _module(name: str, **bound: object) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(bound)
    return module


def _callable(*given: object) -> object:
    return given


def _codes(package: DrawnPackage, resumed: bool) -> dict[str, CodeType]:
    codes = {}
    for module, text in package.files.items():
        tree = ast.parse(text)
        file = package.file(module)
        if resumed:
            tree = ast.fix_missing_locations(Resuming(file).visit(tree))
        codes[module] = compile(tree, file, "exec")
    return codes


@contextmanager
def _as(setting: Setting, data: Data, modules: _Modules) -> Iterator[None]:
    """The machine of a setting: its torch, its packages, its environment."""
    hip, cuda = ("6.4", None) if setting.platform == "hip" else (None, "12.8")
    version = _module("torch.version", hip=hip, cuda=cuda)
    replaced: dict[str, Any] = {
        REQUESTS: _module(REQUESTS, request=data),
        "torch": _module("torch", version=version),
        "torch.version": version,
        UNDECIDED_PACKAGE: _module(UNDECIDED_PACKAGE, kernel=_callable) if setting.installed else None,
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
    watch = Watch(made)
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
