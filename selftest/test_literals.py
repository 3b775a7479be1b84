"""The texts that a minimal repro is made of: tensors with every bit, and an adapter with all that it needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from waveproof.reports import literals
from waveproof.reports.adapter import AdapterMissing, adapter_source, extract
from waveproof.reports.literals import bits, layout_literal, same_bits, tensor_literal

LITERALS = {
    "float32": torch.tensor([[0.1, -0.0, 1e-45], [float("inf"), 3.4e38, 2**-24]]),
    "float64": torch.tensor([0.1, 1 / 3, 5e-324], dtype=torch.float64),
    "float16": torch.tensor([0.1, 65504.0, 6e-8], dtype=torch.float16),
    "bfloat16": torch.linspace(-3, 3, 40).to(torch.bfloat16),
    "float8": torch.tensor([0.1, 448.0, -0.0]).to(torch.float8_e4m3fn),
    "NaN": torch.tensor([1.0, float("nan")]),
    "NaN with a payload": torch.tensor([0x3F800000, 0x7FC00123], dtype=torch.int32).view(torch.float32),
    "int32": torch.tensor([[1 << 30, -1]], dtype=torch.int32),
    "int64": torch.tensor([1 << 62]),
    "bool": torch.tensor([True, False]),
    "no dimension": torch.tensor(0.3),
    "empty": torch.empty(0, 5, dtype=torch.bfloat16),
    "constant": torch.full((8, 2000), 0.3),
    "sparse": torch.zeros(2, 2000).index_put((torch.tensor([1]), torch.tensor([1999])), torch.tensor(0.1)),
    "sparse NaN": torch.zeros(64).index_put((torch.tensor([5]),), torch.tensor(float("nan"))),
}


@pytest.mark.parametrize("name", LITERALS)
def test_literal_gives_every_bit_back(name: str) -> None:
    text = tensor_literal(LITERALS[name])
    assert text is not None
    assert len(text) < 1000
    assert same_bits(eval(text, script_names()), LITERALS[name])


def script_names() -> dict[str, object]:
    """What the functions of a script are to its literals, taken from the template itself."""
    scope: dict[str, object] = {"torch": torch, "inf": float("inf"), "nan": float("nan"), "DEVICE": "cpu"}
    template = (Path(literals.__file__).parent / "templates" / "repro.py.j2").read_text()
    for function in ("spread", "lay_out"):
        match = re.search(rf"^def {function}\(.*?(?=^{{%)", template, re.MULTILINE | re.DOTALL)
        assert match is not None
        exec(match.group(), scope)
    return scope


def test_literal_over_the_budget_is_refused() -> None:
    assert tensor_literal(torch.rand(40, generator=torch.manual_seed(0)), budget=39) is None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).to(torch.bfloat16).reshape(4, 6).T,
        torch.arange(24, dtype=torch.int32)[3:15].reshape(3, 4)[:, ::2],
        torch.arange(24.0)[5:],
        torch.arange(3.0).expand(4, 3),
        torch.arange(24.0).reshape(4, 6)[:, :3],
    ],
    ids=["transposed", "stepped", "offset", "expanded", "column slice"],
)
def test_layout_comes_back_with_guarded_gaps(tensor: torch.Tensor) -> None:
    again = eval(f"lay_out({tensor_literal(tensor)}, {layout_literal(tensor)})", script_names())
    assert same_bits(again, tensor)
    assert again.stride() == tensor.stride()
    assert again.storage_offset() == tensor.storage_offset()
    raw = bits(torch.empty(0, dtype=torch.uint8).set_(again.untyped_storage()))
    addressed = torch.zeros(len(raw) // again.element_size(), dtype=torch.bool)
    places = torch.arange(len(addressed)).as_strided(again.shape, again.stride(), again.storage_offset())
    addressed[places.reshape(-1)] = True
    assert (raw.reshape(-1, again.element_size())[~addressed] == 0x5C).all()


MODULE = """
from __future__ import annotations
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import torch
LIMIT = math.inf
UNUSED = 3
@dataclass(frozen=True)
class Plan:
    depth: int = 2
def unused(): return UNUSED
def _plan(probs: torch.Tensor) -> Plan:
    return Plan(3 if len(probs) < LIMIT else 4)
def adapter(probs, top_k):
    from json import loads
    return loads("1") + _plan(probs).depth if top_k else adapter(probs, 1)
"""


def test_adapter_comes_with_all_that_it_needs_and_no_more() -> None:
    text = extract(MODULE, "adapter", "implementation")
    assert text.startswith("import math\nfrom dataclasses import dataclass\n")
    assert "unused" not in text.lower()
    scope: dict[str, object] = {"__name__": __name__}
    exec("from __future__ import annotations\n" + text, scope)
    assert scope["implementation"]([0], 0) == 4  # type: ignore[operator]
    with pytest.raises(AdapterMissing, match="no function 'other'"):
        extract(MODULE, "other", "implementation")


def test_adapter_of_an_upstream_package_imports_it_and_copies_nothing() -> None:
    text = adapter_source("waveproof.kernels.providers.sglang_kernels:top_k_renorm_prob")
    assert text.startswith("def implementation(probs")
    assert "from sglang." in text
    assert "IMPLEMENTATIONS" not in text
    with pytest.raises(AdapterMissing, match="does not exist"):
        adapter_source("waveproof.kernels.providers.nobody:top_k_renorm_prob")
