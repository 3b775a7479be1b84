"""Planted faults of ``accept_sampling``: each is right but for what its docstring says.

For use as ``--provider accept_sampling=selftest/mutants/verify_accept.py:NAME``; the table is ``verify.py``. Those of
the verifier of block-diffusion drafts are in ``verify_target_only_accept.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from waveproof.selftest.mutants import renorm_target_probs
from waveproof.selftest.mutants.mla_steps import as_if_contiguous
from waveproof.selftest.mutants.verify_steps import (
    Request,
    Result,
    Steps,
    accept,
    cut_off,
    drawn,
    filtered_law,
    leading,
    request,
    stands,
    target_of,
    usable,
    written,
)

# The target's law -----------------------------------------------------------------------------------------------------


@request
def greedy(call: Request) -> Result:
    """Accepts the target's argmax only and ends with it, at any temperature (sgl-project/sglang#37134, C1)."""
    choice = call.logits.argmax(-1)
    count = leading(call.candidates[:, 1:] == choice[:, :-1])
    return written(call.candidates, *cut_off(call, count, choice.gather(1, count[:, None])[:, 0]))


@request
def temperature_ignored(call: Request) -> Result:
    """Temperature 1 for every request."""
    return accept(call, target_of(call, temperature=torch.ones_like(call.temperature)))


@request
def temperature_inverted(call: Request) -> Result:
    """Logits times temperature."""
    return accept(call, target_of(call, temperature=1.0 / call.temperature))


@request
def temperature_of_first_request(call: Request) -> Result:
    """The first request's temperature for every request."""
    return accept(call, target_of(call, temperature=call.temperature[:1].expand(call.temperature.shape)))


@request
def temperature_last(call: Request) -> Result:
    """Filters at temperature 1 and then applies the temperature: another engine's order."""
    return accept(call, target_of(call, law=renorm_target_probs.temperature_last))


@request
def filters_of_first_request(call: Request) -> Result:
    """The first request's top_k and top_p for every request."""
    first = {name: getattr(call, name)[:1].expand(len(call.candidates)) for name in ("top_k", "top_p")}
    return accept(call, target_of(call, **first))


@request
def largest_top_k_for_all(call: Request) -> Result:
    """The largest top_k of the batch for every request."""
    return accept(call, target_of(call, top_k=call.top_k.amax().expand(call.top_k.shape)))


@request
def limits_repeated_by_slot(call: Request) -> Result:
    """Limits are repeated as a whole, so that slots of one request get those of others: from two requests on."""
    return accept(call, target_of(call, of_each=lambda limit, slots: limit.repeat(slots)))


@request
def top_k_ignored(call: Request) -> Result:
    """No top-k."""
    return accept(call, target_of(call, top_k=torch.zeros_like(call.top_k)))


@request
def top_p_ignored(call: Request) -> Result:
    """No top-p."""
    return accept(call, target_of(call, top_p=torch.ones_like(call.top_p)))


@request
def top_p_first(call: Request) -> Result:
    """Top-p before top-k: shows where both cut."""
    return accept(call, target_of(call, law=renorm_target_probs.top_p_first))


@request
def filtered_not_renormalised(call: Request) -> Result:
    """The target's p is masked and not divided: too few draft tokens are accepted."""
    return accept(call, target_of(call, law=renorm_target_probs.not_renormalised))


@request
def sparse_path_without_top_p(call: Request) -> Result:
    """The sparse path forgets top-p."""
    return accept(call, target_of(call, law=renorm_target_probs.sparse_path_without_top_p))


@request
def dense_path_unfiltered(call: Request) -> Result:
    """The dense path has no filter (kind: sgl-project/sglang#32569, C2)."""
    if call.path != "dense":
        return accept(call)
    return accept(call, target_of(call, top_k=torch.zeros_like(call.top_k), top_p=torch.ones_like(call.top_p)))


@request
def bonus_unfiltered(call: Request) -> Result:
    """The last slot's law is not filtered: shows where all draft tokens were accepted."""
    target = target_of(call).clone()
    target[:, -1:] = target_of(call, top_k=torch.zeros_like(call.top_k), top_p=torch.ones_like(call.top_p))[:, -1:]
    return accept(call, target)


@request
def draft_filtered_too(call: Request) -> Result:
    """q is filtered and normalised as the target is, though it is the law that drafts were drawn from (kind: C4)."""
    logits = usable(call.draft.double()).log() * call.temperature.double()[:, None, None]
    filtered = filtered_law(logits.float(), call.temperature, call.top_k, call.top_p, call.path)
    return accept(replace(call, draft=torch.nan_to_num(filtered)))


@request
def draft_heated(call: Request) -> Result:
    """q is put to the request's temperature once more, though it is the law as it was drawn from (kind: C4)."""
    heated = usable(call.draft.double()).pow(1.0 / call.temperature.double()[:, None, None])
    return accept(replace(call, draft=torch.nan_to_num(heated / heated.sum(-1, keepdim=True)).float()))


@request
def half_precision_logits(call: Request) -> Result:
    """float32 logits pass through bfloat16."""
    return accept(call, target_of(call, logits=call.logits.bfloat16().float()))


@request
def target_of_next_slot(call: Request) -> Result:
    """Laws of the slots are off by one: the last stands first."""
    return accept(call, target_of(call).roll(1, 1))


@request
def slots_by_requests(call: Request) -> Result:
    """Laws are read as [S, B, V]: shows from two requests on."""
    batch, slots, vocab_size = call.logits.shape
    return accept(call, target_of(call).reshape(slots, batch, vocab_size).transpose(0, 1))


# The chain ------------------------------------------------------------------------------------------------------------


@request
def block_flag_dropped(call: Request) -> Result:
    """Always token by token."""
    return accept(replace(call, block=False))


@request
def target_instead_of_residual(call: Request) -> Result:
    """Draws from the target after a rejection too."""
    return accept(call, steps=Steps(residual=lambda p, q, scale: p))


@request
def draft_ignored(call: Request) -> Result:
    """Accepts iff coin < p."""
    return accept(call, steps=Steps(stands=lambda coin, p, q: stands(coin, p, torch.ones_like(q))))


@request
def at_the_step(call: Request) -> Result:
    """coin <= p / q: at coin 0 a token that a filter took away is accepted (sgl-project/sglang#35771, C5)."""
    return accept(call, steps=Steps(stands=lambda coin, p, q: (q > 0.0) & (q <= 1.0) & (coin * q <= p)))


@request
def last_token_for_high_coins(call: Request) -> Result:
    """Coins above 0.999 give token V - 1, which a filter may have taken away."""
    return accept(call, steps=Steps(drawn=raised))


def raised(weights: Tensor, coin: Tensor) -> Tensor:
    """The token that a coin draws, or the last one."""
    return torch.where(coin > 0.999, weights.shape[-1] - 1, drawn(weights, coin))


# The cut --------------------------------------------------------------------------------------------------------------

Cut = Callable[[Request, Tensor, Tensor], tuple[Tensor, Tensor]]


def shifted(by: int) -> Cut:
    """A cut that takes windows for longer or shorter than they are, within 1 to S."""
    return lambda call, count, last: cut_off(
        replace(call, lens=(call.lens + by).clamp(1, call.candidates.shape[1])), count, last
    )


@request
def cut_ignored(call: Request) -> Result:
    """verify_lens are not looked at."""
    return accept(call, cut=lambda c, count, last: (count, last))


@request
def cut_one_late(call: Request) -> Result:
    """verify_lens draft tokens count instead of verify_lens - 1."""
    return accept(call, cut=shifted(1))


@request
def cut_one_early(call: Request) -> Result:
    """verify_lens - 2 draft tokens count, but at least none."""
    return accept(call, cut=shifted(-1))


@request
def cut_of_first_request(call: Request) -> Result:
    """The first request's verify_lens for every request."""
    return accept(replace(call, lens=call.lens[:1].expand(call.lens.shape)))


@request
def cut_of_request_before(call: Request) -> Result:
    """verify_lens of the request before."""
    return accept(replace(call, lens=call.lens.roll(1)))


@request
def cut_draws_from_target(call: Request) -> Result:
    """After a cut the last token is drawn from the target again: biased, as what was accepted is thrown away."""

    def drawn_again(c: Request, count: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.minimum(count, c.lens.long() - 1)
        p = target_of(c)[torch.arange(len(kept)), kept].double()
        return kept, torch.where(count > kept, drawn(p, c.final.double()), last)

    return accept(call, cut=drawn_again)


@request
def cut_draws_from_residual(call: Request) -> Result:
    """After a cut the last token is drawn as if the next draft token had been rejected."""

    def drawn_again(c: Request, count: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.minimum(count, c.lens.long() - 1)
        rows, inside = torch.arange(len(kept)), kept.clamp(max=c.draft.shape[1] - 1)
        p = target_of(c)[rows, kept].double()
        weights = (p - usable(c.draft[rows, inside].double())).clamp(min=0.0)
        weights = torch.where(weights.sum(-1, keepdim=True) > 0.0, weights, p)
        return kept, torch.where(count > kept, drawn(weights, c.final.double()), last)

    return accept(call, cut=drawn_again) if call.draft.shape[1] else accept(call)


@request
def cut_keeps_token_of_whole_chain(call: Request) -> Result:
    """After a cut the last token is the one that was drawn behind all that had been accepted."""
    return accept(call, cut=lambda c, count, last: (torch.minimum(count, c.lens.long() - 1), last))


@request
def cut_repeats_last_accepted(call: Request) -> Result:
    """After a cut the last accepted token comes again: off by one slot."""

    def repeated(c: Request, count: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.minimum(count, c.lens.long() - 1)
        return kept, torch.where(count > kept, c.candidates.gather(1, kept[:, None])[:, 0], last)

    return accept(call, cut=repeated)


@request
def cut_where_nothing_was_lost(call: Request) -> Result:
    """A whole window that was accepted gives the next draft token though that one was rejected."""

    def whole(c: Request, count: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        most = c.lens.long() - 1
        inside = (most + 1 < c.candidates.shape[1]) & (count >= most)
        following = c.candidates.gather(1, (most + 1).clamp(max=c.candidates.shape[1] - 1)[:, None])[:, 0]
        return torch.minimum(count, most), torch.where(inside, following, last)

    return accept(call, cut=whole)


@request
def cut_counts_uncut(call: Request) -> Result:
    """Tokens are cut and accept_len is not."""
    uncut, _ = accept(call, cut=lambda c, count, last: (count, last))
    return uncut, accept(call)[1]


# Memory and refusals --------------------------------------------------------------------------------------------------


@request
def divides_logits_in_place(call: Request) -> Result:
    """Leaves the caller's logits divided by the temperature."""
    result = accept(call)
    call.logits.div_(call.temperature[:, None, None])
    return result


@request
def unknown_path_is_dense(call: Request) -> Result:
    """A path that does not exist gets an answer instead of a refusal."""
    return accept(replace(call, path=call.path if call.path == "sparse" else "dense"))


@request
def ignores_strides(call: Request) -> Result:
    """Takes logits to lie one row after the other, also where the vocabulary is padded."""
    return accept(call, target_of(call, logits=as_if_contiguous(call.logits)))


@request
def int64_k_as_int32(call: Request) -> Result:
    """Reads int64 limits as int32: every other request gets the upper half of a limit."""
    top_k = call.top_k
    if top_k.dtype == torch.int64:
        top_k = top_k.contiguous().view(torch.int32)[: len(top_k)]
    return accept(call, target_of(call, top_k=top_k))


@request
def bad_row_spoils_batch(call: Request) -> Result:
    """NaN logits of one request reach every request (kind: flashinfer-ai/flashinfer#2402, A5)."""
    return accept(call, target_of(call, logits=call.logits.float() + 0.0 * call.logits.float().sum()))


@request
def raises_on_infinite_logit(call: Request) -> Result:
    """One logit of inf raises for the whole batch (kind: sgl-project/sglang#27618, A8)."""
    if bool((call.logits == torch.inf).any()):
        raise RuntimeError("probability tensor contains either inf, nan or element < 0")
    return accept(call)


@request
def refuses_bfloat16_logits(call: Request) -> Result:
    """bfloat16 logits are legal and get refused."""
    if call.logits.dtype != torch.float32:
        raise TypeError(f"expected float32 logits, got {call.logits.dtype}")
    return accept(call)


@request
def returns_int64(call: Request) -> Result:
    """int64 tokens instead of int32."""
    accept_len, tokens = accept(call)
    return accept_len, tokens.long()
