"""The command ``waveproof``: what is done with results and goldens once pytest has ended.

One sub-application a subject. Everything heavy is imported by the command that needs it, so that ``--help`` is quick.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from waveproof.reports import (
    cli_audit,
    cli_case_study,
    cli_coverage,
    cli_dispatch,
    cli_economics,
    cli_emulate,
    cli_figures,
    cli_golden,
    cli_heads,
    cli_impostor,
    cli_launched,
    cli_perf,
    cli_resources,
    cli_serve,
    cli_serving,
    cli_startup,
    cli_tables,
    cli_trial,
)
from waveproof.reports.console import wide_console


class _Refusing(TyperGroup):
    """Shows what the suite refuses as one line and exit status 2.

    The suite's own exception classes, files that cannot be opened and packages that are not installed are the user's to
    mend. Anything else is a fault of ours and keeps its traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if isinstance(error, OSError) and error.filename is not None:
                line = f"{Path(str(error.filename)).name}: {error.strerror}"
            elif isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("waveproof"):
                line = f"needs the package {error.name}, which is not installed: tox.ini names what each command needs"
            elif type(error).__module__.startswith("waveproof."):
                line = str(error)
            else:
                raise
        typer.echo(f"waveproof: {line}", err=True)
        raise typer.Exit(2)


def _flowing(shown: typer.Typer) -> None:
    """Let the help of each command flow: rich keeps a docstring's line ends, and narrow terminals break again."""
    for one in shown.registered_commands:
        if one.help is None and one.callback is not None and (text := inspect.getdoc(one.callback)):
            one.help = "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n"))
    for group in shown.registered_groups:
        if group.typer_instance is not None:
            _flowing(group.typer_instance)


app = typer.Typer(
    cls=_Refusing,
    no_args_is_help=True,
    add_completion=False,
    help="Conformance and regression suite for LLM-serving kernels on ROCm. The tests themselves run under pytest.",
)
app.add_typer(cli_emulate.app, name="emulate")
cli_emulate.app.command()(cli_case_study.case_study)
cli_emulate.app.command()(cli_case_study.lds_order)
app.add_typer(cli_golden.app, name="golden")
app.add_typer(cli_figures.app, name="figures")
app.add_typer(cli_economics.app, name="economics")
app.add_typer(cli_perf.app, name="perf")
app.add_typer(cli_serving.app, name="serving")
app.command()(cli_audit.audit)
app.command()(cli_coverage.coverage)
app.command()(cli_dispatch.dispatch)
app.command()(cli_heads.heads)
app.command()(cli_impostor.impostor)
app.command()(cli_launched.launched)
app.command()(cli_resources.resources)
app.command("serve-check")(cli_serve.serve_check)
app.command()(cli_startup.startup)
app.command()(cli_tables.tables)
app.command()(cli_trial.soak)

Results = Annotated[
    Path, typer.Argument(metavar="RESULTS.jsonl", exists=True, dir_okay=False, help="Records that a pytest run wrote.")
]


@app.command()
def page(
    results: Results,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("page.html"),
) -> None:
    """Write the HTML page of a run."""
    from waveproof.reports.page import render_page
    from waveproof.reports.verdicts import read_records

    records = list(read_records(results))
    output.write_text(render_page(records), encoding="utf-8")
    typer.echo(f"{output}: {len(records)} cases")


@app.command()
def matrix(results: Results) -> None:
    """Print the conformance matrix of a run."""
    from rich.console import Console

    from waveproof.reports.matrix import render_matrix
    from waveproof.reports.verdicts import read_records

    console = Console()
    colour = sys.stdout.isatty() and not console.no_color
    typer.echo(render_matrix(list(read_records(results)), console.width, colour, console.encoding))


@app.command()
def waivers(
    file: Annotated[
        Path | None,
        typer.Argument(exists=True, dir_okay=False, help="Waiver file, waivers.toml in this folder if not given."),
    ] = None,
) -> None:
    """List the waivers: known failures that do not turn a run red."""
    import datetime

    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from waveproof.reports.waivers import FILE_NAME, load_waivers

    path = file or Path(FILE_NAME)
    known = load_waivers(path)
    if not known:
        typer.echo(f"no waivers in {path}" if path.exists() else f"no {path} here")
        return
    today = datetime.datetime.now(datetime.timezone.utc).date()
    table = Table(Column("case", overflow="fold"), "only on", "expires", "why")
    for waiver in known:
        conditions = [waiver.arch, *(f"{name} {versions}" for name, versions in waiver.versions.items())]
        expires = f"{waiver.expires}{' (expired)' if waiver.expires < today else ''}"
        table.add_row(*map(Text, (waiver.id, ", ".join(filter(None, conditions)), expires, waiver.why)))
    Console().print(table)


@app.command()
def killmatrix(
    profile: Annotated[str, typer.Option(help="Sizes and Hypothesis budgets: quick, default or nightly.")] = "quick",
    runtime: Annotated[str, typer.Option(metavar="NAMES", help="Comma-separated; all if not given.")] = "",
    operator: Annotated[str, typer.Option(metavar="NAME", help="Only this operator; all if not given.")] = "",
    family: Annotated[str, typer.Option(metavar="NAME", help="Only this family; all if not given.")] = "",
    public: Annotated[bool, typer.Option("--public", help="Also show what public comparison rules reject.")] = False,
) -> None:
    """Put planted faults and right implementations through the suite; exit status 1 if one comes out wrong."""
    import time

    from waveproof.selftest.kill_matrix import kill_matrix, well
    from waveproof.selftest.mutants.tables import PLANTED, UnknownFamily
    from waveproof.selftest.planted import TABLES, inspect_families, render_planted
    from waveproof.selftest.public_rules import public_rules

    if family not in ("", *PLANTED, *TABLES):
        raise UnknownFamily(f"unknown family {family!r}; there are: {', '.join((*PLANTED, *TABLES))}")
    console = wide_console()
    good = True
    if family not in TABLES:
        trials = kill_matrix(profile, [name for name in runtime.split(",") if name], operator, console, family)
        if public:
            public_rules(trials, console)
        good = well(trials)
    if family in TABLES or not (family or operator or runtime):
        started = time.monotonic()
        found = inspect_families([family] if family else TABLES)
        render_planted(found, time.monotonic() - started, console)
        good = good and all(one.as_due for one in found)
    raise typer.Exit(0 if good else 1)


@app.command()
def publicrules() -> None:
    """Show which of the planted faults comparison rules in public use would reject."""
    from waveproof.selftest.public_rules import public_rules

    public_rules((), wide_console())


_flowing(app)
