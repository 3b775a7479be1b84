"""The user's own implementation, named on the command line.

``OP=FILE.py:FUNC[,key=value...]`` or ``OP=package.module:FUNC[,key=value...]`` with keys ``variant`` (the semantic
variant that it declares), ``runtime`` (``cpu``, ``interpret``, ``compile``, ``hip``, ``cuda``; several joined by
``+``), ``name``, and ``grid=rows``: axis 0 of its launch grid is the row and its host code touches no other row, so
that it can be run at row 13,107 of a huge batch without the others.

What an implementation of attention does not compute, and refuses, is told by what it does: ``omits=lse`` (an optional
result that it does not give), ``heads=16+128``, ``dtypes=bfloat16/bfloat16+bfloat16/float8_e4m3fn`` (of q and of keys),
``query=4`` (the longest query of a request), ``page=1+16`` (tokens in a page).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waveproof.kernels.operators.contract import Operator
from waveproof.kernels.operators.registry import operator_named
from waveproof.kernels.providers.registry import Implementation, declared_as
from waveproof.kernels.runtimes.catalogue import runtime_named, why_unavailable


class BadProvider(ValueError):
    """A ``--provider`` value that does not name a function for an operator."""


_LIMITS = {"heads": "heads", "dtypes": "dtypes", "query": "longest_query", "page": "page_sizes"}
"""Keys for what an implementation of attention computes, and the fields of :class:`Implementation` that they fill."""
_KEYS = ("variant", "runtime", "name", "grid", "omits", *_LIMITS)
_FORM = "OP=FILE.py:FUNC[,variant=NAME][,runtime=NAME] or OP=package.module:FUNC"


def parse_provider(text: str) -> Implementation:
    """Read one ``--provider`` value.

    The file must exist and define the function; it is not executed here. Without ``runtime`` the function runs on this
    machine's GPU if there is one, else in the interpreter and through the AMD compiler if its file imports triton, else
    on the CPU.

    Raises:
        BadProvider: the value does not have the form, names a file or function that is not there, or an unknown key.
        UnknownOperator: the operator does not exist.
        UnknownRuntime: the runtime does not exist.
    """
    operator_name, equals, rest = text.partition("=")
    target, *pairs = rest.split(",")
    location, colon, function = target.rpartition(":")
    if not (equals and colon and location and function):
        raise BadProvider(f"--provider {text!r} does not have the form {_FORM}")
    operator = operator_named(operator_name.strip())
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key.strip() not in _KEYS:
            raise BadProvider(f"--provider {text!r}: {pair!r} is not one of {', '.join(k + '=...' for k in _KEYS)}")
        options[key.strip()] = value.strip()
    if options.get("grid", "rows") != "rows":
        raise BadProvider(f"--provider {text!r}: grid is 'rows' or left out, got {options['grid']!r}")
    if not re.fullmatch(r"[\w.]+", options.get("name", "name")):
        raise BadProvider(f"--provider {text!r}: name {options['name']!r} holds more than letters, digits, _ and .")
    uses_triton = False
    if location.endswith(".py"):
        path = Path(location).expanduser().resolve()
        if not path.is_file():
            raise BadProvider(f"--provider {text!r}: file {location} does not exist")
        uses_triton = _inspect_file(path, location, function)
        location = str(path)
    elif not all(part.isidentifier() for part in location.split(".")):
        raise BadProvider(f"--provider {text!r}: {location!r} is neither a .py file nor a dotted module name")
    if "runtime" in options:
        runtimes = tuple(runtime_named(name).name for name in options["runtime"].split("+"))
    else:
        device = next((name for name in ("hip", "cuda") if not why_unavailable(name)), "")
        without_device = ("interpret", "compile") if uses_triton else ("cpu",)
        runtimes = (device,) if device else without_device
    implementation = Implementation(
        provider=options.get("name", function),
        operator=operator.name,
        variant=operator.variants[0],
        runtimes=runtimes,
        load=f"{location}:{function}",
        origin=f"{Path(location).name if location.endswith('.py') else location}:{function}",
        launches=uses_triton,
        whole_row_programs=options.get("grid") == "rows",
        paths=tuple((path, operator.variants[0]) for path in ("dense", "sparse"))
        if "path" in operator.argument_names
        else (),
        **_declarations(text, operator, options),
    )
    if "variant" in options:
        try:
            implementation = declared_as(implementation, options["variant"])
        except ValueError as error:
            raise BadProvider(f"--provider {text!r}: {error}") from None
    return implementation


def _declarations(text: str, operator: Operator, options: dict[str, str]) -> dict[str, Any]:
    """Fields of an :class:`Implementation` from the keys that say what it does not do."""
    fields: dict[str, Any] = {}
    if "omits" in options:
        optional = [result.name for result in operator.returns if result.optional]
        fields["omits"] = tuple(options["omits"].split("+"))
        for name in fields["omits"]:
            if name not in optional:
                may = f"may omit {', '.join(optional)}" if optional else "has no result that may be omitted"
                raise BadProvider(f"--provider {text!r}: {operator.name} {may}, not {name!r}")
    for key, field in _LIMITS.items():
        if key not in options:
            continue
        if "q" not in operator.argument_names:
            raise BadProvider(f"--provider {text!r}: {key} is for attention, not for {operator.name}")
        items = tuple(options[key].split("+"))
        if key == "dtypes":
            fields[field] = tuple(_dtype_pair(text, operator, item) for item in items)
            continue
        if not all(re.fullmatch(r"[1-9]\d*", item) for item in items) or (key == "query" and len(items) > 1):
            due = "one whole number above 0" if key == "query" else "whole numbers above 0, joined by +"
            raise BadProvider(f"--provider {text!r}: {key} takes {due}, got {options[key]!r}")
        numbers = tuple(map(int, items))
        fields[field] = numbers[0] if key == "query" else numbers
    return fields


def _dtype_pair(text: str, operator: Operator, pair: str) -> str:
    """``pair``, which must name a legal dtype of q and one of the cache or, where there is none, of the keys."""
    legal = {argument.name: argument.dtypes for argument in operator.arguments}
    keys = legal.get("kv_cache") or legal["k"]
    q, slash, kv = pair.partition("/")
    if not slash or q not in legal["q"] or kv not in keys:
        raise BadProvider(
            f"--provider {text!r}: dtypes takes pairs q/kv joined by +, q of {', '.join(legal['q'])}, "
            f"kv of {', '.join(keys)}; got {pair!r}"
        )
    return pair


def _inspect_file(path: Path, shown: str, function: str) -> bool:
    """Whether the file imports triton; refuses one that does not parse or does not bind the function's name."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise BadProvider(f"file {shown} is not Python: {error}") from None
    bound = {name for statement in _module_level(tree.body) for name in _bound_by(statement)}
    if function not in bound and "*" not in bound:
        raise BadProvider(f"file {shown} defines no {function!r}; it defines: {', '.join(sorted(bound)) or 'nothing'}")
    imported = {
        (alias.name if isinstance(node, ast.Import) else node.module or "").split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    return "triton" in imported


def _module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported, those under ``if`` and ``try`` included."""
    for statement in body:
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for field in ("body", "orelse", "finalbody"):
                yield from _module_level(getattr(statement, field, []))
            for handler in getattr(statement, "handlers", []):
                yield from _module_level(handler.body)


def _bound_by(statement: ast.stmt) -> list[str]:
    """The names that a statement binds in its module."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name for alias in statement.names]
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return [
            node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
    return []
