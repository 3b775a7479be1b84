"""What the counts of 12 heads say, as sections: padded assembly against generic Triton, per token, and how it grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from waveproof.perf.counted_cases import HEADS, NATIVE_HEADS
from waveproof.perf.counts import EXECUTED, Counted, NotCounted
from waveproof.perf.growth import exponent, fit
from waveproof.perf.growth_ladders import (
    BATCH_KEYS,
    DECODE,
    LADDERS,
    PHASES,
    SHOWN_BATCHES,
    SHOWN_KEYS,
    PhasePair,
    Side,
    judge_ladder,
)
from waveproof.perf.pairs import Guarded, judge_guarded
from waveproof.reports.sections import Picture, Section, Table

HEADINGS = {"wave_instructions": "wave instr.", "mfma": "MFMA", "bytes": "global B", "lds_bytes": "LDS B"}
NO_TIME = (
    "Counts are no times: they know no caches, no waiting, no overlap. MFMA of different shapes count one each; bytes "
    "are counted for each lane, and the copies that pad and unpad heads among the padded ones."
)
UNJUDGED = "not judged: tiles not full"
_RATIO = "Each quantity: padded, generic, generic over padded; below 1 the padded assembly takes more."


class Calls(Protocol):
    """A call of a phase that was counted, or None."""

    def __call__(self, phase: PhasePair, side: Side, keys: int, batch: int = 1) -> Counted | None:
        """Of one side."""
        ...


def calls_of(counted: Mapping[str, Counted]) -> Calls:
    """Look calls up by phase, side and sizes."""

    def one(phase: PhasePair, side: Side, keys: int, batch: int = 1) -> Counted | None:
        return counted.get(phase.case(side, keys, batch).name)

    return one


def section(
    arch: str,
    counted: Mapping[str, Counted],
    guarded: Sequence[Guarded] = (),
    missing: Sequence[NotCounted] = (),
    pictures: tuple[Picture, ...] = (),
    shown: bool = True,
) -> Section:
    """Everything that was counted on an architecture.

    Args:
        arch: architecture.
        counted: by case.
        guarded: pairs of a fast and a slow path.
        missing: what could not be counted.
        pictures: to go with it.
        shown: whether the sizes that only the tables of the pair show were counted.
    """
    calls = calls_of(counted)
    tables = [
        *([per_query(calls), per_key(calls), over_batch(calls)] if shown else []),
        growth(counted),
        *([pair_table(guarded)] if guarded else []),
    ]
    return Section(
        f"{HEADS} heads on {arch}: AITER's assembly padded to {NATIVE_HEADS} against sglang's generic Triton",
        f"bf16 latent attention as machine code on the emulated device, every result held to float64. {NO_TIME}",
        tuple(table for table in tables if table.rows),
        pictures,
        _not_counted(missing),
    )


def _not_counted(missing: Sequence[NotCounted]) -> tuple[str, ...]:
    """A line for each fault, and one for all calls that lack the same thing."""
    absent: dict[str, list[str]] = {}
    for one in missing:
        if not one.fault:
            absent.setdefault(one.reason, []).append(one.case)
    told = [
        f"not counted, {reason}: {len(cases)} call{'s' if len(cases) > 1 else ''}, {cases[0]} among them"
        for reason, cases in absent.items()
    ]
    return *told, *(str(one) for one in missing if one.fault)


def per_query(calls: Calls) -> Table:
    """Of one request, for each query token."""
    rows = []
    for phase in PHASES:
        for keys in SHOWN_KEYS:
            padded, generic = calls(phase, phase.padded, keys), calls(phase, phase.generic, keys)
            if padded is not None and generic is not None:
                cells = _compared(padded, generic, phase.queries)
                rows.append((f"{phase.name}, {phase.queries}", f"{keys:,}", *cells))
    return _table("For each query token of one request", ("phase, queries", "KV"), rows, (1,), _RATIO)


def per_key(calls: Calls) -> Table:
    """What a further KV token adds to a call, between the last two contexts of the table."""
    before, after = SHOWN_KEYS[-2:]
    rows = []
    for phase in PHASES:
        ends = [calls(phase, side, keys) for side in (phase.padded, phase.generic) for keys in (before, after)]
        counted = [one for one in ends if one is not None]
        if len(counted) == len(ends):
            cells: list[str] = []
            for quantity in (*EXECUTED, "multiply_adds"):
                totals = [one.total(quantity) for one in counted]
                padded, generic = ((last - first) / (after - before) for first, last in (totals[:2], totals[2:]))
                cells += [_number(padded), _number(generic), _times(generic, padded)]
            rows.append((f"{phase.name}, {phase.queries}", *cells))
    title = f"For each further KV token of a call, {before:,} to {after:,}"
    note = f"{_RATIO} All queries of the call together. Multiply-adds are those of the MFMA, on padding too."
    return _table(title, ("phase, queries",), rows, (), note, (*HEADINGS.values(), "mult.-adds"))


def over_batch(calls: Calls) -> Table:
    """Decode, for each query token, by batch and context."""
    rows = []
    for batch in SHOWN_BATCHES:
        for keys in SHOWN_KEYS:
            padded, generic = calls(DECODE, DECODE.padded, keys, batch), calls(DECODE, DECODE.generic, keys, batch)
            if padded is not None and generic is not None:
                cells = _compared(padded, generic, batch)
                groups = f"{padded.workgroups // batch:,} / {generic.workgroups / batch:,.0f}"
                rows.append((str(batch), f"{keys:,}", groups, *cells))
    note = (
        f"{_RATIO} Workgroups a request, padded / generic: sglang's host splits by the context of the whole call, as "
        "the adapter states it, so that its splits grow with the batch; AITER's do not."
    )
    return _table("Decode over batch, for each query token", ("batch", "KV", "workgroups"), rows, (0, 1, 2), note)


def growth(counted: Mapping[str, Counted]) -> Table:
    """Exponents over the shown contexts, where no ladder judges these, and over the judged ladders."""
    rows = []
    calls = calls_of(counted)
    laddered = {(ladder.name, tuple(ladder.sizes)) for ladder in LADDERS if ladder.axis == "keys"}
    for phase in PHASES:
        for side in (phase.padded, phase.generic):
            if (f"{phase.name}/{side.provider}", SHOWN_KEYS) in laddered:
                continue
            shown = [calls(phase, side, keys) for keys in SHOWN_KEYS]
            found = [one for one in shown if one is not None]
            if len(found) == len(SHOWN_KEYS):
                cells = _exponents(SHOWN_KEYS, found)
                rows.append((f"{phase.name}/{side.provider}", _sizes("KV", SHOWN_KEYS), *cells, UNJUDGED, ""))
    for ladder in LADDERS:
        try:
            judged = judge_ladder(ladder, counted)
        except KeyError:
            continue
        calls_on_it = [counted[case.name] for case in ladder.cases]
        axis = "KV" if ladder.axis == "keys" else f"batch, KV {BATCH_KEYS}:"
        verdict = "linear" if all(one.holds for one in judged) else "SUPERLINEAR"
        cells = _exponents(ladder.sizes, calls_on_it)
        rows.append((ladder.name, _sizes(axis, ladder.sizes), *cells, verdict, ladder.why))
    columns = ("path", "over", *HEADINGS.values(), "judged", "why tiles are full there")
    return Table(
        "Growth exponents: of increments / of a fitted a + b n^p",
        columns,
        tuple(rows),
        "1 is linear. Judged where every size fills whole tiles and splits, as the last column says why: there counts "
        "of a linear kernel are on a straight line exactly, and nothing that grows faster is let pass. On the other "
        "sizes, of the tables above, a tile or split that is not full may bend them either way: shown, not judged.",
        (2, 3, 4, 5),
    )


def pair_table(guarded: Sequence[Guarded]) -> Table:
    """Fast and slow paths of one run."""
    rows = []
    for one in guarded:
        broken = [judgement.rule for judgement in judge_guarded(one) if not judgement.holds]
        ratios = [f"{one.ratio(quantity):.2f}" if one.slow.total(quantity) else "" for quantity in EXECUTED]
        saves = HEADINGS.get(one.pair.saves, one.pair.saves)
        kernels = ", ".join(dict.fromkeys(kernel[:44] for kernel in one.fast.kernels))
        rows.append(
            (f"{one.pair.operator} {one.pair.case}", f"{one.pair.fast} over {one.pair.slow}", *ratios, saves, kernels,
             ", ".join(broken) or "holds")
        )  # fmt: skip
    columns = ("pair", "fast over slow", *HEADINGS.values(), "saves", "kernels that prove it", "guard")
    note = (
        "Slow over fast, both of one run. The guard asks for more than 1 in what the fast path is there to save; the "
        "other columns may be below 1. Where that is a sort, torch does it: its bytes count, its instructions do not."
    )
    return Table("Fast and slow paths", columns, tuple(rows), note, (2, 3, 4, 5))


def _table(
    title: str,
    first: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    numeric: tuple[int, ...],
    note: str,
    quantities: Sequence[str] = tuple(HEADINGS.values()),
) -> Table:
    columns = first + tuple(heading for name in quantities for heading in (f"{name} padded", "generic", "ratio"))
    return Table(title, columns, tuple(rows), note, (*numeric, *range(len(first), len(columns))))


def _compared(padded: Counted, generic: Counted, tokens: int) -> tuple[str, ...]:
    """For each of so many query tokens."""
    cells: list[str] = []
    for quantity in EXECUTED:
        one, other = padded.total(quantity) / tokens, generic.total(quantity) / tokens
        cells += [_number(one), _number(other), _times(other, one)]
    return tuple(cells)


def _exponents(sizes: Sequence[int], calls: Sequence[Counted]) -> tuple[str, ...]:
    cells = []
    for quantity in EXECUTED:
        counts = [one.total(quantity) for one in calls]
        fitted = f"{fit(sizes, counts).exponent:.3f}" if len(sizes) > 3 else "-"
        cells.append(f"{exponent(sizes, counts):.3f} / {fitted}")
    return tuple(cells)


def _sizes(axis: str, sizes: Sequence[int]) -> str:
    return f"{axis} {sizes[0]:,}-{sizes[-1]:,}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or value >= 1000 else f"{value:,.1f}"


def _times(value: float, base: float) -> str:
    return f"{value / base:.2f}" if base else ""
