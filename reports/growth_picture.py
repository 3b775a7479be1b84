"""Counts over KV length on log axes: padded assembly and generic Triton, with the curves that were fitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from waveproof.perf.counted_cases import HEADS, NATIVE_HEADS
from waveproof.perf.counts import Counted
from waveproof.perf.growth import exponent, fit
from waveproof.perf.growth_ladders import PHASES, SHOWN_KEYS, PhasePair
from waveproof.reports.sections import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = {"wave_instructions": "wave instructions a query token", "bytes": "bytes a query token"}


def growth_picture(arch: str, counted: Mapping[str, Counted]) -> Picture:
    """Instructions above bytes, a column a phase; a phase that was not counted is left empty and says so.

    Args:
        arch: architecture.
        counted: by case.
    """
    from waveproof.reports.picture_style import figure, plain_log, png_of, style

    said: list[str] = []
    with style():
        drawn = figure(11, 6.4)
        grid = drawn.subplots(len(SHOWN), len(PHASES), sharex=True, squeeze=False)
        for row, (quantity, label) in enumerate(SHOWN.items()):
            for column, phase in enumerate(PHASES):
                axes = grid[row][column]
                said += _draw(axes, phase, quantity, counted)
                if row == 0:
                    axes.set_title(f"{phase.name}, {phase.queries} quer{'y' if phase.queries == 1 else 'ies'}")
                if column == 0:
                    axes.set_ylabel(label)
                plain_log(axes.xaxis, at=SHOWN_KEYS, form=lambda value: f"{value:,.0f}", base=2)
                plain_log(axes.yaxis)
                if row == len(SHOWN) - 1:
                    axes.set_xlabel("KV tokens")
                if axes.get_legend_handles_labels()[0]:
                    axes.legend(loc="upper left")
        drawn.suptitle(
            f"{HEADS} heads on {arch}: assembly padded to {NATIVE_HEADS} and generic Triton. Counts, not times"
        )
        png = png_of(drawn)
    return Picture(
        f"growth_{arch}",
        png,
        f"Counts of latent attention with {HEADS} heads on {arch} over the number of KV tokens, both axes logarithmic; "
        f"lines are fits of a + b n^p. {'; '.join(said)}.",
    )


def _draw(axes: Axes, phase: PhasePair, quantity: str, counted: Mapping[str, Counted]) -> list[str]:
    """Points and curves of one phase, and a sentence for each side."""
    from waveproof.reports.picture_style import COLOURS, MARKERS

    said = []
    for number, (who, side) in enumerate((("padded assembly", phase.padded), ("generic Triton", phase.generic))):
        calls = [counted.get(phase.case(side, keys).name) for keys in SHOWN_KEYS]
        counts = [one.total(quantity) for one in calls if one is not None]
        if len(counts) != len(SHOWN_KEYS):
            axes.text(0.5, 0.4 - 0.1 * number, f"{who}: not counted", transform=axes.transAxes, ha="center")
            continue
        curve = fit(SHOWN_KEYS, counts)
        grown = exponent(SHOWN_KEYS, counts)
        # A curve that steps of splits bend away from the points would say more than is known.
        fits = curve.worst < 0.02
        told = f"n^{curve.exponent:.2f}" if fits else "in steps"
        axes.plot(
            SHOWN_KEYS, [value / phase.queries for value in counts], linestyle="none", marker=MARKERS[number],
            color=COLOURS[number], label=f"{who}, {told}",
        )  # fmt: skip
        if fits:
            ends = [SHOWN_KEYS[0] * 2 ** (step / 8) for step in range(8 * (len(SHOWN_KEYS) - 1) + 1)]
            heights = [(curve.constant + curve.factor * n**curve.exponent) / phase.queries for n in ends]
            axes.plot(ends, heights, color=COLOURS[number], linewidth=1.2)
        said.append(
            f"{phase.name}, {who}, {quantity.replace('_', ' ')}: {counts[0] / phase.queries:,.0f} to "
            f"{counts[-1] / phase.queries:,.0f} a query token, exponent of increments {grown:.2f}"
        )
    return said
