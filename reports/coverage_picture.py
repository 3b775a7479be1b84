"""The sweep of a deployment as a picture: a heat map that reads without colours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from waveproof.fixtures.deployment.coverage import Cell
from waveproof.fixtures.deployment.plan import Deployment
from waveproof.fixtures.deployment.verdicts import Verdict

COLOURS = {
    Verdict.FAST: "#0b6e63",
    Verdict.PADDED: "#7cc7b2",
    Verdict.UNKNOWN: "#dcdcdc",
    Verdict.FALLBACK: "#f4cf5d",
    Verdict.WRONG: "#8e5aa8",
    Verdict.REFUSED: "#e58a45",
    Verdict.ERROR: "#a32a2a",
}
"""Teal to yellow to red, for eyes that do not tell red from green; a letter in each cell says the same."""

LETTERS = {
    Verdict.FAST: "F",
    Verdict.PADDED: "P",
    Verdict.UNKNOWN: "?",
    Verdict.FALLBACK: "G",
    Verdict.WRONG: "W",
    Verdict.REFUSED: "R",
    Verdict.ERROR: "E",
}
_PALE = (Verdict.UNKNOWN, Verdict.FALLBACK, Verdict.PADDED, Verdict.REFUSED)
"""On which dark letters are easier to read."""
_GROUPS = {
    "prefill": "prefill,\nabsorbed",
    "decode": "decode",
    "verify": "verify (queries of a request)",
    "tuned": "tuned tables",
}


class PictureUnavailable(RuntimeError):
    """matplotlib, which draws it, is not installed."""


def draw(
    deployment: Deployment, cells: Sequence[Cell], versions: dict[str, str], file: Path, caution: str = ""
) -> None:
    """Write the heat map as a PNG (or what else the file's name says: ``.svg``, ``.pdf``).

    Args:
        deployment: whose sweep it is.
        cells: the sweep.
        versions: of packages, for the line below.
        file: to write.
        caution: what holds whatever the cells say.

    Raises:
        PictureUnavailable: there is nothing to draw with.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch, Rectangle
    except ImportError:
        raise PictureUnavailable("--picture: matplotlib is not installed") from None

    order = list(_GROUPS)
    columns = sorted(dict.fromkeys((cell.group, cell.column) for cell in cells), key=lambda one: order.index(one[0]))
    rows = list(dict.fromkeys(cell.tp for cell in cells))
    gap = 0.35
    places: dict[str, float] = {}
    bands: list[tuple[str, float, float]] = []
    at = 0.0
    for group, mine in groupby(columns, key=lambda one: one[0]):
        start = at
        for _, column in mine:
            places[column] = at
            at += 1.0
        bands.append((group, start, at))
        at += gap
    width, height = at - gap, float(len(rows))
    # Margins in inches: left, right, above, below.
    margins = (1.15, 0.25, 1.75, 1.15)
    across, down = margins[0] + margins[1] + 0.95 * width, margins[2] + margins[3] + 0.7 * height
    figure = Figure(figsize=(across, down), facecolor="white")
    left, bottom = margins[0] / across, margins[3] / down
    axes = figure.add_axes((left, bottom, 0.95 * width / across, 0.7 * height / down))
    for cell in cells:
        x, y = places[cell.column], rows.index(cell.tp)
        if cell.row is None:
            axes.add_patch(Rectangle((x, y), 1, 1, facecolor="#f4f4f4", edgecolor="#c8c8c8", hatch="////", linewidth=0))
            continue
        ink = "#1a1a1a" if cell.verdict in _PALE or not cell.row.taken else "white"
        axes.add_patch(
            Rectangle((x, y), 1, 1, facecolor=COLOURS[cell.verdict], alpha=1.0 if cell.row.taken else 0.4, linewidth=0)
        )
        axes.text(
            x + 0.5, y + 0.38, LETTERS[cell.verdict], ha="center", va="center", fontsize=15, weight="bold", color=ink
        )
        axes.text(x + 0.5, y + 0.74, cell.short, ha="center", va="center", fontsize=8.5, color=ink)
    for x in places.values():
        for y in range(len(rows)):
            axes.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor="white", linewidth=2))
    for group, start, end in bands:
        axes.plot([start + 0.05, end - 0.05], [-0.62, -0.62], color="#444444", linewidth=1.2, clip_on=False)
        axes.text((start + end) / 2, -0.72, _GROUPS[group], ha="center", va="bottom", fontsize=10, color="#222222")
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_xticks([x + 0.5 for x in places.values()], [_heading(column) for column in places], fontsize=9)
    heads = deployment.model.heads
    labels = [f"TP {tp}\n{heads // tp} heads" if heads % tp == 0 else f"TP {tp}" for tp in rows]
    axes.set_yticks([y + 0.5 for y in range(len(rows))], labels, fontsize=9.5)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xlabel("cache dtype; queries of a request when drafted tokens are verified", fontsize=9.5, labelpad=8)
    axes.xaxis.set_label_position("bottom")
    axes.set_ylabel("tensor parallel ranks", fontsize=9.5, labelpad=8)
    for side in axes.spines.values():
        side.set_visible(False)
    dcp = f", DCP {deployment.dcp}" if deployment.dcp > 1 else ""
    figure.text(
        left, 1 - 0.35 / down, f"{deployment.model.name} on {deployment.product.name}{dcp}", fontsize=14, weight="bold"
    )
    figure.text(left, 1 - 0.62 / down, _subtitle(deployment), fontsize=9.5, color="#444444")
    seen = [verdict for verdict in Verdict if any(cell.verdict is verdict and cell.row for cell in cells)]
    patches = [Patch(facecolor=COLOURS[one], label=f"{LETTERS[one]}  {one.value}") for one in seen]
    if any(cell.row is None for cell in cells):
        patches.append(Patch(facecolor="#f4f4f4", edgecolor="#c8c8c8", hatch="////", label="heads not split evenly"))
    if any(cell.row is not None and not cell.row.taken for cell in cells):
        patches.append(Patch(facecolor="#999999", alpha=0.4, label="pale: not on sglang's own way"))
    figure.legend(
        handles=patches, loc="lower left", bbox_to_anchor=(left, 0.42 / down), ncols=len(patches),
        frameon=False, fontsize=9, handlelength=1.3, handleheight=1.1, columnspacing=1.6, borderaxespad=0,
    )  # fmt: skip
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    figure.text(left, 0.15 / down, f"waveproof coverage --sweep; {named}", fontsize=7.5, color="#666666")
    figure.text(1 - 0.02, 0.15 / down, caution, fontsize=7.5, color=COLOURS[Verdict.ERROR], ha="right")
    figure.savefig(file, dpi=160)


def _heading(column: str) -> str:
    """``bf16``, ``fp8`` and ``q = 4`` below one another, or the table's name."""
    words = column.split(" ")[1:] or [column]
    return "\n".join(word.replace("q=", "q = ") for word in words)


def _subtitle(deployment: Deployment) -> str:
    backend = "attention backend aiter" if deployment.backend == "aiter" else "attention backend left to sglang"
    return (
        f"{deployment.arch}, {deployment.product.cu_num} compute units, {backend}. In a cell: verdict, heads a rank "
        "(→ heads of the kernel); of tables, weights with a row for every step."
    )
