"""A serving measurement as sections: what is reported, what is refused and why, and what it comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from waveproof.perf.serving import PointResult, SweepResult
from waveproof.perf.serving_figures import NoFigures, Percentiles, disturbance, prefill
from waveproof.perf.serving_privacy import without_places
from waveproof.perf.serving_refusals import Failure
from waveproof.perf.serving_speculation import SpeedUp
from waveproof.reports.sections import Section, Table
from waveproof.reports.serving_pictures import concurrency_picture, prefill_picture, speculation_picture

REFUSED = "REFUSED"


def serving_sections(result: SweepResult, pictures: bool = True) -> tuple[Section, ...]:
    """What a run came to; pictures are left out for a terminal. Nothing in it tells on whose machines it was."""
    made = {"sweep": _sweep, "prefill": _prefill, "mixed": _mixed}[result.plan.kind](result, pictures)
    return tuple(_without_places(one, result) for one in (made, *_refused(result)))


def _without_places(one: Section, result: SweepResult) -> Section:
    def quiet(text: str) -> str:
        return without_places(text, result.plan.target)

    tables = tuple(
        replace(table, rows=tuple(tuple(quiet(cell) for cell in row) for row in table.rows)) for table in one.tables
    )
    return replace(one, lead=quiet(one.lead), tables=tables, warnings=tuple(quiet(text) for text in one.warnings))


def speculation_sections(
    on: SweepResult, off: SweepResult, found: Sequence[SpeedUp], pictures: bool = True
) -> tuple[Section, ...]:
    """Speed-ups, and both runs."""
    rows = tuple(
        (
            str(one.concurrency),
            f"{one.per_stream:.2f}{_interval(one.per_stream_interval, '.2f')}",
            f"{one.aggregate:.2f}",
            "not told" if one.acceptance_length is None else f"{one.acceptance_length:.2f}",
        )
        for one in found
    )
    table = Table(
        "Speculation on over off",
        ("at once", "speed of a stream", "aggregate", "acceptance length"),
        rows,
        "Acceptance length: tokens emitted by a verification step, as the server counted while the point ran, its "
        "warm-up included. In brackets: 95 % by bootstrap over requests. The servers were measured one after the "
        "other: what changed on the machine in between is in the ratios too.",
        (0, 1, 2, 3),
    )
    peaks = [f"{name}: {result.peak.statement}" for name, result in (("on", on), ("off", off)) if result.peak]
    drawn = (speculation_picture(on, off, found),) if pictures and found else ()
    lead = "Peak of all streams. " + "; ".join(peaks) if peaks else ""
    missing = () if found else ("no concurrency is reported of both runs",)
    head = Section("Speculation", lead, (table,), drawn, missing)
    runs = [(f"Speculation {name}", result) for name, result in (("on", on), ("off", off))]
    parts = [
        replace(one, title=f"{title}: {one.title}")
        for title, result in runs
        for one in serving_sections(result, pictures=False)
    ]
    return (head, *parts)


def _sweep(result: SweepResult, pictures: bool) -> Section:
    shape = result.plan.points[0].shapes[0]
    drawn = concurrency_picture(result) if pictures else None
    lead = f"{_asked(result)} {shape.prompt:,} tokens in, {shape.output:,} out."
    if result.peak:
        lead += f" Aggregate: {result.peak.statement}."
    return Section("Concurrency sweep", lead, (_points(result),), (drawn,) if drawn else (), _told(result))


def _points(result: SweepResult) -> Table:
    columns = (
        "at once", "verdict", "requests", "a stream tok/s", "slowest 1 %", "all tok/s", "full load",
        "TTFT s p50/p90/p99", "ITL ms p50/p90/p99", "latency s p50", "accepted",
    )  # fmt: skip
    note = (
        "a stream: 1 / mean inter-token latency, median over requests [95 % by bootstrap within this run]. all: output "
        "tokens over the whole point; full load: while all streams were busy. accepted: tokens a verification step."
    )
    return Table("", columns, tuple(_row(one, len(columns)) for one in result.points), note, (0, *range(2, 11)))


def _row(one: PointResult, columns: int) -> tuple[str, ...]:
    found = one.figures
    if found is None:
        # By which rules is said below, in a table of its own: the verdict has to be seen before the page's edge.
        cells = (str(one.point.concurrency), REFUSED, f"{len(one.requests)} of {len(one.point.shapes)}")
        return (*cells, *["-"] * (columns - len(cells)))
    length = one.acceptance_length
    return (
        str(found.concurrency),
        "reported",
        str(found.requests),
        f"{found.per_stream_tok_s:.2f}{_interval(found.stream_interval, '.2f')}" if found.stream_rates else "-",
        f"{found.slowest_stream_tok_s:.2f}" if found.stream_rates else "-",
        f"{found.aggregate_tok_s:.1f}",
        "-" if found.full_load_tok_s is None else f"{found.full_load_tok_s:.1f}",
        _three(found.ttft, 1.0, ".3f"),
        "-" if found.itl is None else _three(found.itl, 1e3, ".1f"),
        f"{found.latency.p50:.2f}",
        "-" if length is None else f"{length:.2f}",
    )


def _prefill(result: SweepResult, pictures: bool) -> Section:
    lead = f"{_asked(result)} Prompts that begin with different tokens, one at a time."
    warnings = _told(result)
    try:
        found = prefill([one.requests for one in result.reported])
    except NoFigures as error:
        return Section("Cold prefill", lead, (), (), (*warnings, str(error)))
    rates = [f"{rate:,.0f}" for rate in found.rates]
    marginal = ["-", *("does not grow" if rate == float("inf") else f"{rate:,.0f}" for rate in found.marginal)]
    cached = [_cached(one) for one in result.reported]
    rows = tuple(
        (f"{length:,}", str(len(one.requests)), f"{seconds:.3f}", rate, more, hits)
        for length, one, seconds, rate, more, hits in zip(
            found.lengths, result.reported, found.ttfts, rates, marginal, cached, strict=True
        )
    )
    columns = ("tokens", "prompts", "TTFT s", "tok/s", "tok/s since the length before", "cached tokens")
    note = "tok/s: all tokens over the time to the first token, fixed costs included; since the length before: without."
    if found.steady_tok_s is not None:
        lead += (
            f" Steady state: {found.steady_tok_s:,.0f} tok/s{_interval(found.steady_interval, ',.0f')} from the slope "
            "of time over length (Theil-Sen)"
        )
        fixed = found.fixed_seconds or 0.0
        lead += (
            f", with {fixed:.3f} s of fixed costs."
            if fixed > 0
            else f"; it begins at {fixed:.3f} s, so that no fixed costs can be told."
        )
    if result.limit and result.limit.failure:
        length = result.limit.point.shapes[0].prompt
        lead += f" Prompts of {length:,} tokens are too long for it: {result.limit.failure.error}"
    drawn = (prefill_picture(result, found),) if pictures else ()
    table = Table("", columns, rows, note, (0, 1, 2, 3, 4, 5))
    return Section("Cold prefill", lead, (table,), drawn, (*warnings, *found.warnings))


def _cached(one: PointResult) -> str:
    told = [request.cached_tokens for request in one.requests if request.cached_tokens is not None]
    return str(max(told)) if len(told) == len(one.requests) else "not told"


def _mixed(result: SweepResult, pictures: bool) -> Section:
    lead, warnings = _asked(result), _told(result)
    if len(result.reported) < 2:
        return Section("Mixed traffic", lead, (), (), (*warnings, "both points are needed, and one is not reported"))
    alone, beside = result.reported
    try:
        found = disturbance(alone.requests, beside.requests)
    except NoFigures as error:
        return Section("Mixed traffic", lead, (), (), (*warnings, str(error)))
    rows = []
    for name, first, gaps in (
        ("alone", found.alone_ttft, found.alone_itl),
        ("while a long prompt is read", found.beside_ttft, found.beside_itl),
    ):
        rows.append((name, str(first.count), _three(first, 1.0, ".3f"), _three(gaps, 1e3, ".1f"), _ms(gaps.most)))
    if found.clear_itl:
        clear = found.clear_itl
        rows.append(("at other times of that run", "-", "-", _three(clear, 1e3, ".1f"), _ms(clear.most)))
    long = next(shape for shape in beside.point.shapes if shape.prompt > alone.point.shapes[0].prompt)
    few = alone.point.shapes[0]
    note = (
        f"Of short requests ({few.prompt:,} in, {few.output:,} out, {alone.point.concurrency} at once). The long ones "
        f"have {long.prompt:,} in and wait {found.long_ttft.p50:.3f} s (median) for their first token."
    )
    columns = ("short requests", "requests", "TTFT s p50/p90/p99", "ITL ms p50/p90/p99", "longest gap ms")
    slower = found.beside_itl.p50 / found.alone_itl.p50 if found.alone_itl.p50 else float("inf")
    lead += f" A long prompt makes the median gap between tokens of short answers {slower:.2f} times as long."
    return Section("Mixed traffic", lead, (Table("", columns, tuple(rows), note, (1, 2, 3, 4)),), (), warnings)


def _refused(result: SweepResult) -> tuple[Section, ...]:
    refused = [one for one in result.points if one is not result.limit]
    rows = [
        (one.point.name, refusal.rule, f"{refusal.count} of {refusal.of}", _unsaid(refusal.detail, one.failure))
        for one in refused
        for refusal in one.refusals
    ]
    if not rows:
        return ()
    failing = tuple(f"{one.point.name}: the server {one.failure}" for one in refused if one.failure)
    table = Table("", ("point", "broken rule", "requests", "first of them"), tuple(rows))
    lead = "No figure is taken from these points, not even from the requests that went well."
    return (Section("Refused points", lead, (table,), (), failing),)


def _unsaid(detail: str, failure: Failure | None) -> str:
    """Without the server's words where they stand above the table."""
    return detail.removesuffix(f": {failure.error}") if failure else detail


def _asked(result: SweepResult) -> str:
    target = result.plan.target
    began = sorted(one.facts.started for one in result.points)
    when = f", measured from {began[0].replace('T', ' ').replace('+00:00', ' UTC')} on" if began and began[0] else ""
    return f"{target.model} at {target.root}{f' ({target.label})' if target.label else ''}{when}:"


def _told(result: SweepResult) -> tuple[str, ...]:
    notes = tuple(f"{one.point.name}: {note}" for one in result.points for note in one.warnings)
    if any(one.failure for one in result.points):
        # How it failed is said above the refused points.
        measured = [one.point for one in result.points]
        missing = ", ".join(point.name for point in result.plan.points if point not in measured)
        return (f"not measured, since the server failed: {missing}", *notes) if missing and not result.limit else notes
    return (f"not complete: {result.stopped}", *notes) if result.stopped else notes


def _three(of: Percentiles, scale: float, form: str) -> str:
    return " / ".join(format(value * scale, form) for value in (of.p50, of.p90, of.p99))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def _interval(ends: tuple[float, float] | None, form: str) -> str:
    return f" [{ends[0]:{form}}, {ends[1]:{form}}]" if ends else ""
