"""Pictures of serving measurements: concurrency curve, prefill over length, speculation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from waveproof.perf.serving import SweepResult
from waveproof.perf.serving_figures import Prefill
from waveproof.perf.serving_plan import LONG
from waveproof.perf.serving_speculation import SpeedUp
from waveproof.reports.picture_style import (
    BLUE,
    GREEN,
    QUIET,
    VERMILLION,
    figure,
    footnote,
    plain_log,
    png_of,
    short_number,
    style,
)
from waveproof.reports.sections import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def concurrency_picture(result: SweepResult) -> Picture | None:
    """Speed of a stream and aggregate over concurrency; the peak is marked, refused points are shown without a figure.

    None where no point is reported.
    """
    points = [one.figures for one in result.reported if one.figures is not None]
    best = result.peak
    if best is None:
        return None
    refused = [one.point.concurrency for one in result.points if one.figures is None]
    streams = [point.concurrency for point in points]
    with style():
        drawn = figure(8, 6)
        above, below = drawn.subplots(2, 1, sharex=True)
        rates = [point.per_stream_tok_s for point in points]
        above.plot(streams, rates, color=BLUE, marker="o")
        for point in points:
            if point.stream_interval:
                above.vlines(point.concurrency, *point.stream_interval, color=BLUE, alpha=0.6)
        above.set(ylabel="tok/s of a stream", title=f"{result.plan.target.model}: {_shape(result)}", ylim=(0, None))
        totals = [point.aggregate_tok_s for point in points]
        below.plot(streams, totals, color=GREEN, marker="s")
        # On top of the line, and whole where it stands at an edge.
        star = {"marker": "*", "markersize": 16, "color": GREEN, "linestyle": "", "clip_on": False, "zorder": 5}
        below.plot([best.concurrency], [best.aggregate_tok_s], **star)
        at_end = best.concurrency == max(streams)
        below.annotate(
            f"{best.aggregate_tok_s:.4g} tok/s at {best.concurrency}{' (end of the sweep)' if at_end else ''}",
            (best.concurrency, best.aggregate_tok_s),
            xytext=(0, 13),
            textcoords="offset points",
            ha="left" if best.concurrency == streams[0] else "right" if at_end else "center",
            va="bottom",
        )
        # Room for what is said above the peak.
        below.set(ylabel="tok/s, all streams", xlabel="requests at once", ylim=(0, 1.4 * best.aggregate_tok_s))
        for axes in (above, below):
            _refused(axes, refused)
        plain_log(below.xaxis, sorted({*streams, *refused}), base=2)
        footnote(below, _source(result))
        png = png_of(drawn)
    said = "; ".join(
        f"{point.concurrency} at once: {point.per_stream_tok_s:.4g} a stream, {point.aggregate_tok_s:.4g} together"
        for point in points
    )
    return Picture("concurrency", png, f"Tokens per second over concurrency. {said}. Largest: {best.statement}.")


def _refused(axes: Axes, places: Sequence[int]) -> None:
    for place in places:
        axes.axvline(place, color=VERMILLION, linestyle=":", linewidth=1.2)
        axes.annotate(
            "refused", (place, 0.96), xycoords=("data", "axes fraction"), rotation=90, color=VERMILLION,
            ha="right", va="top", fontsize=8,
        )  # fmt: skip


def prefill_picture(result: SweepResult, found: Prefill) -> Picture:
    """Time to the first token over length, and the speed that follows, with and without fixed costs."""
    with style():
        drawn = figure(8, 6)
        above, below = drawn.subplots(2, 1, sharex=True)
        for one in result.reported:
            above.plot(
                [request.prompt_tokens or 0 for request in one.requests],
                [request.ttft for request in one.requests],
                color=BLUE, marker="o", linestyle="", alpha=0.5,
            )  # fmt: skip
        above.plot(found.lengths, found.ttfts, color=BLUE)
        above.set(ylabel="s to the first token", title=f"{result.plan.target.model}: cold prefill", ylim=(0, None))
        below.plot(found.lengths, found.rates, color=GREEN, marker="s", label="tokens over time to the first token")
        if found.steady_tok_s:
            label = f"steady state {found.steady_tok_s:.4g} tok/s (slope)"
            below.axhline(found.steady_tok_s, color=VERMILLION, linestyle="--", label=label)
        below.set(ylabel="tok/s of prefill", xlabel="tokens of the prompt", ylim=(0, None))
        below.legend(loc="best")
        plain_log(below.xaxis, found.lengths, short_number)
        footnote(below, _source(result))
        png = png_of(drawn)
    said = "; ".join(
        f"{length} tokens {seconds:.3g} s" for length, seconds in zip(found.lengths, found.ttfts, strict=True)
    )
    return Picture("prefill", png, f"Time to the first token of cold prompts over their length: {said}.")


def speculation_picture(on: SweepResult, off: SweepResult, found: Sequence[SpeedUp]) -> Picture:
    """Both runs' speeds over concurrency."""
    with style():
        drawn = figure(8, 6)
        above, below = drawn.subplots(2, 1, sharex=True)
        ticks: set[int] = set()
        for result, label, colour, marker in ((off, "speculation off", QUIET, "s"), (on, "on", BLUE, "o")):
            points = [one.figures for one in result.reported if one.figures is not None]
            streams = [point.concurrency for point in points]
            ticks |= set(streams)
            above.plot(streams, [point.per_stream_tok_s for point in points], color=colour, marker=marker, label=label)
            below.plot(streams, [point.aggregate_tok_s for point in points], color=colour, marker=marker, label=label)
        above.set(ylabel="tok/s of a stream", title=f"{on.plan.target.model}: {_shape(on)}", ylim=(0, None))
        above.legend()
        below.set(ylabel="tok/s, all streams", xlabel="requests at once", ylim=(0, None))
        plain_log(below.xaxis, sorted(ticks), base=2)
        footnote(below, _source(on))
        png = png_of(drawn)
    said = "; ".join(f"{one.concurrency} at once: {one.per_stream:.2f} times a stream" for one in found)
    return Picture("speculation", png, f"Tokens per second with speculation on and off. {said}.")


def _shape(result: SweepResult) -> str:
    shape = next(shape for shape in result.plan.points[0].shapes if shape.kind != LONG)
    return f"{shape.prompt:,} tokens in, {shape.output:,} out"


def _source(result: SweepResult) -> str:
    versions = result.points[0].facts.versions if result.points else {}
    told = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return ", ".join(part for part in (result.plan.target.label, told) if part)
