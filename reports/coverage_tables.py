"""Coverage of a deployment as tables for a terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich import box
from rich.table import Column, Table
from rich.text import Text

from waveproof.fixtures.deployment.attention import DECODE, PREFILL, VERIFY
from waveproof.fixtures.deployment.coverage import Cell
from waveproof.fixtures.deployment.plan import Deployment
from waveproof.fixtures.deployment.verdicts import Coverage, Row, Verdict
from waveproof.perf.fallback_costs import Fallback, of_phase

STYLES = {
    Verdict.FAST: "green",
    Verdict.PADDED: "cyan",
    Verdict.UNKNOWN: "dim",
    Verdict.FALLBACK: "yellow",
    Verdict.WRONG: "bold magenta",
    Verdict.REFUSED: "bold red",
    Verdict.ERROR: "bold red",
}
PHASES = {PREFILL: "prefill", DECODE: "decode", VERIFY: "verify"}
"""Of :class:`Fallback`, by operator."""
ATTENTION, SAMPLING, TABLES = "serving attention", "sampling", "weights"


def title(deployment: Deployment) -> str:
    """The deployment in one line."""
    drafted = f", {deployment.spec_tokens} drafted tokens" if deployment.spec_tokens else ""
    dcp = f", DCP {deployment.dcp}" if deployment.dcp > 1 else ""
    gpu = f"{deployment.tp} x {deployment.product.name} ({deployment.arch})"
    heads = f"{deployment.model.heads} heads, {deployment.heads} a rank"
    backend = "" if deployment.backend == "aiter" else ", attention backend left to sglang"
    return f"{deployment.model.name} on {gpu}: {heads}{dcp}, {deployment.kv_dtype} cache{drafted}{backend}"


def table(coverage: Coverage, costs: Sequence[Fallback]) -> Table:
    """One row an operator; weights of which the same is true are one row."""
    made = Table(
        Column("operator", overflow="fold", max_width=19),
        Column("verdict", no_wrap=True),
        Column("kernel, reason, cost, and what would be better", overflow="fold", ratio=1),
        title=Text(title(coverage.deployment), "bold"),
        title_justify="left",
        box=box.ROUNDED,
        expand=True,
    )
    for group in sections(coverage):
        for rows in group:
            first = rows[0]
            made.add_row(Text(_names(rows)), verdict_text(first), _told(rows, coverage, costs))
        made.add_section()
    return made


def sections(coverage: Coverage) -> Iterator[list[list[Row]]]:
    """Attention and what is around it, sampling, weights; in each the rows that belong together."""
    rows = coverage.rows
    weights = [row for row in rows if row.operator.startswith(("GEMM ", "MoE "))]
    sampling = [row for row in rows if " renorm" in row.operator or row.operator.startswith("verify ")]
    others = [row for row in rows if row not in weights and row not in sampling]
    yield [[row] for row in others]
    yield [list(rows) for _, rows in groupby(sampling, key=_same)]
    known: dict[tuple[object, ...], list[Row]] = {}
    for row in weights:
        known.setdefault(_same(row), []).append(row)
    yield list(known.values())


def _same(row: Row) -> tuple[object, ...]:
    past = row.why.partition("; M up to")[0]
    reason = past if row.tuned and row.tuned.lookup is not None else row.why.partition(" [")[0]
    tail = row.why.rpartition("; ")[2] if row.tuned and row.tuned.lookup is None else ""
    module = row.kernel.partition(":")[0]
    return row.operator.partition(" ")[0] if row.tuned else "", row.verdict, module, reason, tail, row.remedies


def _names(rows: Sequence[Row]) -> str:
    if len(rows) == 1:
        return rows[0].operator
    if rows[0].tuned is None:
        return ", ".join(row.operator for row in rows)
    kind = rows[0].operator.partition(" ")[0]
    return f"{kind} of {len(rows)} weights"


def verdict_text(row: Row) -> Text:
    """Symbol and words, in the verdict's colour; of what is not taken in brackets."""
    words = f"{row.verdict.symbol} {row.verdict.value}"
    return Text(words, STYLES[row.verdict]) if row.taken else Text(f"({words})", "dim")


def _told(rows: Sequence[Row], coverage: Coverage, costs: Sequence[Fallback]) -> Text:
    row = rows[0]
    lines: list[tuple[str, str]] = []
    if row.kernel and row.verdict is not Verdict.UNKNOWN:
        kernels = dict.fromkeys(one.kernel for one in rows)
        lines.append(("", ", ".join(kernels)))
    if len(rows) > 1 and row.tuned is not None:
        lines.append(("", ", ".join(_weight(one) for one in rows)))
    elif row.tuned is not None:
        lines.append(("", _weight(row, named=False)))
    if row.why:
        lines.append(("", _why(rows)))
    if row.cost:
        lines.append(("cost", row.cost))
    lines += [(label, text) for label, text in fallback_costs(row, costs)]
    lines += [("better", remedy.text) for remedy in row.remedies]
    told = Text()
    for number, (label, text) in enumerate(lines):
        if number:
            told.append("\n")
        if label:
            told.append(f"{label}: ", "bold")
        told.append(text, "bold" if not number and not label and row.kernel else "")
    return told


def _why(rows: Sequence[Row]) -> str:
    """Upstream's words; of several weights without what is true of some of them alone."""
    if len(rows) == 1:
        return rows[0].why
    row = rows[0]
    if row.tuned is not None and row.tuned.lookup is None:
        return row.why.replace(f"[{row.tuned.weight.n}, {row.tuned.weight.k}]", "these shapes")
    past = {one.tuned.past for one in rows if one.tuned and one.tuned.past}
    told = row.why.partition("; M up to")[0]
    if past:
        at = next(one.why for one in rows if one.tuned and one.tuned.past).rpartition("(")[2].rstrip(")")
        told += f"; with few inputs M up to {_joined(past)} go past the table, to AITER's Triton gemm_a16w16 ({at})"
    return told


def _joined(numbers: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))


def _weight(row: Row, named: bool = True) -> str:
    """``q_b_proj [2304, 1536]``."""
    assert row.tuned is not None
    weight = row.tuned.weight
    shape = f"{weight.experts} x [{weight.n}, {weight.k}], top {weight.top_k}" if weight.experts else ""
    shape = shape or f"[{weight.n}, {weight.k}]"
    return f"{weight.name} {shape}" if named else f"{shape}, {weight.format}"


def fallback_costs(row: Row, costs: Sequence[Fallback]) -> Iterator[tuple[str, str]]:
    """What sglang's generic kernel costs, where the row runs on it or is near to it."""
    if row.operator not in PHASES or row.verdict in (Verdict.FAST, Verdict.UNKNOWN) or row.attention is None:
        return
    label = "cost" if row.verdict is Verdict.FALLBACK else "generic Triton instead"
    for one in of_phase(costs, PHASES[row.operator]):
        heads = "" if row.attention.heads == one.heads else f"; measured on {one.heads} heads"
        yield label, f"{one.sentence()}{heads}"


def footer(coverage: Coverage, allowed: Iterable[Verdict], costs: Sequence[Fallback]) -> Iterator[str]:
    """Notes, the count of verdicts, and what stops the deployment."""
    for note in coverage.notes:
        yield f"- {note}"
    if any(list(fallback_costs(row, costs)) for row in coverage.rows):
        one = costs[0]
        yield (
            f"- generic Triton against AITER's assembly on heads padded from {one.heads} to 16: bf16, calls on "
            f"{one.keys} keys and what further keys add, counted on the emulated device; no figure is a time"
        )
    if any(remedy.text.startswith("TP ") for row in coverage.rows for remedy in row.remedies):
        yield (
            "- TP n among what is better: n ranks share the attention heads; with --enable-dp-attention these are "
            "--tp / --dp, and the weights are still split over all GPUs"
        )
    if any(not row.taken for row in coverage.rows):
        yield "- in brackets: what this sglang does not come to by itself; it does not count"
    counts = {verdict: sum(row.verdict is verdict for row in coverage.rows if row.taken) for verdict in Verdict}
    yield ", ".join(f"{verdict.symbol} {count} {verdict.value}" for verdict, count in counts.items() if count)
    stopping = coverage.stopped_by(allowed)
    names = ", ".join(dict.fromkeys(row.verdict.value for row in stopping))
    yield f"not on the fast path: {len(stopping)} operators ({names})" if stopping else "on the fast path"


# Sweep ----------------------------------------------------------------------------------------------------------------


def sweep_table(deployment: Deployment, cells: Sequence[Cell]) -> Table:
    """Operators with dtype and queries down, TP across."""
    ranks = list(dict.fromkeys(cell.tp for cell in cells))
    heads = deployment.model.heads
    dcp = f", DCP {deployment.dcp}" if deployment.dcp > 1 else ""
    made = Table(
        Column("", no_wrap=True),
        Column("cache", no_wrap=True),
        Column("q", justify="right", no_wrap=True),
        title=Text(
            f"{deployment.model.name}, {heads} heads, on {deployment.product.name} ({deployment.arch}){dcp}", "bold"
        ),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption=legend(cells),
        caption_justify="left",
    )
    for tp in ranks:
        made.add_column(f"TP {tp}\n{heads // tp} heads" if heads % tp == 0 else f"TP {tp}", no_wrap=True)
    for _, group in groupby(sorted(cells, key=_group), key=_group):
        by_column: dict[str, dict[int, Cell]] = {}
        for cell in group:
            by_column.setdefault(cell.column, {})[cell.tp] = cell
        for column, row in by_column.items():
            name, *words = column.split(" ")
            dtype, queries = (*words, "", "")[:2]
            made.add_row(name, dtype, queries.removeprefix("q="), *(_cell_text(row.get(tp)) for tp in ranks))
        made.add_section()
    return made


def _group(cell: Cell) -> int:
    return ("prefill", "decode", "verify", "tuned").index(cell.group)


def _cell_text(cell: Cell | None) -> Text:
    if cell is None or cell.row is None:
        return Text("–", "dim")
    taken = cell.row.taken
    text = f"{cell.verdict.symbol} {cell.short}".rstrip() if taken else f"({cell.verdict.symbol} {cell.short})"
    return Text(text, STYLES[cell.verdict])


def legend(cells: Sequence[Cell]) -> str:
    """Symbols that occur, with their verdicts."""
    seen = [verdict for verdict in Verdict if any(cell.verdict is verdict and cell.row for cell in cells)]
    known = "   ".join(f"{verdict.symbol} {verdict.value}" for verdict in seen)
    absent = "   – heads not split evenly" if any(cell.row is None for cell in cells) else ""
    return (
        f"{known}{absent}; numbers: heads a rank (and what they are padded to); GEMM and MoE: weights that have a "
        "tuned row for every step, of all; q: queries of a request; in brackets: sglang does not come to it by itself"
    )


# JSON -----------------------------------------------------------------------------------------------------------------


def document(
    coverage: Coverage, costs: Sequence[Fallback], cells: Sequence[Cell], versions: dict[str, str], summary: str = ""
) -> str:
    """All of it for a machine: ``deployment``, ``versions``, ``summary``, ``operators``, ``fallbacks``, ``sweep``."""
    at = coverage.deployment
    whole = {
        "schema": 1,
        "versions": versions,
        "deployment": {
            "model": at.model.name, "source": at.model.source, "tp": at.tp, "dcp": at.dcp, "arch": at.arch,
            "product": at.product.name, "cu_num": at.product.cu_num, "kv_dtype": at.kv_dtype,
            "spec_tokens": at.spec_tokens, "attention_backend": at.backend, "heads": at.model.heads,
            "heads_a_rank": at.heads,
        },
        "verdict": coverage.worst.value,
        "summary": summary,
        "operators": [_operator(row) for row in coverage.rows],
        "notes": list(coverage.notes),
        "fallbacks": [asdict(one) for one in costs],
        "sweep": [
            {"tp": cell.tp, "column": cell.column, "verdict": cell.verdict.value if cell.row else "not split",
             "short": cell.short, "why": cell.row.why if cell.row else ""}
            for cell in cells
        ],
    }  # fmt: skip
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def _operator(row: Row) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "operator": row.operator, "verdict": row.verdict.value, "taken": row.taken, "kernel": row.kernel,
        "why": row.why, "cost": row.cost, "remedies": [remedy.text for remedy in row.remedies],
    }  # fmt: skip
    if row.attention is not None:
        entry |= {"heads": row.attention.heads, "kernel_heads": row.attention.kernel_heads}
    if row.tuned is not None:
        weight, found = row.tuned.weight, row.tuned.lookup
        entry |= {
            "n": weight.n, "k": weight.k, "experts": weight.experts, "tokens": list(row.tuned.tokens),
            "table": found.table if found else "", "rows": list(found.where) if found else [],
            "misses": list(found.misses) if found else [],
        }  # fmt: skip
    return entry
