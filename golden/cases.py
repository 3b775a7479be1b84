"""A case that goldens are captured for: one call under a name, from a stream of random numbers of its own."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch

from waveproof.kernels.operators.contract import Call, Value
from waveproof.kernels.operators.registry import operator_named


@dataclass(frozen=True)
class Case:
    """One call with a name that tells what is hard about it."""

    name: str
    seed: int
    """Seed of the whole set; the case's own stream follows from it and the name."""
    call: Call
    variants: tuple[str, ...]
    """Semantic variants under which it is captured: all of the operator's, or those that differ on it."""

    @property
    def operator(self) -> str:
        """Name of the operator that it calls."""
        return self.call.operator

    @property
    def generator(self) -> str:
        """Name and version of what made the inputs."""
        return str(self.call.labels["generator"])


def make_case(
    generator: str,
    seed: int,
    operator: str,
    name: str,
    arguments: dict[str, Value],
    variants: tuple[str, ...] = (),
) -> Case:
    """A case of a generator (``renorm-cases/1``), under all variants of the operator if none are given."""
    labels: dict[str, str | int | float] = {"generator": generator, "case": name, "seed": seed}
    return Case(name, seed, Call(operator, arguments, labels=labels), variants or operator_named(operator).variants)


def stream(seed: int, name: str) -> torch.Generator:
    """A stream of its own for each name, so that a case added or dropped changes no other."""
    return torch.Generator().manual_seed(seed ^ zlib.crc32(name.encode()))
