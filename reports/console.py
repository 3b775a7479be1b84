"""The console that tables are printed on, and the bar of what takes long."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def wide_console(width: int = 180) -> Console:
    """A terminal's console; where the output goes to a file or a pipe, one wide enough for the tables.

    Args:
        width: columns without a terminal, whatever COLUMNS says: tox sets it to 80 where it has none itself.
    """
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=width)


def progress_bar(transient: bool = True) -> Progress:
    """A bar on stderr, so that stdout is the result alone: description, bar, so many of how many, time.

    Args:
        transient: whether it is wiped away at the end.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=transient)
