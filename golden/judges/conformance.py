"""Hold what a call gave to its operator's contract: form of each result, then values against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from waveproof.golden.judges import mla, mla_fp8, mla_merge, tolerance, verify
from waveproof.golden.judges.judgement import Demonstration, Judgement
from waveproof.golden.references import mla as mla_reference
from waveproof.golden.references import renorm as renorm_reference
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.mla import NARROW

Form = tuple[tuple[int, ...], torch.dtype]
Outputs = Sequence[torch.Tensor]


def forms(call: Call) -> tuple[Form, ...]:
    """Shape and dtype of each result that is due, in the contract's order."""
    return _FORMS[call.operator](call)


def judge_forms(outputs: Outputs, due: Sequence[Form], call: Call) -> list[Judgement]:
    """Whether there is an output for each form, and has it."""
    return [
        tolerance.judge_form(outputs[at] if at < len(outputs) else None, shape, dtype, call, at)
        for at, (shape, dtype) in enumerate(due)
    ]


def judge_outputs(outputs: Outputs, call: Call, variant: str) -> list[Judgement]:
    """Values of a call's results, of the right form, against float64; an omitted result is judged by nothing."""
    return _JUDGES[call.operator](outputs, call, variant)


# renorm ---------------------------------------------------------------------------------------------------------------


def _rows(call: Call) -> tuple[Form, ...]:
    first = next(value for value in call.arguments.values() if isinstance(value, torch.Tensor))
    return ((tuple(first.shape), torch.float32),)


def _distribution(outputs: Outputs, call: Call, variant: str) -> list[Judgement]:
    return tolerance.judge_distribution(outputs[0], renorm_reference.reference(call, variant), call)


# mla ------------------------------------------------------------------------------------------------------------------


def _latent_attention(call: Call) -> tuple[Form, ...]:
    q = call.tensor("q")
    tokens, heads = q.shape[:2]
    dtype = torch.bfloat16 if q.dtype.itemsize == 1 else q.dtype
    return ((tokens, heads, mla_reference.VALUE_SIZE), dtype), ((tokens, heads), torch.float32)


def _attention_per_head(call: Call) -> tuple[Form, ...]:
    q, v = call.tensor("q"), call.tensor("v")
    return ((*q.shape[:2], v.shape[2]), q.dtype), (tuple(q.shape[:2]), torch.float32)


def attention_bounds(expected: mla_reference.Attended, call: Call, variant: str) -> mla.Bounds:
    """Bounds for an implementation of a variant; it may split the keys as it likes."""
    q = call.tensor("q")
    output = torch.bfloat16 if q.dtype.itemsize == 1 else q.dtype
    bounds = mla.error_bounds(expected, output, output, splits=2, head_size=q.shape[-1])
    return mla_fp8.with_fp8_weights(bounds, expected) if variant == NARROW else bounds


def _attention(outputs: Outputs, call: Call, variant: str) -> list[Judgement]:
    expected = mla_reference.reference(call, variant)
    bounds = attention_bounds(expected, call, variant)
    judgements = mla.judge_all(outputs[0], expected, bounds)
    window = expected.output - bounds.output, expected.output + bounds.output
    shown = [
        replace(judgement, demonstration=_demonstration(judgement, call, expected, bounds, window))
        for judgement in judgements
    ]
    if len(outputs) > 1:
        lse = mla.judge_lse(outputs[1], expected, bounds)
        low, high = expected.lse - bounds.lse, expected.lse + bounds.lse
        shown.append(replace(lse, demonstration=Demonstration("values", (call,), low, high, output=1)))
    return shown


def _demonstration(
    judgement: Judgement,
    call: Call,
    expected: mla_reference.Attended,
    bounds: mla.Bounds,
    window: tuple[torch.Tensor, torch.Tensor],
) -> Demonstration | None:
    if judgement.holds:
        return None
    if judgement.rule == mla.HEAD_NORM:
        return Demonstration("head-norm", (call,), expected.output, bounds.norm)
    if judgement.rule == mla.HEAD_SCALE:
        return Demonstration("head-scale", (call,), expected.output, bounds.scale_own + bounds.scale_shared)
    return Demonstration("values", (call,), *window)


def _merged(call: Call) -> tuple[Form, ...]:
    out = call.tensor("out_a")
    return (tuple(out.shape), out.dtype), (tuple(out.shape[:2]), torch.float32)


def _padded(call: Call) -> tuple[Form, ...]:
    x = call.tensor("x")
    count = int(call.number("target" if call.operator == "pad_heads" else "heads"))
    return (((x.shape[0], count, *x.shape[2:]), x.dtype),)


# verify ---------------------------------------------------------------------------------------------------------------


def _verified(call: Call) -> tuple[Form, ...]:
    batch, slots = call.tensor("candidates").shape
    width = int(call.number("depth")) if "depth" in call.arguments else slots
    return ((batch,), torch.int32), ((batch, width), torch.int32)


def _outcomes(outputs: Outputs, call: Call, variant: str) -> list[Judgement]:
    return verify.judge_outcomes(outputs, call)


def _drawn(outputs: Outputs, call: Call, variant: str) -> list[Judgement]:
    """A verifier with random numbers of its own: only that its tokens are tokens; its law is judged over many calls."""
    return [verify.judge_form_of_rows(outputs, call)]


_FORMS: dict[str, Callable[[Call], tuple[Form, ...]]] = {
    "top_k_renorm_prob": _rows,
    "top_p_renorm_prob": _rows,
    "target_probs": _rows,
    "mla_decode": _latent_attention,
    "mla_prefill_absorbed": _latent_attention,
    "mla_extend": _latent_attention,
    "mla_prefill": _attention_per_head,
    "merge_state": _merged,
    "pad_heads": _padded,
    "unpad_heads": _padded,
    "chain_verify": _verified,
    "target_only_verify": _verified,
    "tree_verify_greedy": _verified,
    "accept_sampling": _verified,
    "target_only_accept_sampling": _verified,
    "seeded_chain_verify": _verified,
}
_JUDGES: dict[str, Callable[[Outputs, Call, str], list[Judgement]]] = {
    "top_k_renorm_prob": _distribution,
    "top_p_renorm_prob": _distribution,
    "target_probs": _distribution,
    "mla_decode": _attention,
    "mla_prefill_absorbed": _attention,
    "mla_extend": _attention,
    "mla_prefill": _attention,
    "merge_state": mla_merge.judge_merged,
    "pad_heads": mla_merge.judge_heads_moved,
    "unpad_heads": mla_merge.judge_heads_moved,
    "chain_verify": _outcomes,
    "target_only_verify": _outcomes,
    "tree_verify_greedy": _outcomes,
    "accept_sampling": _outcomes,
    "target_only_accept_sampling": _outcomes,
    "seeded_chain_verify": _drawn,
}
