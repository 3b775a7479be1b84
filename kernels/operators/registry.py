"""The operators that are under contract, by name."""

from __future__ import annotations

from waveproof.kernels.operators import mla, renorm, verify
from waveproof.kernels.operators.contract import Operator, UnknownOperator

OPERATORS: dict[str, Operator] = {
    operator.name: operator for operator in (*renorm.OPERATORS, *mla.OPERATORS, *verify.OPERATORS)
}


def operator_named(name: str) -> Operator:
    """The operator of that name.

    Raises:
        UnknownOperator: names the operators that exist.
    """
    try:
        return OPERATORS[name]
    except KeyError:
        raise UnknownOperator(f"unknown operator {name!r}; known: {', '.join(sorted(OPERATORS))}") from None
