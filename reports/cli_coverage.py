"""``waveproof coverage``: is this model, on these GPUs, on the fast kernels?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waveproof.reports.console import wide_console

if TYPE_CHECKING:
    from waveproof.fixtures.deployment.coverage import Cell
    from waveproof.fixtures.deployment.verdicts import Verdict
    from waveproof.fixtures.products import Product
    from waveproof.fixtures.shapes.served_model import ServedModel

PICTURES = (".png", ".svg", ".pdf")


def coverage(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.json", help="config.json of a Hugging Face model, or its folder.")
    ] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help="Or a built-in one: Kimi-K3, Kimi-K2, DeepSeek-V3.")] = "",
    tp: Annotated[int, typer.Option(help="Tensor parallel ranks.")] = 8,
    dcp: Annotated[int, typer.Option(help="Ranks that share a request's cache in decoding.")] = 1,
    arch: Annotated[str, typer.Option(help="gfx942 or gfx950; without it and --product, gfx950.")] = "",
    product: Annotated[str, typer.Option(help="GPU; else MI300X or MI355X, by --arch.")] = "",
    kv_dtype: Annotated[str, typer.Option(help="Dtype of the KV cache: bf16 or fp8.")] = "bf16",
    spec_tokens: Annotated[int, typer.Option(help="Drafted tokens; 0 without speculative decoding.")] = 0,
    spec_algorithm: Annotated[str, typer.Option(help="eagle, dflash or dspark; all if not given.")] = "",
    attention_backend: Annotated[str, typer.Option(help="aiter; or auto, what sglang chooses by itself.")] = "aiter",
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Print a table over TP, cache dtype and drafted tokens too.")
    ] = False,
    figures: Annotated[bool, typer.Option(help="Whether to measure what fallbacks cost.")] = True,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="VERDICT", help="Do not fail for fallback, wrong, refused or error; may be repeated."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--json", "-o", metavar="FILE", help="JSON file to write.")] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Heat map of the sweep to write; sweeps by itself.")
    ] = None,
) -> None:
    """Print, operator by operator, which kernel a deployment runs on with the installed sglang and AITER, and why.

    Fast kernel, padded, generic fallback, wrong, refused, error: asked of AITER's dispatcher, sglang's backend code and
    the tuned tables, without a GPU. What a fallback costs is measured on the emulated device once (half a minute).
    Exits with 0 on the fast path (padded included), 1 if any operator is not, 2 for bad input.
    """
    from rich.console import Console

    from waveproof.fixtures.deployment.coverage import cover
    from waveproof.fixtures.deployment.coverage import sweep as swept
    from waveproof.fixtures.deployment.plan import Deployment
    from waveproof.fixtures.deployment.upstream import installed_upstream
    from waveproof.perf.fallback_costs import fallbacks
    from waveproof.reports import coverage_tables as tables
    from waveproof.reports.coverage_summary import caution, summary

    served, gpu = _served(config, model), _gpu(arch, product)
    _writable(output, "--json")
    _drawable(picture)
    deployment = Deployment(served, tp, gpu, kv_dtype, spec_tokens, dcp, attention_backend, spec_algorithm)
    allowed = _allowed(allow or [])
    upstream = installed_upstream()
    console, out = Console(stderr=True), wide_console()
    with console.status("asking AITER's dispatcher"):
        found = cover(deployment, upstream)
    with console.status("measuring what a fallback costs"):
        costs = fallbacks(deployment.arch, figures)
    told = summary(found, upstream.default_backend(deployment.heads)[0], costs)
    out.print(told, markup=False, highlight=False, style="bold")
    out.print()
    out.print(tables.table(found, costs))
    for line in tables.footer(found, allowed, costs):
        out.print(line, markup=False, highlight=False)
    cells: Sequence[Cell] = ()
    warning = caution(found)
    versions = {"sglang": upstream.engine.sglang, "amd-aiter": upstream.engine.aiter}
    if sweep or picture is not None:
        with console.status("sweeping over TP, cache dtype and drafted tokens"):
            cells = list(swept(deployment, upstream))
        out.print(tables.sweep_table(deployment, cells))
        if warning:
            out.print(warning, markup=False, highlight=False, style="bold")
    if picture is not None:
        from waveproof.reports.coverage_picture import draw

        draw(deployment, cells, versions, picture, warning)
        typer.echo(f"{picture}: {len(cells)} cells")
    if output is not None:
        output.write_text(tables.document(found, costs, cells, versions, told), encoding="utf-8")
        typer.echo(f"{output}: {len(found.rows)} operators")
    if found.stopped_by(allowed):
        raise typer.Exit(1)


def _writable(file: Path | None, option: str) -> None:
    """Before anything is measured, whether a file can be written."""
    if file is not None and not file.parent.is_dir():
        raise typer.BadParameter(f"{file}: there is no folder {file.parent}", param_hint=option)
    if file is not None and file.is_dir():
        raise typer.BadParameter(f"{file}: is a folder", param_hint=option)


def _drawable(picture: Path | None) -> None:
    _writable(picture, "--picture")
    if picture is not None and picture.suffix.lower() not in PICTURES:
        raise typer.BadParameter(f"{picture}: its name ends in none of {', '.join(PICTURES)}", param_hint="--picture")


def _served(config: Path | None, model: str) -> ServedModel:
    from waveproof.fixtures.deployment.huggingface import read_config
    from waveproof.fixtures.shapes.served_model import built_in

    if (config is None) == (not model):
        raise typer.BadParameter("give either a config.json or --model", param_hint="CONFIG.json")
    return read_config(config) if config is not None else built_in(model)


def _gpu(arch: str, product: str) -> Product:
    from waveproof.fixtures.deployment.plan import product_for

    return product_for(arch or ("" if product else "gfx950"), product)


def _allowed(names: Sequence[str]) -> tuple[Verdict, ...]:
    from waveproof.fixtures.deployment.verdicts import Verdict

    known = {verdict.value: verdict for verdict in Verdict if verdict.gates}
    found = []
    for name in names:
        matching = [verdict for words, verdict in known.items() if name in (words, words.rpartition(" ")[2])]
        if not matching:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint="--allow")
        found += matching
    return tuple(found)
