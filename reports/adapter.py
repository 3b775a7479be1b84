"""The source text of an adapter together with everything of its module that it needs.

Only the suite's own provider modules are read: what an upstream package contains is imported by the text, never copied.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Collection
from pathlib import Path


class AdapterMissing(LookupError):
    """A provider module defines no function of that name at its top level."""


def adapter_source(load: str, name: str = "implementation") -> str:
    """Python text that defines the adapter ``package.module:function`` under another name.

    Taken along, in the module's order: functions, classes, constants and imports of the module to which the adapter
    refers, directly or through each other; ``import torch`` is taken for granted.

    Raises:
        AdapterMissing: the module does not exist or its top level defines no such function.

    """
    module, _, function = load.rpartition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise AdapterMissing(f"module {module!r} does not exist")
    return extract(Path(spec.origin).read_text(encoding="utf-8"), function, name, ("import torch",))


def extract(text: str, function: str, name: str, given: Collection[str] = ()) -> str:
    """As :func:`adapter_source`, from a module's text; import statements in ``given`` are there already."""
    tree = ast.parse(text)
    bindings = {bound: node for node in _top_level(tree) for bound in _bound_names(node)}
    start = bindings.get(function)
    if not isinstance(start, ast.FunctionDef):
        raise AdapterMissing(f"no function {function!r} at the top level; there are: {', '.join(sorted(bindings))}")
    needed: dict[int, ast.stmt] = {}
    waiting: list[ast.stmt] = [start]
    refers_to_itself = False
    while waiting:
        node = waiting.pop()
        if node.lineno in needed:
            continue
        needed[node.lineno] = node
        for used in _used_names(node):
            refers_to_itself = refers_to_itself or used == function
            if used in bindings:
                waiting.append(bindings[used])
    imports = []
    pieces = []
    for _, node in sorted(needed.items()):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if ast.unparse(node) in given:
                continue
            imports.append(ast.unparse(node))
        else:
            pieces.append(_text_of(text, node, name if node is start else ""))
    if refers_to_itself and function != name:
        pieces.append(f"{function} = {name}")
    return "\n\n\n".join((["\n".join(imports)] if imports else []) + pieces)


def _top_level(tree: ast.Module) -> list[ast.stmt]:
    """Statements of the module that bind names at run time (not those under ``if TYPE_CHECKING``)."""
    return [node for node in tree.body if not isinstance(node, (ast.If, ast.Try, ast.Expr))]


def _bound_names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return []
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return []


def _used_names(node: ast.stmt) -> set[str]:
    """Names that the statement reads when it runs; annotations are only text, as all modules here declare."""
    names: set[str] = set()
    waiting: list[ast.AST] = [node]
    while waiting:
        current = waiting.pop()
        if isinstance(current, ast.Name) and isinstance(current.ctx, ast.Load):
            names.add(current.id)
        for field, value in ast.iter_fields(current):
            if field in ("annotation", "returns"):
                continue
            waiting += [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, ast.AST)]
    return names


def _text_of(text: str, node: ast.stmt, name: str) -> str:
    lines = text.splitlines()
    first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", []))])
    assert node.end_lineno is not None
    taken = lines[first - 1 : node.end_lineno]
    if name and isinstance(node, ast.FunctionDef):
        at = node.lineno - first
        taken[at] = taken[at].replace(f"def {node.name}", f"def {name}", 1)
    return "\n".join(taken)
