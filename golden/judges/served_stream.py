"""Faithfulness of one stream of answers: the anytime-valid test of ``martingale.py`` on what a server returned.

One stream is one configuration (a temperature, with or without top-k). Its answers must come in the order in which they
were asked for, and not in the order in which they ended: that may depend on the tokens.
"""

from __future__ import annotations

from collections.abc import Hashable

from waveproof.golden.judges.answers import Completion, ServedToken
from waveproof.golden.judges.martingale import ROUNDING, FaithfulnessTest, Reported, UnusableReport
from waveproof.golden.judges.served import BadTable, Described, Finding, KnownLaw, Verdict, is_listed, known_law, table

LABELLED = 2
"""First places of an answer whose contexts are told apart. Prompts are few and repeat, so these contexts do, and a
fault that cancels over many contexts, as target instead of residual does, shows in one."""

_OTHER = "another token of that text"


class Stream:
    """Collects evidence on one configuration.

    Args:
        check: name of the finding.
        alpha: false-alarm rate, of this stream alone.
        seed: of the bettors.
        described: which law returned logprobs are of.
        temperature: that is asked for, above 0.
        top_k: that is asked for, 0 for off.
        asked: entries a table that are asked for.
        fewest: tokens below which nothing is concluded.
    """

    def __init__(
        self,
        check: str,
        alpha: float,
        seed: int,
        described: Described,
        temperature: float,
        top_k: int,
        asked: int,
        fewest: int,
    ) -> None:
        self.check, self.alpha, self.described = check, alpha, described
        self.temperature, self.top_k, self.asked = temperature, top_k, asked
        # A law that is raised to the power 1 / T has the relative error of the reported one times that.
        rounding = 2.0 * ROUNDING * max(1.0, 1.0 / temperature)
        self.test = FaithfulnessTest(alpha, seed, rounding, fewest)
        self.answers = self.silent = self.skipped = self.outside = self.hidden_ends = 0

    def add(self, answer: Completion, prompt: int) -> None:
        """Judge one answer's tokens, as far as it came.

        Raises:
            BadTable: logprobs that are no probabilities; what came before them is counted.
        """
        self.answers += 1
        self.silent += answer.silent
        self.hidden_ends += answer.hides_end
        self.test.restart()
        so_far: list[str] = []
        for step in answer.steps:
            prefix = (prompt, *so_far) if len(so_far) < LABELLED else None
            self._judge(step, prefix)
            so_far.append(step.symbol)
        if answer.drafted is not None:
            self.test.speculated(answer.accepted or 0, answer.drafted - (answer.accepted or 0))

    def _judge(self, step: ServedToken, prefix: Hashable) -> None:
        if not step.top:
            self.test.observe(_name(step.symbol), Reported({}, complete=False))
            return
        entries = table(step, self.asked)
        law = known_law(entries, self.described, self.temperature, self.top_k, self.asked)
        if law is None:
            self.skipped += 1
            return
        listed = step.symbol in law.logprobs and is_listed(step, entries)
        if law.conditional and not listed:
            self.outside += 1
            return
        self._bet(_name(step.symbol) if listed else _OTHER, law, prefix)

    def _bet(self, token: int | str, law: KnownLaw, prefix: Hashable) -> None:
        reported = {_name(symbol): value for symbol, value in law.logprobs.items()}
        try:
            self.test.observe(token, Reported(reported, law.complete), prefix)
        except UnusableReport as error:
            raise BadTable(str(error)) from error

    @property
    def rejected(self) -> bool:
        """Whether the verdict stands, whatever is still to come."""
        return self.test.rejected

    @property
    def hopeless(self) -> bool:
        """Whether more answers cannot make it conclusive."""
        return bool(self.silent or self.test.missing or self.hidden_ends)

    def finding(self) -> Finding:
        """The verdict so far."""
        test, evidence = self.test, self.test.evidence()
        # Of the highest wealth ever: by Ville's inequality that is a p-value whenever one stops.
        p_value = min(1.0, 10.0**-evidence.log10_peak) if evidence.log10_peak < 300.0 else 0.0
        figures = {"log10_wealth": evidence.log10_wealth, "log10_peak": evidence.log10_peak}
        reason = self._inconclusive()
        if evidence.rejected:
            verdict, told = Verdict.UNFAITHFUL, f"rejected after {evidence.rejected_at} tokens: wealth "
            told += f"10^{evidence.log10_peak:.1f}, best bettor {evidence.best_bettor}"
        elif reason:
            verdict, told = Verdict.INCONCLUSIVE, reason
        else:
            verdict, told = Verdict.FAITHFUL, f"{test.tokens} tokens in {self.answers} answers, wealth at most "
            told += f"10^{max(evidence.log10_peak, 0.0):.1f}"
            if self.outside:
                told += f"; {self.outside} more outside the returned tables, not judged"
        return Finding(self.check, verdict, told, alpha=self.alpha, p_value=p_value, n=test.tokens, figures=figures)

    def _inconclusive(self) -> str:
        if not self.answers:
            return "the run ended before it was asked"
        if self.silent:
            return f"{self.silent} of {self.answers} answers had text without logprobs"
        if self.hidden_ends:
            return f"{self.hidden_ends} answers ended with a token that is left out of the logprobs"
        if not self.test.tokens and not self.test.missing and not self.skipped:
            return f"{self.answers} answers had no tokens"
        if self.skipped > self.test.tokens:
            return f"{self.skipped} of {self.skipped + self.test.tokens} tables were ties or lacked entries"
        return self.test.inconclusive


def _name(symbol: str) -> int | str:
    """A token id as a number: the test can then order tokens as a sampler does."""
    head, _, tail = symbol.partition("token_id:")
    return int(tail) if not head and tail.isdecimal() else symbol
