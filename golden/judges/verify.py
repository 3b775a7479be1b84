"""Hold what a verifier of speculative decoding gave for the coins of a call to the decision tree of each row."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from waveproof.golden.judges.judgement import Demonstration, Judgement
from waveproof.golden.references.decisions import Node, Open, Outcome, explain, legal
from waveproof.golden.references.verify import coins_of, decision
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.verify import NO_TOKEN

OUTCOME = "outcome"
"""Rule: each row gives what its coins decide."""


def outcome_of(accept_len: int, tokens: Sequence[int]) -> Outcome | None:
    """A row's outputs as an outcome; None where they are none: a count that does not fit, a token behind the last."""
    if not 0 <= accept_len < len(tokens) or any(token != NO_TOKEN for token in tokens[accept_len + 1 :]):
        return None
    return Outcome(accept_len, tuple(tokens[: accept_len + 1]))


def vocabulary(call: Call) -> int:
    """Tokens that there are; for the greedy tree, whose call has no probabilities, one above the largest."""
    for name in ("target_probs", "target_logits"):
        if name in call.arguments:
            return call.tensor(name).shape[-1]
    return 1 + int(max(call.tensor(name).max() for name in ("candidates", "target_predict")))


def judge_outcomes(outputs: Sequence[torch.Tensor], call: Call) -> list[Judgement]:
    """Every row of a call against its decision tree; the figure is the number of wrong rows."""
    trees = [decision(call, row) for row in range(outputs[0].shape[0])]
    return [judge_rows(outputs, call, trees)]


def judge_rows(outputs: Sequence[torch.Tensor], call: Call, trees: Sequence[Node]) -> Judgement:
    """As :func:`judge_outcomes`, with trees that are there already."""
    accept_len, tokens = (output.tolist() for output in outputs[:2])
    vocab_size = vocabulary(call)
    wrong: list[int] = []
    due: list[list[Outcome]] = []
    for row, tree in enumerate(trees):
        allowed = legal(tree, coins_of(call, row))
        got = outcome_of(accept_len[row], tokens[row])
        if got is None or not any(_admits(one, got, vocab_size) for one in allowed):
            wrong.append(row)
        known = [one for one in allowed if isinstance(one, Outcome)]
        due.append(known if len(known) == len(allowed) else [])
    if not wrong:
        return Judgement(OUTCOME, True, 0.0, 0.0, "wrong rows")
    row = wrong[0]
    allowed = legal(trees[row], coins_of(call, row))
    # A right line of tokens with a wrong count is shown by the count.
    only_length = any(outcome_of(one.accepted, tokens[row]) == one for one in due[row])
    window = _lengths(due) if only_length else _window(outputs[1].shape, due, wrong, allowed)
    return Judgement(
        OUTCOME,
        False,
        figure=float(len(wrong)),
        bound=0.0,
        unit="wrong rows",
        derivation="steps in float64, each within its float32 roundings (kernels/operators/verify.py)",
        message=f"row {row} is not what its coins decide: {explain(trees[row], coins_of(call, row))}"
        + _without_weight(call, row, accept_len[row], tokens[row]),
        index=(row,),
        expected=" or ".join(_describe(one) for one in allowed[:4]),
        got=f"accept_len {accept_len[row]}, tokens {tokens[row]}",
        demonstration=Demonstration("values", (call,), *window, output=0 if only_length else 1),
    )


def judge_form_of_rows(outputs: Sequence[torch.Tensor], call: Call) -> Judgement:
    """Whether every row is an outcome at all: accepted draft tokens, one token of the vocabulary, nothing behind it."""
    accept_len, tokens = (output.tolist() for output in outputs[:2])
    vocab_size, candidates = vocabulary(call), call.tensor("candidates").tolist()
    for row, line in enumerate(tokens):
        got = outcome_of(accept_len[row], line)
        drafts = tuple(candidates[row][1 : accept_len[row] + 1])
        if got is None or not Open("", drafts).admits(got, vocab_size):
            return Judgement(
                OUTCOME,
                False,
                1.0,
                message=f"row {row} is no outcome of its draft tokens {candidates[row][1:]}",
                index=(row,),
                expected=f"accepted draft tokens, one of 0 to {vocab_size - 1}, then {NO_TOKEN}",
                got=f"accept_len {accept_len[row]}, tokens {line}",
            )
    return Judgement(OUTCOME, True)


def _admits(allowed: Outcome | Open, got: Outcome, vocab_size: int) -> bool:
    return allowed.admits(got, vocab_size) if isinstance(allowed, Open) else allowed == got


def _lengths(due: Sequence[Sequence[Outcome]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest legal accept_len."""
    counts = [[float(one.accepted) for one in row] for row in due]
    low = torch.tensor([min(row, default=-torch.inf) for row in counts], dtype=torch.float64)
    return low, torch.tensor([max(row, default=torch.inf) for row in counts], dtype=torch.float64)


def _without_weight(call: Call, row: int, accepted: int, tokens: Sequence[int]) -> str:
    """That a chain's last token cannot be drawn at all, where that is so."""
    if (
        call.operator != "chain_verify"
        or not 0 <= accepted < len(tokens)
        or not 0 <= tokens[accepted] < vocabulary(call)
    ):
        return ""
    p = float(call.tensor("target_probs")[row, accepted, tokens[accepted]])
    return f"; token {tokens[accepted]} has target probability 0 there" if p == 0.0 else ""


def _window(
    shape: torch.Size, due: Sequence[Sequence[Outcome]], wrong: Sequence[int], allowed: Sequence[Outcome | Open]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest legal tokens; a row that promises nothing is open."""
    low = torch.full(shape, -torch.inf, dtype=torch.float64)
    high = torch.full(shape, torch.inf, dtype=torch.float64)
    for row, outcomes in enumerate(due):
        if outcomes:
            lines = torch.full((len(outcomes), shape[1]), float(NO_TOKEN), dtype=torch.float64)
            for line, outcome in zip(lines, outcomes, strict=True):
                line[: outcome.accepted + 1] = torch.tensor(outcome.tokens, dtype=torch.float64)
            low[row], high[row] = lines.amin(0), lines.amax(0)
    first = wrong[0]
    if len(allowed) == 1 and isinstance(allowed[0], Open) and allowed[0].last:
        # Of an empty residual: the last token has positive probability.
        at = len(allowed[0].accepted or ())
        low[first, at], high[first, at] = min(allowed[0].last), max(allowed[0].last)
    return low, high


def _describe(one: Outcome | Open) -> str:
    if isinstance(one, Outcome):
        return f"accept_len {one.accepted}, tokens {list(one.tokens)}"
    last = f", last token one of {list(one.last[:8])}" if one.last else ""
    stand = "" if one.accepted is None else f" after {list(one.accepted)}"
    return f"any token ({one.why}{stand}{last})"
