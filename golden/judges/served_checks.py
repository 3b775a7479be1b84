"""Verdicts on collected answers of a server, one function a check. Pure; see ``served.py`` for the law of a step.

Each takes what was collected and its share of the false-alarm budget, and gives a ``Finding``. What none of them can
prove it says: a law so peaked that rows agree by chance, an answer without logprobs, are *inconclusive*.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from scipy import stats

from waveproof.golden.judges.answers import Completion
from waveproof.golden.judges.evidence import POWER, detectable_from, two_sample_g
from waveproof.golden.judges.served import Finding, Verdict, table

FORK_MARGIN = 0.25
"""Nats between two tokens at which greedy decoding may go either way. bfloat16 logits of 16 to 32 are 0.125 apart, and
another batch size sums in another order: either token's logit may come out one spacing off. For float16 take 0.03."""

CUT_LENGTHS = (1, 2, 4, 8)
"""Characters of the texts that two samples are compared by, beside whole texts. Long texts hardly repeat, so that their
counts say little; short prefixes repeat but say less about later tokens."""

LEAST_BIAS = 0.4
"""Total variation that two samples must be able to find with power 0.99 before they count as of one law.

The total variation of target and draft is 1 less the rate at which a right verifier accepts: 0.4 is the deviation of a
server that accepts every draft token where 3 of 5 should be. Smaller faults may pass, so each verdict says down to
which total variation its samples would have shown one."""


def symbols(completion: Completion) -> tuple[str, ...] | str:
    """What a completion consists of: tokens where they are told, else its text."""
    return completion.text if completion.silent else tuple(step.symbol for step in completion.steps)


def greedy_agreement(
    check: str, by_prompt: Sequence[Sequence[Completion]], margin: float, asked: int, wanted: str = "runs"
) -> Finding:
    """Whether greedy answers to one prompt agree, up to forks at near-ties, and are the argmax of their own tables.

    Args:
        check: name of the check.
        by_prompt: for each prompt its answers; the first is what the others are compared with.
        margin: nats below which a fork is allowed.
        asked: entries a table that were asked for.
        wanted: what the answers of a prompt are, for the evidence.
    """
    agreed = forks = compared = 0
    for number, answers in enumerate(by_prompt):
        for answer in answers:
            for at, step in enumerate(answer.steps):
                entries = table(step, asked)
                # Its own logprob, where told: by text, another token may stand in its place in the table.
                own = step.logprob if step.logprob is not None else entries.get(step.symbol, -math.inf)
                below = max(entries.values(), default=own) - own
                if below > margin:
                    evidence = (
                        f"at temperature 0 not the most probable token: prompt {number}, token {at}: {step.text!r} "
                        f"is {below:.3g} nats below its table's top"
                    )
                    return Finding(check, Verdict.UNFAITHFUL, evidence)
        for other in answers[1:]:
            compared += 1
            place = _first_difference(answers[0], other)
            if place is None:
                agreed += 1
                continue
            gap = _gap(answers[0], other, place, asked)
            if gap is None:
                evidence = f"greedy {wanted} of prompt {number} differ, and without logprobs a near-tie cannot be told"
                return Finding(check, Verdict.INCONCLUSIVE, evidence, n=compared)
            if gap > margin:
                evidence = (
                    f"greedy {wanted} of prompt {number} part at token {place}, where the two lead by {gap:.3g} nats; "
                    f"a near-tie is at most {margin:g}"
                )
                return Finding(check, Verdict.UNFAITHFUL, evidence, n=compared, figures={"gap": gap})
            forks += 1
    if not compared:
        return Finding(check, Verdict.INCONCLUSIVE, "no two greedy answers to compare")
    evidence = f"{agreed} of {compared} greedy {wanted} agree, {forks} fork at a near-tie (at most {margin:g} nats)"
    return Finding(check, Verdict.FAITHFUL, evidence, n=compared)


def _first_difference(a: Completion, b: Completion) -> int | None:
    """Place of the first difference, as far as both go; None where there is none."""
    one, two = symbols(a), symbols(b)
    if isinstance(one, str) != isinstance(two, str):
        one, two = a.text, b.text
    differing = (place for place, (x, y) in enumerate(zip(one, two, strict=False)) if x != y)
    # A stop where the other goes on is a difference of the next token, unless a length limit cut it.
    ended = min(len(one), len(two)) if len(one) != len(two) and "stop" in (a.finish, b.finish) else None
    return next(differing, ended)


def _gap(a: Completion, b: Completion, place: int, asked: int) -> float | None:
    """Nats between the two tokens of a fork, the smaller of what both tables say; None where neither says."""
    if a.silent or b.silent or place >= min(len(a.steps), len(b.steps)):
        return None
    chosen = a.steps[place].symbol, b.steps[place].symbol
    gaps = []
    for step in (a.steps[place], b.steps[place]):
        entries = table(step, asked)
        if len(entries) > 1:
            values = [entries.get(symbol, min(entries.values())) for symbol in chosen]
            gaps.append(abs(values[0] - values[1]))
    return min(gaps, default=None)


def _repeat_chance(completion: Completion) -> float | None:
    """Probability that an independent row repeats this one, at temperature 1; None where logprobs are missing."""
    own = [step.logprob for step in completion.steps]
    if completion.silent or not own or any(value is None or not math.isfinite(value) for value in own):
        return None
    return math.exp(min(0.0, math.fsum(value for value in own if value is not None)))


def must_differ(
    check: str, groups: Sequence[Sequence[Completion]], alpha: float, wanted: str, what: str = "rows"
) -> Finding:
    """Whether rows that should be independent repeat each other more than chance has it.

    A row that equals another one is as surprising as its own probability is small. Where no logprobs tell that,
    equality within a group is compared with equality across groups of the same prompt (Fisher's exact test).

    Args:
        check: name of the check.
        groups: rows of one prompt that should be independent within, and across, groups; at temperature 1.
        alpha: false-alarm rate.
        wanted: what the rows are, for the evidence.
        what: a short name for them.
    """
    pairs = [(group[0], other) for group in groups for other in group[1:]]
    if not pairs:
        return Finding(check, Verdict.INCONCLUSIVE, f"no two {what} to compare")
    equal = [symbols(a) == symbols(b) for a, b in pairs]
    chances = [chance for a, _ in pairs if (chance := _repeat_chance(a)) is not None]
    n = len(pairs)
    counted = f"{sum(equal)} of {n} pairs of {wanted} are equal"
    if len(chances) == n:
        p_value = min([1.0, *(n * chance for chance, same in zip(chances, equal, strict=True) if same)])
        if p_value < alpha:
            return Finding(
                check, Verdict.UNFAITHFUL, f"{counted}; by chance {p_value:.2g}", alpha=alpha, p_value=p_value, n=n
            )
        if n * min(chances) > alpha:
            least = min(chances)
            evidence = f"{counted}, but the law is so peaked that equal {what} prove nothing (chance {least:.2g})"
            return Finding(check, Verdict.INCONCLUSIVE, evidence, alpha=alpha, p_value=p_value, n=n)
        return Finding(
            check,
            Verdict.FAITHFUL,
            f"{counted}; chance of one pair {max(chances):.2g}",
            alpha=alpha,
            p_value=p_value,
            n=n,
        )
    firsts = [group[0] for group in groups]
    across = [symbols(a) == symbols(b) for a, b in zip(firsts[0::2], firsts[1::2], strict=False)]
    within = [symbols(group[-2]) == symbols(group[-1]) for group in groups if len(group) > 1]
    counts = [[sum(within), len(within) - sum(within)], [sum(across), len(across) - sum(across)]]
    p_value = float(stats.fisher_exact(counts, alternative="greater").pvalue)
    compared = f"equal {sum(within)} of {len(within)} times within a group, {sum(across)} of {len(across)} across"
    verdict = Verdict.UNFAITHFUL if p_value < alpha else Verdict.INCONCLUSIVE if any(within) else Verdict.FAITHFUL
    return Finding(check, verdict, f"{wanted}, no logprobs: {compared}", alpha=alpha, p_value=p_value, n=len(within))


def must_agree(check: str, groups: Sequence[Sequence[Completion]], claimed: bool, wanted: str) -> Finding:
    """Whether one seed gives one text; for information, unless the server claims so."""
    pairs = [(group[0], other) for group in groups for other in group[1:]]
    equal = sum(symbols(a) == symbols(b) for a, b in pairs)
    evidence = f"{equal} of {len(pairs)} {wanted} of one seed agree"
    if not pairs:
        return Finding(check, Verdict.INCONCLUSIVE, f"no two {wanted} of one seed")
    if not claimed:
        return Finding(
            check, Verdict.NOTE, evidence + "; OpenAI's interface promises no more than its best", n=len(pairs)
        )
    verdict = Verdict.FAITHFUL if equal == len(pairs) else Verdict.UNFAITHFUL
    return Finding(check, verdict, evidence + "; the server is said to promise it", n=len(pairs))


def same_law(
    check: str,
    by_prompt: Sequence[tuple[Sequence[Completion], Sequence[Completion]]],
    alpha: float,
    wanted: tuple[str, str],
    last_look: bool = True,
    least_bias: float = LEAST_BIAS,
) -> Finding:
    """Whether two samples of short texts come from one law, per prompt, whatever that law is.

    The G-tests of all prompts are added up, once for each length of prefix; alpha is divided among the lengths. What a
    verdict says it would have found is a total variation, alike in all prompts, among texts that repeat: two-sample
    tests merge the others (``evidence.two_sample_g``).

    Args:
        check: name of the check.
        by_prompt: for each prompt, the answers of either side.
        alpha: false-alarm rate of this look.
        wanted: what the two sides are, for the evidence.
        last_look: whether no more will be collected.
        least_bias: total variation that must be found with power 0.99, else the last look is inconclusive.
    """
    n = sum(len(a) + len(b) for a, b in by_prompt)
    views: list[tuple[str, Callable[[str], str]]] = [(f"{cut} characters", _cut(cut)) for cut in CUT_LENGTHS]
    views.append(("whole texts", lambda text: text))
    found: list[tuple[float, float, str, str]] = []
    for name, view in views:
        statistic, df, effective = 0.0, 0, 0.0
        for a, b in by_prompt:
            counts = [Counter(view(one.text) for one in side) for side in (a, b)]
            outcomes = sorted(set(chain(*counts)))
            if len(outcomes) > 1 and a and b:
                mine, theirs = (np.array([count[outcome] for outcome in outcomes], float) for count in counts)
                tested = two_sample_g(mine, theirs, alpha)
                statistic, df = statistic + tested.statistic, df + tested.df
                effective += len(a) * len(b) / (len(a) + len(b)) * (tested.df > 0)
        if df:
            detectable = detectable_from(df, effective, alpha / len(views), POWER, share=1.0)
            found.append((float(stats.chi2.sf(statistic, df)), detectable, name, f"G {statistic:.1f}, df {df}"))
    if not found:
        evidence = f"{n} texts: every one was the same, or hardly any repeated"
        return Finding(check, Verdict.INCONCLUSIVE, evidence, alpha=alpha, p_value=1.0, n=n)
    p_value, _, name, tested_by = min(found)
    p_value = min(1.0, p_value * len(found))
    best, sharpest = min((detectable, view_name) for _, detectable, view_name, _ in found)
    evidence = f"{wanted[0]} against {wanted[1]}, {n} texts, most telling of {len(found)} views {name}: {tested_by}"
    if p_value < alpha:
        verdict = Verdict.UNFAITHFUL
    elif last_look and best > least_bias:
        verdict = Verdict.INCONCLUSIVE
        evidence += f"; too few texts: they would show a total variation of {best:.2g}, and {least_bias:g} is wanted"
    else:
        verdict = Verdict.FAITHFUL
        evidence = f"one law up to a total variation of {best:.2g} ({sharpest}); {evidence}"
    return Finding(check, verdict, evidence, alpha=alpha, p_value=p_value, n=n, figures={"detectable": best})


def _cut(length: int) -> Callable[[str], str]:
    return lambda text: text[:length]
