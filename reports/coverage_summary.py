"""What a deployment comes to, in a few sentences: for whoever reads no table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from waveproof.fixtures.deployment.attention import DECODE
from waveproof.fixtures.deployment.coverage import BACKEND, PAIR
from waveproof.fixtures.deployment.verdicts import Attention, Coverage, Row, Verdict
from waveproof.perf.fallback_costs import Fallback, of_phase


def summary(coverage: Coverage, choice: str, costs: Sequence[Fallback]) -> str:
    """Heads a rank, what AITER and sglang make of them in decoding, and what the generic kernel costs instead.

    Args:
        coverage: of the deployment.
        choice: the backend that sglang chooses for it by itself.
        costs: of generic kernels.
    """
    row = coverage.row(DECODE)
    if row.attention is None:
        return f"{coverage.deployment.heads} heads a rank: {row.why}."
    return " ".join(_sentences(coverage, row, row.attention, choice, costs))


def caution(coverage: Coverage) -> str:
    """What holds whatever the other verdicts say; empty where nothing does."""
    if coverage.row(PAIR).verdict is not Verdict.ERROR:
        return ""
    return f"As installed, calls on the AITER backend raise: this sglang and this AITER do not fit (see {PAIR!r})."


def _sentences(coverage: Coverage, row: Row, one: Attention, choice: str, costs: Sequence[Fallback]) -> Iterator[str]:
    at = coverage.deployment
    heads = f"{at.heads} heads a rank" + (f", {one.heads} with DCP {at.dcp}" if at.dcp > 1 else "")
    generic = f"generic {choice.title()} kernels{_costing(costs, at.heads)}"
    backend = coverage.row(BACKEND)
    if backend.verdict is Verdict.FALLBACK:
        better = next((f" With {remedy.text}." for remedy in row.remedies), "")
        yield f"{heads}: left alone, sglang silently runs all attention on {generic}.{better}"
        return
    yield f"{heads}: {_said(row, one)}."
    if choice != "aiter":
        yield f"Without --attention-backend aiter it silently runs all attention on {generic}."
    if caution(coverage):
        yield caution(coverage)


def _said(row: Row, one: Attention) -> str:
    """Of decoding on the AITER backend."""
    padded = one.kernel_heads > one.heads
    way = "adds heads of zeros" if one.ruling.state == "padded" else "repeats heads"
    lacking = f"AITER has no MLA kernel for {one.heads}; " if f"AITER on {one.heads} heads: " in row.why else ""
    pads = f"{lacking}sglang {way} up to {one.kernel_heads}"
    cost = f" ({row.cost})" if row.cost else ""
    if row.verdict is Verdict.FAST:
        return f"AITER has a native MLA kernel for {one.heads}"
    if row.verdict is Verdict.PADDED:
        return f"{pads} and runs the fast kernel{cost}"
    if row.verdict is Verdict.WRONG:
        return f"{pads if padded else 'the call is taken'}, and the kernel answers WRONGLY: {one.ruling.wrong}"
    if row.verdict is Verdict.REFUSED:
        return f"no fast MLA kernel; with --attention-backend aiter the server refuses to start{_first_remedy(row)}"
    if row.verdict is Verdict.FALLBACK:
        return "no fast MLA kernel; a generic one answers"
    return f"no MLA kernel is reached, the first decode raises{_first_remedy(row)}"


def _first_remedy(row: Row) -> str:
    return f"; better: {row.remedies[0].text}" if row.remedies else ""


def _costing(costs: Sequence[Fallback], heads: int) -> str:
    """The dearest of what was measured, of prefill and of decode."""
    parts = []
    for phase in ("prefill", "decode"):
        mine = [one.key_wave_instructions for one in of_phase(costs, phase) if one.key_wave_instructions]
        parts += [f"{max(mine):.1f}x in {phase}"] if mine else []
    others = "" if all(one.heads == heads for one in costs) else f"; measured on {costs[0].heads} heads"
    return f" (instructions for each cached token: {', '.join(parts)}{others})" if parts else ""
