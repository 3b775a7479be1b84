"""The process in which kernels run, on one runtime, so that whatever they do ends with it.

Frames come in on stdin and go out on what was stdout; anything that the implementation prints, from Python or from C,
goes to stderr, which the parent keeps in a file. Started by :mod:`waveproof.kernels.runtimes.process`.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import importlib.util
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import torch

from waveproof.kernels.operators.contract import Call, Embedding
from waveproof.kernels.operators.registry import operator_named
from waveproof.kernels.runtimes import memory, wire
from waveproof.kernels.runtimes.execution import Execution, RuntimeUnavailable, open_execution

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""

DEVICE_LOST = 71
"""Exit status after a fault that leaves the device unusable to this process (EX_OSERR of sysexits.h)."""


class Unsuitable(RuntimeError):
    """What was loaded cannot be held to the operator: no such function, wrong signature, import error."""


def main() -> None:
    """Serve calls until the parent closes the pipe."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    frames_in = os.fdopen(os.dup(0), "rb")
    frames_out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    faulthandler.enable()
    torch.set_num_threads(1)
    header, _ = wire.receive(frames_in)
    try:
        execution = open_execution(header["runtime"], header["arch"])
    except RuntimeUnavailable as error:
        wire.send(frames_out, {"kind": "unavailable", "reason": str(error)})
        return
    found = {**versions(header["distribution"]), **execution.facts}
    wire.send(frames_out, {"kind": "ready", "arch": execution.arch, "versions": found})
    serve(execution, frames_in, frames_out)


def serve(execution: Execution, frames_in: IO[bytes], frames_out: IO[bytes]) -> None:
    """Answer each ``load`` and each ``call`` frame until the parent closes the pipe."""
    functions: dict[str, tuple[Callable[..., Any], int]] = {}
    while True:
        try:
            header, tensors = wire.receive(frames_in)
        except EOFError:
            return
        outputs: dict[str, torch.Tensor] = {}
        if header["kind"] == "load":
            try:
                functions[header["load"]] = load(header["load"], header["operator"]), header["results"]
                reply: wire.Header = {"kind": "loaded"}
            except Unsuitable as error:
                reply = {"kind": "unsuitable", "reason": str(error)}
        else:
            reply, outputs = run(execution, *functions[header["load"]], wire.decode_call(header, tensors))
        sys.stdout.flush()
        sys.stderr.flush()
        wire.send(frames_out, reply, outputs)


def versions(distribution: str) -> dict[str, str]:
    """Versions of what takes part; torch's own for ROCm and CUDA where it was built for one."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("triton", distribution):
        if name:
            with contextlib.suppress(metadata.PackageNotFoundError):
                found[name] = metadata.version(name)
    for name, version in (("rocm", torch.version.hip), ("cuda", torch.version.cuda)):
        if version:
            found[name] = version
    return found


def load(location: str, operator: str) -> Callable[..., Any]:
    """Import ``module:function`` or ``file.py:function`` and see that it takes the operator's arguments.

    Raises:
        Unsuitable: with the import error, or what the module has instead, or the signature.
    """
    where, _, name = location.rpartition(":")
    try:
        if where.endswith(".py"):
            path = Path(where)
            spec = importlib.util.spec_from_file_location(f"waveproof_provider_{path.stem}", path)
            if spec is None or spec.loader is None:
                raise Unsuitable(f"{path.name} cannot be loaded as a module")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module  # triton.jit and dataclasses look their module up
            sys.path.insert(0, str(path.parent))
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
    except Unsuitable:
        raise
    except BaseException as error:
        line = traceback.format_exception_only(type(error), error)[-1].strip()
        raise Unsuitable(f"importing {Path(where).name} failed: {line}") from error
    function = getattr(module, name, None)
    if function is None:
        raise Unsuitable(f"{Path(where).name} has no attribute {name!r}")
    if not callable(function):
        raise Unsuitable(f"{name} in {Path(where).name} is {type(function).__name__}, not a function")
    try:
        operator_named(operator).check_arity(function)
    except ValueError as error:
        raise Unsuitable(str(error)) from None
    return function


def run(
    execution: Execution, function: Callable[..., Any], due: int, call: Call
) -> tuple[wire.Header, dict[str, torch.Tensor]]:
    """Run one call as often as it asks, between guards, and report everything that was seen.

    ``due`` is the number of results that the implementation declares.
    """
    reply: wire.Header = {"kind": "result", "incidents": [], "launches": [], "error": None, "outputs": []}
    first: list[torch.Tensor] | None = None
    held: list[torch.Tensor] = []
    started = time.perf_counter()
    try:
        execution.refuse({value.dtype for value in call.arguments.values() if isinstance(value, torch.Tensor)})
    except RuntimeUnavailable as error:
        return {**reply, "kind": "unavailable", "reason": str(error)}, {}
    try:
        for turn in range(call.repeats):
            execution.clear_launches()
            watch = execution.watch if turn == 0 else contextlib.nullcontext
            results, incidents = _once(
                execution, function, due, call, memory.POISONS[turn % len(memory.POISONS)], watch
            )
            outputs = [execution.plain(result).detach().clone() for result in results]
            reply["incidents"] += incidents + _reused(
                held, results, "a second call returned the memory of an earlier result"
            )
            held += results  # as a caller would: what is alive must not become the result of a later call
            if first is None:
                first = outputs
                reply["launches"] = execution.launches()
            else:
                reply["incidents"] += _differences(first, outputs)
    except execution.cannot as error:
        reply |= {"kind": "unavailable", "reason": str(error)}
    except Exception as error:
        _leave_a_lost_device(execution)
        reply["launches"] = execution.launches()
        reply["error"] = {
            "type": type(error).__name__,
            "bases": [base.__name__ for base in type(error).__mro__],
            "message": _printable(str(error)[:4000]),
            "traceback": _printable(traceback.format_exc()[-8000:]),
        }
    reply["seconds"] = time.perf_counter() - started
    if first is None:
        return reply, {}
    reply["outputs"] = [f"out{index}" for index in range(len(first))]
    return reply, dict(zip(reply["outputs"], first, strict=True))


def _leave_a_lost_device(execution: Execution) -> None:
    """End this process where the device answers no further call: the parent sees a crash and starts another.

    Any answer from here on would blame the next call for this one.
    """
    lost = execution.lost()
    if lost:
        traceback.print_exc()
        sys.stderr.write(f"the {execution.runtime} device is lost to this process: {lost}\n")
        sys.stderr.flush()
        os._exit(DEVICE_LOST)  # an orderly exit would wait for the device


def _printable(text: str) -> str:
    """The text without lone surrogates, which no file takes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _once(
    execution: Execution,
    function: Callable[..., Any],
    due: int,
    call: Call,
    poison: int,
    watch: Callable[[], contextlib.AbstractContextManager[object]],
) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    guarded: list[memory.Guarded] = []
    arguments: list[Any] = []
    rows: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    for name, value in call.arguments.items():
        if not isinstance(value, torch.Tensor):
            arguments.append(value)
        elif not execution.executes:
            arguments.append(execution.wrap(_on_meta(value, _embedding(call, name))))
        elif (embedding := _embedding(call, name)) is not None:
            arguments.append(execution.wrap(_embed(value, embedding, execution.device)))
            if not embedding.pool:
                rows = execution.only_rows(embedding.row)
        else:
            buffer = memory.guard_input(name, value, execution.device)
            guarded.append(buffer)
            arguments.append(execution.wrap(buffer.view))
    if not execution.executes:
        try:
            function(*arguments)
        except execution.needs_values:
            execution.clear_launches()
            function(*(execution.wrap(a) if isinstance(a, torch.Tensor) else a for a in _with_values(call)))
        return [], []
    with watch(), memory.guarded_allocations(poison, execution.wrap) as allocator, rows:
        result = function(*arguments)
    execution.settle()
    # A function of the suite that measures another one says how many tensors of its own it adds.
    outputs = _as_tensors(result, execution, due + getattr(function, "reports", 0))
    if call.embedding is not None and not call.embedding.pool:
        row = call.embedding.row
        outputs = [output[row : row + 1] for output in outputs]
    damage = [buffer.damage() for buffer in (*guarded, *allocator.allocations)]
    reused = _reused([buffer.view for buffer in guarded], outputs, "the result lies in the memory of an input")
    return outputs, [vars(incident) for incident in damage if incident is not None] + reused


def _embedding(call: Call, name: str) -> Embedding | None:
    """How an argument is embedded, if it is."""
    return call.embedding if call.embedding is not None and call.embedding.argument == name else None


def _with_values(call: Call) -> list[Any]:
    """Arguments that have values, an embedded one in memory that is not touched beside its own rows."""
    cpu = torch.device("cpu")
    given = []
    for name, value in call.arguments.items():
        embedding = _embedding(call, name)
        if embedding is not None and isinstance(value, torch.Tensor):
            value = _embed(value, embedding, cpu)
        given.append(value)
    return given


def _embed(value: torch.Tensor, embedding: Embedding, device: torch.device) -> torch.Tensor:
    """A tensor of ``embedding.rows`` rows of which only those that count are ever written."""
    huge = torch.empty((embedding.rows, *value.shape[1:]), dtype=value.dtype, device=device)
    count = len(value) if embedding.pool else 1
    huge[embedding.row : embedding.row + count].copy_(value[:count])
    return huge


def _on_meta(value: torch.Tensor, embedding: Embedding | None) -> torch.Tensor:
    shape = list(value.shape)
    if embedding is not None:
        shape[0] = embedding.rows
        return torch.empty(shape, dtype=value.dtype, device="meta")
    size = memory.extent(tuple(value.shape), tuple(value.stride()))
    storage = torch.empty(value.storage_offset() + size, dtype=value.dtype, device="meta")
    return torch.as_strided(storage, value.shape, value.stride(), value.storage_offset())


def _as_tensors(result: Any, execution: Execution, due: int) -> list[torch.Tensor]:
    items = list(result) if due > 1 and isinstance(result, (tuple, list)) else [result]
    if len(items) != due:
        raise TypeError(f"returned {len(items)} results where {due} are due")
    for item in items:
        if not isinstance(item, torch.Tensor):
            raise TypeError(f"returned {type(item).__name__} where a tensor is due")
        if item.device.type != execution.device.type:
            raise TypeError(f"returned a tensor on {item.device}, the input is on {execution.device}")
    return items


def _reused(held: list[torch.Tensor], results: list[torch.Tensor], detail: str) -> list[dict[str, Any]]:
    """Results that lie in memory which the caller still holds: an earlier result, or an input."""
    places = {tensor.untyped_storage().data_ptr() for tensor in held if tensor.numel()}
    return [
        vars(memory.Incident("result-reused", f"out{index}", 0, detail))
        for index, tensor in enumerate(results)
        if tensor.numel() and tensor.untyped_storage().data_ptr() in places
    ]


def _differences(first: list[torch.Tensor], again: list[torch.Tensor]) -> list[dict[str, Any]]:
    """Bitwise differences between the results of two calls with the same input and different poison."""
    incidents = []
    for index, (one, two) in enumerate(zip(first, again, strict=True)):
        if one.shape != two.shape or one.dtype != two.dtype:
            detail = f"{one.dtype}{list(one.shape)}, then {two.dtype}{list(two.shape)}"
            incidents.append(vars(memory.Incident("unrepeatable", f"out{index}", 0, detail)))
            continue
        left, right = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, two))
        differ = torch.nonzero(left != right)
        if differ.numel():
            element = int(differ[0]) // one.element_size()
            detail = (
                f"a second call with the same input gave other bits, first at flat index {element}: "
                f"{one.reshape(-1)[element].item()!r}, then {two.reshape(-1)[element].item()!r} "
                "(fresh memory held another pattern: an output or workspace is read or returned unwritten)"
            )
            incidents.append(vars(memory.Incident("unrepeatable", f"out{index}", element, detail)))
    return incidents
