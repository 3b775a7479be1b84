"""What is noted of one run of a drawn package, and what its wrapped program calls so that it can be noted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from waveproof.selftest.audit_packages import PACKAGE

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


# Standing in ----------------------------------------------------------------------------------------------------------


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


class Watch:
    """What the wrapped program calls."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.statements = 0
        self.named: list[FunctionType] = []
        """Functions that are named and not called: the audit's graph is by name, whoever gets them may call them."""
        self.known: set[CodeType] = set()
        self.failed: list[ImportError] = []
        """Imports that were noted where they failed, not wherever they are passed on."""

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
        if found and not any(error is one for one in self.failed):
            self.failed.append(error)
            self.note(f"{found[2]}.{found[1]}", "ImportError", file, function, line)
