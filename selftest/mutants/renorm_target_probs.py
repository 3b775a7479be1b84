"""Planted faults of ``target_probs``: each is right but for what its docstring says.

For use as ``--provider target_probs=selftest/mutants/renorm_target_probs.py:NAME``; the table is ``renorm.py``.
"""

from __future__ import annotations

import torch

from waveproof.selftest.mutants.correct_renorm import (
    at_least_kth,
    first_k,
    per_row,
    require_path,
    require_rows,
    scaled_logits,
    target_probs_threshold,
    tokens_to_keep,
    top_k_threshold,
    top_p_threshold,
    until_mass,
)

Tensor = torch.Tensor


def greedy(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """One-hot at the largest logit, whatever the temperature (sgl-project/sglang#37134, C1)."""
    law = target_probs_threshold(logits, temperature, top_k, top_p, path)
    return torch.zeros_like(law).scatter_(1, logits.argmax(-1, keepdim=True), 1.0)


def temperature_ignored(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """Temperature 1 for every row."""
    return target_probs_threshold(logits, torch.ones_like(temperature), top_k, top_p, path)


def temperature_inverted(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """Logits times temperature."""
    return target_probs_threshold(logits, 1.0 / temperature, top_k, top_p, path)


def temperature_last(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """Filters at temperature 1 and then applies the temperature: llama.cpp's order, not this operator's."""
    law = target_probs_threshold(logits, torch.ones_like(temperature), top_k, top_p, path).double()
    law = law.pow(1.0 / temperature.double()[:, None])
    return (law / law.sum(-1, keepdim=True)).float()


def temperature_at_least_half(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """Temperatures below 0.5 are raised to it."""
    return target_probs_threshold(logits, temperature.clamp(min=0.5), top_k, top_p, path)


def first_rows_temperature(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """The first request's temperature for every request."""
    return target_probs_threshold(logits, temperature[:1], top_k, top_p, path)


def first_rows_filters(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """The first request's top_k and top_p for every request."""
    return target_probs_threshold(logits, temperature, top_k[:1], top_p[:1], path)


def top_k_ignored(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """No top-k."""
    return target_probs_threshold(logits, temperature, torch.zeros_like(top_k), top_p, path)


def top_p_ignored(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """No top-p."""
    return target_probs_threshold(logits, temperature, top_k, torch.ones_like(top_p), path)


def top_p_first(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """Top-p before top-k."""
    require_path(path)
    probs = torch.softmax(scaled_logits(logits, temperature), -1)
    return top_k_threshold(top_p_threshold(probs, top_p), top_k)


def top_p_of_whole_mass(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """Top-p measures what top-k left without normalising it first."""
    require_path(path)
    scaled = scaled_logits(logits, temperature)
    kept = at_least_kth(scaled, tokens_to_keep(top_k, *logits.shape))
    probs = torch.where(kept, torch.softmax(scaled, -1), 0.0)
    law = torch.where(until_mass(probs, per_row(top_p, len(probs))), probs, 0.0)
    return law / law.sum(-1, keepdim=True)


def not_renormalised(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """Filtered and not divided."""
    law = target_probs_threshold(logits, temperature, top_k, top_p, path)
    return torch.where(law > 0, torch.softmax(scaled_logits(logits, temperature), -1), 0.0)


def logarithms(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """Log-probabilities instead of probabilities."""
    return target_probs_threshold(logits, temperature, top_k, top_p, path).log()


def softmax_without_maximum(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """exp of the logits as they are: sums overflow or vanish."""
    require_path(path)
    scaled = scaled_logits(logits, temperature)
    weights = torch.where(at_least_kth(scaled, tokens_to_keep(top_k, *logits.shape)), torch.exp(scaled), 0.0)
    return top_p_threshold(weights / weights.sum(-1, keepdim=True), top_p)


def bfloat16_softmax(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """bfloat16 logits are divided in bfloat16."""
    if logits.dtype == torch.bfloat16:
        logits = (logits / per_row(temperature, len(logits)).bfloat16()).float()
        temperature = torch.ones_like(temperature)
    return target_probs_threshold(logits, temperature, top_k, top_p, path)


def float16_logits(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """float32 logits pass through float16."""
    return target_probs_threshold(logits.half(), temperature, top_k, top_p, path)


def ties_cut_on_sparse_path(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """Declares ``threshold`` on both paths and keeps exactly k on the sparse one (A3)."""
    if path == "dense":
        return target_probs_threshold(logits, temperature, top_k, top_p, path)
    require_path(path)
    scaled = scaled_logits(logits, temperature)
    kept = first_k(scaled, tokens_to_keep(top_k, *logits.shape))
    return top_p_threshold(torch.softmax(scaled.masked_fill(~kept, -torch.inf), -1), top_p)


def sparse_path_without_top_p(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """The sparse path forgets top-p."""
    p = torch.ones_like(top_p) if path == "sparse" else top_p
    return target_probs_threshold(logits, temperature, top_k, p, path)


def divides_logits_in_place(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """Leaves the caller's logits divided by the temperature."""
    law = target_probs_threshold(logits, temperature, top_k, top_p, path)
    logits.div_(temperature[:, None])
    return law


def unknown_path_is_dense(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """A path that does not exist gets an answer instead of a refusal."""
    path = path if path == "sparse" else "dense"
    return target_probs_threshold(logits, temperature, top_k, top_p, path)


def ignores_strides(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """Takes rows of logits to lie one after the other, also where the vocabulary is padded."""
    require_rows(logits)
    rows = torch.as_strided(logits, logits.shape, (logits.shape[1], 1)).clone()
    return target_probs_threshold(rows, temperature, top_k, top_p, path)


def bad_row_spoils_batch(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """NaN logits of one request reach every request (kind: flashinfer-ai/flashinfer#2402, A5)."""
    poison = 0.0 * logits.float().sum()
    return target_probs_threshold(logits.float() + poison, temperature, top_k, top_p, path)


def raises_on_infinite_logit(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """One logit of inf raises for the whole batch (kind: sgl-project/sglang#27618, A8)."""
    if torch.isinf(logits).any():
        raise RuntimeError("probability tensor contains either inf, nan or element < 0")
    return target_probs_threshold(logits, temperature, top_k, top_p, path)


def tie_rule_by_batch(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """Keeps ties below 8 requests and cuts them off from 8 on (vllm-project/vllm#50979, A3)."""
    scaled = scaled_logits(logits, temperature)
    if len(logits) >= 8:
        scaled = scaled.masked_fill(~first_k(scaled, tokens_to_keep(top_k, *logits.shape)), -torch.inf)
    return target_probs_threshold(scaled, torch.ones_like(temperature), top_k, top_p, path)


def int64_k_as_int32(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, path: str) -> Tensor:
    """Reads int64 limits as int32: every other request gets the upper half of a limit."""
    if top_k.dtype == torch.int64:
        top_k = top_k.view(torch.int32)[: len(logits)]
    return target_probs_threshold(logits, temperature, top_k, top_p, path)
