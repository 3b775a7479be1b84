"""Planted faults of ``chain_verify`` in batches, memory and form: each decides as is due but for what is said.

For use as ``--provider chain_verify=selftest/mutants/verify_memory.py:NAME``; the table is ``verify.py``.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from waveproof.selftest.mutants.mla_steps import as_if_contiguous
from waveproof.selftest.mutants.verify_chain import greedy as greedily
from waveproof.selftest.mutants.verify_steps import Chain, Result, chain, decide, usable, verify

_LAST: dict[torch.Size, Result] = {}
_BUFFER: dict[torch.Size, Tensor] = {}

# Batches --------------------------------------------------------------------------------------------------------------


@chain
def greedy_from_eight_rows(call: Chain) -> Result:
    """Argmax instead of sampling from 8 rows on (kinds: vllm-project/vllm#50979, A3; C1)."""
    if len(call.candidates) < 8:
        return verify(call)
    accept_len, tokens = greedily(call.candidates, call.target, call.draft, call.coins, call.final, call.block)
    return accept_len, tokens


@chain
def rows_above_32(call: Chain) -> Result:
    """Writes the first 32 rows and zeros for the others."""
    accept_len, tokens = verify(call)
    accept_len[32:], tokens[32:] = 0, 0
    return accept_len, tokens


@chain
def first_and_last_swapped(call: Chain) -> Result:
    """The first row's result stands in the last row and the other way round."""
    accept_len, tokens = verify(call)
    if len(tokens):
        accept_len[[0, -1]], tokens[[0, -1]] = accept_len[[-1, 0]], tokens[[-1, 0]]
    return accept_len, tokens


@chain
def lengths_of_first_row(call: Chain) -> Result:
    """accept_len is the first row's for all; tokens are right."""
    accept_len, tokens = verify(call)
    return accept_len[:1].repeat(len(accept_len)), tokens


@chain
def bad_row_spoils_batch(call: Chain) -> Result:
    """NaN in the target of one row reaches all rows (kind: flashinfer-ai/flashinfer#2402, A5)."""
    return verify(replace(call, target=call.target + 0.0 * call.target.sum()))


@chain
def bad_row_spoils_next(call: Chain) -> Result:
    """NaN in the target of one row reaches the row after it."""
    return verify(replace(call, target=call.target + 0.0 * call.target.sum((1, 2)).roll(1)[:, None, None]))


@chain
def raises_on_zero_row(call: Chain) -> Result:
    """A target row that sums to zero raises for the whole batch (sgl-project/sglang#27618, A8)."""
    if bool((call.target.sum(-1) <= 0.0).any()):
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    return verify(call)


@chain
def raises_on_nan_target(call: Chain) -> Result:
    """A NaN in the target raises for the whole batch (kind: sgl-project/sglang#27618, A8)."""
    if bool(torch.isnan(call.target).any()):
        raise RuntimeError("probability tensor contains either inf, nan or element < 0")
    return verify(call)


@chain
def refuses_bad_q(call: Chain) -> Result:
    """A q that is no probability raises for the whole batch: a corrupt draft is rejected, not the call."""
    if not bool(((call.draft >= 0.0) & (call.draft <= 1.0)).all()):
        raise ValueError("draft_probs must lie in [0, 1]")
    return verify(call)


@chain
def aborts_on_nan_target(call: Chain) -> Result:
    """A NaN in the target takes the process down (kind: flashinfer-ai/flashinfer#2402, A5)."""
    if bool(torch.isnan(call.target).any()):
        os.abort()
    return verify(call)


@chain
def token_beyond_vocabulary(call: Chain) -> Result:
    """A zero row gives token V, which nobody has (kind: flashinfer-ai/flashinfer#2402, A5)."""
    count, last = decide(call)
    row = call.target[torch.arange(len(count)), count].sum(-1)
    accept_len, tokens = verify(call)
    tokens[torch.arange(len(count)), count] = torch.where(row == 0.0, call.target.shape[-1], last).int()
    return accept_len, tokens


@chain
def candidates_as_int32(call: Chain) -> Result:
    """Reads int64 candidates as int32: every other token is 0, and the rows are half as long."""
    halves = call.candidates.contiguous().view(torch.int32)[:, : call.drafts + 1]
    return verify(replace(call, candidates=halves.long()))


# Memory ---------------------------------------------------------------------------------------------------------------


@chain
def own_random_numbers(call: Chain) -> Result:
    """Draws its own coins and ignores those that it is given."""
    return verify(replace(call, coins=torch.rand(call.coins.shape), final=torch.rand(call.final.shape)))


@chain
def stale_output(call: Chain) -> Result:
    """Returns what the call before it decided for the same shape; nothing accepted and token 0 at first."""
    result = verify(call)
    nothing = torch.full_like(result[1], -1)
    nothing[:, :1] = 0
    before = _LAST.get(nothing.shape, (torch.zeros_like(result[0]), nothing))
    _LAST[nothing.shape] = result
    return before[0].clone(), before[1].clone()


@chain
def same_buffer_again(call: Chain) -> Result:
    """Returns its tokens in the same memory on every call (kind: sgl-project/sglang#37134, C1)."""
    accept_len, tokens = verify(call)
    return accept_len, _BUFFER.setdefault(tokens.shape, torch.zeros_like(tokens)).copy_(tokens)


@chain
def tail_unwritten(call: Chain) -> Result:
    """Leaves tokens behind the last one as they were allocated."""
    accept_len, tokens = verify(call)
    fresh = torch.empty_like(tokens)
    return accept_len, torch.where(torch.arange(tokens.shape[1]) <= accept_len[:, None], tokens, fresh)


@chain
def last_token_unwritten(call: Chain) -> Result:
    """Leaves the token after a whole accepted chain as it was allocated."""
    accept_len, tokens = verify(call)
    fresh = torch.empty_like(tokens)
    whole = (accept_len == call.drafts)[:, None] & (torch.arange(tokens.shape[1]) == call.drafts)
    return accept_len, torch.where(whole, fresh, tokens)


@chain
def writes_candidates_in_place(call: Chain) -> Result:
    """Leaves the last token in the caller's candidates."""
    accept_len, tokens = verify(call)
    call.candidates[:, :1] = tokens.gather(1, accept_len[:, None].long()).long()
    return accept_len, tokens


@chain
def subtracts_in_place(call: Chain) -> Result:
    """Leaves the residual in the caller's target."""
    result = verify(call)
    call.target[:, :-1].sub_(usable(call.draft)).clamp_(min=0.0)
    return result


@chain
def cleans_draft_in_place(call: Chain) -> Result:
    """Zeroes what is no probability in the caller's q, where there is any."""
    result = verify(call)
    call.draft.copy_(usable(call.draft))
    return result


@chain
def ignores_strides_of_candidates(call: Chain) -> Result:
    """Takes candidates to lie one row after the other."""
    vocab_size = call.target.shape[-1]
    return verify(replace(call, candidates=as_if_contiguous(call.candidates).clamp(0, vocab_size - 1)))


@chain
def ignores_strides_of_target(call: Chain) -> Result:
    """Takes target_probs to lie one row after the other, also where the vocabulary is padded."""
    return verify(replace(call, target=as_if_contiguous(call.target)))


@chain
def ignores_strides_of_draft(call: Chain) -> Result:
    """Takes draft_probs to lie one row after the other, also where the vocabulary is padded."""
    return verify(replace(call, draft=as_if_contiguous(call.draft)))


@chain
def target_strides_for_draft(call: Chain) -> Result:
    """Reads draft_probs with the strides of target_probs over requests: shows from two rows on."""
    if not call.draft.numel():
        return verify(call)
    flat = call.draft.contiguous().reshape(-1)
    slots, vocab_size = call.target.shape[1:]
    at = torch.arange(len(call.draft))[:, None, None] * slots * vocab_size + torch.arange(
        call.drafts * vocab_size
    ).reshape(call.drafts, vocab_size)
    return verify(replace(call, draft=flat[at.clamp(max=len(flat) - 1)]))


@chain
def ignores_strides_of_coins(call: Chain) -> Result:
    """Takes coins to lie one row after the other."""
    return verify(replace(call, coins=as_if_contiguous(call.coins)))


# Form -----------------------------------------------------------------------------------------------------------------


@chain
def counts_root(call: Chain) -> Result:
    """accept_len counts the root too."""
    accept_len, tokens = verify(call)
    return accept_len + 1, tokens


@chain
def root_comes_first(call: Chain) -> Result:
    """tokens begins with the root, and the last token of a whole chain has no place."""
    accept_len, tokens = verify(call)
    return accept_len, torch.cat([call.candidates[:, :1].int(), tokens[:, :-1]], 1)


@chain
def rejected_tokens_stay(call: Chain) -> Result:
    """Draft tokens stand behind the last token instead of -1."""
    accept_len, tokens = verify(call)
    drafts = call.candidates.roll(-1, 1).int()
    return accept_len, torch.where(torch.arange(tokens.shape[1]) > accept_len[:, None], drafts, tokens)


@chain
def zeros_behind(call: Chain) -> Result:
    """Zeros stand behind the last token instead of -1."""
    accept_len, tokens = verify(call)
    return accept_len, tokens.clamp(min=0)


@chain
def last_token_at_end(call: Chain) -> Result:
    """The last token stands in the last slot, with -1 between: shows after a rejection."""
    accept_len, tokens = verify(call)
    rows, count = torch.arange(len(tokens)), accept_len.long()
    last = tokens[rows, count].clone()
    tokens[rows, count] = -1
    tokens[:, -1] = last
    return accept_len, tokens


@chain
def returns_int64(call: Chain) -> Result:
    """int64 tokens instead of int32."""
    accept_len, tokens = verify(call)
    return accept_len, tokens.long()


@chain
def returns_int64_lengths(call: Chain) -> Result:
    """int64 lengths instead of int32."""
    accept_len, tokens = verify(call)
    return accept_len.long(), tokens


@chain
def returns_column_of_lengths(call: Chain) -> Result:
    """accept_len [B, 1] instead of [B]."""
    accept_len, tokens = verify(call)
    return accept_len[:, None].clone(), tokens


@chain
def returns_flat_tokens(call: Chain) -> Result:
    """Tokens [B * S] instead of [B, S]."""
    accept_len, tokens = verify(call)
    return accept_len, tokens.flatten()


@chain
def returns_no_slot_for_last(call: Chain) -> Result:
    """Tokens [B, S - 1]: only what was accepted."""
    accept_len, tokens = verify(call)
    return accept_len, tokens[:, :-1].clone()


@chain
def tokens_first(call: Chain) -> Result:
    """Tokens and lengths in the wrong order."""
    accept_len, tokens = verify(call)
    return tokens, accept_len


@chain
def tokens_alone(call: Chain) -> Any:
    """Returns no lengths."""
    return verify(call)[1]
