"""A Triton IR module as plain records, read through Triton's own MLIR bindings (no text is parsed but locations).

The bindings (``triton._C.libtriton.ir``, Triton 3.9) give operations, operands, results, integer attributes and
nesting, but not the successors of a ``cf`` branch; those alone are taken from the printed text.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ATTRIBUTES = ("axis", "start", "end", "predicate")
"""Integer attributes that decide a value or an address."""


class ModuleUnreadable(RuntimeError):
    """The module is not of the form that Triton's front end makes; the message says what was expected."""


@dataclass(frozen=True)
class Location:
    """Where in the source an operation comes from; line 0 where the module does not say."""

    file: str
    line: int


@dataclass(frozen=True)
class Value:
    """An SSA value. ``bits`` is the integer width of an element, 0 for floats and pointers."""

    key: int
    type: str
    shape: tuple[int, ...]
    bits: int
    pointer: bool
    name: str
    """Name of the variable in the source, where the module keeps it."""


@dataclass(frozen=True)
class Block:
    """A straight line of operations that ends in a terminator."""

    arguments: tuple[Value, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Operation:
    """An operation. Regions of structured control flow hold one block each."""

    index: int
    """Position in the module, from 1."""
    name: str
    operands: tuple[int, ...]
    """Keys of the values that it takes."""
    results: tuple[Value, ...]
    attributes: dict[str, int]
    constant: int | None
    location: Location
    regions: tuple[Block, ...]
    successors: tuple[int, ...]
    """Of a ``cf`` branch: positions of blocks in the function."""


@dataclass(frozen=True)
class Function:
    """The kernel: its blocks, entry first. The arguments of the entry are those of the kernel."""

    name: str
    blocks: tuple[Block, ...]


def read_kernel(ttir: str) -> Function:
    """Read the entry function of a module in Triton IR (the text of stage ``ttir``, calls inlined).

    Raises:
        ModuleUnreadable: no single public function, or a region of several blocks inside structured control flow.
    """
    # Imported here: only the worker that compiles has Triton loaded.
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    context = ir.context()
    ir.load_dialects(context)
    make_backend(GPUTarget("hip", "gfx942", 64)).load_dialects(context)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.ttir"
        path.write_text(ttir)
        module = ir.parse_mlir_module(str(path), context)
    reader = _Reader(_successors(ttir))
    module.walk(reader.visit)
    return reader.entry(module.get_entry_func_name())


def _successors(ttir: str) -> list[tuple[int, ...]]:
    """Targets of each ``cf`` branch, in the order in which they stand."""
    branches = re.findall(r"^\s*cf\.(?:cond_)?br\b.*$", ttir, re.MULTILINE)
    return [tuple(int(label) for label in re.findall(r"\^bb(\d+)", line)) for line in branches]


class _Reader:
    """Gathers operations as the walk meets them: those of a region before the one that owns it."""

    def __init__(self, successors: list[tuple[int, ...]]) -> None:
        self.successors = iter(successors)
        self.blocks: dict[int, dict[int, tuple[tuple[Value, ...], list[Operation]]]] = {}
        self.functions: dict[str, Function] = {}
        self.count = 0

    def visit(self, operation: Any) -> None:
        name = operation.get_name()
        if name == "builtin.module":
            return
        regions = [self._region(operation.get_region(i)) for i in range(operation.get_num_regions())]
        if name == "tt.func":
            symbol = operation.get_str_attr("sym_name")
            self.functions[symbol] = Function(symbol, regions[0])
            return
        if any(len(region) > 1 for region in regions):
            raise ModuleUnreadable(f"{name} holds a region of several blocks, one expected")
        self.count += 1
        results = tuple(_value(operation.get_result(i)) for i in range(operation.get_num_results()))
        operands = [operation.get_operand(i) for i in range(operation.get_num_operands())]
        located = [operation.get_result(0)] if results else operands
        attributes = {key: operation.get_int_attr(key) for key in _ATTRIBUTES}
        record = Operation(
            index=self.count,
            name=name,
            operands=tuple(operand.id() for operand in operands),
            results=results,
            attributes={key: value for key, value in attributes.items() if value is not None},
            constant=operation.get_constant_value() if name == "arith.constant" else None,
            location=_location(str(located[0].get_loc())) if located else Location("", 0),
            regions=tuple(region[0] for region in regions if region),
            successors=next(self.successors) if name in ("cf.br", "cf.cond_br") else (),
        )
        block = operation.get_block()
        region_key = block.get_parent().id()
        blocks = self.blocks.setdefault(region_key, {})
        if block.id() not in blocks:
            arguments = tuple(_value(block.get_argument(i)) for i in range(block.get_num_arguments()))
            blocks[block.id()] = (arguments, [])
        blocks[block.id()][1].append(record)

    def _region(self, region: Any) -> tuple[Block, ...]:
        found = self.blocks.pop(region.id(), {})
        return tuple(Block(arguments, tuple(operations)) for arguments, operations in found.values())

    def entry(self, name: str) -> Function:
        if name not in self.functions:
            raise ModuleUnreadable(f"entry function {name!r} not found, the module has {sorted(self.functions)}")
        return self.functions[name]


def _value(value: Any) -> Value:
    kind = str(value.get_type())
    tensor = re.fullmatch(r"tensor<((?:\d+x)+)(.*)>", kind)
    shape = tuple(int(extent) for extent in tensor[1].split("x")[:-1]) if tensor else ()
    element = tensor[2] if tensor else kind
    integer = re.fullmatch(r"i(\d+)", element)
    bits = 64 if element == "index" else int(integer[1]) if integer else 0
    named = re.match(r'loc\("([^"/]+)"\(', str(value.get_loc()))
    return Value(value.id(), kind, shape, bits, element.startswith("!tt.ptr"), named[1] if named else "")


def _location(text: str) -> Location:
    # The innermost call comes first: the line that computes, not the one that calls.
    found = re.search(r'"([^"]+)":(\d+):\d+', text)
    return Location(found[1], int(found[2])) if found else Location("", 0)
