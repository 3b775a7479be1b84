"""The words in which an operator is put under contract.

An :class:`Operator` says what goes in, what comes out, which semantic variants exist and what illegal input must get.
A :class:`Call` is one concrete application of an operator to tensors. Nothing here knows who implements an operator,
where it runs or how it is judged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    import torch

Value = Union["torch.Tensor", int, float, str, None]
"""A flag is an int to type checkers: bool is a kind of it."""


class UnknownOperator(LookupError):
    """No operator goes by this name."""


class ContractBreach(ValueError):
    """A call does not fit its operator's signature."""


@dataclass(frozen=True)
class Argument:
    """One argument or result of an operator."""

    name: str
    shape: tuple[str, ...]
    """Symbolic dimensions, e.g. ``("B", "V")``; empty for a Python scalar only."""
    dtypes: tuple[str, ...]
    """torch dtype names that are legal, e.g. ``("float32",)``."""
    meaning: str
    scalar: str = ""
    """Python type that may stand in for the tensor: ``"int"``, ``"float"``, ``"bool"`` or ``"str"``; empty if none."""
    optional: bool = False
    """Of a result: whether an implementation may declare that it does not give it (``Implementation.omits``)."""


@dataclass(frozen=True)
class Operator:
    """A contract that any number of implementations are held to."""

    name: str
    family: str
    summary: str
    arguments: tuple[Argument, ...]
    returns: tuple[Argument, ...]
    variants: tuple[str, ...]
    """Semantic variants that an implementation may declare; the first is the one assumed when it declares none."""
    refusals: tuple[str, ...]
    """What illegal input must be refused with a ``ValueError`` or ``TypeError``, as rules for a reader."""
    source: str
    """Where the semantics come from: paper, upstream file, interface document."""

    @property
    def argument_names(self) -> tuple[str, ...]:
        """Names of the arguments in calling order."""
        return tuple(argument.name for argument in self.arguments)

    def check_arity(self, function: Callable[..., object]) -> None:
        """Refuse a function that cannot be called with this operator's positional arguments.

        Raises:
            ContractBreach: names the function's signature and the one that is expected.
        """
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return  # a builtin without a signature: only calling it will tell
        try:
            signature.bind(*self.argument_names)
        except TypeError as error:
            name = getattr(function, "__name__", repr(function))
            raise ContractBreach(
                f"{name}{signature} cannot be called as {self.name}({', '.join(self.argument_names)}): {error}"
            ) from None


@dataclass(frozen=True)
class Embedding:
    """Place an argument's rows inside a huge tensor whose other rows are never touched.

    Row ``row`` of a ``[rows, V]`` tensor holds the only row of the call, so that address arithmetic is exercised where
    32-bit offsets end while next to no memory is used.
    """

    argument: str
    rows: int
    row: int
    pool: bool = False
    """Whether the argument is a pool whose rows the call finds by index: then all its rows stand from ``row`` on, the
    whole launch runs and the results are as they are; else only the program of that row runs, and its row of each
    result counts."""


@dataclass(frozen=True)
class Call:
    """One application of an operator: arguments in calling order, tensors with the very strides they are to have."""

    operator: str
    arguments: Mapping[str, Value]
    repeats: int = 1
    """How often the implementation is called; results of all calls must be bit-identical."""
    embedding: Embedding | None = None
    labels: Mapping[str, str | int | float] = field(default_factory=dict)
    """What a reader should know of the case: generator, seed, layout."""

    def tensor(self, name: str) -> torch.Tensor:
        """An argument that is a tensor.

        Raises:
            ContractBreach: the call has no such argument, or it is none.
        """
        value = self.arguments.get(name)
        if value is None or isinstance(value, (int, float, str)):
            raise ContractBreach(f"{self.operator}: {name} must be a tensor, got {value!r}")
        return value

    def number(self, name: str) -> float:
        """An argument that is a number.

        Raises:
            ContractBreach: the call has no such argument, or it is none.
        """
        value = self.arguments.get(name)
        if not isinstance(value, (int, float)):
            raise ContractBreach(f"{self.operator}: {name} must be a number, got {type(value).__name__}")
        return float(value)

    def with_arguments(self, **changes: Value) -> Call:
        """The same call with some arguments replaced."""
        return replace(self, arguments={**self.arguments, **changes})

    def describe(self) -> str:
        """One line: shapes, dtypes, strides where unusual, scalars."""
        return ", ".join(f"{name}={_describe(value)}" for name, value in self.arguments.items())


def _describe(value: Value) -> str:
    if value is None or isinstance(value, (int, float, str)):
        return repr(value)
    dtype = str(value.dtype).removeprefix("torch.")
    text = f"{dtype}{list(value.shape)}"
    if value.numel() and (not value.is_contiguous() or value.storage_offset()):
        text += f" strides {list(value.stride())} offset {value.storage_offset()}"
    if value.dim() <= 1 and value.numel() <= 4:
        text += f" = {value.tolist()}"
    return text
