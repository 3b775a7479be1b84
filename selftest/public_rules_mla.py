"""Comparison rules of public tests for MLA decode, in the set-up that they are used in.

The rules are rebuilt from their description, none is copied; all look at the output alone:

* *close 0.1*: rtol = atol = 0.1, where up to 5 % of the elements may differ.
* *check, as logged*: rtol = atol = 1e-2, where up to 5 % of the elements may differ.
* *check, as run*: the same, whose result is a ratio that nobody reads and no exception: the process exits with 0.
* *cosine*: the cosine of the angle between both outputs, taken as one vector each, is above 0.99.

Set-up: queries and cache N(0, 1) in bfloat16, 16 heads, one query a request, requests of one length, pages of one token
in random order; 16 requests of 1,024 tokens and 4 of 8,192. Scores are scaled by 1 / sqrt(576), the default of
aiter/mla.py, which flattens the weights more than a model's own scale does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from waveproof.kernels.operators.mla import DEEPSEEK
from waveproof.kernels.runtimes.memory import POISONS, guarded_allocations
from waveproof.selftest.mutants.correct_mla import decode_whole
from waveproof.selftest.mutants.mutant import Mutant
from waveproof.selftest.public_verdicts import PublicVerdicts

BATCHES = ((16, 1024), (4, 8192))
"""Requests, and tokens of each."""
HEADS = 16

Rule = Callable[[torch.Tensor, torch.Tensor], bool]
"""Whether a result passes: output and reference, float32[B, H, 512]."""


def close(output: torch.Tensor, reference: torch.Tensor) -> bool:
    """At most 5 % of the elements outside rtol = atol = 0.1."""
    return _mismatches(output, reference, 0.1) <= 0.05


def check_logged(output: torch.Tensor, reference: torch.Tensor) -> bool:
    """At most 5 % of the elements outside rtol = atol = 1e-2."""
    return _mismatches(output, reference, 1e-2) <= 0.05


def check_run(output: torch.Tensor, reference: torch.Tensor) -> bool:
    """The same, seen from outside: only shapes that do not fit together end the process."""
    return True


def cosine(output: torch.Tensor, reference: torch.Tensor) -> bool:
    """Cosine above 0.99, over all elements at once."""
    return float(torch.nn.functional.cosine_similarity(output.flatten(), reference.flatten(), dim=0)) > 0.99


def _mismatches(output: torch.Tensor, reference: torch.Tensor, tolerance: float) -> float:
    return float((~torch.isclose(output, reference, tolerance, tolerance)).float().mean())


RULES: dict[str, Rule] = {
    "0.1, 5 %": close,
    "1e-2, 5 % (logged)": check_logged,
    "1e-2, 5 % (exit status)": check_run,
    "cosine > 0.99": cosine,
}


@cache
def arguments(batch: int, tokens: int) -> tuple[Any, ...]:
    """A call of ``mla_decode``, in the order of its arguments."""
    generator = torch.Generator().manual_seed(42)
    return (
        torch.randn(batch, HEADS, DEEPSEEK.latent, generator=generator).bfloat16(),
        torch.randn(batch * tokens, 1, 1, DEEPSEEK.latent, generator=generator).bfloat16(),
        torch.arange(batch + 1, dtype=torch.int32),
        torch.arange(batch + 1, dtype=torch.int32) * tokens,
        torch.randperm(batch * tokens, generator=generator).int(),
        torch.ones(batch, dtype=torch.int32),
        DEEPSEEK.latent**-0.5,
        1.0,
        1.0,
    )


@cache
def plain_reference(batch: int, tokens: int) -> torch.Tensor:
    """float32[B, H, 512]: the usual reference, one softmax a request."""
    q, cache, _, _, pages, _, scale, _, _ = arguments(batch, tokens)
    outputs = []
    for query, own in zip(q.float(), pages.view(batch, tokens).long(), strict=True):
        latents = cache[own, 0, 0].float()
        outputs.append(torch.softmax(query @ latents.T * scale, -1) @ latents[:, : DEEPSEEK.kv_lora_rank])
    return torch.stack(outputs)


@cache
def right_output(batch: int, tokens: int) -> torch.Tensor:
    """bfloat16[B, H, 512]: what the planted faults would give without their fault."""
    output: torch.Tensor = decode_whole(*arguments(batch, tokens))[0]
    return output


def verdicts_on(mutant: Mutant) -> PublicVerdicts:
    """What each rule says of a planted fault of ``mla_decode`` in plain torch, over all batches."""
    function, rejects, shows = mutant.function(), dict.fromkeys(RULES, False), False
    for batch, tokens in BATCHES:
        call, reference = arguments(batch, tokens), plain_reference(batch, tokens)
        own = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in call)
        # Guarded because some faults write beyond their memory; what the guard sees is not told to the rules.
        with guarded_allocations(POISONS[0], lambda tensor: tensor):
            result = function(*own)
        # A comparison takes the first of several outputs and stumbles over none.
        output = result[0] if isinstance(result, (list, tuple)) else result
        fits = output is not None and output.shape == reference.shape
        shows = shows or not fits or not torch.equal(output.bfloat16(), right_output(batch, tokens))
        for name, rule in RULES.items():
            rejects[name] = rejects[name] or not fits or not rule(output.float(), reference)
    return PublicVerdicts(mutant, dict(rejects), shows)
