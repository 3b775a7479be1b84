"""What is under test on this machine, and what is not: every subject is named, with the reason where it cannot run."""

from __future__ import annotations

import pytest

from waveproof.fixtures.bench import Bench
from waveproof.kernels.providers.external import parse_provider
from waveproof.kernels.providers.registry import Implementation

pytestmark = pytest.mark.rocm


def test_subject_is_available(any_bench: Bench) -> None:
    """The packages are there, the runtime opens, the implementation loads and takes the operator's arguments."""
    any_bench.open()


def test_provider_option(provider_option: str) -> None:
    """Every ``--provider`` names a function for an operator."""
    assert isinstance(parse_provider(provider_option), Implementation)
