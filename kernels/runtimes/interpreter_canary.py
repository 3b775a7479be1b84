"""Does Triton's interpreter, as it is loaded in this process, compute a dtype rightly? Asked of real kernels.

Imports Triton, so it may only be imported once the interpreter is switched on (`interpret.prepare` does that). What is
compared is exact wherever the arithmetic is: loads, roundings, elementwise operations rounded once, sums whose partial
sums are all representable. Only the dot product has a bound: |error| <= (K + 1) u sum |a| |b| for K products summed in
any order at the unit roundoff u of the accumulator (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
"""

# A kernel's parameters are Triton's to type.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

_LANES = 256
_DOT = 32
# Elementwise results in the order in which the kernel below writes them.
_OPERATIONS = ("a + b", "a - b", "a * b", "a / b", "-a", "the larger of a and b", "a * 1.5", "a fused multiply-add")
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
_FLOAT = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_INTEGER = (torch.int8, torch.int16, torch.int32, torch.int64)


@triton.jit
def _widen(source, target, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    tl.store(target + lane, tl.load(source + lane).to(tl.float32))


@triton.jit
def _round(source, by_store, by_cast, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    number = tl.load(source + lane)
    tl.store(by_store + lane, number)
    tl.store(by_cast + lane, number.to(by_cast.dtype.element_ty))


@triton.jit
def _float_arithmetic(left, right, target, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    a = tl.load(left + lane)
    b = tl.load(right + lane)
    tl.store(target + lane, a + b)
    tl.store(target + LANES + lane, a - b)
    tl.store(target + 2 * LANES + lane, a * b)
    tl.store(target + 3 * LANES + lane, a / b)
    tl.store(target + 4 * LANES + lane, -a)
    tl.store(target + 5 * LANES + lane, tl.where(a > b, a, b))
    tl.store(target + 6 * LANES + lane, a * 1.5)
    tl.store(target + 7 * LANES + lane, tl.fma(a, b, a))


@triton.jit
def _integer_arithmetic(left, right, target, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    a = tl.load(left + lane)
    b = tl.load(right + lane)
    tl.store(target + lane, a + b)
    tl.store(target + LANES + lane, a - b)
    tl.store(target + 2 * LANES + lane, a * b)


@triton.jit
def _reduce(source, total, largest, LANES: tl.constexpr):
    number = tl.load(source + tl.arange(0, LANES))
    tl.store(total, tl.sum(number, axis=0))
    tl.store(largest, tl.max(number, axis=0))


@triton.jit
def _dot(left, right, target, SIZE: tl.constexpr):
    row = tl.arange(0, SIZE)
    tile = row[:, None] * SIZE + row[None, :]
    tl.store(target + tile, tl.dot(tl.load(left + tile), tl.load(right + tile), out_dtype=target.dtype.element_ty))


def faults(dtype: torch.dtype) -> Iterator[str]:
    """One sentence with figures on each thing that the interpreter computes wrongly in `dtype`; none if it is right.

    Floats of 8 to 64 bits (of the 8-bit ones only what is in range) and signed integers. Nothing runs before it is
    asked for. Raises `ValueError` for any other dtype.
    """
    for check in _checks(dtype):
        subject = check.__name__.removeprefix("_").removesuffix("_fault").replace("_", " ")
        try:
            found = check(dtype)
        # Whatever an unfit interpreter raises, the answer here is that the dtype cannot be trusted.
        except Exception as error:
            found = f"raised {type(error).__name__}: {error}"
        if found is not None:
            yield f"{str(dtype).removeprefix('torch.')} {subject}: {found}"


def _checks(dtype: torch.dtype) -> list[Callable[[torch.dtype], str | None]]:
    if dtype == torch.int8:
        return [_integer_arithmetic_fault, _integer_dot_fault]
    if dtype in _INTEGER:
        return [_integer_arithmetic_fault]
    if dtype not in _FLOAT + _FLOAT8:
        raise ValueError(f"no canary for {dtype}: only floats of 8 to 64 bits and signed integers")
    conversions = [_widening_fault, _rounding_fault] if dtype.itemsize < 4 else []
    return [*conversions, _float_arithmetic_fault, _reduction_fault, _dot_fault]


def _every_pattern(dtype: torch.dtype) -> torch.Tensor:
    """All values of a dtype of 8 or 16 bits in the order of their patterns, shape [256] or [65536]."""
    signed = torch.int8 if dtype.itemsize == 1 else torch.int16
    return torch.arange(2 ** (8 * dtype.itemsize), dtype=torch.int32).to(signed).view(dtype)


def _difference(what: str, given: torch.Tensor, got: torch.Tensor, right: torch.Tensor) -> str | None:
    """How many of `got` are not the value of `right` (NaN for NaN), and the first with its (left) operand."""
    got, right = got.double(), right.double()
    wrong = ((got != right) & ~(got.isnan() & right.isnan())).nonzero()
    if not len(wrong):
        return None
    first = tuple(wrong[0].tolist())
    return (
        f"{what}: {len(wrong)} of {got.numel()} values wrong, the first for {given[first].item()!r}: "
        f"expected {right[first].item()!r}, got {got[first].item()!r}"
    )


def _widening_fault(dtype: torch.dtype) -> str | None:
    source = _every_pattern(dtype)
    target = torch.empty(source.shape, dtype=torch.float32)
    _widen[(1,)](source, target, LANES=source.numel())
    return _difference("load to float32", torch.arange(source.numel()), target, source.float())


def _rounding_fault(dtype: torch.dtype) -> str | None:
    value = _every_pattern(dtype).double()
    value = value[value.isfinite()].unique()
    midpoint = ((value[1:] + value[:-1]) / 2).float()
    value = value.float()
    infinity = torch.tensor(torch.inf)
    numbers = [value, midpoint, torch.nextafter(midpoint, infinity), torch.nextafter(midpoint, -infinity)]
    special = [torch.nan] if dtype in _FLOAT8 else [torch.nan, torch.inf, -torch.inf, 3.4028234663852886e38]
    number = torch.cat([*numbers, torch.tensor(special)])
    lanes = triton.next_power_of_2(number.numel())
    number = torch.cat([number, torch.zeros(lanes - number.numel())])
    by_store, by_cast = torch.empty(lanes, dtype=dtype), torch.empty(lanes, dtype=dtype)
    _round[(1,)](number, by_store, by_cast, LANES=lanes)
    right = number.to(dtype)
    return _difference("store of float32", number, by_store, right) or _difference(
        "cast of float32", number, by_cast, right
    )


def _operands(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors of either sign with magnitudes in [0.5, 1.5), so that nothing overflows and sums are exact."""
    generator = torch.Generator().manual_seed(20250101)

    def operand() -> torch.Tensor:
        magnitude = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
        sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        return (magnitude * sign).to(torch.float64 if dtype == torch.float64 else torch.float32).to(dtype)

    return operand(), operand()


def _float_arithmetic_fault(dtype: torch.dtype) -> str | None:
    a, b = _operands(dtype, (_LANES,))
    got = torch.empty((len(_OPERATIONS), _LANES), dtype=dtype)
    _float_arithmetic[(1,)](a, b, got, LANES=_LANES)
    x, y = a.double(), b.double()
    exact = torch.stack([x + y, x - y, x * y, x / y, -x, torch.maximum(x, y), x * 1.5, x * y + x])
    # Rounding through float32 is rounding once here: see interpreter_mend on double rounding.
    right = exact if dtype == torch.float64 else exact.float().to(dtype)
    for index, operation in enumerate(_OPERATIONS):
        if operation == "a fused multiply-add" and dtype.itemsize >= 4:
            continue  # float64 cannot hold its exact result, so there is nothing here to hold it to
        found = _difference(operation, x, got[index], right[index])
        if found is not None:
            return found
    return None


def _integer_arithmetic_fault(dtype: torch.dtype) -> str | None:
    generator = torch.Generator().manual_seed(20250101)
    limits = torch.iinfo(dtype)
    a, b = torch.randint(limits.min, limits.max, (2, _LANES), generator=generator, dtype=dtype)
    got = torch.empty((3, _LANES), dtype=dtype)
    _integer_arithmetic[(1,)](a, b, got, LANES=_LANES)
    right = torch.stack([a + b, a - b, a * b])
    wrong = int((got != right).sum())
    return f"wrap-around of + - *: {wrong} of {got.numel()} values wrong" if wrong else None


def _integer_dot_fault(dtype: torch.dtype) -> str | None:
    generator = torch.Generator().manual_seed(20250101)
    a, b = torch.randint(-128, 128, (2, _DOT, _DOT), generator=generator, dtype=dtype)
    got = torch.empty((_DOT, _DOT), dtype=torch.int32)
    _dot[(1,)](a, b, got, SIZE=_DOT)
    return _difference("tl.dot", a, got, a.long() @ b.long())


def _reduction_fault(dtype: torch.dtype) -> str | None:
    # Multiples of 1/2 below the count: every partial sum, in any order, has few enough bits for the dtype.
    lanes = 8 if dtype in _FLOAT8 else 64
    number = (torch.arange(lanes) % 3 - 1).mul(0.5).to(torch.float32).to(dtype)
    number[1] = 1.0
    total, largest = torch.empty((2, 1), dtype=torch.float64)
    _reduce[(1,)](number, total, largest, LANES=lanes)
    return _difference("tl.sum", number, total, number.double().sum().reshape(1)) or _difference(
        "tl.max", number, largest, number.double().max().reshape(1)
    )


def _dot_fault(dtype: torch.dtype) -> str | None:
    a, b = _operands(dtype, (_DOT, _DOT))
    accumulator = torch.float64 if dtype == torch.float64 else torch.float32
    got = torch.empty((_DOT, _DOT), dtype=accumulator)
    _dot[(1,)](a, b, got, SIZE=_DOT)
    x, y = a.double(), b.double()
    # Twice for float64, whose reference is no better than what it judges.
    bound = (_DOT + 1) * torch.finfo(accumulator).eps / 2 * (x.abs() @ y.abs()) * (2 if dtype == torch.float64 else 1)
    error = (got.double() - x @ y).abs()
    worst = int((error / bound).nan_to_num(nan=torch.inf).argmax())
    if bool((error <= bound).all()):
        return None
    return (
        f"tl.dot over {_DOT} products: error {error.view(-1)[worst]:.3g} against a bound of {bound.view(-1)[worst]:.3g}"
    )
