"""What an engine generated, how its speculation went, and how that is judged: by an exact law, or by plain decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

from waveproof.golden.judges.evidence import Evidence, g_test, two_sample_g
from waveproof.golden.judges.judgement import Judgement

PLAIN = "none"
"""Draft kind of an engine that does not speculate."""

MUST_DETECT = 0.25
"""Total variation that a case has to be able to see; one that cannot is inconclusive."""

LAW = "joint law"
"""Rule of an engine that is to be faithful."""

CONTROL = "a fault is found"
"""Rule of an engine that is lossy by its own setting, or by a fault that was planted."""

Verdict = Literal["faithful", "unfaithful", "inconclusive"]


@dataclass(frozen=True)
class Sampled:
    """Many independent generations from one prompt by one engine under one setting."""

    engine: str
    """Name and version, and the setting where an engine is run under several."""
    draft_kind: str
    """What proposes tokens: ``noise draft``, ``prompt lookup``, ...; ``PLAIN`` for nothing."""
    sequences: list[tuple[int, ...]]
    """Generated tokens of each generation, prompt left out, in the order drawn."""
    drafted: int
    """Draft tokens that were put before the target, all generations together."""
    accepted: int
    """Those of them that stood."""
    steps: int
    """Verification steps: passes of the target over draft tokens."""
    seconds: float

    @property
    def accepted_per_step(self) -> float:
        """Draft tokens accepted in a verification step."""
        return self.accepted / self.steps if self.steps else 0.0

    @property
    def rejected_per_step(self) -> float:
        """Draft tokens of a verification step that did not stand, those behind the first refused one included."""
        return (self.drafted - self.accepted) / self.steps if self.steps else 0.0


class Judged(NamedTuple):
    """A verdict on what an engine generated, and why."""

    evidence: Evidence
    verdict: Verdict
    reason: str
    """Empty where it is faithful."""


def judge(
    sampled: Sampled, law: Mapping[tuple[int, ...], float], alpha: float, must_detect: float = MUST_DETECT
) -> Judged:
    """Hold generations to the exact law of their first tokens.

    Args:
        sampled: at least as many tokens in each generation as in the law's keys; what is longer is cut.
        law: see :func:`waveproof.golden.references.joint_law.joint_law`.
        alpha: probability of calling a faithful engine unfaithful.
        must_detect: the largest total variation that may be found with less than the evidence's power.

    Returns:
        ``unfaithful`` where the test rejects; ``inconclusive`` where it does not and could not have: the engine was to
        speculate and no draft token was accepted, or none rejected, or too little was drawn; else ``faithful``.

    Raises:
        ValueError: a generation is shorter than the law's keys, or there is none.
    """
    length = len(next(iter(law)))
    if not sampled.sequences or min(map(len, sampled.sequences)) < length:
        raise ValueError(
            f"{sampled.engine}: every generation must have the {length} tokens of the law, and one at least"
        )
    seen = Counter(tokens[:length] for tokens in sampled.sequences)
    cells = list(dict.fromkeys([*law, *seen]))
    evidence = g_test(_counts(seen, cells), np.array([law.get(cell, 0.0) for cell in cells]), alpha)
    outside = sum(count for tokens, count in seen.items() if tokens not in law)
    leaked = f"; {outside} generations have no probability at all" if outside else ""
    return _judged(sampled, evidence, must_detect, leaked)


def judge_same(plain: Sampled, sampled: Sampled, alpha: float, must_detect: float = MUST_DETECT) -> Judged:
    """Hold generations to those of the engine's own plain decoding, for a target whose law is not known exactly.

    Args:
        plain: what was drawn without speculation.
        sampled: what was drawn with it, independently, of equal length.
        alpha: as in :func:`judge`.
        must_detect: as in :func:`judge`.

    Returns:
        As :func:`judge`.

    Raises:
        ValueError: there are no generations, or they differ in length.
    """
    lengths = {len(tokens) for drawn in (plain, sampled) for tokens in drawn.sequences}
    if len(lengths) != 1 or not (plain.sequences and sampled.sequences):
        raise ValueError(f"{sampled.engine}: generations to compare must be of one length, got {sorted(lengths)}")
    seen = [Counter(drawn.sequences) for drawn in (plain, sampled)]
    # Sorted: the order in which outcomes were seen would say which sample they are of, and cells are merged in order.
    cells = sorted(seen[0] | seen[1])
    evidence = two_sample_g(_counts(seen[0], cells), _counts(seen[1], cells), alpha)
    return _judged(sampled, evidence, must_detect, ", against its own plain decoding")


def judgement_of(sampled: Sampled, judged: Judged, expected: Verdict) -> Judgement:
    """A verdict on an engine as a judgement: whether it is the one expected.

    An inconclusive verdict never is.
    """
    evidence = judged.evidence
    who = f"{sampled.engine}, {sampled.draft_kind}"
    derivation = (
        f"{evidence.method} over {evidence.n} generations, false alarms {evidence.alpha:.1e}, finds a bias of "
        f"{evidence.detectable:.3f} with power {evidence.power:g}; {sampled.accepted_per_step:.2f} accepted and "
        f"{sampled.rejected_per_step:.2f} rejected a step"
    )
    if judged.verdict == "inconclusive":
        message = f"{who}: inconclusive: {judged.reason}"
        return Judgement(rule=LAW, holds=False, figure=1.0, derivation=derivation, message=message)
    holds = judged.verdict == expected
    if expected == "unfaithful":
        return Judgement(
            rule=CONTROL,
            holds=holds,
            figure=evidence.p_value,
            bound=evidence.alpha,
            unit="p-value",
            derivation=derivation,
            message="" if holds else f"{who}: passes for faithful and is not",
        )
    return Judgement(
        rule=LAW,
        holds=holds,
        figure=evidence.statistic,
        bound=float(stats.chi2.isf(evidence.alpha, evidence.df)) if evidence.df > 0 else 0.0,
        unit=f"G, df {evidence.df}",
        derivation=derivation,
        message="" if holds else f"{who}: does not sample from the target's law: {judged.reason}",
    )


def _counts(seen: Mapping[tuple[int, ...], int], cells: Iterable[tuple[int, ...]]) -> np.ndarray:
    return np.array([seen.get(cell, 0) for cell in cells])


def _judged(sampled: Sampled, evidence: Evidence, must_detect: float, remark: str) -> Judged:
    """The verdict on a test of samples; ``remark`` ends the reason of a rejection."""
    if evidence.rejects:
        return Judged(evidence, "unfaithful", f"p = {evidence.p_value:.3g} below alpha = {evidence.alpha:.3g}{remark}")
    if sampled.draft_kind != PLAIN and not sampled.accepted:
        return Judged(evidence, "inconclusive", f"none of {sampled.drafted} draft tokens was accepted")
    if sampled.draft_kind != PLAIN and sampled.accepted == sampled.drafted:
        return Judged(evidence, "inconclusive", f"none of {sampled.drafted} draft tokens was rejected")
    if evidence.detectable > must_detect:
        short = f"{evidence.n} generations show a bias of {evidence.detectable:.3g}, and {must_detect:g} has to show"
        return Judged(evidence, "inconclusive", short)
    return Judged(evidence, "faithful", "")
