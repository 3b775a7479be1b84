"""Pictures of costs, of a prefill that slows down, and of what fills a GPU's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from waveproof.perf.claims import Reconciled
from waveproof.perf.economics import (
    USUAL_USD_PER_KWH,
    Served,
    break_even_usd_per_gpu_hour,
    crossing,
    over_price,
    over_tariff,
)
from waveproof.perf.memory_fit import GB, Fit
from waveproof.reports.picture_style import BLACK, COLOURS, GRID, QUIET, figure, line, png_of, style
from waveproof.reports.sections import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMOOTH = 60


def cost_picture(systems: Sequence[Served], watts: Mapping[str, float], pue: float, highest_tariff: float) -> Picture:
    """Dollars per million output tokens over the price of a GPU-hour, and over the tariff where power is on top."""
    with style():
        drawn = figure(11, 4.6)
        left, right = drawn.subplots(1, 2)
        words = [*_over_price(left, systems), *_over_tariff(right, systems, watts, pue, highest_tariff)]
    caption = (
        "Dollars per million output tokens. Left: over the price of a GPU-hour, each system's own price marked; right: "
        f"over the tariff of power billed on top (PUE {pue:g}), the usual range shaded. " + " ".join(words)
    )
    return Picture("cost", png_of(drawn), caption)


def _over_price(axes: Axes, systems: Sequence[Served]) -> list[str]:
    best = min(systems, key=lambda one: one.usd_per_million_output_tokens)
    top = 1.25 * max(one.usd_per_gpu_hour for one in systems)
    words = []
    axes.axhline(best.usd_per_million_output_tokens, color=QUIET, linewidth=1, linestyle=":")
    for number, one in enumerate(systems):
        places = [0.0, one.usd_per_gpu_hour, top]
        costs = [over_price(one).at(place) for place in places]
        axes.plot(places, costs, label=one.product, markevery=[1], **{**line(number), "markersize": 9})
        if one is best:
            continue
        flip = break_even_usd_per_gpu_hour(one, best)
        _mark_flip(axes, flip, best.usd_per_million_output_tokens, beside=(5, -15))
        words.append(f"{one.product} overtakes {best.product} below ${flip:.2f}.")
    axes.set_ylim(0, 1.12 * max(one.usd_per_million_output_tokens for one in systems))
    axes.set_xlim(0, top)
    axes.set_xlabel("$ per GPU-hour")
    axes.set_ylabel("$ per million output tokens")
    axes.set_title("Over the rental price")
    axes.legend()
    return words


def _over_tariff(
    axes: Axes, systems: Sequence[Served], watts: Mapping[str, float], pue: float, top: float
) -> list[str]:
    lines = [over_tariff(one, watts[one.product], pue) for one in systems if one.product in watts]
    words = []
    axes.axvspan(*USUAL_USD_PER_KWH, color=GRID, alpha=0.6, linewidth=0)
    for number, one in enumerate(lines):
        places = [top * step / 4 for step in range(5)]
        axes.plot(places, [one.at(place) for place in places], label=one.product, **line(number))
    for one, other in combinations(lines, 2):
        flip = crossing(one, other)
        if flip is None:
            words.append(f"{one.product} and {other.product} never change places.")
            continue
        words.append(f"{one.product} and {other.product} change places at ${flip:.2f} per kWh.")
        if flip > top:
            continue
        _mark_flip(axes, flip, one.at(flip), beside=(-8, 10))
    axes.set_ylim(0, None)
    axes.set_xlim(0, top)
    axes.set_xlabel("$ per kWh, on top of the rental price")
    axes.set_title("Over the tariff")
    return words


def _mark_flip(axes: Axes, usd: float, cost: float, beside: tuple[int, int]) -> None:
    """A ring where two systems change places, and its price ``beside`` it, in points."""
    axes.plot([usd], [cost], marker="o", markersize=10, markerfacecolor="none", markeredgecolor=BLACK,
              markeredgewidth=1.4)  # fmt: skip
    axes.annotate(f"${usd:.2f}", (usd, cost), xytext=beside, textcoords="offset points", fontsize=9)


def prefill_picture(found: Sequence[Reconciled]) -> Picture:
    """Speed of a chunk over the tokens before it, by the models that reconcile a speed with a time."""
    with style():
        drawn = figure(8, 4.4)
        axes = drawn.subplots()
        for number, one in enumerate(found):
            places = [one.tokens * step / _SMOOTH for step in range(_SMOOTH + 1)]
            look = {**line(number), "markevery": 12}
            label = f"{one.what}: from {one.first_speed / 1000:g}k tok/s"
            axes.plot(
                [place / 1000 for place in places], [one.model.speed(place) for place in places], label=label, **look
            )
        axes.set_xlabel("thousand tokens before the chunk")
        axes.set_ylabel("tok/s of the chunk")
        axes.set_ylim(0, None)
        axes.set_xlim(0, None)
        axes.set_title("Prefill speed that fits both the speed and the time")
        axes.legend()
    ends = "; ".join(f"{one.what}, from {one.first_speed:,.0f}: {one.last_speed:,.0f} at the end" for one in found)
    return Picture("prefill", png_of(drawn), f"Speed of prefill, in tok/s, over the tokens before: {ends}.")


def memory_picture(fits: Sequence[tuple[str, Fit]]) -> Picture:
    """What fills each GPU's memory, as bars, against what it has."""
    with style():
        drawn = figure(9, 1.4 + 0.5 * len(fits))
        axes = drawn.subplots()
        parts = (("weights", "weights"), ("KV pool", "pool"), ("linear state", "state"), ("reserve", "reserve"))
        places = list(range(len(fits)))[::-1]
        starts = [0.0] * len(fits)
        for number, (name, field) in enumerate(parts):
            sizes = [getattr(fit, field) / GB for _, fit in fits]
            axes.barh(places, sizes, left=starts, height=0.6, label=name, color=COLOURS[number],
                      hatch=("", "//", "xx", "..")[number], edgecolor="white")  # fmt: skip
            starts = [start + size for start, size in zip(starts, sizes, strict=True)]
        for place, (_, fit), end in zip(places, fits, starts, strict=True):
            axes.plot([fit.memory / GB] * 2, [place - 0.42, place + 0.42], color=BLACK, linewidth=2.5)
            axes.annotate(fit.verdict, (max(fit.memory / GB, end), place), xytext=(6, 0),
                          textcoords="offset points", va="center", fontsize=9)  # fmt: skip
        axes.set_yticks(places, [label for label, _ in fits])
        axes.set_xlabel("GB (10⁹ bytes) of one GPU; black line: its memory")
        axes.set_xlim(0, 1.3 * max(max(starts), *(fit.memory / GB for _, fit in fits)))
        axes.grid(axis="y", visible=False)
        drawn.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    told = "; ".join(f"{label}: {fit.verdict}, margin {fit.margin / GB:.0f} GB" for label, fit in fits)
    return Picture("memory", png_of(drawn), f"Weights, KV pool, state and reserve of one GPU in GB. {told}.")
