"""The `interpret` runtime: upstream Triton kernels on CPU tensors, in Triton's interpreter, mended and watched.

Proves that the program of a kernel is right; says nothing about compiled code, layouts, races or speed, and is no
oracle for NaN. For use in a fresh process: Triton decides when a kernel is decorated whether it will be interpreted.

    interpret.prepare()                       # before anything imports Triton
    interpret.require_right([torch.bfloat16]) # refuses the dtype if the interpreter computes it wrongly
    from sglang.kernels.ops.sampling.renorm_triton import top_k_renorm_probs_triton
    renormed = interpret.plain(top_k_renorm_probs_triton(interpret.on_device(probs), 40))
    interpret.launches()                      # what ran, and how many bytes it moved

See `interpreter_mend` for what is mended, `interpreter_canary` for what is checked, `interpreter_launch` for what is
recorded and how to run part of a grid. Every access is held to the storages of the launch's tensors: within them it
lands, even outside the view that was passed (so canaries see it); outside them it raises `StrayAccess`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from functools import cache

import torch

from waveproof.kernels.runtimes import interpreter_launch, interpreter_mend
from waveproof.kernels.runtimes.interpreter_launch import (
    Launch,
    StrayAccess,
    clear_launches,
    launches,
    only_programs,
)

__all__ = [
    "InterpreterUnavailable",
    "InterpreterWrong",
    "Launch",
    "StrayAccess",
    "canary",
    "clear_launches",
    "launches",
    "on_device",
    "only_programs",
    "plain",
    "prepare",
    "require_right",
]


class InterpreterUnavailable(RuntimeError):
    """Triton kernels cannot be interpreted in this process; the message says why and what would help."""


class InterpreterWrong(RuntimeError):
    """The interpreter computes a dtype wrongly, so nothing that it says about that dtype counts."""


def prepare() -> None:
    """Switches Triton's interpreter on, imports Triton, mends and watches the interpreter; a second call is free.

    Raises `InterpreterUnavailable` if Triton is missing, was imported earlier in compile mode, or has an interpreter of
    another structure than the one that `interpreter_launch` knows (3.9).
    """
    if "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
        raise InterpreterUnavailable("Triton is not installed; `pip install triton==3.9.0` brings its interpreter")
    os.environ["TRITON_INTERPRET"] = "1"
    standard = importlib.import_module("triton.language.standard")
    interpreter = importlib.import_module("triton.runtime.interpreter")
    # Triton's own library is decorated when Triton is first imported, so it shows the mode of that moment.
    if not isinstance(standard.sum, interpreter.InterpretedFunction):
        raise InterpreterUnavailable(
            "Triton was imported in compile mode before prepare(); start a fresh process and call prepare() first"
        )
    interpreter_mend.mend(interpreter)
    try:
        interpreter_launch.observe(interpreter)
    except AttributeError as error:
        version = importlib.import_module("triton").__version__
        raise InterpreterUnavailable(f"the interpreter of Triton {version} is built otherwise: {error}") from error


def canary(dtype: torch.dtype) -> str | None:
    """None if the interpreter computes `dtype` rightly, else one sentence with figures on what is wrong.

    Checked by running small kernels (see `interpreter_canary`), once per process and dtype. Raises what `prepare`
    raises, and `ValueError` for a dtype without a canary.
    """
    prepare()
    return _canary(dtype)


@cache
def _canary(dtype: torch.dtype) -> str | None:
    kernels = importlib.import_module("waveproof.kernels.runtimes.interpreter_canary")
    with interpreter_launch.unrecorded():
        return next(iter(kernels.faults(dtype)), None)


def require_right(dtypes: Iterable[torch.dtype]) -> None:
    """Raises `InterpreterWrong`, naming dtype and fault, unless the interpreter computes all of `dtypes` rightly."""
    for dtype in dtypes:
        fault = canary(dtype)
        if fault is not None:
            raise InterpreterWrong(f"Triton's interpreter cannot be trusted with {fault}")


class _DeviceTensor(torch.Tensor):
    """A CPU tensor that says it lies on a GPU, as do the results of torch functions on it."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor (storage, shape, strides, offset) with `is_cuda` True, which public launchers ask for.

    Results of torch functions on it are such tensors again. `device` stays the CPU, so that `torch.empty(...,
    device=x.device)` works; what that makes is a plain tensor, which kernels take as well.
    """
    return tensor.as_subclass(_DeviceTensor)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor as an ordinary `torch.Tensor`; undoes `on_device`."""
    return tensor.as_subclass(torch.Tensor)
