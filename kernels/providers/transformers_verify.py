"""Provider ``transformers``: the acceptance rule of its assisted generation."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from waveproof.kernels.providers.registry import Implementation

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def chain_verify(
    candidates: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
    block_verification: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``_speculative_sampling``, a row at a time, its random numbers answered with the coins.

    It asks for logits and takes their softmax at once: it is given tensors whose softmax are the probabilities, so that
    none of them is rounded on the way. Which token ``torch.multinomial`` draws is decided here by the final coin; that
    it refuses what is no distribution is left to it.

    Raises:
        ValueError: block verification, or no draft token: there is neither in transformers.
    """
    import torch
    from transformers.generation.utils import _speculative_sampling

    if block_verification:
        raise ValueError("block_verification must be False: transformers judges token by token only")
    batch, slots = candidates.shape
    if slots < 2:
        raise ValueError(f"candidates must hold a root and at least one draft token, got {slots} slots")

    class Law(torch.Tensor):
        """Probabilities in the place of logits."""

        def softmax(self, dim: int) -> torch.Tensor:  # type: ignore[override]
            return self.as_subclass(torch.Tensor)

    accept_len = torch.zeros(batch, dtype=torch.int32)
    tokens = torch.full((batch, slots), -1, dtype=torch.int32)
    for row in range(batch):
        with random_numbers_answered(coins[row], final_coins[row]):
            valid, matches = _speculative_sampling(
                candidates[row : row + 1],
                draft_probs[row : row + 1].as_subclass(Law),
                slots - 1,
                target_probs[row : row + 1].as_subclass(Law),
            )
        accept_len[row] = matches
        tokens[row, : valid.shape[1]] = valid[0]
    return accept_len, tokens


@contextmanager
def random_numbers_answered(coins: torch.Tensor, final_coin: torch.Tensor) -> Iterator[None]:
    """Within it ``torch.rand_like`` gives the coins and ``torch.multinomial`` the token that the final coin falls on.

    Raises:
        RuntimeError: other random numbers are asked for than these: the coins are used otherwise than was assumed.
    """
    import torch

    drawn, chosen = torch.rand_like, torch.multinomial
    asked = []

    def rand_like(of: torch.Tensor, **options: Any) -> torch.Tensor:
        if of.shape != coins.shape or options:
            raise RuntimeError(f"rand_like of {list(of.shape)} where {list(coins.shape)} coins are due")
        asked.append("coins")
        return coins.to(of.dtype)

    def multinomial(weights: torch.Tensor, num_samples: int) -> torch.Tensor:
        if weights.shape[0] != 1 or num_samples != 1:
            raise RuntimeError(f"multinomial of {list(weights.shape)}, {num_samples} samples where one token is due")
        asked.append("token")
        chosen(weights, num_samples)
        cumulative = weights.double().cumsum(-1)
        return torch.searchsorted(cumulative, final_coin.double() * cumulative[:, -1:], right=True)

    vars(torch).update(rand_like=rand_like, multinomial=multinomial)
    try:
        yield
    finally:
        vars(torch).update(rand_like=drawn, multinomial=chosen)
    if asked != ["coins", "token"]:
        raise RuntimeError(f"asked for {asked or 'no random numbers'} where coins and one token are due")


IMPLEMENTATIONS = (
    Implementation(
        "transformers",
        "chain_verify",
        "half-open",
        ("cpu",),
        "waveproof.kernels.providers.transformers_verify:chain_verify",
        packages=("transformers",),
        distribution="transformers",
        origin="transformers/generation/utils.py:_speculative_sampling",
        row_by_row=True,
        token_by_token=True,
    ),
)
