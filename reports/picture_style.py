"""One style for every picture of the suite: fonts, grid, colours, marker shapes, ticks, and the way to PNG bytes.

Pictures are drawn with matplotlib's objects, never with pyplot's global state::

    with style():
        drawn = figure(8, 4.5)
        axes = drawn.subplots()
        for number, name in enumerate(names):
            axes.plot(x, y[name], label=name, **line(number))
        plain_log(axes.xaxis)
    Picture("speed", png_of(drawn), "Decode speed over context length: ...")

matplotlib is imported by the functions, so that a command that only takes a colour from here stays quick.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK = "#E69F00", "#56B4E9", "#1b1f24"
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
"""For lines on white, in the order in which they are taken.

Okabe and Ito, "Color Universal Design" (2008), https://jfly.uni-koeln.de/color/: they differ for every kind of colour
vision. Their yellow is left out: a yellow line is lost on white.
"""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Beside each of :data:`COLOURS`, for print and for eyes that do not tell the colours apart."""

INK, QUIET, GRID = "#1b1f24", "#5b6570", "#dde1e6"
"""Of text, of what is said beside it, of the grid."""

DPI = 160
"""Pixels an inch of the PNG; the page shows 96 of an inch, so that a picture is sharp on a dense screen."""

_RULES: dict[str, Any] = {
    # The one family that matplotlib brings along: the same picture on every machine.
    "font.family": ["DejaVu Sans"],
    "font.size": 10.0,
    "text.color": INK,
    "figure.facecolor": "white",
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "savefig.facecolor": "white",
    "savefig.edgecolor": "none",
    "axes.facecolor": "white",
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.8,
    "axes.labelcolor": INK,
    "axes.labelsize": 10.0,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "lines.markeredgecolor": "white",
    "lines.markeredgewidth": 0.6,
    "errorbar.capsize": 3.0,
    # Without a frame, and still to be read where a line runs behind it.
    "legend.framealpha": 0.85,
    "legend.facecolor": "white",
    "legend.edgecolor": "none",
    "legend.fontsize": 9.0,
    "figure.titlesize": 12.0,
    "figure.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.11,
    "figure.constrained_layout.w_pad": 0.11,
}


@contextmanager
def style() -> Iterator[None]:
    """Everything drawn within has the suite's style; what the caller's matplotlib had set is there again afterwards.

    It starts from matplotlib's own defaults, so that somebody's ``matplotlibrc`` does not change the suite's pictures.
    """
    import matplotlib
    from cycler import cycler

    with matplotlib.rc_context():
        # It leaves the back end and other settings of the session alone.
        matplotlib.rcdefaults()
        cast(Any, matplotlib.rcParams).update({**_RULES, "axes.prop_cycle": cycler(color=COLOURS)})
        yield


def figure(width: float = 8.0, height: float = 4.5) -> Figure:
    """An empty figure of so many inches, without pyplot; to be called, and drawn into, within :func:`style`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height))
    FigureCanvasAgg(drawn)
    return drawn


def png_of(drawn: Figure) -> bytes:
    """The figure as PNG. The same drawing gives the same bytes: neither date nor version is written into the file."""
    with style():
        file = io.BytesIO()
        drawn.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
        return file.getvalue()


def line(number: int) -> dict[str, Any]:
    """Colour and marker of the so-manieth line, as keywords for ``Axes.plot``; both repeat after the last colour."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def short_number(value: float) -> str:
    """``172k``, ``1.5M``, ``0.02``: three digits, and a letter for thousands; ``128Ki`` where only 1024 divides it."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) >= 1024 and value % 1000 and not value % 1024:
        for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
            if not value % size:
                return f"{value / size:,.0f}{unit}"
    for unit, thousands in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        # 999 999 would be 1000k with three digits.
        if abs(value) >= 0.9995 * thousands:
            return f"{value / thousands:.3g}{unit}"
    return f"{value:.3g}"


def short_seconds(value: float) -> str:
    """A time with the unit that fits: ``12 µs``, ``3.4 ms``, ``51 s``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns" if value else "0 s"


def plain_log(
    axis: Axis, at: Sequence[float] = (), form: Callable[[float], str] = short_number, base: int = 10
) -> None:
    """Make an axis logarithmic, with labels that need no exponents: 1k, 10k, 172k.

    Args:
        axis: ``axes.xaxis`` or ``axes.yaxis``; to be called after plotting.
        at: where the ticks stand; decades (and 2 and 5 between them where there are few) if not given.
        form: a label of a value, such as :func:`short_number` or :func:`short_seconds`.
        base: of the logarithm.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    across = axis is axis.axes.xaxis
    set_scale = axis.axes.set_xscale if across else axis.axes.set_yscale
    set_scale("log", base=base)
    if at:
        axis.set_major_locator(FixedLocator(list(at)))
        axis.set_minor_locator(NullLocator())
    else:
        low, high = sorted(axis.get_view_interval())
        few = base == 10 and low > 0 and high / low < 200
        axis.set_major_locator(LogLocator(base, subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: form(value)))
    axis.set_minor_formatter(NullFormatter())


def footnote(axes: Axes, text: str) -> None:
    """Say below the figure in small grey letters where its figures come from: versions, device, command."""
    drawn = axes.get_figure(root=True)
    if drawn is not None:
        drawn.supxlabel(text, fontsize=7.5, color=QUIET, x=0.01, ha="left")
