"""``waveproof perf ledger``: baselines, who signed them and why."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waveproof.reports.console import wide_console

if TYPE_CHECKING:
    from waveproof.perf.ledger import Entry
    from waveproof.reports.sections import Section

app = typer.Typer(no_args_is_help=True, help="Baselines: an append-only, chained file of signed entries.")

MOST_SHOWN = 40
"""Entries that are printed after they were accepted."""

LedgerFile = Annotated[Path | None, typer.Option("--ledger", metavar="FILE.jsonl", help="Another than the suite's.")]
SignersFile = Annotated[
    Path | None,
    typer.Option("--signers", metavar="FILE", help="Who may sign; the file beside the ledger if not given."),
]


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="Whose key it is, one word.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Private key to write; never overwritten.")],
    passphrase: Annotated[bool, typer.Option("--passphrase", help="Ask for one and encrypt the key.")] = False,
) -> None:
    """Make an Ed25519 key that signs baselines, readable by its owner alone, and print the line for the signers."""
    from waveproof.perf.ledger import SIGNERS_SHOWN
    from waveproof.perf.signers import BadSigner, make_key

    if out.exists():
        raise BadSigner(f"{out}: there is a file, and a key is never overwritten: give --out another name")

    password = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True).encode() if passphrase else None
    line = make_key(name, out, password)
    typer.echo(f"{out}: private key, keep it out of the repository", err=True)
    typer.echo(f"add this line to {SIGNERS_SHOWN}, in a reviewed change:", err=True)
    typer.echo(line)


@app.command()
def accept(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS.json", exists=True, dir_okay=False, help="Of pytest perf --perf-results.")
    ],
    reason: Annotated[str, typer.Option(help="Why these figures are right, in three words or more.")],
    key: Annotated[Path, typer.Option(exists=True, dir_okay=False, metavar="FILE", help="Private key to sign with.")],
    case: Annotated[str, typer.Option(metavar="PATTERN", help="Only these cases; * is any characters.")] = "*",
    quantity: Annotated[str, typer.Option(metavar="NAME", help="Only this quantity.")] = "",
    timings: Annotated[
        bool, typer.Option("--timings", help="What varies from run to run too, of this machine alone.")
    ] = False,
    anchor: Annotated[bool, typer.Option("--anchor", help="Count cumulative drift from these figures on.")] = False,
    ledger: LedgerFile = None,
    signers: SignersFile = None,
) -> None:
    """Sign measured figures as the baseline from now on. What the baseline already says is left out.

    Counts alone are signed; times and rates too where they are asked for by --case, --quantity or --timings.
    """
    from waveproof.perf.ledger import LEDGER, NotAccepted
    from waveproof.perf.ledger import accept as append
    from waveproof.perf.run_files import read_runs
    from waveproof.perf.signers import needs_password
    from waveproof.reports.history_sections import matching
    from waveproof.reports.sections import print_sections
    from waveproof.reports.summary import count

    path = ledger or LEDGER
    measured = [one for run in read_runs(results) for one in run.measurements]
    wanted = set(matching(case, quantity, [one.key for one in measured]))
    # A test that is run twice, or a figure that two tests measure, is one figure where it is exact.
    distinct = {(one.key, one.values, tuple(sorted(one.place.versions.items()))): one for one in measured}
    fitting = [one for one in distinct.values() if one.key in wanted]
    asked_for = timings or quantity or case != "*"
    chosen = [one for one in fitting if one.quantity.exact or asked_for]
    if noisy := len(fitting) - len(chosen):
        told = f"{count(noisy, 'noisy figure')} left out: --case, --quantity or --timings signs such too"
        if not chosen:
            raise NotAccepted(f"nothing to accept: {told}")
        typer.echo(told, err=True)
    password = typer.prompt("Passphrase", hide_input=True).encode() if needs_password(key) else None
    entries = append(chosen, reason, key, path=path, signers=signers, anchor=anchor, password=password)
    if entries:
        more = f", the first {MOST_SHOWN}" if len(entries) > MOST_SHOWN else ""
        print_sections([entries_section(entries[:MOST_SHOWN], f"Accepted into {path.name}{more}")], wide_console(220))
    typer.echo(f"{path.name}: entries added: {len(entries)}, figures unchanged: {len(chosen) - len(entries)}")


@app.command()
def verify(
    ledger: LedgerFile = None,
    signers: SignersFile = None,
    remembered: Annotated[str, typer.Option(metavar="SHA256", help="Of a line that must still be there.")] = "",
    history: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, metavar="FILE.db", help="Remembers such a line.")
    ] = None,
) -> None:
    """Say of each line what is wrong with it: chain, signature, signer, old figure, reason. Exit status 1 if any is."""
    from waveproof.perf.history import History
    from waveproof.perf.ledger import LEDGER, Ledger
    from waveproof.perf.ledger import verify as problems_of

    path = ledger or LEDGER
    path.open("rb").close()  # one that was removed is not whole
    if history is not None and not remembered:
        with History(history) as past:
            remembered = past.ledger_head()
    problems = problems_of(path, signers, remembered)
    for problem in problems:
        typer.echo(f"{path.name}:{problem.line}: {problem.rule}: {problem.what}")
    if problems:
        raise typer.Exit(1)
    whole = Ledger.load(path, signers)
    typer.echo(f"{path.name}: {len(whole.entries)} entries, chain and signatures hold; last line {whole.head}")


@app.command()
def show(
    case: Annotated[str, typer.Argument(metavar="PATTERN", help="Cases; * is any characters.")] = "*",
    quantity: Annotated[str, typer.Option(metavar="NAME", help="Only this quantity.")] = "",
    ledger: LedgerFile = None,
    signers: SignersFile = None,
) -> None:
    """Print the entries of a ledger that holds."""
    from waveproof.perf.ledger import LEDGER, Ledger
    from waveproof.reports.history_sections import matching
    from waveproof.reports.sections import print_sections

    path = ledger or LEDGER
    path.open("rb").close()
    entries = Ledger.load(path, signers).entries
    wanted = set(matching(case, quantity, [one.measurement.key for one in entries]))
    shown = [one for one in entries if one.measurement.key in wanted]
    if not entries:
        typer.echo(f"{path.name}: the ledger is empty")
        return
    print_sections([entries_section(shown, f"{path.name}: {len(shown)} of {len(entries)} entries")], wide_console(220))


def entries_section(entries: Sequence[Entry], title: str) -> Section:
    """Entries as a table: both figures, the reason, who and when; what is the same in all is said once above."""
    from waveproof.reports.perf_sections import shown_place, shown_value
    from waveproof.reports.sections import Section, Table

    rows = []
    for one in entries:
        measured = one.measurement
        old = "" if one.old is None else shown_value(statistics.median(one.old), measured.quantity)
        new = shown_value(measured.median, measured.quantity)
        versions = ", ".join(f"{name} {version}" for name, version in sorted(measured.place.versions.items()))
        mark = " (anchor)" if one.anchor else ""
        rows.append(
            (
                str(one.line), measured.case, measured.quantity.name, old, f"{new}{mark}", one.reason, one.signer,
                f"{one.date}", shown_place(measured.place), versions,
            )
        )  # fmt: skip
    columns = ("line", "case", "quantity", "old", "new", "reason", "signer", "date", "place", "versions")
    once = [at for at in range(5, len(columns)) if len(rows) > 1 and len({row[at] for row in rows}) == 1]
    empty = [at for at in range(len(columns)) if not any(row[at] for row in rows)]
    kept = [at for at in range(len(columns)) if at not in {*once, *empty}]
    lead = "\n".join(f"{columns[at]}: {rows[0][at]}" for at in once if rows[0][at])
    table = Table("", columns, tuple(rows), "", (0, 3, 4)).of_columns(kept)
    return Section(title, lead, (table,) if rows else ())
