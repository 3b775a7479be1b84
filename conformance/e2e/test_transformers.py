"""Assisted generation of ``transformers`` emits what the target alone would, but where it is set to be lossy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch

from waveproof.fixtures.engines import assisted
from waveproof.fixtures.engines.assisted import Speculation
from waveproof.fixtures.engines.table import EngineTable, needs
from waveproof.fixtures.models.tiny_llama import exact_logits, tiny_llama, with_noise
from waveproof.golden.judges.evidence import CASE_ALPHA
from waveproof.golden.judges.generated import PLAIN, Verdict
from waveproof.golden.references.joint_law import Filter, joint_law

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

pytestmark = [pytest.mark.rocm, pytest.mark.slow]

LENGTH = 3
FEWEST = 1000
"""Generations: those in which a planted fault has to show."""
SAMPLES = {"nightly": 10_000}
"""By profile, those that an honest engine is judged by, where they are more."""
FILTERS = {
    "unfiltered": Filter(),
    "temperature": Filter(temperature=0.7),
    "filtered": Filter(temperature=0.8, top_k=5, top_p=0.9),
}
PROMPT = (1, 2, 3)
REPETITIVE = (2, 5, 1, 1, 2, 5)
"""Ends as it begins, so that prompt lookup has something to propose."""
ENSEMBLE_WEIGHT = 0.5


@cache
def _target() -> LlamaForCausalLM:
    return tiny_llama(vocab_size=8, seed=0)


@cache
def _law(prompt: tuple[int, ...], filter: Filter) -> Mapping[tuple[int, ...], float]:
    return joint_law(exact_logits(_target(), prompt, LENGTH), prompt, LENGTH, filter)


Holding = Callable[..., None]


@pytest.fixture(autouse=True)
def _needed(engine_table: EngineTable) -> None:
    engine_table.engine = "transformers"
    needs("transformers")


@pytest.fixture
def hold(engine_table: EngineTable, pytestconfig: pytest.Config, seed: int) -> Holding:
    """Generates, and holds what comes of it to the exact law."""

    def holding(
        speculation: Speculation, filter: str, expected: Verdict = "faithful", prompt: tuple[int, ...] = PROMPT
    ) -> None:
        honest = expected == "faithful"
        samples = SAMPLES.get(pytestconfig.option.profile, FEWEST) if honest else FEWEST
        one = FILTERS[filter]
        sampled = assisted.generate(_target(), speculation, prompt, LENGTH, samples, one, seed)
        engine_table.expect(sampled, _law(prompt, one), CASE_ALPHA, expected)

    return holding


@pytest.fixture
def assistant() -> Callable[..., Speculation]:
    """Speculation with a draft that differs from the target by noise on its weights."""

    def speculation(kind: str, ensemble_weight: float | None = None) -> Speculation:
        draft = with_noise(_target(), share=0.7, seed=100)
        return Speculation(kind, assistant=draft, ensemble_weight=ensemble_weight)

    return speculation


def test_plain_generation(hold: Holding) -> None:
    hold(Speculation(PLAIN), "filtered")


@pytest.mark.parametrize("filter", FILTERS)
def test_assistant(hold: Holding, assistant: Callable[..., Speculation], filter: str) -> None:
    hold(assistant(f"assistant, {filter}"), filter)


@pytest.mark.parametrize("filter", ["unfiltered", "filtered"])
def test_prompt_lookup(hold: Holding, filter: str) -> None:
    hold(Speculation(f"prompt lookup, {filter}", lookup=True), filter, prompt=REPETITIVE)


# It can fail --------------------------------------------------------------------------------------------------------


def test_ensemble_weight_is_found(hold: Holding, assistant: Callable[..., Speculation]) -> None:
    hold(assistant("assistant, ensemble weight", ENSEMBLE_WEIGHT), "unfiltered", "unfaithful")


def test_target_instead_of_residual_is_found(
    hold: Holding, assistant: Callable[..., Speculation], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.generation import utils

    honest = utils._speculative_sampling

    def faulty(
        candidate_input_ids: torch.Tensor,
        candidate_logits: torch.Tensor,
        candidate_length: int,
        new_logits: torch.Tensor,
        assistant_ensemble_weight: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, matches = honest(candidate_input_ids, candidate_logits, candidate_length, new_logits)
        drawn = torch.multinomial(new_logits[:, matches].softmax(-1), 1)
        return torch.cat((tokens[:, :-1], drawn), dim=1), matches

    monkeypatch.setattr(utils, "_speculative_sampling", faulty)
    hold(assistant("assistant, target for residual"), "unfiltered", "unfaithful")


def test_likely_drafts_always_accepted_is_found(
    hold: Holding, assistant: Callable[..., Speculation], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.generation import utils

    honest = utils._speculative_sampling

    def faulty(
        candidate_input_ids: torch.Tensor,
        candidate_logits: torch.Tensor,
        candidate_length: int,
        new_logits: torch.Tensor,
        assistant_ensemble_weight: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # The draft's law reported halved (and so not normalised) accepts whatever has half of its probability.
        return honest(candidate_input_ids, _Halved(candidate_logits), candidate_length, new_logits)

    class _Halved:
        def __init__(self, logits: torch.Tensor) -> None:
            self.logits, self.shape = logits, logits.shape

        def softmax(self, dim: int) -> torch.Tensor:
            return self.logits.softmax(dim) / 2

    monkeypatch.setattr(utils, "_speculative_sampling", faulty)
    hold(assistant("assistant, q halved"), "unfiltered", "unfaithful")


def test_one_coin_for_all_positions_is_found(hold: Holding, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = torch.multinomial

    def faulty(weights: torch.Tensor, num_samples: int) -> torch.Tensor:
        if len(weights) == 1:
            return honest(weights, num_samples)
        coin = torch.rand(1).expand(len(weights), 1)
        return torch.searchsorted(weights.cumsum(-1), coin.contiguous()).clamp(max=weights.shape[-1] - 1)

    monkeypatch.setattr(torch, "multinomial", faulty)
    hold(Speculation("prompt lookup, one coin", lookup=True), "unfiltered", "unfaithful", REPETITIVE)
