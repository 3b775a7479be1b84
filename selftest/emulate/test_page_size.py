"""The page-size fault of the shipped bf16 decode object, as the installed AITER has it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("aiter_meta", reason="amd-aiter is not installed")

from waveproof.fixtures.page_size import paged_decode
from waveproof.kernels.runtimes.emulate.launch import Machine


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize(("page_size", "log2"), [(16, 4), (64, 6)])
def test_pages_of_several_tokens_are_accepted_and_read_as_one_token(arch: str, page_size: int, log2: int) -> None:
    shown = paged_decode(Machine(arch), page_size)
    assert shown.accepted
    assert shown.log2_page_size == log2
    assert shown.reads_first_tokens
    assert not shown.output.holds
    assert shown.output.figure > 100 * shown.output.bound


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_pages_of_one_token_are_right(arch: str) -> None:
    shown = paged_decode(Machine(arch), 1)
    assert shown.output.holds
    assert shown.log2_page_size == 0
