"""Mends, from outside, what Triton's interpreter computes wrongly (triton/runtime/interpreter.py, measured on 3.9.0).

- bfloat16 and 8-bit floats are held as bit patterns, and `binary_op`, `unary_op`, `create_fma`, `create_clampf`,
  `create_dot` (bfloat16) and the sum, min, max and scan reductions compute on the patterns themselves.
- `create_dot_scaled` takes bfloat16 operands through float16, which clips what lies outside float16's range.
- float32 to bfloat16 truncates; float64 and integers to bfloat16 keep the low bits of an integer conversion; 8-bit
  conversions lose the carry out of the mantissa. Subnormal bfloat16 values do not widen to what they are.
- A comparison result is labelled with the dtype of its operands, so `(x > 0).to(tl.bfloat16)` of a float32 reads
  booleans as floats and raises.
- An integer argument in [2**31, 2**32) is typed int64 but held in 32 bits, so arithmetic on it wraps too early.
- `atomic_add` of bfloat16 raises.

Here operands are widened to float32 (exact) and the result is rounded to nearest even. Rounding first to float32 and
then to p bits equals rounding once for +, -, *, / and sqrt when 24 >= 2 * p + 2 (Figueroa 1995): p is 8 for bfloat16
and at most 4 for the 8-bit formats. A name that another version of Triton lacks is left alone; whether the arithmetic
is right is for the canary to say, not for this module.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from waveproof.kernels.runtimes import narrow_floats
from waveproof.kernels.runtimes.narrow_floats import NarrowFloat

_MARK = "_waveproof_mended"


def mend(interpreter: ModuleType) -> None:
    """Patches the module `triton.runtime.interpreter` in place; a second call changes nothing."""
    if getattr(interpreter, _MARK, False):
        return
    handles = _Handles(interpreter)
    builder = getattr(interpreter, "InterpreterBuilder", None)
    for name in ("binary_op", "unary_op", "create_fabs", "create_erf", "create_rsqrt", "create_clampf"):
        _wrap(builder, name, handles.in_float32)
    _wrap(builder, "create_fma", handles.in_float64)
    _wrap(builder, "cast_impl", handles.cast)
    _wrap(builder, "create_fp_to_fp", handles.cast)
    _wrap(builder, "create_dot", handles.dot)
    _wrap(builder, "create_atomic_rmw", handles.atomic_add)
    for name in ("sum", "min_max"):
        _wrap(getattr(interpreter, "ReduceOps", None), name, handles.reduction)
    for name in ("cumsum", "cumprod"):
        _wrap(getattr(interpreter, "ScanOps", None), name, handles.reduction)
    _wrap(interpreter, "_mxfp_value_handle_to_float32", handles.scaled_operand)
    _wrap(interpreter, "_implicit_cvt", handles.integer_argument)
    setattr(interpreter, _MARK, True)


def _wrap(owner: object, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, wrapper(original))


class _Handles:
    """Wrappers for functions over the interpreter's `TensorHandle`: NumPy data with the Triton dtype it stands for."""

    def __init__(self, interpreter: ModuleType) -> None:
        self.interpreter = interpreter
        self.tl = interpreter.tl

    def narrow_form(self, handle: Any) -> NarrowFloat | None:
        """The format of a handle that holds bit patterns, else None (pointers, booleans and what NumPy knows too)."""
        dtype = getattr(getattr(handle, "dtype", None), "scalar", None)
        form = narrow_floats.BY_TRITON_NAME.get(getattr(dtype, "name", ""))
        return form if form is not None and handle.data.dtype == form.storage else None

    def handle(self, data: npt.NDArray[Any], dtype: Any) -> Any:
        return self.interpreter.TensorHandle(data, dtype)

    def widened(self, handle: Any, double: bool = False) -> Any:
        form = self.narrow_form(handle)
        if form is None:
            return handle
        data = narrow_floats.widen(handle.data, form)
        return self.handle(data.astype(np.float64), self.tl.float64) if double else self.handle(data, self.tl.float32)

    def retyped(self, tensor: Any, data: npt.NDArray[Any], dtype: Any) -> Any:
        """A Triton tensor (not a handle) with other data and dtype; a scalar stays a scalar, a block a block."""
        kind = self.tl.block_type(dtype, list(tensor.type.shape)) if tensor.type.is_block() else dtype
        return self.tl.tensor(self.handle(data, dtype), kind)

    def in_float32(self, original: Callable[..., Any], double: bool = False) -> Callable[..., Any]:
        """Elementwise: widen the operands, compute, and round back unless it was a comparison."""

        def elementwise(builder: Any, *operands: Any) -> Any:
            narrow = next((operand for operand in operands if self.narrow_form(operand)), None)
            if narrow is None:
                return original(builder, *operands)
            result = original(builder, *(self.widened(operand, double) for operand in operands))
            if result.data.dtype == np.bool_:
                return result
            form = narrow_floats.BY_TRITON_NAME[narrow.dtype.scalar.name]
            return self.handle(narrow_floats.narrow(result.data, form), narrow.dtype.scalar)

        return elementwise

    def in_float64(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """As `in_float32`, for the fused multiply-add: its exact product plus a far smaller addend needs the room."""
        return self.in_float32(original, double=True)

    def cast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def convert(builder: Any, source: Any, target_type: Any, *rounding: Any) -> Any:
            target = target_type.scalar
            form = narrow_floats.BY_TRITON_NAME.get(getattr(target, "name", ""))
            if self.narrow_form(source):
                source = self.widened(source)
                if target == self.tl.float32:
                    return source
                if form is None:
                    return builder.cast_impl(source, target_type)
            if form is None:
                return original(builder, source, target_type, *rounding)
            toward_zero = any("RTZ" in str(mode) for mode in rounding)
            return self.handle(narrow_floats.narrow(source.data, form, toward_zero), target)

        return convert

    def dot(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Exact products of the widened operands, summed in the accumulator's type."""

        def multiply(builder: Any, left: Any, right: Any, accumulator: Any, *options: Any) -> Any:
            return original(builder, self.widened(left), self.widened(right), accumulator, *options)

        return multiply

    def scaled_operand(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The values of a `tl.dot_scaled` operand; uint8 holds packed e2m1, which upstream decodes rightly."""

        def decode(value: Any) -> Any:
            return self.widened(value).data if self.narrow_form(value) else original(value)

        return decode

    def reduction(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Sum, minimum, maximum, running sum and product: in float32, rounded once at the end."""

        def reduce(operation: Any, operand: Any, *options: Any, **named: Any) -> Any:
            tensor = operand[0] if isinstance(operand, tuple) else operand
            form = self.narrow_form(tensor.handle)
            if form is None:
                return original(operation, operand, *options, **named)
            wide = self.retyped(tensor, narrow_floats.widen(tensor.handle.data, form), self.tl.float32)
            result = original(operation, wide, *options, **named)

            def rounded(value: Any) -> Any:
                if value.dtype != self.tl.float32:
                    return value  # the index of a minimum or maximum
                return self.retyped(value, narrow_floats.narrow(value.handle.data, form), tensor.dtype)

            return type(result)(map(rounded, result)) if isinstance(result, (tuple, list)) else rounded(result)

        return reduce

    def atomic_add(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """bfloat16 addition lane by lane, since two lanes may name one address; all else is upstream's."""

        def read_modify_write(builder: Any, operation: Any, pointers: Any, value: Any, mask: Any, *options: Any) -> Any:
            if not self.narrow_form(value) or "FADD" not in str(operation):
                return original(builder, operation, pointers, value, mask, *options)
            native = self.interpreter._interpreter
            addresses, added, enabled = np.broadcast_arrays(pointers.data, value.data, mask.data)
            before = np.zeros(addresses.shape, dtype=value.data.dtype)
            for lane in np.ndindex(addresses.shape):
                if not enabled[lane]:
                    continue
                here, on = np.array([addresses[lane]]), np.array([True])
                old = native.load(here, on, np.zeros(1, value.data.dtype), value.data.dtype)
                new = builder.binary_op(
                    self.handle(old, value.dtype), self.handle(np.array([added[lane]]), value.dtype), np.add
                )
                native.store(here, new.data, on)
                before[lane] = old[0]
            return self.handle(before, value.dtype.scalar)

        return read_modify_write

    def integer_argument(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Holds an integer argument in as many bits as its type says."""

        def convert(argument: Any) -> Any:
            result = original(argument)
            if isinstance(argument, int) and not isinstance(argument, bool):
                handle = result.handle
                handle.data = handle.data.astype(self.interpreter._get_np_dtype(handle.dtype))
            return result

        return convert
