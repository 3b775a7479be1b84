"""Tensors as Python text that a reader can follow and that gives back every bit."""

from __future__ import annotations

import math
import textwrap

import torch

INLINE_NUMBERS = 1024
"""Numbers that a script may hold as text; above it they go into a file beside it. Some 20 KiB: a tracker's limit for
one report is 64 KiB (GitHub), and nobody reads more."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type that holds the bit pattern of an element of so many bytes."""

_WIDTH = 100
"""Columns after which a literal is wrapped."""


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bit patterns of a tensor, contiguous, as integers of its element's size."""
    dense = tensor.detach().cpu().contiguous()
    return dense if dense.dtype == torch.bool else dense.view(_BITS[dense.element_size()])


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether shape, dtype and every bit agree; strides do not count."""
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(bits(left), bits(right))


def tensor_literal(tensor: torch.Tensor, budget: int = INLINE_NUMBERS) -> str | None:
    """A Python expression for a contiguous CPU tensor with the same shape, dtype and bits, or None.

    It uses the names ``torch``, ``inf``, ``nan`` and, for a tensor that is one value but for a few places, ``spread``
    (see ``templates/repro.py.j2``). Floats are written with the fewest digits that give the same bits; where none do
    (NaN with a payload), all are written as bit patterns.

    Args:
        tensor: any shape, strides and dtype.
        budget: how many numbers the text may hold; None is returned where more are needed.

    """
    dense = tensor.detach().cpu().contiguous()
    if not dense.numel():
        return f"torch.empty({tuple(dense.shape)}, dtype={dense.dtype})"
    patterns = bits(dense).reshape(-1)
    common = patterns.mode().values if patterns.dtype != torch.bool else patterns[0]
    places = torch.nonzero(patterns != common).reshape(-1)
    sparse = dense.numel() > 16 and 2 * len(places) < dense.numel() // 2
    if (2 * len(places) + 1 if sparse else dense.numel()) > budget:
        return None
    shown = torch.cat([dense.reshape(-1)[places], dense.reshape(-1)[_first(patterns == common)]]) if sparse else dense
    numbers, as_bits = _numbers(shown)
    dtype = patterns.dtype if as_bits else dense.dtype
    if not sparse:
        text = f"torch.tensor({_nested(numbers, tuple(dense.shape))}, dtype={dtype})"
    elif not len(places):
        text = f"torch.full({tuple(dense.shape)}, {numbers[-1]}, dtype={dtype})"
    else:
        where, what = _list([str(place) for place in places.tolist()]), _list(numbers[:-1])
        text = f"spread({tuple(dense.shape)}, {numbers[-1]}, {where}, {what}, {dtype})"
    return f"{text}.view({dense.dtype})" if as_bits else text


def layout_literal(tensor: torch.Tensor) -> str:
    """Arguments ``stride, offset`` for ``lay_out``, or an empty string for a contiguous tensor without an offset.

    The offset counts elements. Of a large one only the remainder is kept that decides on alignment.
    """
    offset = tensor.storage_offset() % 4096
    return "" if tensor.is_contiguous() and not offset else f"{tuple(tensor.stride())}, {offset}"


def _first(mask: torch.Tensor) -> slice:
    at = int(mask.to(torch.uint8).argmax())
    return slice(at, at + 1)


def _numbers(tensor: torch.Tensor) -> tuple[list[str], bool]:
    """The elements in row-major order as text, and whether they are bit patterns."""
    flat = tensor.reshape(-1)
    if not flat.dtype.is_floating_point:
        return [str(value) for value in flat.tolist()], False
    values = flat.to(torch.float64).tolist()
    texts = [""] * len(values)
    wanted = bits(flat)
    for digits in range(1, 18):
        # 17 significant digits identify any float64 (IEEE 754-2019, 5.12.2), hence any narrower float.
        open_ = [index for index, text in enumerate(texts) if not text]
        if not open_:
            return texts, False
        tried = [_decimal(values[index], digits) for index in open_]
        given = bits(torch.tensor([float(text) for text in tried], dtype=flat.dtype))
        for index, text, equal in zip(open_, tried, (given == wanted[open_]).tolist(), strict=True):
            texts[index] = text if equal else ""
    if all(texts):
        return texts, False
    return [str(value) for value in wanted.tolist()], True


def _decimal(value: float, digits: int) -> str:
    if value == 0:
        return "-0.0" if math.copysign(1.0, value) < 0 else "0"  # the literal -0 is the integer 0
    if value.is_integer() and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.{digits}g}"


def _list(items: list[str]) -> str:
    text = f"[{', '.join(items)}]"
    if len(text) <= _WIDTH:
        return text
    return "[\n" + textwrap.fill(", ".join(items), _WIDTH, initial_indent="    ", subsequent_indent="    ") + ",\n]"


def _nested(items: list[str], shape: tuple[int, ...]) -> str:
    if not shape:
        return items[0]
    if len(shape) == 1:
        return _list(items)
    step = len(items) // shape[0]
    rows = [_nested(items[start : start + step], shape[1:]) for start in range(0, len(items), step)]
    text = f"[{', '.join(rows)}]"
    if len(text) <= _WIDTH and "\n" not in text:
        return text
    return "[\n" + textwrap.indent(",\n".join(rows), "    ") + ",\n]"
