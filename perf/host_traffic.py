"""What an implementation's host code has torch do around its kernels, counted in bytes.

A Triton renorm that starts with ``torch.sort`` moves more memory there than its kernels may show. Each torch operation
counts its tensor operands and results once, so the figure is a floor: a sort reads and writes its row several times.
Of an operand that it addresses by index it counts what is addressed.

Loaded in a worker process as ``waveproof.perf.host_traffic:PROVIDER.OPERATOR``. That name stands for the provider's
implementation, run under :class:`HostTraffic`; what was seen comes back as a second output, JSON in a uint8 tensor.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from waveproof.kernels.providers.registry import Implementation, builtin_implementations

_ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_OVERWRITES = ("copy_", "fill_", "zero_")
"""In-place operations that do not read what they replace."""


@dataclass(frozen=True)
class Operation:
    """One torch operation on memory."""

    name: str
    bytes_read: int
    bytes_written: int


class HostTraffic(TorchDispatchMode):
    """Records every torch operation within that reads or writes elements; views and bare allocations do neither."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and put it on record."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.is_view or name in _ALLOCATIONS:
            return result
        written_in_place = [
            value
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        addressed = 0
        whole = args
        if name in _OVERWRITES:
            whole = args[1:]
        elif name == "gather":
            whole, addressed = args[1:], _bytes([result])
        elif name == "searchsorted":
            # A binary search in each sorted row, for each value.
            steps = math.ceil(math.log2(max(2, args[0].shape[-1])))
            whole, addressed = args[1:], result.numel() * steps * args[0].element_size()
        read = addressed + _bytes(tree_leaves((whole, kwargs or {})))
        self.operations.append(Operation(name, read, _bytes(written_in_place or tree_leaves(result))))
        return result


def _bytes(leaves: list[Any]) -> int:
    return sum(_distinct_elements(leaf) * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))


def _distinct_elements(tensor: torch.Tensor) -> int:
    """Elements without the repetitions of an expanded dimension."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride or not size else 1
    return count


def with_traffic(implementation: Implementation) -> Implementation:
    """The same implementation, watched; its second output is read by :func:`operations`."""
    return replace(implementation, load=f"{__name__}:{implementation.provider}.{implementation.operator}")


def operations(report: torch.Tensor) -> tuple[Operation, ...]:
    """What a watched implementation's second output, uint8, says."""
    return tuple(Operation(**item) for item in json.loads(bytes(report.tolist())))


def __getattr__(name: str) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """``PROVIDER.OPERATOR`` as a function that is watched."""
    for implementation in builtin_implementations():
        if name == f"{implementation.provider}.{implementation.operator}":
            return _watched(implementation)
    raise AttributeError(name)


def _watched(implementation: Implementation) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    module, _, function_name = implementation.load.rpartition(":")
    function = getattr(importlib.import_module(module), function_name)

    def run(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        with HostTraffic() as traffic:
            result = function(*arguments)
        text = json.dumps([asdict(operation) for operation in traffic.operations]).encode()
        return result, torch.tensor(list(text), dtype=torch.uint8)

    run.reports = 1  # type: ignore[attr-defined]
    return run
