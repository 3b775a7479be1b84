"""``waveproof economics``: what a served token costs, whether a model fits, and whether published figures hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waveproof.reports.console import wide_console

if TYPE_CHECKING:
    from waveproof.perf.economics import Ownership, Rental, Served
    from waveproof.reports.sections import Section

app = typer.Typer(
    no_args_is_help=True, help="What a served token costs, what fits, and whether published figures hold."
)

PictureFile = Annotated[Path | None, typer.Option("--picture", metavar="FILE.png", help="Write the picture.")]
PageFile = Annotated[Path | None, typer.Option("--page", metavar="FILE.html", help="Write an HTML page.")]
GpusPerNode = Annotated[int, typer.Option(help="GPUs of a node, where no column says.")]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="HEADING=ROLE", help="What a column holds; `columns` lists roles. Repeatable."),
]
Pue = Annotated[float, typer.Option(help="Power of the building over power of its machines.")]
Tariffs = Annotated[list[float] | None, typer.Option("--tariff", metavar="USD_PER_KWH", help="Repeatable.")]
HostWatts = Annotated[float, typer.Option(help="Watts of the host and network for each GPU.")]
Watts = Annotated[
    list[str] | None, typer.Option("--watts", metavar="PRODUCT=W", help="Measured, instead of the rated. Repeatable.")
]

TARIFFS = (0.05, 0.10, 0.20, 0.40)


class WrongOption(ValueError):
    """An option that cannot be; the message holds it and the rule."""


@app.command()
def check(
    results: Annotated[Path, typer.Argument(metavar="RESULTS.csv", exists=True, dir_okay=False)],
    gpus_per_node: GpusPerNode = 8,
    base: Annotated[str, typer.Option(metavar="PRODUCT", help="That ratios compare with; the first row.")] = "",
    column: Columns = None,
    exact: Annotated[
        list[str] | None, typer.Option(metavar="ROLE", help="Print is the number: nothing was rounded. Repeatable.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show consistent cells too.")] = False,
    page: PageFile = None,
) -> None:
    """Recompute the derived columns of a published table and report cells that its other cells contradict.

    A cell is inconsistent only where no numbers behind the printed ones give it: intervals of the prints' rounding are
    carried through each formula. Exit status 1 where one is inconsistent or unreadable, 3 where no cell could be
    recomputed. Commas, semicolons or tabs separate cells; known columns are those of `waveproof economics columns`.
    """
    from waveproof.perf.published_results import read_table
    from waveproof.reports.economics_report import check_section

    checked = read_table(results, gpus_per_node, base, _columns(column), exact or ())
    _show([check_section(checked, everything)], None, page, f"Checked: {results.name}")
    raise typer.Exit(1 if any(one.bad for one in checked.findings) else 3 if checked.nothing else 0)


@app.command()
def columns() -> None:
    """List the columns that `check` knows, the headings they go by, and how each follows from others."""
    from waveproof.reports.economics_report import columns_section
    from waveproof.reports.sections import print_sections

    print_sections([columns_section()], wide_console())


@app.command("case-study")
def case_study(
    pue: Pue = 1.3,
    tariff: Tariffs = None,
    host_watts: HostWatts = 0.0,
    watts: Watts = None,
    picture: PictureFile = None,
    page: PageFile = None,
) -> None:
    """The published comparison of MI355X, B200 and B300 on Kimi K3, recomputed.

    Per GPU, per dollar, per node; the price at which one overtakes another; the effect of power at tariffs; and whether
    weights of 1.5 TB with a KV pool of 1M tokens fit.
    """
    from waveproof.perf.published_results import case_study as published

    systems = published()
    drawing = bool(picture or page)
    sections = _priced(systems, pue, tariff or TARIFFS, host_watts, watts or (), 1024, 400, (), drawing)
    gpus = ("8xMI300X", "8xMI355X", "8xB200", "16xB200", "8xB300")
    for weights_tb in (1.5, None):
        section, _ = _fitting("Kimi-K3", gpus, 1_000_000, weights_tb, 64, drawing=drawing and weights_tb is not None)
        sections.append(section)
    _show(sections, picture, page, "What a served token costs")


@app.command()
def price(
    results: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RESULTS.csv]",
            help="product, gpus, per_stream_tok_s, aggregate_tok_s, "
            "usd_per_gpu_hour; the published comparison if not given.",
        ),
    ] = None,
    column: Columns = None,
    gpus_per_node: GpusPerNode = 8,
    prefill: Annotated[
        list[str] | None, typer.Option(metavar="PRODUCT=TOK_S", help="Cold prefill of the system. Repeatable.")
    ] = None,
    input_tokens: Annotated[int, typer.Option(help="Prompt of a request.")] = 1024,
    output_tokens: Annotated[int, typer.Option(help="Output of a request.")] = 400,
    utilisation: Annotated[float, typer.Option(help="Share of the paid hours at the measured rate.")] = 1.0,
    power_on_top: Annotated[
        bool, typer.Option(help="Rental price without power, which the last tariff bills.")
    ] = False,
    capex: Annotated[
        list[str] | None,
        typer.Option(metavar="PRODUCT=USD", help="Owned: a GPU with its share of host and network. Repeatable."),
    ] = None,
    years: Annotated[float, typer.Option(help="Owned: over which it is paid off.")] = 4.0,
    residual: Annotated[float, typer.Option(help="Owned: share of the capital that is left then.")] = 0.0,
    cost_of_capital: Annotated[float, typer.Option(help="Owned: a year; 0.08 is 8 %.")] = 0.0,
    operations: Annotated[float, typer.Option(help="Owned: $ per GPU-hour for space, staff, repair.")] = 0.0,
    idle_power: Annotated[float, typer.Option(help="Owned: power while idle, as a share of that while busy.")] = 1.0,
    pue: Pue = 1.3,
    tariff: Tariffs = None,
    host_watts: HostWatts = 0.0,
    watts: Watts = None,
    picture: PictureFile = None,
    page: PageFile = None,
) -> None:
    """What tokens cost under declared scenarios: rented at the table's prices, or owned where --capex names a product.

    Every assumption is printed beside the result.
    """
    from dataclasses import replace

    from waveproof.perf.economics import Ownership, Rental
    from waveproof.perf.published_results import case_study as published
    from waveproof.perf.published_results import read_table
    from waveproof.reports.economics_report import power_of

    if results is None and column:
        raise WrongOption(f"--column {column[0]}: names a column of RESULTS.csv, which is not given")
    systems = (
        read_table(results, gpus_per_node, columns=_columns(column)).served(gpus_per_node) if results else published()
    )
    speeds = _numbers("--prefill", prefill or (), systems)
    capital = _numbers("--capex", capex or (), systems)
    tariffs = tariff or TARIFFS
    measured = _numbers("--watts", watts or (), systems)
    power = power_of(systems, measured, 0.0, pue, tariffs)
    scenarios: list[Rental | Ownership] = []
    for one in systems:
        owned = one.product in capital
        if (owned or power_on_top) and one.product not in power.watts:
            raise WrongOption(f"{one.product}: its watts are not known; give --watts {one.product}=W")
        if owned:
            scenarios.append(Ownership(
                capital[one.product], years, power.watts[one.product], tariffs[-1], pue, utilisation, residual,
                cost_of_capital, host_watts, idle_power, operations,
                "measured" if one.product in measured else "rated",
            ))  # fmt: skip
        else:
            on_top = power.watts[one.product] + host_watts if power_on_top else 0.0
            scenarios.append(Rental(one.usd_per_gpu_hour, utilisation, on_top, pue, tariffs[-1]))
    systems = tuple(replace(one, prefill_tok_s=speeds.get(one.product, one.prefill_tok_s)) for one in systems)
    drawing = bool(picture or page)
    sections = _priced(
        systems, pue, tariffs, host_watts, watts or (), input_tokens, output_tokens, scenarios, drawing
    )  # fmt: skip
    _show(sections, picture, page, "What a served token costs")


@app.command()
def fits(
    model: Annotated[
        str, typer.Option(help="A built-in model (`list` prints their names), or a config.json.")
    ] = "Kimi-K3",
    tp: Annotated[int, typer.Option(help="GPUs of one tensor parallel group.")] = 8,
    tokens: Annotated[int, typer.Option(help="That the KV pool holds.")] = 1_000_000,
    gpu: Annotated[
        list[str] | None, typer.Option(metavar="PRODUCT", help="GPU to look at. Repeatable; all if not given.")
    ] = None,
    weights_tb: Annotated[
        float | None, typer.Option(help="Weights of the model in 10^12 bytes; computed if not given.")
    ] = None,
    kv_dtype: Annotated[str, typer.Option(help="bf16 or fp8.")] = "bf16",
    pool_shards: Annotated[
        int, typer.Option(help="GPUs that share one copy of the pool: 1, or TP with DP attention.")
    ] = 1,
    requests: Annotated[int, typer.Option(help="Served at once; each has a state in linear layers.")] = 64,
    reserve_gib: Annotated[
        float | None, typer.Option(help="Kept free for activations; sglang's rule if not given.")
    ] = None,
    picture: PictureFile = None,
    page: PageFile = None,
) -> None:
    """Weights, KV pool and reserve against the memory of each GPU.

    Exit status 1 where a GPU that was named does not hold them.
    """
    from waveproof.fixtures.products import PRODUCTS

    if model == "list":
        from waveproof.fixtures.shapes.latent_attention import MODELS

        typer.echo("\n".join(dict.fromkeys(one.model.rpartition("/")[2] for one in MODELS)))
        return
    named = [f"{tp}x{name}" for name in gpu or [one.name for one in PRODUCTS]]
    drawing = bool(picture or page)
    section, held = _fitting(
        model, named, tokens, weights_tb, requests, kv_dtype, pool_shards, reserve_gib, drawing
    )  # fmt: skip
    _show([section], picture, page, f"Does {model} fit")
    raise typer.Exit(1 if gpu and not all(held) else 0)


@app.command()
def claim(
    figures: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FIGURES.csv]", exists=True, dir_okay=False, help="name,printed,unit,what; the published."
        ),
    ] = None,
    binary: Annotated[bool, typer.Option("--binary", help="Take the prompt's k as 1,024.")] = False,
    picture: PictureFile = None,
    page: PageFile = None,
) -> None:
    """Check the published prefill figures against each other: 172k tokens in 51 s and 23 s, 13k and 4-7k tok/s, 2-3x.

    Exit status 1 where two of them disagree.
    """
    from dataclasses import replace

    from waveproof.perf import claims
    from waveproof.reports.economics_pictures import prefill_picture
    from waveproof.reports.economics_report import claim_section

    known = claims.read_figures(figures or claims.PREFILL)
    if binary:
        known = claims.with_binary_prompt(known)
    rulings = claims.judge_prefill(known)
    section = claim_section(known, rulings)
    if picture or page:
        section = replace(section, pictures=(prefill_picture(claims.reconcile(known)),))
    _show([section], picture, page, "The prefill claim")
    raise typer.Exit(1 if any(one.verdict == "disagree" for one in rulings) else 0)


def _priced(
    systems: Sequence[Served],
    pue: float,
    tariffs: Sequence[float],
    host_watts: float,
    watts: Sequence[str],
    input_tokens: int,
    output_tokens: int,
    scenarios: Sequence[Rental | Ownership],
    drawing: bool,
) -> list[Section]:
    from dataclasses import replace

    from waveproof.perf.economics import crossing, over_tariff
    from waveproof.reports import economics_report as report
    from waveproof.reports.economics_pictures import cost_picture

    power = report.power_of(systems, _numbers("--watts", watts, systems), host_watts, pue, tariffs)
    sections = [report.rates_section(systems), report.break_even_section(systems), report.power_section(systems, power)]
    if phases := report.phases_section(systems, input_tokens, output_tokens):
        sections.append(phases)
    if scenarios:
        sections.append(report.scenario_section(systems, scenarios))
    if drawing:
        lines = [over_tariff(one, power.watts[one.product], pue) for one in systems if one.product in power.watts]
        flips = [at for one in lines for other in lines if (at := crossing(one, other)) is not None]
        # The axis reaches the flips that are not absurdly far; the caption names the others.
        top = max([0.5, *(1.15 * at for at in flips if at < 4)])
        sections[0] = replace(sections[0], pictures=(cost_picture(systems, power.watts, pue, top),))
    return sections


def _fitting(
    model: str,
    gpus: Sequence[str],
    tokens: int,
    weights_tb: float | None,
    requests: int,
    kv_dtype: str = "bf16",
    pool_shards: int = 1,
    reserve_gib: float | None = None,
    drawing: bool = False,
) -> tuple[Section, list[bool]]:
    """A row for each of ``8xMI355X`` and the like, and whether each fits."""
    from dataclasses import replace

    from waveproof.fixtures.products import product_named
    from waveproof.perf.memory_fit import GIB, TB, Demand, fit, model_named
    from waveproof.reports.economics_pictures import memory_picture
    from waveproof.reports.economics_report import fits_section

    known = model_named(model)
    demands, found = {}, []
    for label in gpus:
        count, _, name = label.partition("x")
        demands[label] = Demand(
            int(count), tokens, kv_dtype, pool_shards, requests,
            None if reserve_gib is None else round(reserve_gib * GIB),
            None if weights_tb is None else round(weights_tb * TB),
        )  # fmt: skip
        found.append((label.replace("x", " x ", 1), fit(known, product_named(name), demands[label])))
    section = fits_section(known, demands, found)
    if drawing:
        section = replace(section, pictures=(memory_picture(found),))
    return section, [one.fits for _, one in found]


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not (equals and name.strip() and value.strip()):
        raise WrongOption(f"{option} {text}: must be NAME=VALUE")
    return name.strip(), value.strip()


def _columns(texts: Sequence[str] | None) -> dict[str, str]:
    """Roles by heading."""
    return dict(_pair("--column", one) for one in texts or ())


def _numbers(option: str, texts: Sequence[str], systems: Sequence[Served]) -> dict[str, float]:
    """Numbers by product, each one of the systems."""
    import math

    found = {}
    for text in texts:
        name, value = _pair(option, text)
        if name not in [one.product for one in systems]:
            raise WrongOption(f"{option} {text}: products are {', '.join(one.product for one in systems)}")
        try:
            found[name] = float(value)
        except ValueError:
            raise WrongOption(f"{option} {text}: {value!r} is no number") from None
        if not (math.isfinite(found[name]) and found[name] > 0):
            raise WrongOption(f"{option} {text}: must be finite and above 0")
    return found


def _show(sections: Sequence[Section], picture: Path | None, page: Path | None, title: str) -> None:
    """Print the sections, write their pictures (the second and later ones under their names too) and the page."""
    from waveproof.reports.sections import print_sections

    print_sections(sections, wide_console())
    if picture is not None:
        for number, one in enumerate(one for section in sections for one in section.pictures):
            file = picture if number == 0 else picture.with_name(f"{picture.stem}-{one.name}{picture.suffix}")
            file.write_bytes(one.png)
            typer.echo(f"{file}: {one.caption}")
    if page is not None:
        from waveproof.reports.perf_page import write_perf_page

        write_perf_page(page, sections, title)
        typer.echo(f"{page}: {len(sections)} sections")
