"""Judge a verifier by what it draws: where it has random numbers of its own, or where only that it draws is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from scipy.stats import binomtest

from waveproof.golden.judges.evidence import CASE_ALPHA, Evidence, g_test
from waveproof.golden.judges.judgement import Judgement
from waveproof.golden.judges.verify import outcome_of
from waveproof.golden.references.decisions import Outcome

SAMPLED_LAW = "sampled law"
REALLY_SAMPLES = "really samples"


def judge_really_samples(outputs: Sequence[torch.Tensor]) -> Judgement:
    """Of rows whose target law is even between two tokens: neither the first tokens nor the last are all the same.

    Under the right law n rows agree with a probability of 2^(1 - n): 2^-63 for 64.
    """
    accept_len, tokens = outputs[0].long(), outputs[1]
    rows = torch.arange(len(tokens))
    for place, drawn in (("first", tokens[:, 0]), ("last", tokens[rows, accept_len.clamp(0, tokens.shape[1] - 1)])):
        if len(set(drawn.tolist())) == 1:
            return Judgement(
                REALLY_SAMPLES,
                False,
                figure=float(len(tokens)),
                bound=float(len(tokens) - 1),
                unit="equal draws",
                derivation=f"probability 2^-{len(tokens) - 1} under the right law",
                message=f"the {place} tokens of {len(tokens)} rows are all {int(drawn[0])} where two tokens have even "
                "chances: what answers is greedy",
                index=(0,),
            )
    return Judgement(REALLY_SAMPLES, True)


def judge_sampled_law(
    outputs: Sequence[torch.Tensor], due: Mapping[Outcome, float], alpha: float = CASE_ALPHA
) -> tuple[Judgement, Evidence]:
    """Outcomes of rows that are alike, independent by contract, against the law of their decision tree: a G-test."""
    drawn = Counter(
        outcome_of(count, line) for count, line in zip(outputs[0].tolist(), outputs[1].tolist(), strict=True)
    )
    outcomes: list[Outcome | None] = [*due, *(one for one in drawn if one not in due)]
    counts = np.array([drawn[one] for one in outcomes])
    probs = np.array([0.0 if one is None else due.get(one, 0.0) for one in outcomes])
    evidence = g_test(counts, probs / probs.sum(), alpha)
    surprise, critical = -float(np.log10(max(evidence.p_value, 1e-300))), -float(np.log10(alpha))
    derivation = f"G-test of {evidence.n} rows, {evidence.df} degrees of freedom, false alarms {alpha:g}"
    if not evidence.df and not evidence.rejects:
        message = f"{evidence.n} rows are too few to tell anything of {len(due)} outcomes"
        return Judgement(SAMPLED_LAW, False, derivation=derivation, message=message), evidence
    if not evidence.rejects:
        return Judgement(SAMPLED_LAW, True, surprise, critical, "-log10 of p", derivation), evidence
    expected = probs / probs.sum() * counts.sum()
    at = int(np.argmax((counts - expected) ** 2 / np.maximum(expected, 1e-9)))
    one = outcomes[at]
    return Judgement(
        SAMPLED_LAW,
        False,
        figure=surprise,
        bound=critical,
        unit="-log10 of p",
        derivation=derivation,
        message=f"outcome {one} came {int(counts[at])} times in {evidence.n} rows where {expected[at]:.1f} are due",
        expected=f"{expected[at]:.1f} of {evidence.n}",
        got=f"{int(counts[at])}",
    ), evidence


def judge_neighbours(
    outputs: Sequence[torch.Tensor], due: Mapping[Outcome, float], alpha: float = CASE_ALPHA
) -> Judgement:
    """Rows that are alike agree as often as independent draws do: the sum of squares of the law.

    Disjoint pairs of rows whose distance is a power of two, as blocks and waves have it. ``alpha`` is shared
    among the distances, each of which is tested on the pairs from row 0 on and on those between them.
    """
    drawn = [outcome_of(count, line) for count, line in zip(outputs[0].tolist(), outputs[1].tolist(), strict=True)]
    chance = sum(mass * mass for mass in due.values()) / sum(due.values()) ** 2
    distances = [2**power for power in range(16) if 4 * 2**power <= len(drawn)]
    share = alpha / max(2 * len(distances), 1)
    for distance in distances:
        for start in (0, distance):
            first = [row for row in range(start, len(drawn) - distance) if (row - start) // distance % 2 == 0]
            equal = sum(drawn[row] == drawn[row + distance] for row in first)
            p_value = float(binomtest(equal, len(first), chance).pvalue)
            if p_value < share:
                return Judgement(
                    SAMPLED_LAW,
                    False,
                    figure=-float(np.log10(max(p_value, 1e-300))),
                    bound=-float(np.log10(share)),
                    unit="-log10 of p",
                    derivation=f"exact binomial test of {len(first)} pairs of rows, {distance} apart",
                    message=f"{equal} of {len(first)} rows agree with the row {distance} further on where "
                    f"{chance * len(first):.1f} are due: they share their random numbers",
                    expected=f"{chance * len(first):.1f} of {len(first)}",
                    got=str(equal),
                )
    return Judgement(SAMPLED_LAW, True)


def judge_seed_decides(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> Judgement:
    """With another seed not every row may come out as before, nor as the row before it did."""
    shifted = [all(torch.equal(a[by:], b[: len(b) - by]) for a, b in zip(first, second, strict=True)) for by in (0, 1)]
    if not any(shifted):
        return Judgement(REALLY_SAMPLES, True)
    rows = len(first[0])
    return Judgement(
        REALLY_SAMPLES,
        False,
        figure=float(rows),
        bound=float(rows - 1),
        unit="equal rows",
        derivation=f"{rows} rows with several likely outcomes each",
        message=f"all {rows} rows came out the same with another seed" + ("" if shifted[0] else ", one row further on"),
        index=(0,),
    )
