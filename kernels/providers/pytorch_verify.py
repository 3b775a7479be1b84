"""Provider ``torch``: verification of draft tokens in plain torch, on any device, whole batches at a time.

Comparisons and sums are made in float64: products of two float32 are exact there, so that only the draw of the last
token rounds at all, and with probabilities that are small multiples of a power of two nothing does. Nothing here waits
for a device.
"""

from __future__ import annotations

import torch

from waveproof.kernels.providers.pytorch import target_probs as filtered_probs
from waveproof.kernels.providers.registry import Implementation

Verified = tuple[torch.Tensor, torch.Tensor]
"""accept_len int32[B], tokens int32[B, S or D]."""


def chain_verify(
    candidates: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
    block_verification: bool,
) -> Verified:
    """Rejection sampling of a chain (arXiv 2211.17192, Algorithm 1), or as a block (arXiv 2403.10444, Algorithm 2).

    Args:
        candidates: int64[B, S]; slot 0 is the root.
        target_probs: float32[B, S, V].
        draft_probs: float32[B, S-1, V].
        coins: float32[B, S-1] in [0, 1).
        final_coins: float32[B] in [0, 1).
        block_verification: whether whole prefixes are judged.

    Returns:
        accept_len int32[B], tokens int32[B, S], -1 behind the last token.
    """
    accepted, last = _chain(candidates, target_probs, draft_probs, coins, final_coins, block_verification)
    return accepted.int(), _tokens(candidates, accepted, last)


def target_only_verify(
    candidates: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_probs: torch.Tensor,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
    threshold_single: float,
    threshold_acc: float,
    depth: int,
) -> Verified:
    """Walk down each tree, taking the first child that the sum of target probabilities so far lifts above the coin.

    Args:
        candidates: int64[B, N].
        retrieve_next_token: int64[B, N], first child or -1.
        retrieve_next_sibling: int64[B, N], next child of the same parent or -1.
        target_probs: float32[B, N, V].
        coins: float32[B, N] in [0, 1).
        final_coins: float32[B] in [0, 1).
        threshold_single: in (0, 1].
        threshold_acc: in (0, 1].
        depth: most nodes on a path.

    Returns:
        accept_len int32[B], tokens int32[B, depth], -1 behind the last token.
    """
    batch, nodes, _ = target_probs.shape
    # float32, since they are compared with probabilities of that type.
    single, acc = torch.tensor([threshold_single, threshold_acc], dtype=torch.float32).double().tolist()
    row = torch.arange(batch, device=candidates.device)
    node = torch.zeros_like(row)
    length = torch.zeros_like(row)
    child = retrieve_next_token[:, 0].long()
    mass = torch.zeros(batch, dtype=torch.float64, device=candidates.device)
    refused = torch.zeros_like(target_probs[:, 0], dtype=torch.bool)
    tokens = torch.full((batch, depth), -1, dtype=torch.int32, device=candidates.device)
    # Every node but the root has one parent, so it is looked at no more than once.
    for _ in range(nodes - 1):
        looked_at = (child >= 0) & (length < depth - 1)
        at = child.clamp(min=0)
        token = torch.where(looked_at, candidates[row, at], 0)  # the root need not be a token of the target's law
        p = target_probs[row, node, token].double()
        mass = torch.where(looked_at, mass + p, mass)
        taken = looked_at & (p > 0) & ((coins[row, node].double() < mass / acc) | (p >= single))
        refused[row, token] |= looked_at & ~taken
        refused &= ~taken[:, None]
        tokens[row, length] = torch.where(taken, token.int(), tokens[row, length])
        mass = torch.where(taken, 0.0, mass)
        node = torch.where(taken, at, node)
        length = length + taken.long()
        following = torch.where(taken, retrieve_next_token[row, at], retrieve_next_sibling[row, at])
        child = torch.where(looked_at, following, child)
    law = target_probs[row, node].double()
    last = _draw(torch.where(refused, 0.0, law), law, final_coins)
    tokens[row, length] = last.int()
    return length.int(), tokens


def tree_verify_greedy(
    candidates: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
    depth: int,
) -> Verified:
    """Walk down each tree along the target's argmax.

    Args:
        candidates: int64[B, N].
        retrieve_next_token: int64[B, N], first child or -1.
        retrieve_next_sibling: int64[B, N], next child of the same parent or -1.
        target_predict: int64[B, N].
        depth: most nodes on a path.

    Returns:
        accept_len int32[B], tokens int32[B, depth], -1 behind the last token.
    """
    batch, nodes = candidates.shape
    row = torch.arange(batch, device=candidates.device)
    node = torch.zeros_like(row)
    length = torch.zeros_like(row)
    child = retrieve_next_token[:, 0].long()
    tokens = torch.full((batch, depth), -1, dtype=torch.int32, device=candidates.device)
    for _ in range(nodes - 1):
        looked_at = (child >= 0) & (length < depth - 1)
        at = child.clamp(min=0)
        token = candidates[row, at]
        taken = looked_at & (token == target_predict[row, node])
        tokens[row, length] = torch.where(taken, token.int(), tokens[row, length])
        node = torch.where(taken, at, node)
        length = length + taken.long()
        following = torch.where(taken, retrieve_next_token[row, at], retrieve_next_sibling[row, at])
        child = torch.where(looked_at, following, child)
    tokens[row, length] = target_predict[row, node].int()
    return length.int(), tokens


def accept_sampling(
    candidates: torch.Tensor,
    target_logits: torch.Tensor,
    draft_probs: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
    verify_lens: torch.Tensor,
    block_verification: bool,
    path: str,
) -> Verified:
    """Filter the target, verify the chain, cut it off behind ``verify_lens`` slots.

    Args:
        candidates: int64[B, S].
        target_logits: float32 or bfloat16 [B, S, V].
        draft_probs: float32[B, S-1, V].
        temperature: float32[B] above 0.
        top_k: int32/int64[B]; 2^30 for all.
        top_p: float32[B] in (0, 1].
        coins: float32[B, S-1] in [0, 1).
        final_coins: float32[B] in [0, 1).
        verify_lens: int32[B], 1 to S.
        block_verification: whether whole prefixes are judged.
        path: ``dense`` or ``sparse``.

    Returns:
        accept_len int32[B], tokens int32[B, S], -1 behind the last token.

    Raises:
        ValueError: another path.
    """
    law = _target_law(target_logits, temperature, top_k, top_p, path)
    accepted, last = _chain(candidates, law, draft_probs, coins, final_coins, block_verification)
    standing = torch.minimum(accepted, verify_lens.long() - 1)
    # What was accepted and lies behind the cut is the token after the cut: it has the target's law, given the prefix.
    following = candidates.gather(1, (standing + 1).clamp(max=candidates.shape[1] - 1)[:, None])[:, 0]
    last = torch.where(standing < accepted, following, last)
    return standing.int(), _tokens(candidates, standing, last)


def target_only_accept_sampling(
    candidates: torch.Tensor,
    target_logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
    threshold_single: float,
    threshold_acc: float,
    path: str,
) -> Verified:
    """Filter the target, then verify the chain by it alone.

    Args:
        candidates: int64[B, S].
        target_logits: float32 or bfloat16 [B, S, V].
        temperature: float32[B] above 0.
        top_k: int32/int64[B]; 2^30 for all.
        top_p: float32[B] in (0, 1].
        coins: float32[B, S] in [0, 1).
        final_coins: float32[B] in [0, 1).
        threshold_single: in (0, 1].
        threshold_acc: in (0, 1].
        path: ``dense`` or ``sparse``.

    Returns:
        accept_len int32[B], tokens int32[B, S], -1 behind the last token.

    Raises:
        ValueError: another path.
    """
    batch, slots = candidates.shape
    law = _target_law(target_logits, temperature, top_k, top_p, path)
    following = torch.arange(1, slots + 1, device=candidates.device)
    next_token = torch.where(following < slots, following, -1).expand(batch, slots)
    siblings = torch.full_like(next_token, -1)
    return target_only_verify(
        candidates, next_token, siblings, law, coins, final_coins, threshold_single, threshold_acc, slots
    )


def seeded_chain_verify(
    candidates: torch.Tensor,
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor,
    temperature: torch.Tensor,
    draft_temperature: torch.Tensor,
    seed: int,
) -> Verified:
    """Chain verification with coins from torch's generator.

    Args:
        candidates: int64[B, S].
        target_logits: float32 or bfloat16 [B, S, V].
        draft_logits: float32 or bfloat16 [B, S-1, V].
        temperature: float32[B] above 0.
        draft_temperature: float32[B] above 0.
        seed: of the generator.

    Returns:
        accept_len int32[B], tokens int32[B, S], -1 behind the last token.
    """
    batch, slots = candidates.shape
    generator = torch.Generator(device=candidates.device).manual_seed(seed)
    drawn = torch.rand((batch, slots), generator=generator, device=candidates.device)
    p = torch.softmax(target_logits.float() / temperature[:, None, None], -1)
    q = torch.softmax(draft_logits.float() / draft_temperature[:, None, None], -1)
    return chain_verify(candidates, p, q, drawn[:, :-1], drawn[:, -1], False)


def _target_law(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, path: str
) -> torch.Tensor:
    batch, slots, vocab_size = logits.shape
    temperature, top_k, top_p = (limit.repeat_interleave(slots) for limit in (temperature, top_k, top_p))
    law = filtered_probs(logits.reshape(-1, vocab_size), temperature, top_k, top_p, path)
    return law.view(batch, slots, vocab_size)


def _chain(
    candidates: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
    block_verification: bool,
) -> Verified:
    """Accepted draft tokens int64[B], and the token after them int64[B]."""
    batch, slots = candidates.shape
    drafts = candidates[:, 1:, None].long()
    p = target_probs[:, :-1].gather(2, drafts)[..., 0].double()
    q = draft_probs.gather(2, drafts)[..., 0].double()
    proposed = (q > 0) & (q <= 1)
    scale = torch.ones(batch, slots, dtype=torch.float64, device=candidates.device)
    if block_verification:
        accepted = _longest_prefix(p, torch.where(proposed, q, torch.inf), coins, target_probs, draft_probs, scale)
    else:
        accepted = (proposed & (coins.double() * q < p)).long().cumprod(1).sum(1)
    row = torch.arange(batch, device=candidates.device)
    law = target_probs[row, accepted].double()
    rejected = draft_probs[row, accepted.clamp(max=slots - 2)] if slots > 1 else torch.zeros_like(law)
    subtracted = torch.where((accepted == slots - 1)[:, None], 0.0, _probability(rejected).double())
    weights = scale[row, accepted][:, None] * law - subtracted
    return accepted, _draw(weights, law, final_coins)


def _longest_prefix(
    p: torch.Tensor,
    q: torch.Tensor,
    coins: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    scale: torch.Tensor,
) -> torch.Tensor:
    """Length of the longest prefix that stands, int64[B]; ``scale[b, i]`` becomes the prefix ratio of length i.

    The ratio of a whole chain scales nothing, since the target's own law follows it.
    """
    batch, steps = p.shape
    accepted = torch.zeros(batch, dtype=torch.long, device=p.device)
    prefix = torch.ones_like(scale[:, 0])
    for step in range(steps):
        # NaN is no ratio: the prefix falls.
        prefix = torch.nan_to_num((prefix * p[:, step] / q[:, step]).clamp(max=1.0), nan=0.0)
        edge = prefix
        if step + 1 < steps:
            scale[:, step + 1] = prefix
            excess = prefix[:, None] * target_probs[:, step + 1].double() - _probability(draft_probs[:, step + 1])
            mass = excess.clamp(min=0.0).sum(-1)
            partial = (prefix > 0) & (prefix < 1)
            edge = torch.where(partial, mass / (mass + 1.0 - prefix), prefix)
        accepted = torch.where(coins[:, step].double() < edge, step + 1, accepted)
    return accepted


def _probability(q: torch.Tensor) -> torch.Tensor:
    """q where it can be a probability, else 0."""
    return torch.where((q >= 0) & (q <= 1), q, 0.0)


def _draw(weights: torch.Tensor, law: torch.Tensor, coin: torch.Tensor) -> torch.Tensor:
    """The token whose half-open interval of cumulative weight holds the coin; int64[B].

    Weights of 0 and less draw nothing; where there are no others, ``law`` takes their place.
    """
    weights = torch.where(weights > 0, weights, 0.0)
    empty = ~(weights > 0).any(-1, keepdim=True)
    weights = torch.where(empty, torch.where(law > 0, law, 0.0), weights)
    cumulative = weights.cumsum(-1)
    # A parallel sum may rise by a rounding where nothing is added: a token without weight is passed over all the same.
    beyond = (weights > 0) & (cumulative > coin.double()[:, None] * cumulative[:, -1:])
    at = torch.arange(weights.shape[-1], device=weights.device)
    last = torch.where(weights > 0, at, 0).amax(-1)
    return torch.where(beyond.any(-1), beyond.int().argmax(-1), last)


def _tokens(candidates: torch.Tensor, accepted: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """The accepted draft tokens, the last one, then -1; int32[B, S]."""
    slot = torch.arange(candidates.shape[1], device=candidates.device)
    following = candidates.roll(-1, 1)
    tokens = torch.where(slot < accepted[:, None], following, torch.where(slot == accepted[:, None], last[:, None], -1))
    return tokens.int()


IMPLEMENTATIONS = tuple(
    Implementation(
        "torch",
        operator,
        variant,
        ("cpu", "hip", "cuda"),
        f"waveproof.kernels.providers.pytorch_verify:{operator}",
        paths=(("dense", variant), ("sparse", variant)) if "accept_sampling" in operator else (),
    )
    for operator, variant in (
        ("chain_verify", "half-open"),
        ("target_only_verify", "half-open"),
        ("tree_verify_greedy", "first-match"),
        ("accept_sampling", "half-open"),
        ("target_only_accept_sampling", "half-open"),
        ("seeded_chain_verify", "sampled"),
    )
)
