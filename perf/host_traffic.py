"""What an implementation's host code has torch do around its kernels, counted in bytes.

A Triton renorm that starts with ``torch.sort`` moves more memory there than its kernels may show. Each torch operation
counts its tensor operands and results once, so the figure is a floor: a sort reads and writes its row several times.
Of an operand that it addresses by index it counts what is addressed.

Loaded in a worker process as ``waveproof.perf.host_traffic:MODULE/FUNCTION``. That name stands for the function, run
under :class:`HostTraffic`; what was seen comes back as one more output, JSON in a uint8 tensor.
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

from waveproof.kernels.providers.registry import Implementation

_ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_OVERWRITES = ("copy_", "fill_", "zero_")
"""In-place operations that do not read what they replace."""
_ROLES = {
    "sort": "sort",
    "topk": "topk",
    **dict.fromkeys(("_softmax", "_log_softmax"), "softmax"),
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv"), "matmul"),
}
_ATTENTION = "_scaled_dot_product_"


@dataclass(frozen=True)
class Operation:
    """One torch operation on memory."""

    name: str
    bytes_read: int
    bytes_written: int

    @property
    def role(self) -> str:
        """What of an operator's own work it is: ``sort``, ``topk``, ``softmax``, ``matmul``; empty of anything else."""
        return "matmul" if self.name.startswith(_ATTENTION) else _ROLES.get(self.name, "")


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
    """The same implementation, watched; its last output is read by :func:`operations`."""
    return replace(implementation, load=f"{__name__}:{implementation.load.replace(':', '/')}")


def operations(report: torch.Tensor) -> tuple[Operation, ...]:
    """What a watched implementation's last output, uint8, says."""
    return tuple(Operation(**item) for item in json.loads(bytes(report.tolist())))


def __getattr__(name: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """``MODULE/FUNCTION`` as a function that is watched."""
    module, slash, function = name.rpartition("/")
    if not slash:
        raise AttributeError(name)
    return _watched(getattr(importlib.import_module(module), function))


def _watched(function: Callable[..., Any]) -> Callable[..., tuple[torch.Tensor, ...]]:
    def run(*arguments: Any) -> tuple[torch.Tensor, ...]:
        with HostTraffic() as traffic:
            result = function(*arguments)
        text = json.dumps([asdict(operation) for operation in traffic.operations]).encode()
        results = result if isinstance(result, (tuple, list)) else (result,)
        return (*results, torch.tensor(list(text), dtype=torch.uint8))

    run.reports = 1  # type: ignore[attr-defined]
    return run
