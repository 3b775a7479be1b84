"""Figures of a point, from its requests alone: speeds, latencies, their percentiles and intervals.

* Speed of a stream: tokens after the first over the time from the first to the last, 1 / mean inter-token latency.
* Aggregate: output tokens of all requests over the time from the first request to the last answer, start and end
  included; ``full_load`` counts only what came while as many requests as planned were under way.
* Intervals are of the median over requests, by bootstrap (percentile, 95 %). Requests of a point share a server at the
  same time, so that they are not independent: an interval shows the spread within this run, not from run to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from waveproof.perf.intervals import bootstrap_interval
from waveproof.perf.serving_log import Request
from waveproof.perf.serving_plan import LONG, SHORT

_FALLING = 0.7
"""Of the largest speed between lengths: below it one slope does not describe all lengths."""


class NoFigures(ValueError):
    """Requests that no figures can be taken from; the message says why."""


@dataclass(frozen=True)
class Percentiles:
    """Of one quantity over requests or over tokens."""

    p50: float
    p90: float
    p99: float
    most: float
    count: int
    interval: tuple[float, float] | None = None
    """Of the median, 95 %."""


@dataclass(frozen=True)
class PointFigures:
    """Of a point all of whose requests count. Rates are in tokens per second, times in seconds."""

    concurrency: int
    requests: int
    prompt_tokens: int
    """Of all requests, as the next one."""
    output_tokens: int
    seconds: float
    """From the first request to the last answer."""
    per_stream_tok_s: float
    """Median over requests."""
    stream_rates: tuple[float, ...]
    """Of each request."""
    stream_interval: tuple[float, float] | None
    slowest_stream_tok_s: float
    """Below it is one request of a hundred."""
    aggregate_tok_s: float
    full_load_tok_s: float | None
    """None where there was no such time."""
    ttfts: tuple[float, ...]
    """Of each request."""
    ttft: Percentiles
    itl: Percentiles | None
    """Over all tokens of all requests; between chunks where chunks hold several. None for answers of one chunk."""
    latencies: tuple[float, ...]
    """From sending to the end, of each request."""
    latency: Percentiles


def percentiles(values: Sequence[float], interval: bool = False) -> Percentiles:
    """Of some figures; with the interval of their median if asked for and if there are enough."""
    if not values:
        raise NoFigures("percentiles of nothing")
    p50, p90, p99 = (float(one) for one in np.percentile(values, (50, 90, 99)))
    ends = bootstrap_interval(np.median, values) if interval else None
    return Percentiles(p50, p90, p99, max(values), len(values), ends)


def figures(requests: Sequence[Request], concurrency: int) -> PointFigures:
    """Figures of a point's requests, none of which failed.

    Raises:
        NoFigures: one did, or there are none.
    """
    if not requests or any(request.failed or not request.chunks for request in requests):
        raise NoFigures(f"{len(requests)} requests, of which some were not answered: nothing is averaged")
    ends = [request.start + request.end for request in requests]
    seconds = max(ends) - min(request.start for request in requests)
    rates = tuple(rate for request in requests if (rate := request.stream_rate) is not None)
    gaps = [gap for request in requests for gap in request.gaps]
    tokens = sum(request.output_tokens or 0 for request in requests)
    ttfts = tuple(request.ttft for request in requests)
    latencies = tuple(request.end for request in requests)
    return PointFigures(
        concurrency=concurrency,
        requests=len(requests),
        prompt_tokens=sum(request.prompt_tokens or 0 for request in requests),
        output_tokens=tokens,
        seconds=seconds,
        per_stream_tok_s=float(np.median(rates)) if rates else 0.0,
        stream_rates=rates,
        stream_interval=bootstrap_interval(np.median, rates),
        slowest_stream_tok_s=float(np.percentile(rates, 1)) if rates else 0.0,
        aggregate_tok_s=tokens / seconds if seconds > 0 else 0.0,
        full_load_tok_s=_full_load(requests, concurrency),
        ttfts=ttfts,
        ttft=percentiles(ttfts, interval=True),
        itl=percentiles(gaps) if gaps else None,
        latencies=latencies,
        latency=percentiles(latencies),
    )


def _full_load(requests: Sequence[Request], concurrency: int) -> float | None:
    """Tokens per second while all streams were busy: from the last stream's first request to the last request's start.

    After that the number under way may only fall.
    """
    starts = sorted(request.start for request in requests)
    if len(starts) <= concurrency:
        return None
    begin, end = starts[concurrency - 1], starts[-1]
    if end <= begin:
        return None
    total = 0.0
    for request in requests:
        each = (request.output_tokens or len(request.chunks)) / len(request.chunks)
        total += each * sum(begin < request.start + chunk <= end for chunk in request.chunks)
    return total / (end - begin)


@dataclass(frozen=True)
class Peak:
    """Where aggregate throughput is largest."""

    concurrency: int
    aggregate_tok_s: float
    statement: str
    """Whether that is a peak, or merely where the sweep ended or has a hole."""


def peak(points: Sequence[PointFigures], withheld: Sequence[int] = ()) -> Peak | None:
    """The peak of a sweep.

    Args:
        points: that are reported.
        withheld: concurrencies of points that are not.
    """
    if not points:
        return None
    ordered = sorted(points, key=lambda point: point.concurrency)
    best = max(ordered, key=lambda point: point.aggregate_tok_s)
    said = f"{best.aggregate_tok_s:.1f} tok/s at concurrency {best.concurrency}"
    last, place = ordered[-1].concurrency, ordered.index(best)
    if len(ordered) == 1:
        statement = f"{said}, the only point: nothing is known of a peak"
    elif best.concurrency == last:
        statement = f"{said}, the end of the sweep: the peak may lie beyond it"
    elif place == 0:
        statement = f"{said}, the start of the sweep: more streams gave no more"
    else:
        around = f"{ordered[place - 1].concurrency} and {ordered[place + 1].concurrency}"
        statement = f"{said}; it lies between {around}, as far as these points tell"
    if withheld:
        statement += f"; not counted, since refused: {', '.join(map(str, sorted(withheld)))}"
    return Peak(best.concurrency, best.aggregate_tok_s, statement)


@dataclass(frozen=True)
class Prefill:
    """Of cold prompts of several lengths."""

    lengths: tuple[int, ...]
    """Tokens, as the server counted them."""
    ttfts: tuple[float, ...]
    """Median seconds to the first token, of each length."""
    rates: tuple[float, ...]
    """Tokens over that time: with fixed costs in it."""
    marginal: tuple[float, ...]
    """Tokens per second between neighbouring lengths, fixed costs out; ``inf`` where time did not grow."""
    steady_tok_s: float | None
    """From the slope of time over length, all lengths (Theil-Sen); None where it cannot be told."""
    steady_interval: tuple[float, float] | None
    """95 %, as Theil-Sen gives it; None where it gives none."""
    fixed_seconds: float | None
    """Where that line begins."""
    warnings: tuple[str, ...] = ()


def prefill(points: Sequence[Sequence[Request]]) -> Prefill:
    """Figures over length.

    Args:
        points: requests of each length, answered.

    Raises:
        NoFigures: there are none.
    """
    from scipy import stats

    if not points or not all(points):
        raise NoFigures("no prompt was answered")
    ordered = sorted(points, key=lambda requests: requests[0].prompt_tokens or 0)
    lengths = tuple(int(np.median([one.prompt_tokens or 0 for one in requests])) for requests in ordered)
    ttfts = tuple(float(np.median([one.ttft for one in requests])) for requests in ordered)
    rates = tuple(length / seconds for length, seconds in zip(lengths, ttfts, strict=True))
    marginal = tuple(
        (long - short) / (after - before) if after > before else float("inf")
        for (short, long), (before, after) in zip(pairwise(lengths), pairwise(ttfts), strict=True)
    )
    told = list(flat(lengths, ttfts))
    steady, interval, fixed = None, None, None
    if len(set(lengths)) > 1:
        x = [one.prompt_tokens or 0 for requests in ordered for one in requests]
        y = [one.ttft for requests in ordered for one in requests]
        # Many equal lengths leave it no variance to take a root of: then there is no interval.
        with np.errstate(invalid="ignore"):
            slope, intercept, low, high = (float(one) for one in stats.theilslopes(y, x, alpha=0.95))
        if slope > 0:
            steady, fixed = 1.0 / slope, intercept
            if np.isfinite((low, high)).all() and low > 0:
                interval = 1.0 / high, 1.0 / low
            # Within the interval of the slope the two differ by noise as well.
            if interval and marginal[-1] < min(interval[0], _FALLING * max(marginal)):
                told.append(
                    f"time grows faster than length, as attention does: {max(marginal):,.0f} tok/s between lengths "
                    f"falls to {marginal[-1]:,.0f}; the slope is a mean over these lengths"
                )
        else:
            told.append("time to the first token does not grow with length: no steady-state speed can be told")
    else:
        told.append("one length: fixed costs cannot be told from work, so no steady-state speed")
    return Prefill(lengths, ttfts, rates, marginal, steady, interval, fixed, tuple(told))


def flat(lengths: Sequence[int], ttfts: Sequence[float]) -> tuple[str, ...]:
    """A warning where time grows implausibly little over length, as it does where a cache answers.

    Work of a prefill grows at least as fast as length. Fixed costs hide that for short prompts, so that only prompts at
    least four times as long that take less than half as much longer are named.
    """
    if len(lengths) < 2 or lengths[-1] < 4 * lengths[0] or ttfts[-1] >= 1.5 * ttfts[0]:
        return ()
    grown, longer = ttfts[-1] / ttfts[0], lengths[-1] / lengths[0]
    return (
        f"prompts {longer:.1f} times as long take {grown:.2f} times as long to the first token: implausible for a cold "
        "prefill, unless fixed costs outweigh it",
    )


@dataclass(frozen=True)
class Disturbance:
    """What long prefills do to short requests beside them. Seconds."""

    alone_ttft: Percentiles
    beside_ttft: Percentiles
    """Of short requests that were sent while a long prompt was read."""
    alone_itl: Percentiles
    beside_itl: Percentiles
    """Of gaps in short answers that lie, in part or whole, within a long prompt's prefill."""
    clear_itl: Percentiles | None
    """Of the other gaps of that run; None where all lie within."""
    long_ttft: Percentiles


def disturbance(alone: Sequence[Request], mixed: Sequence[Request]) -> Disturbance:
    """Compare short requests alone with those beside long ones.

    Raises:
        NoFigures: no short request or no gap lies beside a long prefill.
    """
    longs = [request for request in mixed if request.kind == LONG]
    shorts = [request for request in mixed if request.kind == SHORT]
    windows = [(request.start, request.start + request.ttft) for request in longs]

    def within(begin: float, end: float) -> bool:
        return any(begin < stop and end > start for start, stop in windows)

    beside: list[float] = []
    clear: list[float] = []
    for request in shorts:
        for first, second in pairwise(request.chunks):
            inside = within(request.start + first, request.start + second)
            (beside if inside else clear).append(second - first)
    first_tokens = [request.ttft for request in shorts if within(request.start, request.start + request.ttft)]
    gaps = [gap for request in alone for gap in request.gaps]
    if not (longs and beside and first_tokens and gaps):
        raise NoFigures(
            f"{len(longs)} long prompts, {len(first_tokens)} short requests and {len(beside)} gaps beside them, "
            f"{len(gaps)} gaps without: each is needed"
        )
    return Disturbance(
        percentiles([request.ttft for request in alone]),
        percentiles(first_tokens),
        percentiles(gaps),
        percentiles(beside),
        percentiles(clear) if clear else None,
        percentiles([request.ttft for request in longs]),
    )
