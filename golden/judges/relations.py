"""Relations that hold without an oracle: of two calls, of a call and its memory, of illegal input and refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from waveproof.golden.judges.judgement import Demonstration, Judgement
from waveproof.kernels.operators.contract import Call

REFUSAL_TYPES = ("ValueError", "TypeError")
"""Exception classes that count as a refusal; an AssertionError or a RuntimeError from deep inside is an accident."""


class Incident(Protocol):
    """What a runtime reports of memory, see ``kernels.runtimes.memory.Incident``."""

    @property
    def kind(self) -> str:
        """``input-changed``, ``out-of-bounds``, ``unrepeatable`` or ``result-reused``."""

    @property
    def buffer(self) -> str:
        """The argument or allocation that it is about."""

    @property
    def position(self) -> int:
        """Byte or element of the first damage."""

    @property
    def detail(self) -> str:
        """What was seen."""


_INCIDENT_RULES = {
    "input-changed": "input unchanged",
    "out-of-bounds": "memory outside buffers unchanged",
    "unrepeatable": "repeat calls equal",
    "result-reused": "earlier results unchanged",
}


def judge_incidents(incidents: Sequence[Incident], call: Call) -> Judgement:
    """Whether the call left its inputs and everything around its buffers alone, and repeats itself bit by bit."""
    if not incidents:
        return Judgement("memory", True)
    first = incidents[0]
    return Judgement(
        _INCIDENT_RULES[first.kind],
        False,
        figure=1.0,
        message=f"{first.detail}" + (f" (and {len(incidents) - 1} more)" if len(incidents) > 1 else ""),
        index=(first.position,),
        demonstration=Demonstration("incident", (call,), incident=first.kind),
    )


def judge_returned(error: Mapping[str, Any] | None, call: Call) -> Judgement:
    """Whether a legal call returned instead of raising."""
    rule = "legal input accepted"
    if error is None:
        return Judgement(rule, True)
    return Judgement(
        rule,
        False,
        figure=1.0,
        message=f"raised {error['type']}: {error['message'].strip().splitlines()[0] if error['message'] else ''}",
        expected="a result",
        got=f"{error['type']}",
        demonstration=Demonstration("raised", (call,)),
    )


def judge_refused(error: Mapping[str, Any] | None, rule: str, call: Call) -> Judgement:
    """Whether illegal input got a ValueError or a TypeError; ``rule`` says what is illegal."""
    name = "illegal input refused"
    if error is not None and any(base in REFUSAL_TYPES for base in error["bases"]):
        return Judgement(name, True)
    got = "a result" if error is None else f"{error['type']}: {error['message'][:200]}"
    return Judgement(
        name,
        False,
        figure=1.0,
        message=f"{rule} must be refused with one of {', '.join(REFUSAL_TYPES)}",
        expected=" or ".join(REFUSAL_TYPES),
        got=got,
        demonstration=Demonstration("accepted", (call,)),
    )


def judge_answered_or_refused(error: Mapping[str, Any] | None, call: Call) -> Judgement:
    """Whether what an implementation does not declare was answered, or refused by an exception of the host code.

    A fault of the emulated device is no refusal: on a real one it would be a crash.
    """
    rule = "undeclared input refused"
    if error is None or "Fault" not in error["bases"]:
        return Judgement(rule, True)
    return Judgement(
        rule,
        False,
        figure=1.0,
        message=f"was launched, and ended in a fault: {error['message'][:200]}",
        expected="a result, or an exception of the host code",
        got=f"{error['type']}",
        demonstration=Demonstration("raised", (call,)),
    )


def judge_says_why(error: Mapping[str, Any] | None, call: Call) -> Judgement:
    """Whether a refusal has a text beyond the value that it refuses; an answer needs none."""
    rule = "refusal says why"
    if error is None or any(part.isalpha() and len(part) > 2 for part in error["message"].split()):
        return Judgement(rule, True)
    return Judgement(
        rule,
        False,
        figure=1.0,
        message=f"raised {error['type']} with the text {error['message'][:200]!r}",
        expected="a text that names the value and the rule",
        got=f"{error['type']}: {error['message'][:200]}",
        demonstration=Demonstration("accepted", (call,)),
    )


def judge_launched(launches: Sequence[Mapping[str, Any]], call: Call) -> Judgement:
    """Whether a kernel ran at all, where a kernel is what is under test."""
    if launches:
        return Judgement("kernel launched", True)
    return Judgement(
        "kernel launched",
        False,
        figure=1.0,
        message=f"no kernel was launched for {call.describe()}: what was judged is host code, a fallback",
    )


def judge_same_rows(
    first: torch.Tensor,
    second: torch.Tensor,
    rows: tuple[Sequence[int], Sequence[int]],
    calls: tuple[Call, Call],
    because: str,
    axis: int = 0,
) -> Judgement:
    """Whether rows of two results (or heads: ``axis`` 1) have the same bits; ``because`` says why they must."""
    rule = "same bits"
    left = first.index_select(axis, torch.tensor(rows[0], dtype=torch.int64))
    right = second.index_select(axis, torch.tensor(rows[1], dtype=torch.int64))
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[left.itemsize]
    differ = left.contiguous().view(kind) != right.contiguous().view(kind)
    if not differ.any():
        return Judgement(rule, True)
    at = tuple(int(i) for i in torch.nonzero(differ)[0])
    return Judgement(
        rule,
        False,
        figure=float(differ.sum()),
        unit="values that differ",
        message=f"{because}: {int(differ.sum())} values differ",
        index=(*at[:axis], rows[1][at[axis]], *at[axis + 1 :]),
        expected=f"{left[at].item():.9g}",
        got=f"{right[at].item():.9g}",
        demonstration=Demonstration("same-rows", calls, rows=(tuple(rows[0]), tuple(rows[1])), axis=axis),
    )


def judge_close_rows(
    first: torch.Tensor,
    second: torch.Tensor,
    rows: tuple[Sequence[int], Sequence[int]],
    tolerance: float,
    calls: tuple[Call, Call],
    because: str,
    state: bool = False,
) -> Judgement:
    """Whether rows of two results keep the same tokens, with values that differ by no more than twice the tolerance.

    For pairs of calls in which an implementation may sum in another order: each result may be off by ``tolerance``.
    With ``state`` the second call is right when it stands alone, so both are needed to show that it is wrong after the
    first.
    """
    rule = "same law"
    left, right = first[list(rows[0])].double(), second[list(rows[1])].double()
    bound = 2.0 * tolerance
    error = (left - right).abs() / torch.maximum(left, right).clamp(min=2.0**-126)
    error = torch.where((left > 0) != (right > 0), torch.inf, torch.nan_to_num(error, nan=torch.inf))
    error = torch.where(left == right, 0.0, error)
    if not error.numel() or float(error.max()) <= bound:
        figure = float(error.max()) if error.numel() else 0.0
        return Judgement(rule, True, figure, bound, "relative difference", "twice the tolerance of one result")
    row, column = (int(i) for i in torch.nonzero(error > bound)[0])
    low = torch.zeros(second.shape, dtype=torch.float64)
    high = torch.full_like(low, torch.inf)
    low[list(rows[1])], high[list(rows[1])] = left * (1.0 - bound), left * (1.0 + bound)
    # The second call, with the first one's result as what is due: that was held to float64 before.
    alone = Demonstration("values", (calls[1],), low, high)
    return Judgement(
        rule,
        False,
        float(error.max()),
        bound,
        "relative difference",
        "twice the tolerance of one result",
        f"{because}: {int((error > bound).sum())} values differ",
        (rows[1][row], column),
        f"{left[row, column].item():.9g}",
        f"{right[row, column].item():.9g}",
        Demonstration("same-rows", calls, rows=(tuple(rows[0]), tuple(rows[1]))) if state else alone,
    )
