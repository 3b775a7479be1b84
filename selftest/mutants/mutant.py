"""One entry of a table of planted faults and right implementations.

Each is a plain function with its operator's signature that anybody can put on trial alone, say with
``--provider top_k_renorm_prob=selftest/mutants/renorm_top_k.py:zeros``; its docstring says what is wrong with it and
which public report it follows. Reading a table imports none of them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    """One implementation on trial."""

    name: str
    operator: str
    seen_by: str
    """The rule that is expected to break, among others perhaps; empty for a right implementation."""
    variant: str
    """The semantic variant that it declares."""
    file: str
    """File beside this one that defines it."""
    runtimes: tuple[str, ...] = ("cpu",)
    whole_rows: bool = False
    """Whether a row is a program of its own and host code touches no other (``Implementation.whole_row_programs``)."""
    declares: str = ""
    """Other keys of its ``--provider`` value, as in ``omits=lse,heads=16+128``."""
    profile: str = "quick"
    """The smallest profile that has a size at which the fault shows, and time for it: others of its kind may stand for
    it in a smaller one."""

    @property
    def path(self) -> Path:
        """The file that defines it."""
        return FOLDER / self.file

    @property
    def fault(self) -> str:
        """What is wrong with it, from its docstring."""
        return _docstrings(self.path)[self.name]

    def function(self) -> Callable[..., Any]:
        """The implementation itself; imports its file."""
        function: Callable[..., Any] = getattr(import_module(f"waveproof.selftest.mutants.{self.path.stem}"), self.name)
        return function

    def option(self, root: Path) -> str:
        """Its ``--provider`` value, with a path relative to ``root``."""
        location = self.path.relative_to(root) if self.path.is_relative_to(root) else self.path
        runtimes = "+".join(self.runtimes)
        grid = ",grid=rows" if self.whole_rows else ""
        declares = f",{self.declares}" if self.declares else ""
        return f"{self.operator}={location}:{self.name},variant={self.variant},runtime={runtimes}{grid}{declares}"


@cache
def _docstrings(path: Path) -> dict[str, str]:
    """First lines of the docstrings of a file's functions, read without running it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name: (ast.get_docstring(node) or "").partition("\n")[0] for node in functions}
